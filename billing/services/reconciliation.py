"""Writes a month's comparisons with what others counted (domain.md section 9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db import connection, transaction

from billing.models import ReconciliationLine
from billing.selectors.reconciliation import compared, sides_that_count
from billing.sql.reconciliation import COUNT_TOKENS, UNCOUNTED_DAYS
from ledger.locks import Lock, acquire
from ledger.models import Period, PeriodState
from ledger.selectors.corrections import void_facts
from ledger.services.duplicates import flag_suspected_duplicates


@transaction.atomic
def reconcile(period: Period, now: datetime) -> int:
    """Compare the month anew; returns how many comparisons it has. What a close saw of a closed month stays.

    Explanations stay with their amount: a difference that has changed since needs another.
    """
    if period.state == PeriodState.CLOSED:
        return ReconciliationLine.objects.filter(period=period).count()
    count_tokens(period)
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


def count_tokens(period: Period) -> int:
    """Add up what each source counted, on those days of pools that were computed since they were added up last; returns
    how many. Only these days' requests are read: a close reads them of days that late facts touched, and no others."""
    if not sides_that_count():
        return 0
    bounds = {"from": period.starts_at, "to": period.ends_at}
    with connection.cursor() as cursor:
        cursor.execute(UNCOUNTED_DAYS, {"starts": _days(period)})
        missing = cursor.fetchall()
        if not missing:
            return 0
        pools, starts = zip(*missing, strict=True)
        days = {one.astimezone(UTC).date() for one in starts}
        days |= {day + timedelta(days=1) for day in days}
        wanted = {"pools": list(pools), "starts": list(starts), "days": sorted(days)}
        cursor.execute(COUNT_TOKENS, {**bounds, **wanted, **void_facts().parameters()})
    return len(missing)


def _days(period: Period) -> list[datetime]:
    """Where the month's segments begin: its first instant, and each midnight UTC within it."""
    first = period.starts_at.astimezone(UTC)
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    count = -(-(period.ends_at - midnight) // timedelta(days=1))
    return [first, *(midnight + timedelta(days=number) for number in range(count))]


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
