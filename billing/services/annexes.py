"""The files of a statement are made once, when it is issued, and read from then on (domain.md section 10)."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence

from billing.models import AnnexName, Statement, StatementAnnex
from billing.selectors import preemption_rows, usage_rows
from billing.selectors.annexes import annex_hashes
from billing.selectors.names import Names
from ledger.access import Access
from ledger.core.csv_stream import csv_pieces
from ledger.models import Role

_EVERYTHING = Access(roles=frozenset({Role.AUDITOR}))
_FAST = 3  # a file of a thousand like rows is small at any level; higher ones cost the close time


def freeze_annexes(statements: Sequence[Statement]) -> None:
    """Keep the files of statements that are about to be sealed, and name them in their content.

    Costs what downloading every file once costs: it grows with slots, not with requests.
    """
    if not statements:
        return
    at = statements[0].period.starts_at
    named = Names(_EVERYTHING, at=at)
    for statement in statements:
        own = named.of(Access(tenant_ids=frozenset({statement.tenant_id})))
        annexes = [_annex(statement, name, pieces) for name, pieces in _files(statement, own, named)]
        StatementAnnex.objects.bulk_create(annexes)
        statement.content = {**statement.content, "annexes": annex_hashes(annexes)}


def _files(statement: Statement, own: Names, named: Names) -> Iterator[tuple[AnnexName, Iterator[bytes]]]:
    tenant, period, currency = statement.tenant, statement.period, statement.currency
    yield AnnexName.USAGE, csv_pieces(usage_rows.COLUMNS, usage_rows.usage_rows(tenant, period))
    for name, names in ((AnnexName.PREEMPTIONS, own), (AnnexName.PREEMPTIONS_NAMED, named)):
        rows = preemption_rows.preemption_rows(tenant, period, names, currency)
        yield name, csv_pieces(preemption_rows.COLUMNS, rows)


def _annex(statement: Statement, name: AnnexName, pieces: Iterable[bytes]) -> StatementAnnex:
    digest, squeeze, kept, size = hashlib.sha256(), zlib.compressobj(_FAST), [], 0
    for piece in pieces:
        digest.update(piece)
        kept.append(squeeze.compress(piece))
        size += len(piece)
    return StatementAnnex(
        statement=statement,
        name=name,
        sha256=digest.hexdigest(),
        size_bytes=size,
        compressed=b"".join(kept) + squeeze.flush(),
    )
