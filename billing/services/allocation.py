"""Whose GPU time it was: computes the dirty days of a month again, in one transaction (domain.md sections 2 to 5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from django.db import connection, transaction
from django.utils import timezone
from numpy.typing import NDArray

from billing import sql
from billing.core.allocation import PoolSplit, split_pool
from billing.core.allocation_within import mixed_holders, split_within_holders
from billing.models import BillingFinding, Policy, PoolCost, RateCard
from billing.services.allocation_facts import (
    HolderIndex,
    load_timeline,
    mapping_cuts,
    read_pool_facts,
    void_events,
    with_waits,
)
from billing.services.allocation_pending import pending_counts, read_pending
from billing.services.allocation_rows import (
    Accounts,
    ServiceFinding,
    allocation_rows,
    write_allocations,
    write_lending,
    write_pool_slots,
    write_token_days,
)
from billing.services.allocation_usage import Terms, pruned_slots, read_usage, usage_by_slot
from billing.services.allocation_workloads import (
    ByWorkload,
    open_stage,
    write_workload_days,
)
from ledger.core.levels import Kind, Levels, resolve_holders
from ledger.core.periods import Month, Span, slot_edges, to_datetime, to_ms, utc_days
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR
from ledger.locks import Lock, acquire
from ledger.models import Period, PeriodState, Pool, ServiceClass
from ledger.selectors.settings import ledger_settings

Int64s = NDArray[np.int64]

# By group (class x 8 + purpose): what is filled last within a holder.
_PREEMPTIBLE = np.repeat([kind == ServiceClass.PREEMPTIBLE for kind in sorted(ServiceClass.values)], 8)

_LONGEST_RUN_MS = 7 * MS_PER_DAY

FINDINGS = (
    "capacity_unknown",
    "level_conflict",
    "measured_exceeds_occupancy",
    "usage_without_key",
    "usage_pruned",
    "calibration_missing",
    "oversold",
    "excess",
    "unattributed",
)
_BLOCKING = {"capacity_unknown", "level_conflict", "unattributed", "usage_pruned"}


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
    """Bring PoolSlot, Allocation, LendingDay, WorkloadDay and TokenDay of `month` up to date with the facts.

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
    end_ms = _computed_up_to(period, span, horizon)
    dirty = _take_dirty(period, span, end_ms, pool, everything)
    computed = Computed(month, to_datetime(end_ms))
    context = _Context.load(month)
    open_stage()
    for one in Pool.objects.order_by("slug"):
        runs = _day_runs(dirty.get(one.pk, []), Span(span.start_ms, end_ms))
        for run in runs:
            _compute_pool(one, run, context, computed)
        if runs:
            computed.spans[one.pk] = runs
    if pool is None:
        period.horizon_at = to_datetime(end_ms)
        period.computed_at = timezone.now()
        period.save(update_fields=["horizon_at", "computed_at"])
    return computed


def _period(month: Month) -> tuple[Period, Span]:
    zone = ledger_settings().billing_time_zone
    span = month.span(zone)
    period, _ = Period.objects.get_or_create(
        month=str(month),
        defaults={"starts_at": to_datetime(span.start_ms), "ends_at": to_datetime(span.end_ms)},
    )
    return period, Span(to_ms(period.starts_at), to_ms(period.ends_at))


def _computed_up_to(period: Period, span: Span, horizon: datetime | None) -> int:
    """A horizon never moves back, and never past the month or into a running hour."""
    wanted = to_ms(horizon or timezone.now()) // MS_PER_HOUR * MS_PER_HOUR
    stored = span.start_ms if period.horizon_at is None else to_ms(period.horizon_at)
    return min(max(wanted, stored, span.start_ms), span.end_ms)


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
        cursor.execute(sql.DIRTY_SPANS, params)
        rows = cursor.fetchall()
        cursor.execute(sql.REMOVE_DIRTY_SPANS, {**params, "ids": [row[0] for row in rows]})
    dirty: dict[int, list[Span]] = {}
    for _, pool_id, starts_at, ends_at in rows:
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


@dataclass(frozen=True)
class _Context:
    """What all pools of a computation share."""

    month: Month
    index: HolderIndex
    accounts: Accounts
    void: list[int]
    rate_cuts: list[int]
    policy_cuts: list[int]
    pending_counts: list[tuple[int, int]]

    @classmethod
    def load(cls, month: Month) -> _Context:
        index = HolderIndex.load()
        return cls(
            month,
            index,
            Accounts.load(index),
            void_events(),
            _cuts(RateCard.objects),
            _cuts(Policy.objects),
            pending_counts(),
        )


def _cuts(versions: Any) -> list[int]:
    dates = versions.values_list("valid_from", "ended_at")
    return [to_ms(instant) for version in dates for instant in version if instant is not None]


