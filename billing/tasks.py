"""Celery tasks of billing: translate a message into one service call."""

from __future__ import annotations

from celery import shared_task
from django.db import transaction
from django.utils import timezone

from billing.services.adjustments import adjust_closed_months, months_with_unposted_credits
from billing.services.alert_delivery import deliver, due_deliveries
from billing.services.alerts import evaluate_alerts
from billing.services.closing import run_close, unfinished_closes
from billing.services.effects import run_effects
from billing.services.months import MonthClosed, compute_month, is_up_to_date, months_to_compute
from billing.services.reconciliation import look_for_duplicates, reconcile_months
from billing.services.verification import run_verification, unfinished_verifications
from ledger.core.periods import Month
from ledger.locks import Lock, try_acquire

BEAT_SCHEDULE = {
    "billing-recompute-open-months": {"task": "billing.recompute_open_months", "schedule": 60.0},
    "billing-look-for-duplicates": {"task": "billing.look_for_duplicates", "schedule": 6 * 3600.0},
    "billing-reconcile": {"task": "billing.reconcile_open_months", "schedule": 1800.0},
    "billing-go-on-closing": {"task": "billing.go_on_closing", "schedule": 60.0},
    "billing-go-on-verifying": {"task": "billing.go_on_verifying", "schedule": 60.0},
    "billing-go-on-comparing": {"task": "billing.go_on_comparing", "schedule": 10.0},
    "billing-evaluate-alerts": {"task": "billing.evaluate_alerts", "schedule": 60.0},
    "billing-deliver-alerts": {"task": "billing.deliver_alerts", "schedule": 30.0},
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
    """Move the horizon and follow late facts, month by month in order; each month is its own transaction.

    What late facts changed about closed months comes first: it is posted in an open one.
    """
    now = timezone.now()
    adjust_closed_months(now)
    credited = months_with_unposted_credits()
    for month in months_to_compute(now):
        if str(month) in credited or not is_up_to_date(month, now):
            compute_one_month(str(month))


@shared_task(name="billing.look_for_duplicates")
def find_duplicates() -> None:
    """Flag requests that were probably delivered twice."""
    look_for_duplicates(timezone.now())


@shared_task(name="billing.reconcile_open_months")
def reconcile_open_months() -> None:
    """Compare months that are over with what others counted: their totals may come long after the facts."""
    reconcile_months(timezone.now())


@shared_task(name="billing.close_month")
def close_month(run_id: int) -> None:
    """Go through a close's steps; delivered twice, each step is still done once."""
    run_close(run_id)


@shared_task(name="billing.go_on_closing")
def go_on_closing() -> None:
    """Take over closes whose worker is gone. While one is at work it holds the lock of the books: then leave it."""
    with transaction.atomic():
        if not try_acquire(Lock.COMPUTE):
            return
        runs = unfinished_closes()
    for run_id in runs:
        run_close(run_id)


@shared_task(name="billing.verify_ledger")
def verify_ledger(run_id: int) -> None:
    """Carry out a verification; delivered twice, each check is still done once."""
    run_verification(run_id)


@shared_task(name="billing.go_on_verifying")
def go_on_verifying() -> None:
    """Take over a verification whose worker is gone; while one is at work, nothing happens."""
    for run_id in unfinished_verifications():
        run_verification(run_id)


@shared_task(name="billing.go_on_comparing")
def go_on_comparing() -> None:
    """Compute previews of changed terms that wait; while a worker is at it, nothing happens."""
    run_effects()


@shared_task(name="billing.evaluate_alerts")
def evaluate_alert_rules() -> None:
    """Look at the alert rules, then tell subscribers at once of what that changed."""
    counts = evaluate_alerts(timezone.now())
    if counts["opened"] or counts["resolved"]:
        deliver_alerts()


@shared_task(name="billing.deliver_alerts")
def deliver_alerts() -> None:
    """Send what is due, each by a task of its own, so that one slow receiver holds nobody else up."""
    for delivery_id in due_deliveries(timezone.now()):
        deliver_alert.delay(delivery_id)


@shared_task(name="billing.deliver_alert", soft_time_limit=60)
def deliver_alert(delivery_id: str) -> None:
    """Try one delivery; when to try again stands in its row, so a lost message loses nothing."""
    deliver(delivery_id, timezone.now())
