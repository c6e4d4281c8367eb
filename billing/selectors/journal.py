"""A month's transfers as entries of the journal."""

from __future__ import annotations

from collections.abc import Iterator

from billing.core.journal import Entry, on_memo
from billing.core.rating_lines import tenant_account
from billing.models import Statement
from billing.selectors.accounts import accounts
from ledger.core.instants import instant_text
from ledger.models import Period, Transfer, Unit

_CHUNK = 2000


def entries(period: Period) -> Iterator[Entry]:
    """The month's transfers; of tenants that are only shown theirs (showback), money is on memo accounts."""
    names, shown_only = accounts().names, shown_only_in(period)
    rows = Transfer.objects.filter(posted_in=period).order_by("target_key", "unit", "recorded_at", "id")
    for row in rows.iterator(chunk_size=_CHUNK):
        entry = Entry(
            id=str(row.pk),
            posted_in=row.posted_in_id,
            concerns=row.concerns_id,
            debit=names[row.debit_id],
            credit=names[row.credit_id],
            quantity=row.quantity,
            unit=str(Unit(row.unit).label),
            reason=row.reason,
            key=row.target_key,
            recorded_at=instant_text(row.recorded_at),
        )
        yield on_memo(entry, shown_only)


def shown_only_in(period: Period) -> frozenset[str]:
    """Accounts of the tenants whose statement of the month is for information, as it says itself."""
    rows = Statement.objects.filter(period=period, content__informational=True)
    return frozenset(tenant_account(slug) for slug in rows.values_list("tenant__holder__slug", flat=True))
