"""Many short byte strings inside of one buffer: where each begins and ends, as two arrays.

This is what lets numpy work on a million texts without an object for each of them. A view of the buffer in which
every byte begins an element of its own (`windows`) turns "the eight bytes at each of these places" into one indexing
operation; eight bytes are one machine word, on which comparing, masking and hashing cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Words = NDArray[np.uint64]
Bools = NDArray[np.bool_]

WORD = 8
# Behind the last string of a buffer, so that whoever reads words never reads beyond its end.
PADDING = bytes(64)


def windows(buffer: bytes | NDArray[np.uint8], width: int) -> NDArray[np.void]:
    """Every run of `width` bytes of the buffer, numbered by its first byte. A view: indexing copies what it picks."""
    size = len(buffer) - width + 1
    return np.ndarray((size,), f"V{width}", buffer, 0, (1,))


def words_at(buffer: bytes, places: Int64s) -> Words:
    """The eight bytes at each place, the first one lowest."""
    return windows(buffer, WORD)[places].view("<u8")


_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)


def first_in_words(words: Words, byte: int) -> Int64s:
    """The place of the first such byte in each word, 8 where it has none.

    Bytes that are the one become zero, and the lowest borrow of the subtraction marks the first of them.
    """
    differs = words ^ (_ONES * np.uint64(byte))
    marks = (differs - _ONES) & ~differs & _HIGHS
    below = (marks & (~marks + np.uint64(1))) - np.uint64(1)
    return (np.bitwise_count(below) >> 3).astype(np.int64)


class Spans(Sequence[bytes]):
    """Byte strings [starts[i], ends[i]) of a padded buffer. One that ends before it starts stands for null."""

    __slots__ = ("buffer", "ends", "starts")

    def __init__(self, buffer: bytes, starts: Int64s, ends: Int64s) -> None:
        self.buffer = buffer
        self.starts = starts
        self.ends = ends

    @classmethod
    def of(cls, strings: Sequence[bytes | None], between: bytes = b"") -> Spans:
        """Strings put into a buffer, one behind the other with something `between` them; None becomes null."""
        lengths = np.fromiter((-1 if one is None else len(one) for one in strings), np.int64, len(strings))
        steps = np.maximum(lengths, 0) + len(between)
        starts = np.cumsum(steps) - steps
        buffer = between.join([one or b"" for one in strings]) + between + PADDING
        return cls(buffer, starts, starts + lengths)

    @classmethod
    def nulls(cls, buffer: bytes, count: int) -> Spans:
        return cls(buffer, np.zeros(count, np.int64), np.full(count, -1))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Int64s:
        """-1 for null."""
        return self.ends - self.starts

    @property
    def is_empty(self) -> bool:
        """Whether all are null."""
        return not bool((self.ends >= self.starts).any())

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> Spans: ...
    def __getitem__(self, place: int | slice) -> bytes | Spans:
        if isinstance(place, slice):
            return Spans(self.buffer, self.starts[place], self.ends[place])
        return self.buffer[self.starts[place] : self.ends[place]]

    def __iter__(self) -> Iterator[bytes]:
        buffer = self.buffer
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield buffer[start:end]

    def count(self, value: Any) -> int:
        if value == b"":
            return int(np.count_nonzero(self.ends <= self.starts))
        return sum(one == value for one in self)

    def text(self, place: int) -> str | None:
        """One of them decoded, None for null."""
        start, end = int(self.starts[place]), int(self.ends[place])
        return None if end < start else self.buffer[start:end].decode()

    def texts(self) -> list[str | None]:
        return [self.text(place) for place in range(len(self))]

    def take(self, places: Int64s) -> Spans:
        return Spans(self.buffer, self.starts[places], self.ends[places])

    def joined(self, other: Spans) -> Spans:
        if other.buffer is self.buffer:
            mine, others, buffer, behind = self, other, self.buffer, 0
        elif other.is_empty:  # no need for its buffer
            mine, others, buffer, behind = self, Spans.nulls(self.buffer, len(other)), self.buffer, 0
        elif self.is_empty:
            mine, others, buffer, behind = Spans.nulls(other.buffer, len(self)), other, other.buffer, 0
        else:
            mine, others, buffer, behind = self, other, self.buffer + other.buffer, len(self.buffer)
        starts = np.concatenate([mine.starts, others.starts + behind])
        return Spans(buffer, starts, np.concatenate([mine.ends, others.ends + behind]))


class Coded:
    """A column of few values: `values[codes[i]]` is the value at place i. A value may have several codes."""

    __slots__ = ("codes", "values")

    def __init__(self, values: Sequence[Any], codes: Int64s) -> None:
        self.values = values
        self.codes = codes

    @classmethod
    def of(cls, column: Sequence[Any]) -> Coded:
        """A column of hashable values."""
        numbers = {value: number for number, value in enumerate(dict.fromkeys(column))}
        return cls(list(numbers), np.fromiter(map(numbers.__getitem__, column), np.int64, len(column)))

    @classmethod
    def constant(cls, value: Any, count: int) -> Coded:
        return cls([value], np.zeros(count, np.int64))

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def is_empty(self) -> bool:
        """Whether all are None."""
        return all(value is None for value in self.values)

    def text(self, place: int) -> Any:
        return self.values[self.codes[place]]

    def texts(self) -> list[Any]:
        values = self.values
        return [values[code] for code in self.codes.tolist()]

    def mapped(self, numbers: Sequence[int]) -> Int64s:
        """The column with a number in place of each value, given in the order of `values`."""
        return np.array(numbers, np.int64)[self.codes]

    def take(self, places: Int64s) -> Coded:
        """Values that are no longer there go, because whoever looks at `values` means those of the column."""
        codes = self.codes[places]
        used = np.bincount(codes, minlength=len(self.values)) > 0
        if used.all():
            return Coded(self.values, codes)
        renumbered = np.cumsum(used) - 1
        kept = [value for value, is_used in zip(self.values, used.tolist(), strict=True) if is_used]
        return Coded(kept, renumbered[codes])

    def joined(self, other: Coded) -> Coded:
        codes = np.concatenate([self.codes, other.codes + len(self.values)])
        return Coded([*self.values, *other.values], codes)


Column = Spans | Coded
