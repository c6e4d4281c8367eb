"""The cluster as the newest facts say it is: what each pool has, what is held, what waits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection
from django.db.models import Max

from billing.models import PreemptionRecord
from billing.selectors.statements import preemption_records
from billing.sql_pages import LEVELS_NOW
from ledger.access import Access
from ledger.models import LevelKind, Pool, Source
from ledger.selectors.corrections import void_facts

RECENT_PREEMPTIONS = 15


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


def recent_preemptions(access: Access) -> list[PreemptionRecord]:
    return list(preemption_records(access)[:RECENT_PREEMPTIONS])
