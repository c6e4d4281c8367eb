"""Reads of the files that a statement was issued with."""

from __future__ import annotations

import csv
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping

from billing.models import AnnexName, Statement, StatementAnnex, StatementState
from ledger.access import Access
from ledger.core.csv_cells import text_of_cell

_PIECE_BYTES = 64 * 1024


def annex_of(statement: Statement, name: str, access: Access) -> StatementAnnex | None:
    """The frozen file `name` of an issued statement as the asker may read it; None where there is none."""
    if statement.state != StatementState.ISSUED:
        return None
    if name == AnnexName.PREEMPTIONS and access.sees_all_tenants:
        name = AnnexName.PREEMPTIONS_NAMED
    return StatementAnnex.objects.filter(statement=statement, name=name).first()


def annex_hashes(annexes: Iterable[StatementAnnex]) -> Mapping[str, Mapping[str, str]]:
    """As the sealed content says it: strings, so that no number can be misread."""
    return {annex.name: {"sha256": annex.sha256, "size_bytes": str(annex.size_bytes)} for annex in annexes}


def annex_pieces(annex: StatementAnnex) -> Iterator[bytes]:
    """The file, piece by piece."""
    inflate = zlib.decompressobj()
    rest = bytes(annex.compressed)
    while rest:
        yield inflate.decompress(rest, _PIECE_BYTES)
        rest = inflate.unconsumed_tail
    yield inflate.flush()


def annex_rows(annex: StatementAnnex) -> Iterator[tuple[str, ...]]:
    """The rows of the file without its header, as they were before spreadsheets were thought of."""
    text = io.StringIO(b"".join(annex_pieces(annex)).decode(), newline="")
    rows = csv.reader(text)
    next(rows)
    for row in rows:
        yield tuple(map(text_of_cell, row))


def annex_sha256(annex: StatementAnnex) -> str:
    """SHA-256 of the file as it is now."""
    digest = hashlib.sha256()
    for piece in annex_pieces(annex):
        digest.update(piece)
    return digest.hexdigest()


def annex_is_whole(annex: StatementAnnex) -> bool:
    """Whether the file is still the one that its hash is of."""
    digest, size = hashlib.sha256(), 0
    try:
        for piece in annex_pieces(annex):
            digest.update(piece)
            size += len(piece)
    except zlib.error:
        return False
    return (digest.hexdigest(), size) == (annex.sha256, annex.size_bytes)
