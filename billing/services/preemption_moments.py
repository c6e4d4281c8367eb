"""The state of pools just before decisions, read from their facts (domain.md section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection

from billing.core.pool_moments import PENDING as PENDING_KIND
from billing.core.pool_moments import Change, Moment, moments
from billing.services.allocation_facts import HolderIndex, load_timeline, read_pool_facts
from billing.sql_preemptions import ANNOUNCED, PENDING
from ledger.core.levels import resolve_holders
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR
from ledger.models import Pool, Service, ServiceClass

# A shortage may be older than the first decision; before this it counts as having begun here.
_LOOK_BACK_MS = 7 * MS_PER_DAY
# A planned change explains decisions that were taken up to this long before or after it.
_ANNOUNCED_WITHIN_MS = MS_PER_HOUR


@dataclass(frozen=True)
class Moments:
    """of: (pool slug, instant) -> the pool just before it."""

    of: Mapping[tuple[str, int], Moment]

    def get(self, pool: str, instant_ms: int) -> Moment | None:
        return self.of.get((pool, instant_ms))


def read_moments(
    wanted: Mapping[str, Sequence[int]], pools: Mapping[str, Pool], void: list[int], index: HolderIndex
) -> Moments:
    """wanted: pool slug -> instants. One sweep per pool over the time between its first and last instant."""
    owners = {
        service.slug: service.owner.slug
        for service in Service.objects.select_related("holder", "owner__holder")
        if service.owner is not None
    }
    found = {}
    for slug, instants in wanted.items():
        changes = list(_changes(pools[slug], min(instants), max(instants), void, index))
        for instant, moment in moments(changes, instants, owners).items():
            found[slug, instant] = moment
    return Moments(found)


def _changes(
    pool: Pool, first_ms: int, last_ms: int, void: list[int], index: HolderIndex
) -> Iterator[Change]:
    pending = _pending(pool, last_ms, void)
    span = Span(first_ms - (_LOOK_BACK_MS if pending else 1), last_ms + 1)
    effective = read_pool_facts(pool.pk, span, void, index).effective.levels
    levels = resolve_holders(effective, load_timeline(effective.who.tolist(), index))
    columns = (levels.kind, levels.subject, levels.attempt, levels.time_ms, levels.milli, levels.who)
    rows = zip(
        *(column.tolist() for column in columns), levels.lendable.tolist(), levels.group.tolist(), strict=True
    )
    for kind, subject, attempt, time_ms, milli, who, lendable, group in rows:
        holder = index.holders.slugs[who] if who >= 0 else ""
        preemptible = group >> 3 == ServiceClass.PREEMPTIBLE
        yield Change(time_ms, (kind, subject, attempt), holder, milli, lendable, preemptible)
    yield from pending


def _pending(pool: Pool, last_ms: int, void: list[int]) -> list[Change]:
    with connection.cursor() as cursor:
        cursor.execute(PENDING, {"pool": pool.pk, "to": to_datetime(last_ms), "void": void})
        return [
            Change(to_ms(starts_at), (PENDING_KIND, subject, 0), "", milli)
            for subject, starts_at, milli in cursor.fetchall()
        ]


def announced_changes(pool: Pool, first_ms: int, last_ms: int, void: list[int]) -> list[tuple[int, int]]:
    """(instant, when it was announced) of planned capacity changes around these instants."""
    parameters: dict[str, Any] = {
        "pool": pool.pk,
        "from": to_datetime(first_ms - _ANNOUNCED_WITHIN_MS),
        "to": to_datetime(last_ms + _ANNOUNCED_WITHIN_MS + 1),
        "void": void,
    }
    with connection.cursor() as cursor:
        cursor.execute(ANNOUNCED, parameters)
        return [(to_ms(starts_at), to_ms(booked_at)) for starts_at, booked_at in cursor.fetchall()]


def announcement_for(decided_ms: int, announced: Sequence[tuple[int, int]]) -> int | None:
    """When the planned change nearest to a decision was announced; None if none is near."""
    near = [
        (abs(at_ms - decided_ms), announced_ms)
        for at_ms, announced_ms in announced
        if abs(at_ms - decided_ms) <= _ANNOUNCED_WITHIN_MS and announced_ms <= decided_ms
    ]
    return min(near)[1] if near else None
