"""One month's books, from facts to draft statements, in one transaction (domain.md section 10)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from billing.core.rating_lines import Line
from billing.models import MonthLine
from billing.selectors.adjustments import adjustments_in
from billing.selectors.lines import stored_lines, stored_lines_of
from billing.services.allocation import Computed, MonthClosed, computed_up_to
from billing.services.measuring import measure_month
from billing.services.posting import post_changes, post_month
from billing.services.preemption_lines import records_that_moved
from billing.services.quota_standings import refresh_quota_standings
from billing.services.rating import rate_month, store_lines
from billing.services.reconciliation import reconcile
from billing.services.snapshot import in_snapshot
from billing.services.statements import draft_statements
from ledger.core.periods import Month, to_datetime, to_ms
from ledger.locks import Lock
from ledger.models import DirtySpan, Ledger, Level, Period, PeriodState, Pool
from ledger.services.masters import ensure_books
from ledger.services.statistics import refresh_statistics

__all__ = ["ComputedMonth", "MonthClosed", "compute_month", "is_up_to_date", "months_to_compute"]


@dataclass(frozen=True)
class ComputedMonth:
    """What computing a month did; transfers and statements are 0 where nothing had changed."""

    month: Month
    allocation: Computed
    preemptions: int
    lines: int
    transfers: int
    statements: int


def compute_month(
    month: Month,
    *,
    pool: Pool | None = None,
    horizon: datetime | None = None,
    everything: bool = False,
) -> ComputedMonth:
    """Bring a month's books up to date with the facts: preemptions, allocation, lines, transfers, drafts.

    Doing it twice changes nothing. pool: allocate only this pool's dirty time; what follows from it is the whole
    month's. horizon: compute up to here, the last whole hour by default. everything: measure and allocate
    all of it again, changed or not.

    Raises:
        MonthClosed: the month is closed.
    """
    refresh_statistics()
    computed = in_snapshot(Lock.COMPUTE, lambda: _compute(month, pool, horizon, everything))
    # Apart from the snapshot: a booking that moves them meanwhile is waited for, and does not undo the computation.
    refresh_quota_standings(timezone.now())
    return computed


def _compute(month: Month, pool: Pool | None, horizon: datetime | None, everything: bool) -> ComputedMonth:
    ledger = ensure_books()
    period = _period(month, ledger)
    measured = measure_month(ledger, period, horizon or timezone.now(), pool=pool, everything=everything)
    span, terms, books, rebuilt = measured.span, measured.terms, measured.books, measured.rebuilt
    stored = MonthLine.objects.filter(period=period)
    touched = _touched_pools(measured.allocation, everything=everything or not stored.exists())
    # What a GPU-hour came to, by which preempted time moves in cost recovery, follows from all of the month.
    by_record = touched is not None and not measured.recovers_cost
    moved = records_that_moved(period, rebuilt) if by_record else None
    before = stored_lines(period, books, touched, moved)
    lines = rate_month(measured.undated, terms, span, books, touched, moved) + adjustments_in(period, books)
    changes = store_lines(period, lines, before, books)
    if touched is None:
        transfers = post_month(period, lines, books)
    else:
        transfers = post_changes(period, changes.gone, changes.new, books)

    def lines_of(names: Collection[str]) -> Sequence[Line]:
        return lines if touched is None else stored_lines_of(period, books, names)

    if span.end_ms == to_ms(period.ends_at):
        reconcile(period, timezone.now())
    only = None if touched is None else changes.accounts
    statements = draft_statements(ledger, period, to_datetime(span.end_ms), lines_of, timezone.now(), only)
    return ComputedMonth(month, measured.allocation, len(rebuilt.ids), stored.count(), transfers, statements)


def _touched_pools(computed: Computed, *, everything: bool) -> set[str] | None:
    """Pools whose slots were computed again: the lines of the others stand and are not read. None: all."""
    if everything:
        return None
    return set(Pool.objects.filter(pk__in=computed.spans).values_list("slug", flat=True))


def _period(month: Month, ledger: Ledger) -> Period:
    span = month.span(ledger.billing_time_zone)
    period, _ = Period.objects.get_or_create(
        month=str(month),
        defaults={"starts_at": to_datetime(span.start_ms), "ends_at": to_datetime(span.end_ms)},
    )
    if period.state == PeriodState.CLOSED:
        raise MonthClosed(f"{month} is closed")
    return period


def months_to_compute(now: datetime) -> list[Month]:
    """Every month that is not closed, from the first fact (or open period) to the running month, in order."""
    ledger = ensure_books()
    zone = ledger.billing_time_zone
    closed = set(Period.objects.filter(state=PeriodState.CLOSED).values_list("month", flat=True))
    first = Level.objects.order_by("starts_at").values_list("starts_at", flat=True).first()
    starts = [Month.parse(month) for month in Period.objects.values_list("month", flat=True)]
    if first is not None:
        starts.append(Month.containing(to_ms(first), zone))
    if not starts:
        return []
    month, last = min(starts), Month.containing(to_ms(now), zone)
    found = []
    while month <= last:
        if str(month) not in closed:
            found.append(month)
        month = month.next()
    return found


def is_up_to_date(month: Month, now: datetime) -> bool:
    """Whether computing the month would change nothing: its horizon is reached and none of its time is dirty."""
    period = Period.objects.filter(month=str(month)).first()
    if period is None or period.horizon_at is None or computed_up_to(period, now) > to_ms(period.horizon_at):
        return False
    return not DirtySpan.objects.filter(span__overlap=(period.starts_at, period.ends_at)).exists()
