"""Lines of JSON that differ in their values only, read without decoding each of them.

What one program writes has one shape: the same keys in the same order, `{"specversion":"1.0","id":"` here and
`","source":"` there, and values in between. A shape is learned from one line, which a JSON decoder has to accept.
Then all lines are walked at once: compare the next stretch between values byte for byte, find the quote (or the comma)
that ends the value behind it, go on from there. A line that agrees from its first byte to its last is, value for
value, the same JSON as the one learned from: texts hold no quote, because the first one ends them, and the caller has
left out lines with backslashes or control characters. Values are not looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from ingest.core.spans import WORD, Bools, Int64s, first_in_words, windows

LONGEST_VALUE = 256
_LONGEST_STRETCH = 4096
_TOKEN = re.compile(rb'[ \t]*(?:"(?P<text>[^"\\]*)"|(?P<mark>[{}\[\]:,])|(?P<bare>[^\s{}\[\]:,"]+))[ \t]*')

Path = tuple[str, ...]
Found = dict[str, tuple[Int64s, Int64s]]
"""Of each field: where its values start and end."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text, number, true, false or null of a line, or (`is_object`) a whole object. Texts without their quotes."""

    path: Path
    start: int
    end: int
    is_text: bool
    is_object: bool = False


def scalars(line: bytes) -> list[Scalar] | None:
    """What a line of valid JSON holds, in its order; None where it has arrays, escapes or a key twice."""
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError, ArithmeticError):
        return None
    found = list(_scalars(line))
    paths = {one.path for one in found}
    return found if len(paths) == len(found) and () not in paths else None


def _scalars(line: bytes) -> Iterator[Scalar]:
    """Of valid JSON. What is not understood gets the empty path."""
    keys: list[str] = []
    opened: list[int] = []
    is_key = False
    for match in _TOKEN.finditer(line):
        mark, kind = match.group("mark"), match.lastgroup
        if mark == b"{":
            opened.append(match.start("mark"))
            keys.append("")
            is_key = True
        elif mark == b"}":
            keys.pop()
            start, end = opened.pop(), match.end("mark")
            if keys:
                yield Scalar(tuple(keys), start, end, is_text=False, is_object=True)
            is_key = False
        elif mark == b",":
            is_key = True
        elif mark == b":":
            is_key = False
        elif mark is not None or not keys or kind is None:
            yield Scalar((), 0, 0, is_text=False)
            return
        elif is_key:
            keys[-1] = match.group("text").decode()
        else:
            yield Scalar(tuple(keys), match.start(kind), match.end(kind), is_text=kind == "text")


_TEXT_VALUES = re.compile(rb':[ \t]*"[^"]*"')
_NUMBER_VALUES = re.compile(rb":[ \t]*-?[0-9][0-9.eE+-]*")


def outline(line: bytes) -> bytes:
    """The line without its texts and numbers: equal for lines that probably have one shape. Cheap, and no more."""
    return _NUMBER_VALUES.sub(b":0", _TEXT_VALUES.sub(b':""', line))


