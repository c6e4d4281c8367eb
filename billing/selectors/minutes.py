"""A pool by the minute: split from the facts when asked for, as the books split it by the hour (domain.md 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from billing.core.allocation import HOLDER_CATEGORIES, PoolSplit, split_pool
from billing.models import Allocation, PoolSlot
from billing.services.allocation_facts import (
    HolderIndex,
    load_timeline,
    read_pool_facts,
    void_events,
    with_waits,
)
from billing.services.allocation_pending import pending_counts, read_pending
from ledger.core.apportion import apportion
from ledger.core.levels import resolve_holders
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import MS_PER_DAY, MS_PER_MINUTE
from ledger.models import Pool

Int64s = NDArray[np.int64]

LONGEST_BY_MINUTE_MS = 25 * MS_PER_DAY // 24  # a day of 25 hours, where clocks are put back


class TooLong(ValueError):
    """More than a day by the minute."""


def split_by_minute(
    pool: Pool, span: Span, cuts: Iterable[int] = (), index: HolderIndex | None = None
) -> PoolSplit:
    """The pool's split over the minutes of `span`, cut further at `cuts`.

    Raises:
        TooLong: the span is longer than a day.
    """
    if span.length_ms > LONGEST_BY_MINUTE_MS:
        raise TooLong("by the minute a day at most")
    index = index or HolderIndex.load()
    void = void_events()
    facts = read_pool_facts(pool.pk, span, void, index)
    timeline = load_timeline(np.unique(facts.effective.levels.who).tolist(), index)
    levels = with_waits(resolve_holders(facts.effective.levels, timeline), facts.waits)
    pending = read_pending(pool.pk, span, void, index, pending_counts())
    first_ms = span.start_ms - span.start_ms % MS_PER_MINUTE + MS_PER_MINUTE
    inner = {
        *range(first_ms, span.end_ms, MS_PER_MINUTE),
        *(t for t in cuts if span.start_ms < t < span.end_ms),
    }
    edges = np.array(sorted({span.start_ms, span.end_ms, *inner}), np.int64)
    return split_pool(levels, index.holders, edges, facts.effective.capacity_from_ms, pending=pending)


@dataclass(frozen=True)
class MinutePart:
    """A part of a stored row: what one payer has of one holder's category in one minute."""

    pool: Pool
    row: Allocation | None  # None: the pool's unreserved idle time
    category: str
    starts_ms: int  # of the minute
    gpu_us: int


@dataclass(frozen=True)
class PoolMinutes:
    """The parts of one pool, and its capacity by minute (ms -> gpu_us)."""

    parts: list[MinutePart]
    capacity: dict[int, int]


def minutes_of_rows(pool: Pool, rows: Sequence[Allocation], span: Span, *, include_idle: bool) -> PoolMinutes:
    """The stored rows of a pool's slots, divided over their minutes as their holder's levels ran; within `span`.

    Each row's minutes add up to the row: it is apportioned over its holder's own minutes of that category (several rows
    of one holder, by class or by tenant served, run alike within a slot).
    """
    slots = _slots(pool, span)
    if not slots:
        return PoolMinutes([], {})
    whole = Span(slots[0].start_ms, slots[-1].end_ms)
    index = HolderIndex.load()
    split = split_by_minute(pool, whole, [slot.start_ms for slot in slots], index)
    starts = split.edges[:-1]
    profiles = _Profiles(split, index)
    parts: list[MinutePart] = []
    bounds = {slot.start_ms: np.searchsorted(split.edges, [slot.start_ms, slot.end_ms]) for slot in slots}
    for row in rows:
        first, last = bounds[to_ms(row.starts_at)]
        for category in _CATEGORIES:
            amount = getattr(row, f"{category}_gpu_us")
            if amount:
                weights = profiles.of(row.holder_id, category)[first:last].tolist()
                if not any(weights):
                    weights = np.diff(split.edges[first : last + 1]).tolist()
                parts += _parts(pool, row, category, starts[first:last], apportion(amount, weights), span)
    if include_idle:
        parts += _parts(pool, None, "unreserved_idle", starts, split.pool.unreserved_idle, span)
    capacity: dict[int, int] = {}
    for part in _parts(pool, None, "capacity", starts, split.pool.capacity, span):
        capacity[part.starts_ms] = capacity.get(part.starts_ms, 0) + part.gpu_us
    return PoolMinutes(parts, capacity)


_CATEGORIES = tuple(name for name in HOLDER_CATEGORIES if name not in ("lent_waiting", "undelivered_pending"))


def _slots(pool: Pool, span: Span) -> list[Span]:
    found = PoolSlot.objects.filter(
        pool=pool, starts_at__lt=to_datetime(span.end_ms), ends_at__gt=to_datetime(span.start_ms)
    )
    times = found.order_by("starts_at").values_list("starts_at", "ends_at")
    return [Span(to_ms(starts_at), to_ms(ends_at)) for starts_at, ends_at in times]


class _Profiles:
    """gpu_us of each holder and category, by minute."""

    def __init__(self, split: PoolSplit, index: HolderIndex) -> None:
        self._split = split
        self._place = {pk: place for place, pk in enumerate(index.ids.tolist())}
        self._known: dict[tuple[int, str], Int64s] = {}

    def of(self, holder_id: int, category: str) -> Int64s:
        key = (holder_id, category)
        if key not in self._known:
            rows = self._split.rows
            mine = rows.holder == self._place[holder_id]
            found = np.zeros(len(self._split.edges) - 1, np.int64)
            found[rows.slot[mine]] = getattr(rows, category)[mine]
            self._known[key] = found
        return self._known[key]


def _parts(
    pool: Pool, row: Allocation | None, category: str, starts: Int64s, gpu_us: Any, span: Span
) -> Iterable[MinutePart]:
    for start_ms, value in zip(starts.tolist(), np.asarray(gpu_us).tolist(), strict=True):
        minute_ms = start_ms - start_ms % MS_PER_MINUTE
        if value and span.start_ms <= minute_ms < span.end_ms:
            yield MinutePart(pool, row, category, minute_ms, value)
