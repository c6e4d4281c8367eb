"""A pool over time: buckets of the stored slots, and minutes split from the facts on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from django.db.models import Exists, Max, OuterRef, QuerySet

from billing.core.allocation import PoolSplit
from billing.models import PoolSlot
from billing.selectors.minutes import split_by_minute
from billing.selectors.pages_months import PARTS_OF_CAPACITY
from billing.services.allocation_facts import (
    void_events,
)
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import Level, LevelKind, Pool, Subject

COLUMNS = ("capacity", *PARTS_OF_CAPACITY, "over_reserved", "excess", "oversold")
# From far to near; each bucket of one is the frame of the next but one that is finer.
ZOOMS = ("month", "week", "day", "hour")
BUCKETS = {"month": "day", "week": "hour", "day": "minute", "hour": "minute"}
CLOSER = {"month": "day", "week": "day", "day": "hour", "hour": ""}


@dataclass(frozen=True)
class Bucket:
    """A stretch of one pool: gpu_us by COLUMNS, and how long it is (of a cut-off one, what of it is known)."""

    starts_at: datetime
    length_ms: int
    gpu_us: Mapping[str, int]

    @property
    def difference_gpu_us(self) -> int:
        """0 by the law of conservation."""
        filled = sum(self.gpu_us[name] for name in PARTS_OF_CAPACITY)
        return self.gpu_us["capacity"] - filled + self.gpu_us["over_reserved"]


@dataclass(frozen=True)
class Frame:
    """What is looked at: [starts_at, ends_at) in the reader's zone, and its neighbours."""

    zoom: str
    starts_at: datetime
    ends_at: datetime
    before: datetime
    after: datetime

    @property
    def span(self) -> Span:
        return Span(to_ms(self.starts_at), to_ms(self.ends_at))


def frame_of(zoom: str, at: datetime, zone: ZoneInfo) -> Frame:
    """The month, week (from Monday), day or hour of local time that holds the instant."""
    local = at.astimezone(zone)
    if zoom == "hour":
        start = to_datetime(to_ms(at) - (local.minute * 60 + local.second) * 1000 - local.microsecond // 1000)
        hour = timedelta(hours=1)
        return Frame(zoom, start, start + hour, start - hour, start + hour)
    day = local.date()
    if zoom == "month":
        first = day.replace(day=1)
        ends, before = (first + timedelta(days=31)).replace(day=1), (first - timedelta(days=1)).replace(day=1)
    else:
        first = day - timedelta(days=day.weekday()) if zoom == "week" else day
        length = timedelta(days=7 if zoom == "week" else 1)
        ends, before = first + length, first - length
    starts_at, ends_at = _midnight(first, zone), _midnight(ends, zone)
    return Frame(zoom, starts_at, ends_at, _midnight(before, zone), ends_at)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """Where a clock skips midnight, the first instant after it."""
    return to_datetime(to_ms(datetime(day.year, day.month, day.day, tzinfo=zone)))


def newest_slot_at(pool: Pool) -> datetime | None:
    newest: datetime | None = PoolSlot.objects.filter(pool=pool).aggregate(newest=Max("starts_at"))["newest"]
    return newest


def buckets_of(pool: Pool, frame: Frame, zone: ZoneInfo) -> list[Bucket]:
    """In order of time; what was not computed has no bucket. One query, or by the minute a few over the facts."""
    if BUCKETS[frame.zoom] == "minute":
        return minutes_of(pool, frame.span)
    slots = PoolSlot.objects.filter(
        pool=pool, starts_at__gte=frame.starts_at, starts_at__lt=frame.ends_at
    ).order_by("starts_at")
    groups: dict[datetime, list[PoolSlot]] = {}
    for slot in slots:
        groups.setdefault(_bucket_start(slot.starts_at, BUCKETS[frame.zoom], zone), []).append(slot)
    return [_bucket(starts_at, of_bucket) for starts_at, of_bucket in groups.items()]


def _bucket_start(at: datetime, size: str, zone: ZoneInfo) -> datetime:
    """A slot belongs to the bucket that it starts in."""
    local = at.astimezone(zone)
    if size == "day":
        return _midnight(local.date(), zone)
    return at - timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)


def _bucket(starts_at: datetime, slots: Sequence[PoolSlot]) -> Bucket:
    return Bucket(
        starts_at,
        sum(to_ms(slot.ends_at) - to_ms(slot.starts_at) for slot in slots),
        {name: sum(getattr(slot, f"{name}_gpu_us") for slot in slots) for name in COLUMNS},
    )


def minutes_of(pool: Pool, span: Span) -> list[Bucket]:
    """Each minute of at most a day, split from the facts as the books would split it (domain.md section 4).

    Raises:
        TooLong: the span is longer than a day.
    """
    split = split_by_minute(pool, span)
    if split.split_from_ms is None:
        return []
    return list(_minutes(split))


def _minutes(split: PoolSplit) -> Iterable[Bucket]:
    count = len(split.edges) - 1
    sums: dict[str, Any] = {
        name: getattr(split.pool, name) for name in ("capacity", "unreserved_idle", "over_reserved")
    }
    for name in (
        "reserved_used",
        "on_demand",
        "borrowed",
        "reserved_idle",
        "undelivered",
        "excess",
        "oversold",
    ):
        sums[name] = np.zeros(count, np.int64)
        np.add.at(sums[name], split.rows.slot, getattr(split.rows, name))
    for slot, (start_ms, end_ms) in enumerate(
        zip(split.edges[:-1].tolist(), split.edges[1:].tolist(), strict=True)
    ):
        if end_ms > (split.split_from_ms or 0):
            gpu_us = {name: int(sums[name][slot]) for name in COLUMNS}
            yield Bucket(to_datetime(start_ms), end_ms - start_ms, gpu_us)


def planned_changes(pool: Pool, now: datetime) -> QuerySet[Level]:
    """What is already known to change: capacity and reservations from an instant in the future on."""
    return (
        Level.objects.filter(
            pool=pool, kind__in=[LevelKind.CAPACITY, LevelKind.RESERVATION], starts_at__gt=now
        )
        .exclude(event__in=void_events())
        .select_related("event__source", "event__booking", "identity")
        .order_by("starts_at", "pk")
    )


def workloads_now(pool: Pool, now: datetime) -> QuerySet[Subject]:
    """What holds GPUs by its newest fact; largest first. A higher attempt has ended the lower ones."""
    of_pool = Subject.objects.filter(pool=pool, kind=LevelKind.OCCUPANCY)
    higher = of_pool.filter(
        subject=OuterRef("subject"), attempt__gt=OuterRef("attempt"), first_at__lte=now
    ).order_by()
    running = of_pool.filter(~Exists(higher), last_milli_gpus__gt=0, last_at__lte=now)
    return running.order_by("-last_milli_gpus", "subject", "attempt")
