"""The state of pools just before decisions, read from their facts (domain.md section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from django.db import connection

from billing.core.allocation_at import cover_own_services, split_at
from billing.core.pool_instants import PoolInstants
from billing.core.pool_moments import PENDING as PENDING_KIND
from billing.core.pool_moments import Change, Moment, Subject, moments
from billing.selectors.undated import UndatedTerms
from billing.services.allocation_facts import HolderIndex, holder_at, load_timeline, read_levels
from billing.sql.preemptions import ANNOUNCED, PENDING, POOLS_WITH_PENDING
from ledger.core.levels import resolve_holders
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR
from ledger.models import Pool, Service, ServiceClass

# A shortage may be older than the first decision; before this it counts as having begun here.
LOOK_BACK_MS = 7 * MS_PER_DAY
# A planned change explains decisions that were taken up to this long before or after it.
_ANNOUNCED_WITHIN_MS = MS_PER_HOUR


class Moments:
    """Pools just before instants. A pool is read when it is first asked for: one read of its levels, over the time
    between its first and last instant."""

    def __init__(
        self,
        wanted: Mapping[str, Sequence[int]],
        idle_at: Mapping[str, Sequence[int]],
        pools: Mapping[str, Pool],
        void: list[int],
        index: HolderIndex,
        undated: UndatedTerms,
    ) -> None:
        """wanted: pool slug -> instants of which everything may be asked for; idle_at: of which only what was idle may
        be, which includes the former."""
        self._wanted, self._idle_at, self._pools, self._void, self._index = (
            wanted,
            idle_at,
            pools,
            void,
            index,
        )
        self._undated = undated
        self._waiting = _pools_with_pending(max((max(at) for at in wanted.values()), default=0))
        self._moments: dict[str, dict[int, Moment]] = {}
        self._idle: dict[str, dict[int, int]] = {}

    def get(self, pool: str, instant_ms: int) -> Moment | None:
        self._read(pool)
        return self._moments[pool].get(instant_ms)

    def idle_milli(self, pool: str, instant_ms: int) -> int:
        """What the pool could still have given: unreserved or lendable."""
        self._read(pool)
        return self._idle[pool][instant_ms]

    def _read(self, slug: str) -> None:
        if slug in self._idle:
            return
        self._idle[slug], self._moments[slug] = {}, {}
        asked = set(self._wanted.get(slug, ()))
        # Services have the owners of the month that an instant lies in: mostly the same in all of them.
        for undated, instants in self._undated.by_owners(self._idle_at[slug]):
            of_these = [at for at in instants if at in asked]
            self._read_instants(self._pools[slug], instants, of_these, undated.owned)

    def _read_instants(
        self, pool: Pool, instants: Sequence[int], asked: Sequence[int], owned: Mapping[str, str]
    ) -> None:
        slug, index = pool.slug, self._index.with_owned(owned)
        facts = read_levels(pool.pk, Span(min(instants) - 1, max(instants) + 1), self._void)
        levels = facts.effective.levels
        timeline = load_timeline(np.unique(levels.who).tolist(), index)
        seen = PoolInstants.of(resolve_holders(levels, timeline), index.holders, instants)
        self._idle[slug] |= dict(zip(seen.instants.tolist(), seen.idle().tolist(), strict=True))
        if asked and pool.pk in self._waiting:
            changes = read_changes(pool, Span(min(asked), max(asked) + 1), self._void, index)
            found = moments(changes, asked, owned)
            self._moments[slug] |= {at: _seen_from(moment, at) for at, moment in found.items()}
        else:
            self._moments[slug] |= {at: _without_shortage(seen, at, owned) for at in asked}


def _without_shortage(seen: PoolInstants, at_ms: int, owned: Mapping[str, str]) -> Moment:
    held = seen.held(at_ms)
    split = split_at(seen.capacity_at(at_ms), held, owned)
    return Moment(split, cover_own_services(held, owned), None)


@dataclass(frozen=True)
class IdlePools(Mapping[str, int]):
    """Pool -> what it could have given just before an instant; read when it is asked for."""

    moments: Moments
    pools: Sequence[str]
    instant_ms: int

    def __getitem__(self, pool: str) -> int:
        return self.moments.idle_milli(pool, self.instant_ms)

    def __iter__(self) -> Iterator[str]:
        return iter(self.pools)

    def __len__(self) -> int:
        return len(self.pools)


def _pools_with_pending(end_ms: int) -> set[int]:
    """Pools in which anything ever waited to start: only there can have been a shortage."""
    with connection.cursor() as cursor:
        cursor.execute(POOLS_WITH_PENDING, {"to": to_datetime(end_ms)})
        return {pool for (pool,) in cursor.fetchall()}


def service_owners() -> dict[str, str]:
    """Service slug -> slug of the tenant that owns it."""
    return {
        service.slug: service.owner.slug
        for service in Service.objects.select_related("holder", "owner__holder")
        if service.owner is not None
    }


def _seen_from(moment: Moment, instant_ms: int) -> Moment:
    """However far back the sweep began for others, a lead time is the same: at most the look-back."""
    since = moment.short_since_ms
    return moment if since is None else replace(moment, short_since_ms=max(since, instant_ms - LOOK_BACK_MS))


def read_changes(
    pool: Pool, span: Span, void: list[int], index: HolderIndex, *, look_back_ms: int = LOOK_BACK_MS
) -> list[Change]:
    """Level changes of a pool before the end of `span`, in order, beginning with what stood `look_back_ms` before it,
    or later, when anything first waits: before that the pool cannot have been short. At the latest just before it."""
    pending = _pending(pool, Span(span.start_ms - look_back_ms, span.end_ms), void, index)
    waits_ms = _waits_from(pending, span.start_ms - look_back_ms)
    first_ms = min(span.start_ms - 1, span.end_ms if waits_ms is None else waits_ms)
    changes = [*_held(pool, Span(first_ms, span.end_ms), void, index), *pending]
    changes.sort(key=lambda change: change.time_ms)
    # What stood at the beginning stood together: an older change alone would show a pool that never was.
    return [replace(one, time_ms=first_ms) if one.time_ms < first_ms else one for one in changes]


def _waits_from(pending: Sequence[Change], first_ms: int) -> int | None:
    """The last instant, not before `first_ms`, up to which nothing waits; None where nothing does from then on."""
    waiting: dict[Subject, int] = {}
    total = 0
    for change in pending:
        if total and change.time_ms > first_ms:
            return first_ms
        total += change.milli - waiting.get(change.subject, 0)
        waiting[change.subject] = change.milli
        if total and change.time_ms > first_ms:
            return max(change.time_ms - 1, first_ms)
    return first_ms if total else None


def _held(pool: Pool, span: Span, void: list[int], index: HolderIndex) -> Iterator[Change]:
    """subject: the primary key of its row, so that a workload can be called by its name."""
    facts = read_levels(pool.pk, span, void)
    effective = facts.effective.levels
    levels = resolve_holders(effective, load_timeline(np.unique(effective.who).tolist(), index))
    subjects = facts.subjects.row_ids(levels.subject, levels.attempt)
    columns = (levels.kind, subjects, levels.attempt, levels.time_ms, levels.milli, levels.who)
    rows = zip(
        *(column.tolist() for column in columns), levels.lendable.tolist(), levels.group.tolist(), strict=True
    )
    for kind, subject, attempt, time_ms, milli, who, lendable, group in rows:
        holder = index.holders.slugs[who] if who >= 0 else ""
        preemptible = group >> 3 == ServiceClass.PREEMPTIBLE
        yield Change(time_ms, (kind, subject, attempt), holder, milli, lendable, preemptible)


def _pending(pool: Pool, span: Span, void: list[int], index: HolderIndex) -> list[Change]:
    """Of what waits at some time of `span`."""
    parameters: dict[str, Any] = {
        "pool": pool.pk,
        "from": to_datetime(span.start_ms),
        "to": to_datetime(span.end_ms),
        "void": void,
    }
    with connection.cursor() as cursor:
        cursor.execute(PENDING, parameters)
        rows = cursor.fetchall()
    timeline = load_timeline({row[3] for row in rows}, index)
    return [
        Change(
            to_ms(starts_at),
            (PENDING_KIND, subject, 0),
            index.holders.slugs[holder_at(timeline, identity, to_ms(starts_at))],
            milli,
        )
        for subject, starts_at, milli, identity in rows
    ]


def announced_changes(
    pools: Mapping[str, Pool], instants: Mapping[str, Sequence[int]], void: list[int]
) -> dict[str, list[tuple[int, int]]]:
    """Pool slug -> (instant, when it was announced) of the planned capacity changes around its instants. One query."""
    around = {
        slug: (min(at) - _ANNOUNCED_WITHIN_MS, max(at) + _ANNOUNCED_WITHIN_MS + 1)
        for slug, at in instants.items()
    }
    parameters: dict[str, Any] = {
        "pools": [pools[slug].pk for slug in around],
        "starts": [to_datetime(first_ms) for first_ms, _ in around.values()],
        "ends": [to_datetime(end_ms) for _, end_ms in around.values()],
        "void": void,
    }
    slugs = {pools[slug].pk: slug for slug in around}
    found: dict[str, list[tuple[int, int]]] = {slug: [] for slug in around}
    with connection.cursor() as cursor:
        cursor.execute(ANNOUNCED, parameters)
        for pool, starts_at, booked_at in cursor.fetchall():
            found[slugs[pool]].append((to_ms(starts_at), to_ms(booked_at)))
    return found


def announcement_for(decided_ms: int, announced: Sequence[tuple[int, int]]) -> int | None:
    """When the planned change nearest to a decision was announced; None if none is near."""
    near = [
        (abs(at_ms - decided_ms), announced_ms)
        for at_ms, announced_ms in announced
        if abs(at_ms - decided_ms) <= _ANNOUNCED_WITHIN_MS and announced_ms <= decided_ms
    ]
    return min(near)[1] if near else None
