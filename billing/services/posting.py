"""Posting a month: target minus posted, as transfers that never change (domain.md section 10)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from django.db import connection

from billing.core.posting import target_key, targets_of
from billing.core.rating_lines import Line
from billing.selectors.accounts import Accounts
from billing.sql.months import POSTED
from ledger.core.transfers import Flow, Posted, Posting, postings
from ledger.models import Period, Transfer, Unit

_BATCH = 2000
_UNITS = {str(unit.label): unit for unit in Unit}


def posted_for(month: str, accounts: Accounts, keys: Collection[str] | None = None) -> dict[Flow, Posted]:
    """What stands posted that concerns the month, in whatever period it was posted. One query.

    keys: only what is posted under these.
    """
    with connection.cursor() as cursor:
        cursor.execute(POSTED, {"month": month, "keys": None if keys is None else list(keys)})
        rows = cursor.fetchall()
    found: dict[tuple[str, str], tuple[Flow, Posted]] = {}
    for key, unit, debit, credit, quantity, count in rows:
        flow = Flow(key, str(Unit(unit).label), accounts.names[debit], accounts.names[credit])
        known, stands = found.get(flow.name, (flow, Posted()))
        signed = int(quantity) if known.debit == flow.debit else -int(quantity)
        found[flow.name] = (known, Posted(stands.quantity + signed, stands.postings + count))
    return dict(found.values())


def post_month(
    period: Period,
    lines: Sequence[Line],
    accounts: Accounts,
    *,
    posted_in: Period | None = None,
) -> int:
    """Post what the month's target lacks, and return how many transfers that took.

    posted_in: the period the transfers are posted in, where the month they concern is closed.
    """
    new = postings(targets_of(period.month, lines), posted_for(period.month, accounts))
    Transfer.objects.bulk_create(_rows(new, period, posted_in or period, accounts), batch_size=_BATCH)
    return len(new)


def post_changes(period: Period, gone: Iterable[Line], new: Sequence[Line], accounts: Accounts) -> int:
    """Post what lines that went and came change of the month's target; the rest of it stands posted as it is."""
    keys = {target_key(period.month, line) for line in (*gone, *new)}
    if not keys:
        return 0
    found = postings(targets_of(period.month, new), posted_for(period.month, accounts, keys))
    Transfer.objects.bulk_create(_rows(found, period, period, accounts), batch_size=_BATCH)
    return len(found)


def _rows(
    new: Iterable[Posting], concerns: Period, posted_in: Period, accounts: Accounts
) -> Iterable[Transfer]:
    for posting in new:
        yield Transfer(
            id=posting.id,
            unit=_UNITS[posting.unit],
            debit_id=accounts.ids[posting.debit],
            credit_id=accounts.ids[posting.credit],
            quantity=posting.quantity,
            reason=posting.reason,
            target_key=posting.key,
            posted_in=posted_in,
            concerns=concerns,
        )
