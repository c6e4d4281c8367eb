"""What a computation noticed that somebody should look at, some of it before the month can close (domain.md 4, 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from django.db.models import Exists, Max, OuterRef
from numpy.typing import NDArray

from billing.core.allocation import PoolSplit
from billing.models import BillingFinding
from billing.services.allocation_facts import HolderIndex
from billing.services.allocation_rows import ServiceFinding
from billing.services.findings import replace_findings
from ledger.core.levels import Kind, Levels
from ledger.core.periods import Month, Span, to_datetime, utc_days
from ledger.models import Level, Period, PeriodState, Pool

Int64s = NDArray[np.int64]

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


def estimated(
    usage: dict[str, Int64s], pruned: set[int], edges: Int64s, index: HolderIndex
) -> list[ServiceFinding]:
    """What was divided by time, because the requests that would tell are gone."""
    sums: dict[tuple[int, int], int] = {}
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


def held_without_capacity_ms(levels: Levels, split: PoolSplit) -> int:
    """For how long something was held or reserved while the pool's capacity was not known yet."""
    known_ms = int(split.edges[-1]) if split.split_from_ms is None else split.split_from_ms
    held_ms = levels.time_ms[(levels.kind != Kind.CAPACITY) & (levels.milli > 0)]
    if not len(held_ms):
        return 0
    return max(min(known_ms, int(split.edges[-1])) - max(int(held_ms.min()), int(split.edges[0])), 0)


def _dated_conflicts(conflicts: tuple[Int64s, Int64s], span: Span, month: Month) -> Iterator[tuple[int, int]]:
    """(event, instant) of the conflicts to be noted here: each on its own day, once, whoever reads its level later.

    A level that is still in force brings its conflict along into every later span. It counts in its own month, whose
    close it blocks; where that was closed before the fact came, at the start of the earliest month that is open.
    """
    brought_along = []
    for event, instant_ms in zip(*(column.tolist() for column in conflicts), strict=True):
        if instant_ms >= span.start_ms:
            yield event, instant_ms
        else:
            brought_along.append(event)
    begins_month = Period.objects.filter(month=str(month), starts_at=to_datetime(span.start_ms))
    if brought_along and begins_month.exists():
        closed = Period.objects.filter(state=PeriodState.CLOSED, month__lt=str(month))
        cut = closed.aggregate(last=Max("cut_sequence"))["last"]
        if cut is not None:
            yield from ((event, span.start_ms) for event in _told_since(cut, brought_along))


def _told_since(cut: int, events: Sequence[int]) -> list[int]:
    """Those of the events that lost against a fact, or did themselves come, after a booking."""
    same = {name: OuterRef(name) for name in ("pool", "kind", "subject", "attempt", "starts_at")}
    late = Level.objects.filter(**same, event__booking__sequence__gt=cut)
    lost = Level.objects.filter(Exists(late), event__in=events)
    return list(lost.order_by("event").values_list("event_id", flat=True))


def write_findings(
    pool: Pool,
    span: Span,
    month: Month,
    index: HolderIndex,
    split: PoolSplit,
    noticed: list[ServiceFinding],
    conflicts: tuple[Int64s, Int64s],
    missed_ms: int,
) -> int:
    """Replace this computation's findings of the pool's days: one per day, code and subject, quantities added."""
    standing = BillingFinding.objects.filter(
        pool=pool,
        code__in=FINDINGS,
        starts_at__gte=to_datetime(span.start_ms),
        starts_at__lt=to_datetime(span.end_ms),
    )
    days = np.array([day.start_ms for day in utc_days(span)], np.int64)
    slugs = index.holders.slugs
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
    unattributed = np.flatnonzero((split.rows.holder == index.unattributed) & (split.rows.occupancy > 0))
    for i in unattributed.tolist():
        start_ms = int(split.edges[split.rows.slot[i]])
        note(start_ms, "unattributed", pool.slug, int(split.rows.occupancy[i]), "gpu_us")
    if missed_ms:
        note(span.start_ms, "capacity_unknown", pool.slug, missed_ms, "ms")
    for event, instant_ms in _dated_conflicts(conflicts, span, month):
        note(instant_ms, "level_conflict", f"event {event}", 1, "facts")
    noted = (
        BillingFinding(
            code=code,
            month=str(month),
            pool=pool,
            starts_at=to_datetime(day),
            subject=subject,
            quantity=quantity,
            unit=unit,
            blocks_close=code in _BLOCKING,
        )
        for (day, code, subject, unit), quantity in sorted(sums.items())
    )
    replace_findings(standing, noted)
    return len(sums)
