"""Rows to CSV bytes, piece by piece: a million rows need no more memory than a few hundred."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from ledger.core.csv_cells import cells

BYTE_ORDER_MARK = "﻿"
_ROWS_A_PIECE = 500


def csv_pieces(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, headings: Sequence[str] | None = None
) -> Iterator[bytes]:
    """UTF-8, RFC 4180, header row first. With `headings` (for spreadsheets) a byte-order mark and those headings."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    if headings is not None:
        buffer.write(BYTE_ORDER_MARK)
    writer.writerow(headings if headings is not None else columns)
    for number, row in enumerate(rows, start=1):
        writer.writerow(cells(row))
        if number % _ROWS_A_PIECE == 0:
            yield _taken(buffer)
    yield _taken(buffer)


def csv_line(row: Sequence[object]) -> str:
    """One row as it stands in a file, without its line end."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="").writerow(cells(row))
    return buffer.getvalue()


def with_headings(pieces: Iterator[bytes], headings: Sequence[str] | None) -> Iterator[bytes]:
    """A file of `csv_pieces` for spreadsheets: the byte-order mark and `headings` in place of its header row. The
    header row has to be in the first piece, and without line breaks of its own."""
    if headings is None:
        yield from pieces
        return
    yield from csv_pieces((), (), headings=headings)
    yield next(pieces).split(b"\r\n", 1)[1]
    yield from pieces


def _taken(buffer: io.StringIO) -> bytes:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text.encode()
