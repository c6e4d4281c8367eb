"""Whose GPU time it was: computes the dirty days of a month again, in one transaction (domain.md sections 2 to 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar

from django.db import connection, transaction
from django.utils import timezone

from billing.services.allocation_pool import Context, Inputs, read_inputs, split_inputs, write_result
from billing.services.allocation_workloads import open_stage
from billing.services.tenant_months import write_tenant_months
from billing.sql import computing
from ledger.core.periods import Month, Span, to_datetime, to_ms, utc_days
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR
from ledger.locks import Lock, acquire
from ledger.models import Period, PeriodState, Pool
from ledger.selectors.settings import ledger_settings

_LONGEST_RUN_MS = 7 * MS_PER_DAY

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class MonthClosed(ValueError):
    """The month's books are closed; later facts become adjustments, not new allocations."""


@dataclass
class Computed:
    """What a computation did. spans: the time of each pool that was computed again."""

    month: Month
    horizon: datetime
    spans: dict[int, list[Span]] = field(default_factory=dict)
    slots: int = 0
    rows: int = 0
    findings: int = 0


@transaction.atomic
def compute_allocation(
    month: Month,
    pool: Pool | None = None,
    horizon: datetime | None = None,
    *,
    everything: bool = False,
    closed_too: bool = False,
) -> Computed:
    """Bring PoolSlot, Allocation, the sums by day and TenantMonth of `month` up to date with the facts.

    Only (pool, UTC day) units that are dirty, or lie beyond the stored horizon, are computed, each from its opening
    levels on, so the cost follows what changed. `horizon`: compute up to here (default: the last whole hour);
    stored for the month unless only one pool is asked for. `everything`: all days, dirty or not.
    `closed_too`: the caller posts what changed as an adjustment of an open month.

    Raises:
        MonthClosed: the month is closed.
    """
    acquire(Lock.COMPUTE)
    period, span = _period(month)
    if period.state == PeriodState.CLOSED and not closed_too:
        raise MonthClosed(f"{month} is closed")
    end_ms = computed_up_to(period, horizon)
    dirty = _take_dirty(period, span, end_ms, pool, everything)
    computed = Computed(month, to_datetime(end_ms))
    context = Context.load(month)
    open_stage()
    for one in Pool.objects.order_by("slug"):
        if runs := _day_runs(dirty.get(one.pk, []), Span(span.start_ms, end_ms)):
            computed.spans[one.pk] = runs
    touched: set[int] = set()
    for result in _one_ahead(partial(split_inputs, context=context), _inputs(computed.spans, context)):
        written = write_result(result, context)
        touched |= written.accounts
        computed.slots += written.slots
        computed.rows += written.rows
        computed.findings += written.findings
    # What one pool is ahead of the others does not count yet.
    ends_at = computed.horizon if pool is None else period.horizon_at or computed.horizon
    write_tenant_months(period, context.zone, to_ms(ends_at), None if everything else touched)
    if pool is None:
        period.horizon_at = to_datetime(end_ms)
        period.computed_at = timezone.now()
        period.save(update_fields=["horizon_at", "computed_at"])
    return computed


def _inputs(spans: dict[int, list[Span]], context: Context) -> Iterator[Inputs]:
    for one in Pool.objects.filter(pk__in=spans).order_by("slug"):
        for run in spans[one.pk]:
            yield read_inputs(one, run, context)


def _one_ahead(function: Callable[[Argument], Result], arguments: Iterable[Argument]) -> Iterator[Result]:
    """function(argument) of each, computed in a thread of its own while the caller is busy with the result before and
    the next argument is read: one processor computes, another one is PostgreSQL's."""
    with ThreadPoolExecutor(1) as thread:
        ahead: Future[Result] | None = None
        for argument in arguments:
            following = thread.submit(function, argument)
            if ahead is not None:
                yield ahead.result()
            ahead = following
        if ahead is not None:
            yield ahead.result()


def _period(month: Month) -> tuple[Period, Span]:
    zone = ledger_settings().billing_time_zone
    span = month.span(zone)
    period, _ = Period.objects.get_or_create(
        month=str(month),
        defaults={"starts_at": to_datetime(span.start_ms), "ends_at": to_datetime(span.end_ms)},
    )
    return period, Span(to_ms(period.starts_at), to_ms(period.ends_at))


def computed_up_to(period: Period, asked: datetime | None) -> int:
    """Where computing a month ends that is asked to go on to an instant (None: now): at the last whole hour; never
    before where it already was, and never past the month."""
    start_ms, end_ms = to_ms(period.starts_at), to_ms(period.ends_at)
    last_hour_ms = to_ms(asked or timezone.now()) // MS_PER_HOUR * MS_PER_HOUR
    stored_ms = start_ms if period.horizon_at is None else to_ms(period.horizon_at)
    return min(max(last_hour_ms, stored_ms, start_ms), end_ms)


def _take_dirty(
    period: Period, span: Span, end_ms: int, pool: Pool | None, everything: bool
) -> dict[int, list[Span]]:
    """Take the month's dirty time out of the queue: {pool id: spans}. Time past the stored horizon is dirty too."""
    params = {
        "from": to_datetime(span.start_ms),
        "to": to_datetime(span.end_ms),
        "pool": None if pool is None else pool.pk,
    }
    with connection.cursor() as cursor:
        cursor.execute(computing.DIRTY_SPANS, params)
        rows = cursor.fetchall()
        cursor.execute(computing.REMOVE_DIRTY_SPANS, {**params, "ids": [row[0] for row in rows]})
    dirty: dict[int, list[Span]] = {}
    for _, pool_id, starts_at, ends_at in rows:
        if pool_id is not None:
            dirty.setdefault(pool_id, []).append(Span(to_ms(starts_at), to_ms(ends_at)))
    known_ms = span.start_ms if period.horizon_at is None or everything else to_ms(period.horizon_at)
    if known_ms < end_ms:
        for pool_id in Pool.objects.values_list("pk", flat=True) if pool is None else [pool.pk]:
            dirty.setdefault(pool_id, []).append(Span(known_ms, end_ms))
    return dirty


def _day_runs(dirty: Iterable[Span], whole: Span) -> list[Span]:
    """The UTC days of `whole` that the dirty spans touch, neighbours joined up to a week: bounds memory."""
    spans = sorted(part for span in dirty if (part := span.overlap(whole)))
    runs: list[Span] = []
    for day in utc_days(whole):
        if any(span.overlap(day) for span in spans):
            if runs and runs[-1].end_ms == day.start_ms and day.end_ms - runs[-1].start_ms <= _LONGEST_RUN_MS:
                runs[-1] = Span(runs[-1].start_ms, day.end_ms)
            else:
                runs.append(day)
    return runs
