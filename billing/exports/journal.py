"""`journal.csv` and `journal.beancount` of a month, streamed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from zoneinfo import ZoneInfo

from django.utils.translation import gettext

from billing.core.journal import COLUMNS, MEMO, beancount_lines, csv_row
from billing.selectors.accounts import accounts
from billing.selectors.journal import entries, shown_only_in
from ledger.core.csv_stream import csv_pieces
from ledger.models import Period
from ledger.selectors.settings import ledger_settings

FORMATS = ("csv", "beancount")


def journal(period: Period, form: str, *, excel: bool = False) -> Iterator[bytes]:
    """The transfers posted in a month, in order of key, unit and time; the same bytes each time for a closed month.
    `excel`: CSV with a byte-order mark and headings in the reader's language."""
    if form == "csv":
        headings = [gettext(column.replace("_", " ")) for column in COLUMNS] if excel else None
        return csv_pieces(COLUMNS, _csv_rows(period), headings=headings)
    return (piece.encode() for piece in _beancount(period))


def _days(period: Period) -> tuple[date, date]:
    """The first and last local day of the month; transfers are of its last."""
    zone = ZoneInfo(ledger_settings().billing_time_zone)
    last = period.ends_at.astimezone(zone) - timedelta(milliseconds=1)
    return period.starts_at.astimezone(zone).date(), last.date()


def _csv_rows(period: Period) -> Iterator[tuple[str, ...]]:
    currency, (_, last) = ledger_settings().currency, _days(period)
    for entry in entries(period):
        yield csv_row(entry, last, currency)


def _beancount(period: Period) -> Iterator[str]:
    currency, (first, last) = ledger_settings().currency, _days(period)
    known = sorted(accounts().ids)
    if shown_only_in(period):
        known += [f"{MEMO}{name}" for name in known]
    for line in beancount_lines(entries(period), known, first, last, currency):
        yield line + "\n"
