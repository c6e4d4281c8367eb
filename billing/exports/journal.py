"""`journal.csv` and `journal.beancount` of a month, streamed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from zoneinfo import ZoneInfo

from django.utils.translation import gettext

from billing.core.journal import COLUMNS, MEMO, Entry, beancount_lines, csv_row, on_memo
from billing.core.rating_lines import tenant_account
from billing.models import Statement
from billing.selectors.accounts import accounts
from ledger.core.csv_stream import csv_pieces
from ledger.models import Ledger, Period, Transfer, Unit

FORMATS = ("csv", "beancount")
_CHUNK = 2000


def journal(period: Period, form: str, *, excel: bool = False) -> Iterator[bytes]:
    """The transfers posted in a month, in order of key, unit and time; the same bytes each time for a closed month.
    `excel`: CSV with a byte-order mark and headings in the reader's language."""
    if form == "csv":
        headings = [gettext(column.replace("_", " ")) for column in COLUMNS] if excel else None
        return csv_pieces(COLUMNS, _csv_rows(period), headings=headings)
    return (piece.encode() for piece in _beancount(period))


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
            recorded_at=row.recorded_at.isoformat(),
        )
        yield on_memo(entry, shown_only)


def shown_only_in(period: Period) -> frozenset[str]:
    """Accounts of the tenants whose statement of the month is for information, as it says itself."""
    rows = Statement.objects.filter(period=period, content__informational=True)
    return frozenset(tenant_account(slug) for slug in rows.values_list("tenant__holder__slug", flat=True))


def _days(period: Period) -> tuple[date, date]:
    """The first and last local day of the month; transfers are of its last."""
    zone = ZoneInfo(Ledger.objects.get(id=1).billing_time_zone)
    last = period.ends_at.astimezone(zone) - timedelta(milliseconds=1)
    return period.starts_at.astimezone(zone).date(), last.date()


def _csv_rows(period: Period) -> Iterator[tuple[str, ...]]:
    currency, (_, last) = Ledger.objects.get(id=1).currency, _days(period)
    for entry in entries(period):
        yield csv_row(entry, last, currency)


def _beancount(period: Period) -> Iterator[str]:
    currency, (first, last) = Ledger.objects.get(id=1).currency, _days(period)
    known = sorted(accounts().ids)
    if shown_only_in(period):
        known += [f"{MEMO}{name}" for name in known]
    for line in beancount_lines(entries(period), known, first, last, currency):
        yield line + "\n"
