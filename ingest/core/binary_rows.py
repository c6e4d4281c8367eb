"""Rows in PostgreSQL's binary COPY format, made column by column.

On the wire a row is a 16-bit number of fields, then for each field a 32-bit length and its bytes, big-endian; null is
the length -1 and no bytes. Columns of one length without nulls are laid out by numpy for all rows at once and lead each
row; the others follow (`ragged`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ingest.core.ragged import Ragged
from ingest.core.spans import Bools, Int64s, Spans, Words

SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
TRAILER = b"\xff\xff"
EPOCH_2000_MS = 946_684_800_000
EPOCH_2000_DAY = 10_957  # days from 1970

_TYPES = {"bigint": ">i8", "integer": ">i4", "smallint": ">i2", "timestamptz": ">i8", "date": ">i4"}


@dataclass(slots=True)
class Rows:
    """Columns of one table, all of one length; collected, then packed. `names` gives the order they are packed in."""

    numbers: list[tuple[str, str, Int64s]] = field(default_factory=list)
    fixed: list[tuple[str, NDArray[np.void]]] = field(default_factory=list)
    gaps: list[tuple[str, str, Int64s, Bools]] = field(default_factory=list)  # numbers with nulls
    texts: list[tuple[str, Spans, bytes]] = field(default_factory=list)

    def number(self, name: str, kind: str, values: Int64s) -> None:
        """A column without nulls. `timestamptz` in epoch milliseconds, `date` in days from 1970."""
        self.numbers.append((name, kind, values))

    def optional(self, name: str, kind: str, values: Int64s, absent: int) -> None:
        """A column where `absent` stands for null; left out of the statement if nothing else is in it."""
        missing = values == absent
        if not missing.any():
            self.numbers.append((name, kind, values))
        elif not missing.all():
            self.gaps.append((name, kind, values, missing))

    def unless_usual(self, name: str, kind: str, values: Int64s, usual: int) -> None:
        """A column left out of the statement where all have the value that the table gives it by itself."""
        if (values != usual).any():
            self.numbers.append((name, kind, values))

    def bytes_of_one_length(self, name: str, values: NDArray[np.void]) -> None:
        self.fixed.append((name, values))

    def text(self, name: str, values: Sequence[bytes | None] | Spans, prefix: bytes = b"") -> None:
        """A text or bytea column, or jsonb with the version byte as `prefix`; left out if it is all null."""
        spans = values if isinstance(values, Spans) else Spans.of(values)
        if not spans.is_empty:
            self.texts.append((name, spans, prefix))

    def names(self) -> list[str]:
        return [
            *(number[0] for number in self.numbers),
            *(one[0] for one in self.fixed),
            *(gap[0] for gap in self.gaps),
            *(text[0] for text in self.texts),
        ]

    def packed(self) -> bytes:
        """All rows between the format's signature and trailer."""
        return b"".join((SIGNATURE, self.body(), TRAILER))

    def body(self) -> bytes:
        """All rows, to stand between others."""
        rows = Ragged(self._lead())
        for _, kind, values, missing in self.gaps:
            size = np.dtype(_TYPES[kind]).itemsize
            rows.words(_sizes(np.where(missing, -1, size)), np.full(len(values), 4))
            wire = _wire(kind, values).astype(_TYPES[kind])
            words = np.zeros((len(wire), 8), np.uint8)
            words[:, :size] = wire.view(np.uint8).reshape(len(wire), size)
            rows.words(words.view("<u8").ravel(), np.where(missing, 0, size))
        for _, spans, prefix in self.texts:
            _add_text(rows, spans, prefix)
        return rows.packed()[0]

    def _lead(self) -> NDArray[np.void]:
        parts: list[tuple[str, str]] = [("fields", ">i2")]
        for name, kind, _ in self.numbers:
            parts += [(f"{name} size", ">i4"), (name, _TYPES[kind])]
        for name, values in self.fixed:
            parts += [(f"{name} size", ">i4"), (name, f"V{values.dtype.itemsize}")]
        layout = np.dtype(parts)
        rows = np.empty(len(self.numbers[0][2]), layout)
        rows["fields"] = len(self.names())
        for name, kind, numbers in self.numbers:
            rows[f"{name} size"] = layout[name].itemsize
            rows[name] = _wire(kind, numbers)
        for name, values in self.fixed:
            rows[f"{name} size"] = values.dtype.itemsize
            rows[name] = values
        return rows


def _wire(kind: str, values: Int64s) -> Int64s:
    if kind == "timestamptz":
        return (values - EPOCH_2000_MS) * 1000
    return values - EPOCH_2000_DAY if kind == "date" else values


def _sizes(sizes: Int64s) -> Words:
    """Words that begin with the sizes, as four bytes in the network's order."""
    return sizes.astype(np.uint32).byteswap().astype(np.uint64)


def _add_text(rows: Ragged, spans: Spans, prefix: bytes) -> None:
    """Each text behind its size, or the size -1."""
    lengths = spans.lengths
    is_null = lengths < 0
    words = _sizes(np.where(is_null, -1, lengths + len(prefix)))
    if prefix:
        assert len(prefix) == 1
        words |= np.uint64(prefix[0]) << np.uint64(32)
    rows.words(words, np.where(is_null, 4, 4 + len(prefix)))
    rows.spans(spans)
