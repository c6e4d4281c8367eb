"""Rows of bytes of various lengths, put together part by part for all rows at once.

Each part is copied in pieces of one width. What the last piece holds too much is garbage in the place where the next
part begins, which is written afterwards; so parts go in order, and the leading part of all rows, whose length is fixed
and no less than a piece, and which takes the garbage of the row before, goes last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ingest.core.spans import WORD, Int64s, Spans, Words, windows

_WIDTH = 32  # copied at once
_LONGEST = 512  # to copy like this; the rest of longer ones follows one by one

_Part = tuple[Int64s, Words | Spans]


class Ragged:
    """`lead`: what each row begins with, at least eight bytes."""

    def __init__(self, lead: NDArray[np.void]) -> None:
        assert lead.dtype.itemsize >= WORD
        self._lead = lead
        self._width = _WIDTH if lead.dtype.itemsize >= _WIDTH else WORD
        self._parts: list[_Part] = []

    def words(self, words: Words, lengths: Int64s) -> None:
        """The next part, of at most eight bytes: the first ones of each word."""
        self._parts.append((lengths, words))

    def spans(self, spans: Spans) -> None:
        """The next part, of any length; nothing for null."""
        self._parts.append((np.maximum(spans.lengths, 0), spans))

    def packed(self) -> tuple[bytes, Int64s, Int64s]:
        """(all rows, where each starts, where it ends)"""
        lead = self._lead.dtype.itemsize
        sizes = np.full(len(self._lead), lead)
        for lengths, _ in self._parts:
            sizes += lengths
        ends = np.cumsum(sizes)
        starts = ends - sizes
        size = int(ends[-1]) if len(ends) else 0
        content = np.empty(size + self._width, np.uint8)
        at = starts + lead
        for lengths, source in self._parts:
            if isinstance(source, Spans):
                self._copy(content, at, lengths, source)
            else:
                windows(content, WORD)[at] = source.view(f"V{WORD}")
            at += lengths
        windows(content, lead)[starts] = self._lead.view(f"V{lead}")
        return content[:size].tobytes(), starts, ends

    def _copy(self, content: NDArray[np.uint8], at: Int64s, lengths: Int64s, spans: Spans) -> None:
        if not len(lengths):
            return
        shortest, longest = int(lengths.min()), int(lengths.max())
        source, target = windows(spans.buffer, self._width), windows(content, self._width)
        last = len(spans.buffer) - self._width
        for offset in range(0, min(longest, _LONGEST), self._width):
            if shortest > offset:
                target[at + offset] = source[np.minimum(spans.starts + offset, last)]
            else:
                rows = np.flatnonzero(lengths > offset)
                target[at[rows] + offset] = source[spans.starts[rows] + offset]
        if longest > _LONGEST:
            _copy_rest(content, at, spans, np.flatnonzero(lengths > _LONGEST))


def _copy_rest(content: NDArray[np.uint8], at: Int64s, spans: Spans, rows: Int64s) -> None:
    source = np.frombuffer(spans.buffer, np.uint8)
    for row in rows.tolist():
        rest = source[spans.starts[row] + _LONGEST : spans.ends[row]]
        start = at[row] + _LONGEST
        content[start : start + len(rest)] = rest