def _compute_pool(pool: Pool, span: Span, context: _Context, computed: Computed) -> None:
    """Split one pool over one run of days and put the rows in place of the old ones."""
    facts = read_pool_facts(pool.pk, span, context.void, context.index)
    terms = Terms.load(pool)
    timeline = load_timeline(np.unique(facts.effective.levels.who).tolist(), context.index)
    price_cuts = context.rate_cuts + _cuts(PoolCost.objects.filter(pool=pool))
    cuts = [*price_cuts, *context.policy_cuts, *terms.cuts(), *mapping_cuts(timeline)]
    usage = read_usage(pool, slot_edges(span.start_ms, span.end_ms, cuts))
    strangers = np.setdiff1d(usage["who"], timeline.identity)
    if len(strangers):
        timeline = load_timeline([*timeline.identity.tolist(), *strangers.tolist()], context.index)
        cuts += mapping_cuts(timeline)
        usage = read_usage(pool, slot_edges(span.start_ms, span.end_ms, cuts))
    edges = slot_edges(span.start_ms, span.end_ms, cuts)
    levels = with_waits(resolve_holders(facts.effective.levels, timeline), facts.waits)
    lending_cuts = [
        *(day.start_ms for day in utc_days(span)),
        *(t for t in price_cuts if span.start_ms < t < span.end_ms),
    ]
    workloads = ByWorkload.of(levels)
    mixed = mixed_holders(workloads.levels, span.start_ms, span.end_ms)
    pending = read_pending(pool.pk, span, context.void, context.index, context.pending_counts)
    split = split_pool(
        levels, context.index.holders, edges, facts.effective.capacity_from_ms, lending_cuts, mixed, pending
    )
    groups = split_within_holders(split, levels, _PREEMPTIBLE)
    slots = usage_by_slot(usage, terms, timeline, context.index)
    rows, noticed = allocation_rows(split, groups, slots, terms, context.index, context.accounts)
    noticed += _estimated(usage, edges, context.index)

    _delete(pool, span)
    computed.slots += write_pool_slots(pool.pk, split)
    computed.rows += write_allocations(pool.pk, edges, rows, context.index)
    write_lending(pool.pk, split, context.index)
    write_token_days(pool.pk, sorted({*lending_cuts}), span.end_ms)
    write_workload_days(pool.pk, span, split, workloads, facts.subjects, context.index)
    missed_ms = _held_without_capacity_ms(levels, split)
    computed.findings += _write_findings(
        pool, span, context, split, noticed, facts.conflicting_events, missed_ms
    )


def _estimated(usage: dict[str, Int64s], edges: Int64s, index: HolderIndex) -> list[ServiceFinding]:
    """What was divided by time, because the requests that would tell are gone."""
    sums: dict[tuple[int, int], int] = {}
    pruned = pruned_slots(edges)
    for start_ms, service, gpu_us in zip(
        *(usage[name].tolist() for name in ("time_ms", "service", "gpu_us")), strict=True
    ):
        if start_ms in pruned:
            sums[start_ms, service] = sums.get((start_ms, service), 0) + gpu_us
    return [
        ServiceFinding(
            "usage_pruned",
            int(np.searchsorted(edges, start_ms)),
            int(index.index_of(np.array([service]))[0]),
            gpu_us,
            "gpu_us",
        )
        for (start_ms, service), gpu_us in sorted(sums.items())
    ]


def _delete(pool: Pool, span: Span) -> None:
    params: dict[str, Any] = {
        "pool": pool.pk,
        "from": to_datetime(span.start_ms),
        "to": to_datetime(span.end_ms),
    }
    with connection.cursor() as cursor:
        for statement in sql.DELETE_SLOTS:
            cursor.execute(statement, params)


def _held_without_capacity_ms(levels: Levels, split: PoolSplit) -> int:
    """For how long something was held or reserved while the pool's capacity was not known yet."""
    known_ms = int(split.edges[-1]) if split.split_from_ms is None else split.split_from_ms
    held_ms = levels.time_ms[(levels.kind != Kind.CAPACITY) & (levels.milli > 0)]
    if not len(held_ms):
        return 0
    return max(min(known_ms, int(split.edges[-1])) - max(int(held_ms.min()), int(split.edges[0])), 0)


def _write_findings(
    pool: Pool,
    span: Span,
    context: _Context,
    split: PoolSplit,
    noticed: list[ServiceFinding],
    conflicts: Int64s,
    missed_ms: int,
) -> int:
    """Replace this computation's findings of the pool's days: one per day, code and subject, quantities added."""
    BillingFinding.objects.filter(
        pool=pool,
        code__in=FINDINGS,
        starts_at__gte=to_datetime(span.start_ms),
        starts_at__lt=to_datetime(span.end_ms),
    ).delete()
    days = np.array([day.start_ms for day in utc_days(span)], np.int64)
    slugs = context.index.holders.slugs
    sums: dict[tuple[int, str, str, str], int] = {}

    def note(instant_ms: int, code: str, subject: str, quantity: int, unit: str) -> None:
        day = int(days[np.searchsorted(days, instant_ms, "right") - 1])
        sums[day, code, subject, unit] = sums.get((day, code, subject, unit), 0) + quantity

    for found in noticed:
        note(int(split.edges[found.slot]), found.code, slugs[found.holder], found.quantity, found.unit)
    for code in ("oversold", "excess"):
        values = getattr(split.rows, code)
        for i in np.flatnonzero(values).tolist():
            start_ms = int(split.edges[split.rows.slot[i]])
            note(start_ms, code, slugs[int(split.rows.holder[i])], int(values[i]), "gpu_us")
    unattributed = np.flatnonzero(
        (split.rows.holder == context.index.unattributed) & (split.rows.occupancy > 0)
    )
    for i in unattributed.tolist():
        start_ms = int(split.edges[split.rows.slot[i]])
        note(start_ms, "unattributed", pool.slug, int(split.rows.occupancy[i]), "gpu_us")
    if missed_ms:
        note(span.start_ms, "capacity_unknown", pool.slug, missed_ms, "ms")
    for event in conflicts.tolist():
        note(span.start_ms, "level_conflict", f"event {event}", 1, "facts")
    BillingFinding.objects.bulk_create(
        BillingFinding(
            code=code,
            month=str(context.month),
            pool=pool,
            starts_at=to_datetime(day),
            subject=subject,
            quantity=quantity,
            unit=unit,
            blocks_close=code in _BLOCKING,
        )
        for (day, code, subject, unit), quantity in sorted(sums.items())
    )
    return len(sums)