@dataclass(frozen=True, slots=True)
class Shape:
    """`stretches[0] value stretches[1] value ... stretches[-1]`.

    `fields`: name -> (stretch, offset) of the value's first byte and of the one behind its last.
    `guesses`: how long each value probably is, 0 for no idea.
    """

    stretches: tuple[bytes, ...]
    fields: Mapping[str, tuple[tuple[int, int], tuple[int, int]]]
    guesses: tuple[int, ...]

    @property
    def quotes(self) -> int:
        return sum(stretch.count(b'"') for stretch in self.stretches)

    @classmethod
    def of(
        cls,
        line: bytes,
        values: list[Scalar],
        objects: list[Scalar],
        names: Mapping[Path, str],
        strict: Container[str] = (),
    ) -> Shape | None:
        """The shape of a line where `values` may differ. `names`: the fields to tell the places of.

        An object is told as a whole, from brace to brace, and holds some of the values. Values of `strict` fields are
        guessed to be as long as here, which may take in a quote: whoever reads them looks at each of their bytes.
        """
        edges = [0, *(edge for one in values for edge in (one.start, one.end)), len(line)]
        stretches = tuple(line[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))
        if max(map(len, stretches)) > _LONGEST_STRETCH or min(map(len, stretches)) == 0:
            return None

        # A value that may differ starts where a stretch ends and ends where one starts; braces lie inside of one.
        def first(start: int) -> tuple[int, int]:
            number = next(n for n, end in enumerate(edges[1::2]) if start <= end)
            return number, start - edges[2 * number]

        def last(end: int) -> tuple[int, int]:
            number = max(n for n, start in enumerate(edges[::2]) if start <= end)
            return number, end - edges[2 * number]

        fields = {names[one.path]: (first(one.start), last(one.end)) for one in values if one.path in names}
        fields |= {names[one.path]: (first(one.start), last(one.end)) for one in objects if one.path in names}
        guesses = [one.end - one.start if names.get(one.path) in strict else 0 for one in values]
        return cls(stretches, fields, tuple(guesses))

    def fixed(self, values: Mapping[str, bytes]) -> Shape:
        """The shape of those lines of this one where some fields have these values: fewer stretches to walk over.

        Only texts that differ may be fixed, and a stretch that would become too long stays as it is.
        """
        stretches = [self.stretches[0]]
        moved = [(0, 0)]  # for each stretch of before: in which it is now, and where in it
        guesses: list[int] = []
        names = {first[0]: name for name, (first, last) in self.fields.items() if last == (first[0] + 1, 0)}
        for number, (stretch, guess) in enumerate(zip(self.stretches[1:], self.guesses, strict=True)):
            value = values.get(names.get(number, ""))
            if value is None or len(stretches[-1]) + len(value) + len(stretch) > _LONGEST_STRETCH:
                stretches.append(stretch)
                guesses.append(guess)
                moved.append((len(stretches) - 1, 0))
            else:
                moved.append((len(stretches) - 1, len(stretches[-1]) + len(value)))
                stretches[-1] += value + stretch

        def place(stretch: int, offset: int) -> tuple[int, int]:
            now, behind = moved[stretch]
            return now, behind + offset

        fields = {name: (place(*first), place(*last)) for name, (first, last) in self.fields.items()}
        return Shape(tuple(stretches), fields, tuple(guesses))

    def match(self, buffer: bytes, starts: Int64s, ends: Int64s) -> tuple[Int64s, Found]:
        """(which of the lines have this shape, the places of their fields)"""
        rows = np.arange(len(starts))
        at = starts
        places: list[Int64s] = []
        is_sound = np.ones(len(starts), bool)
        for number, stretch in enumerate(self.stretches):
            last = len(buffer) - len(stretch)
            if not _is_at_most(at, last):
                is_sound &= at <= last
                at = np.minimum(at, last)
            is_sound &= windows(buffer, len(stretch))[at] == np.void(stretch)
            places.append(at)
            if np.count_nonzero(is_sound) * 2 < len(rows):  # the rest is not worth walking on with
                kept = np.flatnonzero(is_sound)
                rows, at, is_sound = rows[kept], at[kept], is_sound[kept]
                places = [one[kept] for one in places]
                if not len(rows):
                    return rows, {}
            at = at + len(stretch)
            if number + 1 < len(self.stretches):
                delimiter = self.stretches[number + 1][0]
                if guess := self.guesses[number]:
                    at = at + _guessed_lengths(buffer, at, delimiter, guess, is_sound)
                else:
                    at = at + _lengths(buffer, at, delimiter, is_sound)
        is_sound &= at == ends[rows]
        if not is_sound.all():
            kept = np.flatnonzero(is_sound)
            rows, places = rows[kept], [one[kept] for one in places]
        return rows, self._found(places)

    def _found(self, places: list[Int64s]) -> Found:
        return {
            name: (places[first] + offset, places[last] + end)
            for name, ((first, offset), (last, end)) in self.fields.items()
        }


def _is_at_most(at: Int64s, last: int) -> bool:
    return not len(at) or int(at.max()) <= last


def _guessed_lengths(buffer: bytes, at: Int64s, delimiter: int, guess: int, is_sound: Bools) -> Int64s:
    """As `_lengths`, where most have the guessed one."""
    lengths = np.full(len(at), guess)
    letters = np.frombuffer(buffer, np.uint8)
    others = np.flatnonzero(letters[np.minimum(at + guess, len(buffer) - 1)] != delimiter)
    if len(others):
        are_sound = is_sound[others]
        lengths[others] = _lengths(buffer, at[others], delimiter, are_sound)
        is_sound[others] = are_sound
    return lengths


def _lengths(buffer: bytes, at: Int64s, delimiter: int, is_sound: Bools) -> Int64s:
    """How many bytes from each place to the next `delimiter`; clears `is_sound` where it is too far."""
    last = len(buffer) - WORD
    view = windows(buffer, WORD)
    lengths = np.zeros(len(at), np.int64)
    # Whole columns as long as no value has ended, which is fastest; then those rows that go on.
    rest: Int64s | slice = slice(None)
    for step in range(0, LONGEST_VALUE, WORD):
        places = at[rest] + step
        if not _is_at_most(places, last):
            places = np.minimum(places, last)
        more = first_in_words(view[places].view("<u8"), delimiter)
        lengths[rest] += more
        going_on = more == WORD
        if not going_on.all():
            rest = np.flatnonzero(going_on) if isinstance(rest, slice) else rest[going_on]
            if not len(rest):
                return lengths
    is_sound[rest] = False
    return lengths
