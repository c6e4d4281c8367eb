"""Celery tasks of billing: translate a message into one service call."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from billing.services.months import MonthClosed, compute_month, is_up_to_date, months_to_compute
from ledger.core.periods import Month

BEAT_SCHEDULE = {
    "billing-recompute-open-months": {"task": "billing.recompute_open_months", "schedule": 60.0},
}


@shared_task(name="billing.compute_month")
def compute_one_month(month: str) -> None:
    """Bring one month's books up to date; a month that was closed meanwhile is left alone."""
    try:
        compute_month(Month.parse(month))
    except MonthClosed:
        return


@shared_task(name="billing.recompute_open_months")
def recompute_open_months() -> None:
    """Move the horizon and follow late facts, month by month in order; each month is its own transaction."""
    now = timezone.now()
    for month in months_to_compute(now):
        if not is_up_to_date(month, now):
            compute_one_month(str(month))
