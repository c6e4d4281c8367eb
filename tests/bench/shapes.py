"""The load of the allocation benchmarks, derived deterministically: a month of a large, busy cluster.

500 holders in 20 pools (each holder in two of them), some reservations, and workloads that start, resize and end
with a day and night rhythm, so that bursts meet idle reservations for a part of the day.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ledger.core.levels import Kind
from ledger.core.periods import Month, Span
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR

POOLS = 20
HOLDERS = 500
POOLS_PER_HOLDER = 1
MONTH = Month(2026, 10)
SEED = 20261001

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """Changes of levels in order of time; arrays of one length. A subject belongs to one pool and holder."""

    span: Span
    pool: Int64s
    kind: Int64s
    subject: Int64s
    holder: Int64s
    time_ms: Int64s
    milli: Int64s
    lendable: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.time_ms)


def month_of_changes(changes: int = 1_000_000) -> Shape:
    """`changes` rows in all, the last ones being releases cut off at the month's end like any month's."""
    rng = np.random.default_rng(SEED)
    span = MONTH.span("UTC")
    parts = [_capacities(span), _reservations(rng, span)]
    fixed = sum(len(part[0]) for part in parts)
    parts.append(_workloads(rng, span, changes - fixed))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[4], kind="stable")
    pool, kind, subject, holder, time_ms, milli, lendable = (column[order] for column in columns)
    return Shape(span, pool, kind, subject, holder, time_ms, milli, lendable.astype(bool))


def _places() -> tuple[Int64s, Int64s]:
    """(pool, holder) of every presence: holder h works in pools h and 7 h + 3, modulo the number of pools."""
    holder = np.repeat(np.arange(HOLDERS), POOLS_PER_HOLDER)
    second = np.tile(np.arange(POOLS_PER_HOLDER), HOLDERS)
    return np.where(second == 0, holder, 7 * holder + 3) % POOLS, holder


def _capacity_milli() -> int:
    return 4_800_000  # 600 nodes of 8 GPUs


def _capacities(span: Span) -> tuple[Int64s, ...]:
    """Each pool: 6400 GPUs, and a node that fails and returns every day."""
    days = np.arange(span.start_ms, span.end_ms, MS_PER_DAY)
    times = np.concatenate([[span.start_ms], days + 9 * MS_PER_HOUR, days + 15 * MS_PER_HOUR])
    milli = np.concatenate([[0], np.full(len(days), -8_000), np.zeros(len(days), int)]) + _capacity_milli()
    pool = np.repeat(np.arange(POOLS), len(times))
    return _rows(pool, Kind.CAPACITY, pool, -1, np.tile(times, POOLS), np.tile(milli, POOLS), True)


def _reservations(rng: np.random.Generator, span: Span) -> tuple[Int64s, ...]:
    """Two presences in three hold a reservation from the start; one in eight may not be lent. 85 % is reserved."""
    pool, holder = _places()
    has = rng.random(len(pool)) < 2 / 3
    size = np.where(has, rng.lognormal(0.0, 0.8, len(pool)), 0.0)
    share = size / np.bincount(pool, size, POOLS)[pool]
    milli = (share * 0.85 * _capacity_milli() / 1_000).astype(np.int64) * 1_000
    subject = POOLS + np.arange(len(pool))
    lendable = rng.random(len(pool)) < 7 / 8
    columns = _rows(pool, Kind.RESERVATION, subject, holder, span.start_ms, milli, lendable)
    return tuple(column[has] for column in columns)


def _workloads(rng: np.random.Generator, span: Span, changes: int) -> tuple[Int64s, ...]:
    """Workloads of three changes each: start, resize, end; durations log-normal, more and larger by day."""
    places_pool, places_holder = _places()
    count = -(-changes // 3)
    place = np.arange(count) % len(places_pool)
    day = rng.integers(0, (span.end_ms - span.start_ms) // MS_PER_DAY, count)
    hour = np.clip(rng.normal(13.0, 5.0, count) % 24, 0, 23.99)
    start = span.start_ms + day * MS_PER_DAY + (hour * MS_PER_HOUR).astype(np.int64)
    length = np.clip(rng.lognormal(8.9, 1.1, count), 60, 500_000) * 1_000
    milli = rng.choice([1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 500], count)
    resized = np.where(rng.random(count) < 0.5, milli * 2, np.maximum(milli // 2, 250))
    end = start + length.astype(np.int64)
    middle = start + (length * rng.random(count)).astype(np.int64)
    subject = 10_000 + np.arange(count)
    stack = [(start, milli), (middle, resized), (end, np.zeros(count, np.int64))]
    times = np.concatenate([time for time, _ in stack])[:changes]
    levels = np.concatenate([level for _, level in stack])[:changes]
    times = np.minimum(times, span.end_ms)
    who = np.tile(np.arange(count), 3)[:changes]
    return _rows(
        places_pool[place][who], Kind.OCCUPANCY, subject[who], places_holder[place][who], times, levels, True
    )


def _rows(pool, kind, subject, holder, time_ms, milli, lendable) -> tuple[Int64s, ...]:
    columns = (pool, int(kind), subject, holder, time_ms, milli, lendable)
    return tuple(np.broadcast_to(np.asarray(column, np.int64), pool.shape) for column in columns)
