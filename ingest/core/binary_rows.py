"""Rows in PostgreSQL's binary COPY format, made column by column.

On the wire a row is a 16-bit number of fields, then for each field a 32-bit length and its bytes, big-endian; null is
the length -1 and no bytes. Numbers are laid out by numpy for all rows at once; texts follow them row by row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
TRAILER = b"\xff\xff"
EPOCH_2000_MS = 946_684_800_000
EPOCH_2000_DAY = 10_957  # days from 1970

Int64s = NDArray[np.int64]
_TYPES = {"bigint": ">i8", "integer": ">i4", "smallint": ">i2", "timestamptz": ">i8", "date": ">i4"}
_LENGTHS = [struct.pack(">i", length) for length in range(2048)]
_NULL = struct.pack(">i", -1)


@dataclass(slots=True)
class Rows:
    """Columns of one table, all of one length; collected, then packed. Order of columns is order of adding."""

    numbers: list[tuple[str, str, Int64s, NDArray[np.bool_] | None]] = field(default_factory=list)
    fixed: list[tuple[str, bytes, int]] = field(
        default_factory=list
    )  # (name, all values joined, size of each)
    texts: list[tuple[str, Sequence[bytes | None], bytes]] = field(default_factory=list)

    def number(self, name: str, kind: str, values: Int64s) -> None:
        """A column without nulls. `timestamptz` in epoch milliseconds, `date` in days from 1970."""
        self.numbers.append((name, kind, values, None))

    def optional(self, name: str, kind: str, values: Int64s, absent: int) -> None:
        """A column where `absent` stands for null; left out of the statement if nothing else is in it."""
        missing = values == absent
        if not missing.any():
            self.numbers.append((name, kind, values, None))
        elif not missing.all():
            self.numbers.append((name, kind, values, missing))

    def text(self, name: str, values: Sequence[bytes | None], prefix: bytes = b"") -> None:
        """A text or bytea column, or jsonb with the version byte as `prefix`; left out if it is all null."""
        if values.count(None):
            sizes = {None if value is None else len(value) for value in values}
        else:
            sizes = set(map(len, cast("Sequence[bytes]", values)))
        if sizes == {None}:
            return
        if len(sizes) == 1 and not prefix:
            self.fixed.append((name, b"".join(cast("Sequence[bytes]", values)), cast("int", sizes.pop())))
        else:
            self.texts.append((name, values, prefix))

    def names(self) -> list[str]:
        return [
            *(number[0] for number in self.numbers),
            *(one[0] for one in self.fixed),
            *(text[0] for text in self.texts),
        ]

    def packed(self) -> bytes:
        """All rows between the format's signature and trailer."""
        layout = self._layout()
        fixed, edges = _without_nulls(layout, self._fill(layout), self.numbers)
        if not self.texts:
            return SIGNATURE + fixed + TRAILER
        rows = [fixed[start:end] for start, end in pairwise(edges)]
        pieces = [rows, *(_sized(values, prefix) for _, values, prefix in self.texts)]
        return SIGNATURE + b"".join([piece for row in zip(*pieces, strict=True) for piece in row]) + TRAILER

    def _layout(self) -> np.dtype[np.void]:
        parts: list[tuple[str, str]] = [("fields", ">i2")]
        for name, kind, _, _ in self.numbers:
            parts += [(f"{name} size", ">i4"), (name, _TYPES[kind])]
        for name, _, size in self.fixed:
            parts += [(f"{name} size", ">i4"), (name, f"V{size}")]
        return np.dtype(parts)

    def _fill(self, layout: np.dtype[np.void]) -> NDArray[np.void]:
        rows = np.empty(len(self.numbers[0][2]), layout)
        rows["fields"] = len(self.numbers) + len(self.fixed) + len(self.texts)
        for name, kind, values, missing in self.numbers:
            size = layout[name].itemsize
            rows[f"{name} size"] = size if missing is None else np.where(missing, -1, size)
            if kind == "timestamptz":
                rows[name] = (values - EPOCH_2000_MS) * 1000
            elif kind == "date":
                rows[name] = values - EPOCH_2000_DAY
            else:
                rows[name] = values
        for name, content, size in self.fixed:
            rows[f"{name} size"] = size
            if size:
                rows[name] = np.frombuffer(content, f"V{size}")
        return rows


def _without_nulls(
    layout: np.dtype[np.void],
    rows: NDArray[np.void],
    numbers: Sequence[tuple[str, str, Int64s, NDArray[np.bool_] | None]],
) -> tuple[bytes, list[int]]:
    """(the rows' bytes without those of nulls, where each row begins and the last one ends)."""
    width, count = layout.itemsize, len(rows)
    optional = [(name, missing) for name, _, _, missing in numbers if missing is not None]
    if not optional:
        return rows.tobytes(), list(range(0, width * count + 1, width))
    kept = np.ones((count, width), bool)
    assert layout.fields is not None
    for name, missing in optional:
        offset = layout.fields[name][1]
        kept[missing, offset : offset + layout[name].itemsize] = False
    table = rows.view(np.uint8).reshape(count, width)
    edges = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return table[kept].tobytes(), edges.tolist()


def _sized(values: Sequence[bytes | None], prefix: bytes) -> list[bytes]:
    """Each text behind its length."""
    extra = len(prefix)
    return [
        _NULL
        if value is None
        else (_LENGTHS[len(value) + extra] if len(value) < 2000 else struct.pack(">i", len(value) + extra))
        + prefix
        + value
        for value in values
    ]
