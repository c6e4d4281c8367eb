"""The cluster as the newest facts say it is: what each pool has, what is held, what waits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection
from django.db.models import Count, Max, QuerySet, Sum
from django.db.models.functions import Coalesce

from billing.models import PreemptionRecord
from billing.selectors.statements import preemption_records
from billing.sql.pages import LEVELS_NOW
from ledger.access import Access
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import MS_PER_DAY
from ledger.models import LevelKind, Pool, Source
from ledger.selectors.corrections import void_facts

RECENT_PREEMPTIONS = 15
DAYS_LOOKED_BACK = 7


@dataclass(frozen=True)
class HolderNow:
    """What one identity holds, reserves and waits for in a pool, in milli-GPU."""

    name: str
    held_milli: int = 0
    reserved_milli: int = 0
    pending_milli: int = 0


@dataclass
class PoolNow:
    """A pool at this instant, in milli-GPU. capacity None: no capacity fact yet."""

    pool: Pool
    capacity_milli: int | None = None
    holders: list[HolderNow] = field(default_factory=list)
    newest_fact_at: datetime | None = None

    def _sum(self, name: str) -> int:
        return sum(getattr(holder, name) for holder in self.holders)

    @property
    def held_milli(self) -> int:
        return self._sum("held_milli")

    @property
    def reserved_milli(self) -> int:
        return self._sum("reserved_milli")

    @property
    def pending_milli(self) -> int:
        return self._sum("pending_milli")

    @property
    def free_milli(self) -> int:
        return max((self.capacity_milli or 0) - self.held_milli, 0)

    @property
    def is_short(self) -> bool:
        """More waits than is free: somebody has to wait, or somebody has to give way."""
        return self.pending_milli > self.free_milli


def pools_now(at: datetime) -> list[PoolNow]:
    """Pools by slug. Two queries; they read the last level of each subject that can still hold something."""
    pools = {pool.pk: PoolNow(pool) for pool in Pool.objects.order_by("slug")}
    sums: dict[int, dict[str, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    with connection.cursor() as cursor:
        cursor.execute(LEVELS_NOW, {"now": at, "void": void_facts().events})
        for pool_id, kind, name, milli, newest in cursor.fetchall():
            row = pools[pool_id]
            row.newest_fact_at = max(filter(None, (row.newest_fact_at, newest)), default=None)
            if kind == LevelKind.CAPACITY:
                row.capacity_milli = int(milli)
            else:
                sums[pool_id][name][kind] = int(milli)
    for pool_id, holders in sums.items():
        pools[pool_id].holders = [
            HolderNow(
                name,
                kinds.get(LevelKind.OCCUPANCY, 0),
                kinds.get(LevelKind.RESERVATION, 0),
                kinds.get(LevelKind.PENDING, 0),
            )
            for name, kinds in sorted(holders.items())
        ]
    return list(pools.values())


def newest_fact_at() -> datetime | None:
    """The greatest event time of any source."""
    newest: datetime | None = Source.objects.aggregate(newest=Max("watermark_at"))["newest"]
    return newest


def recent_preemptions(access: Access, until: datetime | None = None) -> list[PreemptionRecord]:
    """The newest, or the newest by an instant that is over."""
    records = preemption_records(access)
    if until is not None:
        records = records.filter(decided_at__lte=until)
    return list(records[:RECENT_PREEMPTIONS])


def recent_window(now: datetime) -> Span:
    """The last days that facts tell of: up to now, or to the newest fact where nothing has come in since."""
    end_ms = min(to_ms(newest_fact_at() or now) + 1, to_ms(now))
    return Span(end_ms - DAYS_LOOKED_BACK * MS_PER_DAY, end_ms)


@dataclass(frozen=True)
class Preempting:
    """What one holder took from others in the window; holder None: unknown, or the platform itself."""

    holder_id: int | None
    preemptions: int
    milli_gpus: int
    victims: int
    last_at: datetime


def who_is_preempting(access: Access, window: Span) -> list[Preempting]:
    """By holder, most first. One query."""
    rows = (
        _decided_in(access, window)
        .values("preemptor_id")
        .annotate(
            hits=Count("pk"),
            gpus=Sum("milli_gpus"),
            victims=Count("victim_workload", distinct=True),
            last=Max("decided_at"),
        )
        .order_by("-hits", "preemptor_id")
    )
    return [
        Preempting(row["preemptor_id"], row["hits"], int(row["gpus"]), row["victims"], row["last"])
        for row in rows
    ]


@dataclass(frozen=True)
class RepeatVictim:
    """Work that was hit more than once in the window. Sums over what is known."""

    holder_id: int
    pool: str
    workload: str
    preemptions: int
    requeued_gpu_us: int
    waiting_gpu_us: int
    last_at: datetime


def repeat_victims(access: Access, window: Span) -> list[RepeatVictim]:
    """Most often hit first. One query."""
    rows = (
        _decided_in(access, window)
        .exclude(victim_workload__isnull=True)
        .exclude(victim_workload="")
        .values("victim_id", "pool__slug", "victim_workload")
        .annotate(
            hits=Count("pk"),
            requeued=Sum(Coalesce("lost_gpu_us", 0) + Coalesce("recompute_gpu_us", 0)),
            waited=Sum("waiting_gpu_us"),
            last=Max("decided_at"),
        )
        .filter(hits__gt=1)
        .order_by("-hits", "-waited", "victim_workload")
    )
    return [
        RepeatVictim(
            row["victim_id"],
            row["pool__slug"],
            row["victim_workload"] or "",
            row["hits"],
            int(row["requeued"]),
            int(row["waited"]),
            row["last"],
        )
        for row in rows
    ]


def _decided_in(access: Access, window: Span) -> QuerySet[PreemptionRecord]:
    """Preemptions of running work; plain rows, so that they can be grouped."""
    visible = preemption_records(access).filter(
        decided_at__gte=to_datetime(window.start_ms), decided_at__lt=to_datetime(window.end_ms)
    )
    return PreemptionRecord.objects.filter(
        pk__in=visible.order_by().values("pk"), queued_only=False
    ).order_by()
