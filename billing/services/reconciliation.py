"""Writes a month's comparisons with what others counted (domain.md section 9)."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from billing.models import ReconciliationLine
from billing.selectors.reconciliation import compared
from ledger.locks import Lock, acquire
from ledger.models import Period, PeriodState
from ledger.services.duplicates import flag_suspected_duplicates


@transaction.atomic
def reconcile(period: Period, now: datetime) -> int:
    """Compare the month anew; returns how many comparisons it has. What a close saw of a closed month stays.

    Explanations stay with their amount: a difference that has changed since needs another.
    """
    if period.state == PeriodState.CLOSED:
        return ReconciliationLine.objects.filter(period=period).count()
    lines = [
        ReconciliationLine(
            period=period,
            key=one.key,
            kind=one.kind,
            measure=one.measure,
            unit=one.unit,
            source=one.source,
            pool=one.pool,
            tenant=one.tenant,
            subject=one.subject,
            stated=one.stated,
            booked=one.booked,
            cause=one.cause if one.difference else "",
            reconciled_at=now,
        )
        for one in compared(period)
    ]
    ReconciliationLine.objects.filter(period=period).delete()
    ReconciliationLine.objects.bulk_create(lines)
    return len(lines)


def look_for_duplicates(now: datetime) -> None:
    """Flag requests that were probably delivered twice, in every month that is not closed."""
    for period in Period.objects.exclude(state=PeriodState.CLOSED).filter(starts_at__lte=now):
        flag_suspected_duplicates(period.starts_at, period.ends_at)


def reconcile_months(now: datetime) -> None:
    """Every month that is over and not closed, each in its own transaction, never beside a computation or a close."""
    over = Period.objects.filter(ends_at__lte=now).exclude(state=PeriodState.CLOSED)
    for month in over.order_by("month").values_list("month", flat=True):
        with transaction.atomic():
            acquire(Lock.COMPUTE)
            reconcile(Period.objects.get(month=month), now)
