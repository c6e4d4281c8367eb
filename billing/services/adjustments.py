"""Facts that come after the close: posted as the difference in the earliest open month (domain.md section 10)."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from billing.core.rating_lines import Line
from billing.models import Credit
from billing.selectors.accounts import Accounts
from billing.selectors.adjustments import credit_line
from billing.services.detail import keep_detail
from billing.services.measuring import measure_month
from billing.services.months import compute_month
from billing.services.periods import earliest_not_closed
from billing.services.posting import post_month
from billing.services.rating import note_missing_prices, rate_month
from billing.services.snapshot import in_snapshot
from ledger.core.periods import Month
from ledger.locks import Lock
from ledger.models import DirtySpan, Period, PeriodState, Transfer
from ledger.services.masters import ensure_books

# Measuring a preemption again can leave time of an earlier month to compute, but never more than it waits for.
_ROUNDS = 3


def adjust_closed_months(now: datetime | None = None) -> int:
    """Post what later facts, rates and credits changed about closed months; returns how many transfers that took.

    Closed statements stay what they are; the open month shows the change at once. Doing it twice posts nothing.
    """
    instant = now or timezone.now()
    return in_snapshot(Lock.COMPUTE, lambda: _adjust_what_changed(instant))


def _adjust_what_changed(now: datetime) -> int:
    posted = 0
    for _ in range(_ROUNDS):
        changed = closed_months_that_changed()
        if not changed:
            break
        posted += sum(_adjust(period, earliest_not_closed(now)) for period in changed)
    if posted:
        compute_month(Month.parse(earliest_not_closed(now).month), horizon=now)
    return posted


def closed_months_that_changed() -> list[Period]:
    """Closed months with facts that are not computed, or credits that are not posted; in order."""
    closed = Period.objects.filter(state=PeriodState.CLOSED).order_by("month")
    credited = months_with_unposted_credits()
    return [period for period in closed if period.month in credited or _is_dirty(period)]


def _is_dirty(period: Period) -> bool:
    return DirtySpan.objects.filter(span__overlap=(period.starts_at, period.ends_at)).exists()


def months_with_unposted_credits() -> set[str]:
    """Months, open or closed, with credits that were granted since they were computed."""
    credits = Credit.objects.select_related("tenant__holder")
    month_of = {}
    for credit in credits:
        line = credit_line(credit)
        month_of[f"{credit.concerns_id}|{line.account}|{line.key}"] = credit.concerns_id
    posted = set(Transfer.objects.filter(target_key__in=month_of).values_list("target_key", flat=True))
    return {month for key, month in month_of.items() if key not in posted}


def _adjust(period: Period, posted_in: Period) -> int:
    """Compute a closed month again and post the difference elsewhere; what it was issued with in detail is kept."""
    keep_detail(period)
    lines, books = computed_again(period)
    note_missing_prices(period, lines)
    return post_month(period, lines, books, posted_in=posted_in)


def computed_again(period: Period, *, everything: bool = False) -> tuple[list[Line], Accounts]:
    """A closed month's preemptions and slots brought up to date, and its lines by what it was closed with.

    everything: from all of its facts, whether anything is known to have changed or not.
    """
    asked = period.horizon_at or period.ends_at
    measured = measure_month(ensure_books(), period, asked, everything=everything, closed_too=True)
    return rate_month(measured.undated, measured.terms, measured.span, measured.books), measured.books
