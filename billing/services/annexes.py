"""What a statement is issued with: its files, and figures that later facts would move (domain.md section 10).

All of it is made once, when the statement is sealed, and read from then on.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from billing.core.focus import BilledLine
from billing.models import AnnexName, Statement, StatementAnnex
from billing.selectors import detail
from billing.selectors.annexes import annex_hashes
from billing.selectors.borne import BORNE, borne_of, said_of_borne
from billing.selectors.capacity_shares import SHARES, said_of_share, shares_of
from billing.selectors.focus_lines import lines_of_statements
from billing.selectors.names import Names
from billing.selectors.preemption_rows import COLUMNS, Row, month_rows
from billing.selectors.slot_file import slot_pieces
from billing.selectors.usage_rows import UsageOfMonth, usage_pieces
from ledger.access import Access
from ledger.core.csv_stream import csv_pieces
from ledger.models import Role

_EVERYTHING = Access(roles=frozenset({Role.AUDITOR}))
# 2: with slots and hits among the files, what was borne for others and shares of capacity; before that, no version.
CONTENT_VERSION = "2"
_TwoNames = defaultdict[AnnexName, list[Row]]
_TENANTS_AT_ONCE = 50
_FAST = 3  # a file of a thousand like rows is small at any level; higher ones cost the close time


def freeze_annexes(statements: Sequence[Statement]) -> None:
    """Keep the files of statements that are about to be sealed, and name them in their content.

    The content says as well what each bore for others and its shares of capacity. Costs what downloading every file
    once costs: it grows with slots, not with requests. All statements are of one month.
    """
    if not statements:
        return
    named = Names(_EVERYTHING, at=statements[0].period.starts_at)
    month = UsageOfMonth.load(statements[0].period)
    borne, shares = borne_of(statements), shares_of(statements)
    for first in range(0, len(statements), _TENANTS_AT_ONCE):
        some = statements[first : first + _TENANTS_AT_ONCE]
        facts = _Facts(
            month, lines_of_statements(some), detail.hits_by_tenant(some), _preemptions(some, named)
        )
        annexes = []
        for statement in some:
            own = named.of(Access(tenant_ids=frozenset({statement.tenant_id})))
            of_statement = [_annex(statement, name, pieces) for name, pieces in _files(statement, facts, own)]
            annexes += of_statement
            statement.content = {
                **statement.content,
                "version": CONTENT_VERSION,
                "annexes": annex_hashes(of_statement),
                BORNE: [said_of_borne(one) for one in borne[statement.pk]],
                SHARES: [said_of_share(one) for one in shares[statement.pk]],
            }
        StatementAnnex.objects.bulk_create(annexes)


@dataclass(frozen=True)
class _Facts:
    """What files are made of, read for several statements at once: lines by statement, the rest by tenant."""

    month: UsageOfMonth
    lines: Mapping[UUID, list[BilledLine]]
    hits: Mapping[int, list[detail.Hit]]
    preemptions: Mapping[int, _TwoNames]


def _files(statement: Statement, facts: _Facts, own: Names) -> Iterator[tuple[AnnexName, Iterator[bytes]]]:
    """Slots and what was used of them are made from one read of the tenant's rows."""
    tenant, lines = statement.tenant, facts.lines[statement.pk]
    rows = facts.month.rows(tenant)
    yield AnnexName.USAGE, usage_pieces(facts.month, tenant, rows)
    yield AnnexName.SLOTS, slot_pieces(facts.month, statement, rows, lines, own)
    yield AnnexName.HITS, csv_pieces(detail.HIT_COLUMNS, detail.hit_rows(facts.hits[tenant.pk]))
    for name in (AnnexName.PREEMPTIONS, AnnexName.PREEMPTIONS_NAMED):
        yield name, csv_pieces(COLUMNS, facts.preemptions[tenant.pk][name])


def _preemptions(statements: Sequence[Statement], named: Names) -> defaultdict[int, _TwoNames]:
    """Tenant -> file -> its rows: with the names that the tenant sees, and with all names."""
    rows: defaultdict[int, _TwoNames] = defaultdict(lambda: defaultdict(list))
    tenants = [statement.tenant for statement in statements]
    own = {tenant.pk: named.of(Access(tenant_ids=frozenset({tenant.pk}))) for tenant in tenants}
    period, currency = statements[0].period, statements[0].currency
    for tenant, seen, full in month_rows(tenants, period, own, named, currency):
        rows[tenant.pk][AnnexName.PREEMPTIONS].append(seen)
        rows[tenant.pk][AnnexName.PREEMPTIONS_NAMED].append(full)
    return rows


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
