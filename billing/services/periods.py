"""Months move from open to review, strictly in order; closing one is in closing.py (domain.md section 10)."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from billing.core.checklist import months_out_of_order
from billing.services.months import compute_month, months_to_compute
from billing.services.snapshot import in_snapshot
from ledger.core.periods import Month, to_datetime
from ledger.locks import Lock
from ledger.models import Period, PeriodState
from ledger.services.audit import Actor, record
from ledger.services.duplicates import flag_suspected_duplicates
from ledger.services.masters import ensure_books


class PeriodError(ValueError):
    """The month cannot take that step now; `code` says why to programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def ensure_period(month: Month) -> Period:
    """The month's row, created open where it is missing."""
    span = month.span(ensure_books().billing_time_zone)
    period, _ = Period.objects.get_or_create(
        month=str(month),
        defaults={"starts_at": to_datetime(span.start_ms), "ends_at": to_datetime(span.end_ms)},
    )
    return period


def months_not_closed(now: datetime) -> list[Month]:
    """Months after the last closed one, up to the running month, in order. What lies before the first closed month
    was never part of the books, whatever a late fact says."""
    closed = Period.objects.filter(state=PeriodState.CLOSED).order_by("-month")
    last = closed.values_list("month", flat=True).first() or ""
    return [month for month in months_to_compute(now) if str(month) > last]


def earliest_not_closed(now: datetime) -> Period:
    """Where adjustments are posted: the first month, up to the running one, that is not closed."""
    months = months_not_closed(now)
    if not months:
        raise PeriodError("no_months", "there is no month with facts yet")
    return ensure_period(months[0])


def open_review(month: Month, by: Actor, *, now: datetime | None = None) -> Period:
    """From open to review: compute the month to its end and show its drafts. In review already: nothing happens.

    Raises:
        PeriodError: `closed`; `not_over` while the month runs; `out_of_order` while an earlier month is open.
    """
    instant = now or timezone.now()
    return in_snapshot(Lock.COMPUTE, lambda: _open_review(month, by, instant))


def _open_review(month: Month, by: Actor, now: datetime) -> Period:
    period = Period.objects.select_for_update().get(pk=ensure_period(month).pk)
    if period.state == PeriodState.REVIEW:
        return period
    _refuse_review(period, now)
    Period.objects.filter(pk=period.pk).update(state=PeriodState.REVIEW)
    flag_suspected_duplicates(period.starts_at, period.ends_at)
    compute_month(month, horizon=period.ends_at)
    record(by, "open_review", "period", month, before={"state": "open"}, after={"state": "review"})
    period.refresh_from_db()
    return period


def _refuse_review(period: Period, now: datetime) -> None:
    if period.state == PeriodState.CLOSED:
        raise PeriodError("closed", f"{period.month} is closed")
    if now < period.ends_at:
        raise PeriodError("not_over", f"{period.month} is not over before {period.ends_at.isoformat()}")
    months = {str(month) for month in months_not_closed(now)}
    if period.month not in months:
        raise PeriodError("out_of_order", f"a month after {period.month} is closed already")
    still_open = months - set(Period.objects.filter(state=PeriodState.REVIEW).values_list("month", flat=True))
    earlier = months_out_of_order(period.month, still_open)
    if earlier:
        raise PeriodError("out_of_order", f"{earlier[0]} comes before {period.month} and is still open")
