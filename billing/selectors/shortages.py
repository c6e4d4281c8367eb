"""Headroom of pools, who would give way, and when pools were short (domain.md section 9)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from billing.core.allocation_at import InstantSplit
from billing.core.pool_moments import OCCUPANCY, Change
from billing.core.preemption_workload import victim_holding
from billing.core.rating_prices import PriceBook
from billing.core.shortage import (
    GivesWay,
    Headroom,
    Prices,
    Running,
    Shortage,
    giving_way,
    headroom,
    preemptions_of,
    shortages,
)
from billing.models import PreemptionRecord
from billing.services.allocation_facts import HolderIndex, void_events
from billing.services.preemption_facts import workload_histories
from billing.services.preemption_moments import read_changes, service_owners
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import LevelKind, Pool, ServiceClass, Subject


@dataclass(frozen=True)
class PoolHeadroom:
    """A pool's headroom at an instant. split: of its holders then; changes, void: what it was read from."""

    pool: Pool
    headroom: Headroom
    split: InstantSplit
    changes: Sequence[Change]
    void: list[int]


@dataclass(frozen=True)
class PoolShortage:
    """A shortage with the first preemption decided during it (None: none was), and how many there were."""

    pool: Pool
    shortage: Shortage
    preemptions: int
    first: PreemptionRecord | None

    @property
    def starts_at(self) -> datetime:
        return to_datetime(self.shortage.starts_ms)

    @property
    def ends_at(self) -> datetime | None:
        return None if self.shortage.ends_ms is None else to_datetime(self.shortage.ends_ms)

    @property
    def lead_time_ms(self) -> int | None:
        """How long the shortage was visible before the first preemption that it caused."""
        return None if self.first is None else to_ms(self.first.decided_at) - self.shortage.starts_ms


def pools_named(slugs: Collection[str] | None) -> list[Pool]:
    """Pools in order of slug; None: all of them. Unknown slugs name none."""
    pools = Pool.objects.order_by("slug")
    return list(pools if slugs is None else pools.filter(slug__in=slugs))


def headrooms(at: datetime, pools: Iterable[Pool]) -> list[PoolHeadroom]:
    """Each pool at an instant. Half a dozen queries per pool; they read what is held, and again with a week of changes
    where it is short, to see since when."""
    index, void, owners = HolderIndex.load(), void_events(), service_owners()
    found = []
    for pool in pools:
        instant = Span(to_ms(at), to_ms(at) + 1)
        changes = read_changes(pool, instant, void, index, look_back_ms=1)
        now, split = headroom(changes, to_ms(at), owners)
        if now.deficit:
            changes = read_changes(pool, instant, void, index)
            now, split = headroom(changes, to_ms(at), owners)
        found.append(PoolHeadroom(pool, now, split, changes, void))
    return found


def gives_way(at: datetime, found: PoolHeadroom, book: PriceBook) -> list[GivesWay]:
    """Workloads that hold more than they are entitled to, in the order in which they would give way."""
    running = _running(at, found.pool, found.changes, found.void)
    return giving_way(running, found.split, _prices(at, found.pool, running, book), to_ms(at))


def _running(at: datetime, pool: Pool, changes: Iterable[Change], void: list[int]) -> list[Running]:
    """What holds GPUs at the instant: two queries, for names and for how long (level_of_workload)."""
    last = {change.subject: change for change in changes if change.subject[0] == OCCUPANCY}
    held = {subject[1]: change for subject, change in last.items() if change.milli}
    names = Subject.objects.in_bulk(list(held))
    histories = workload_histories({(pool.cluster, one.subject) for one in names.values()}, void)
    found = []
    for pk, subject in names.items():
        change, history = held[pk], histories.get((pool.cluster, subject.subject), ())
        holding = victim_holding(history, pool.slug, subject.attempt, to_ms(at))
        since = holding.unbroken_since_ms(to_ms(at) + 1) if holding else None
        made = [at_ms for at_ms in holding.checkpoints_ms if at_ms <= to_ms(at)] if holding else []
        found.append(
            Running(
                workload=subject.subject,
                holder=change.holder,
                milli=change.milli,
                preemptible=change.preemptible,
                is_serving=holding is None or holding.serving,
                running_since_ms=change.time_ms if since is None else since,
                checkpoint_ms=max(made, default=None),
            )
        )
    return found


def _prices(at: datetime, pool: Pool, running: Iterable[Running], book: PriceBook) -> Prices:
    classes = {True: str(ServiceClass.PREEMPTIBLE.label), False: str(ServiceClass.GUARANTEED.label)}
    return {
        (one.holder, one.preemptible): book.prices(pool.slug, classes[one.preemptible], to_ms(at))
        for one in running
    }


def shortages_of(window: Span, pools: Iterable[Pool]) -> list[PoolShortage]:
    """Shortages that touch the window, by start and pool. A shortage older than a week before the window is shown
    as having begun then. A few queries and one sweep over its changes for each pool where work waits meanwhile."""
    index, void, owners = HolderIndex.load(), void_events(), service_owners()
    waits = pools_where_work_waits(window)
    swept = {
        pool: shortages(read_changes(pool, window, void, index), owners, window)
        for pool in pools
        if pool.pk in waits
    }
    records = _decided_during(swept, window)
    found = [one for pool in swept for one in _with_preemptions(pool, swept[pool], records[pool.pk])]
    return sorted(found, key=lambda one: (one.shortage.starts_ms, one.pool.slug))


def pools_where_work_waits(window: Span) -> set[int]:
    """Pools in which anything waits to start at some time of the window: only there can be a shortage. One query, which
    reads the roll-up of subjects."""
    waits = Q(last_milli_gpus__gt=0) | Q(last_at__gte=to_datetime(window.start_ms))
    subjects = Subject.objects.filter(waits, kind=LevelKind.PENDING, first_at__lt=to_datetime(window.end_ms))
    return set(subjects.values_list("pool", flat=True).distinct())


def _decided_during(
    swept: Mapping[Pool, Sequence[Shortage]], window: Span
) -> dict[int, list[PreemptionRecord]]:
    """Preemptions from the first shortage on, by pool and in order. One query."""
    found: defaultdict[int, list[PreemptionRecord]] = defaultdict(list)
    first_ms = min((some[0].starts_ms for some in swept.values() if some), default=window.end_ms)
    for record in (
        PreemptionRecord.objects.filter(
            pool__in=[pool.pk for pool in swept],
            queued_only=False,
            decided_at__gt=to_datetime(first_ms),
            decided_at__lt=to_datetime(window.end_ms),
        )
        .select_related("victim", "preemptor")
        # Of several at one instant the first by id is kept, being the last put in.
        .order_by("decided_at", "-preemption")
    ):
        found[record.pool_id].append(record)
    return found


def _with_preemptions(
    pool: Pool, swept: Sequence[Shortage], decided: Sequence[PreemptionRecord]
) -> Iterator[PoolShortage]:
    records = {to_ms(record.decided_at): record for record in decided}
    counts = Counter(to_ms(record.decided_at) for record in decided)
    for shortage in swept:
        caused = preemptions_of(shortage, list(records))
        first = records[caused[0]] if caused else None
        yield PoolShortage(pool, shortage, sum(counts[decided_ms] for decided_ms in caused), first)
