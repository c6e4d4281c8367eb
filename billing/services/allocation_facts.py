"""Reading what the split needs of one pool and span: levels, waiting work, and whose identities are (domain.md 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from billing.core.allocation_levels import PLATFORM, Holders
from billing.sql import computing
from billing.sql.binary_copy import read_rows, read_tables
from ledger.core.levels import (
    ALWAYS,
    NEVER,
    EffectiveLevels,
    HolderTimeline,
    Kind,
    LevelFacts,
    Levels,
    effective_levels,
    rivals,
    sort_order,
)
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import Holder, HolderKind, Service
from ledger.selectors.corrections import void_facts

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class HolderIndex:
    """All holders in id order; ids[i] is the primary key of holder i of `holders`."""

    holders: Holders
    ids: Int64s
    kinds: Int64s
    unattributed: int

    @classmethod
    def load(cls, owned: Mapping[str, str] | None = None) -> HolderIndex:
        """owned: service -> tenant by slug, as `Undated` says it; None: as it is now, for one query more."""
        rows = list(Holder.objects.order_by("slug").values_list("id", "slug", "kind"))
        ids = np.array([row[0] for row in rows], np.int64)
        owner = np.full(len(rows), PLATFORM, np.int64)
        slugs = tuple(row[1] for row in rows)
        if owned is None:
            services = Service.objects.filter(owner__isnull=False)
            owned = dict(services.values_list("holder__slug", "owner__holder__slug"))
        by_slug = {slug: i for i, slug in enumerate(slugs)}
        for service, tenant in owned.items():
            owner[by_slug[service]] = by_slug[tenant]
        kinds = np.array([row[2] for row in rows], np.int64)
        unattributed = int(np.flatnonzero(kinds == HolderKind.UNATTRIBUTED)[0])
        return cls(Holders(slugs, owner), ids, kinds, unattributed)

    def with_owned(self, owned: Mapping[str, str]) -> HolderIndex:
        """The same holders, services having these owners."""
        owner = np.full(len(self.holders.slugs), PLATFORM, np.int64)
        place = {slug: i for i, slug in enumerate(self.holders.slugs)}
        for service, tenant in owned.items():
            owner[place[service]] = place[tenant]
        return replace(self, holders=Holders(self.holders.slugs, owner))

    def index_of(self, holder_ids: Int64s) -> Int64s:
        """Indexes of primary keys."""
        order = np.argsort(self.ids)
        found: Int64s = order[np.searchsorted(self.ids, holder_ids, sorter=order)]
        return found


@dataclass(frozen=True)
class LevelsOfPool:
    """Effective levels of a pool, `who` still being identities.

    conflicting_events: (events, instants in ms) of facts that lost against a different one of the same instant.
    """

    effective: EffectiveLevels
    conflicting_events: tuple[Int64s, Int64s]
    subjects: Subjects


@dataclass(frozen=True)
class PoolFacts(LevelsOfPool):
    """waits: of preempted work, as levels, `who` being holders already."""

    waits: Levels


@dataclass(frozen=True)
class Subjects:
    """Who the subjects of a pool's levels are, and which event describes each workload at an instant.

    keys: of all subjects and attempts, sorted; ids: primary keys of their rows. number (place in `keys`), time_ms and
    event: of every fact by which a workload held GPUs, sorted by the first two; event 0 where it has no attributes.
    """

    keys: Int64s
    ids: Int64s
    number: Int64s
    time_ms: Int64s
    event: Int64s

    @classmethod
    def of(cls, rows: dict[str, Int64s], rank: Int64s) -> Subjects:
        keys, first, number = np.unique(
            _subject_key(rows["subject"], rows["attempt"]), return_index=True, return_inverse=True
        )
        holds = np.flatnonzero((rows["kind"] == Kind.OCCUPANCY) & (rows["milli"] > 0))
        holds = holds[sort_order(number[holds], rows["time_ms"][holds], rank[holds])]
        event = np.where(rows["described"], rows["event"], 0)
        return cls(keys, rows["subject_id"][first], number[holds], rows["time_ms"][holds], event[holds])

    def row_ids(self, subject: Int64s, attempt: Int64s) -> Int64s:
        """Primary keys of subject rows; both arguments as in the levels."""
        found: Int64s = self.ids[np.searchsorted(self.keys, _subject_key(subject, attempt))]
        return found

    def described_by(self, subject: Int64s, attempt: Int64s, before_ms: Int64s) -> Int64s:
        """The event of each workload's last fact before the instant that it held GPUs by, or 0."""
        if not len(self.number):
            return np.zeros(len(subject), np.int64)
        start_ms, span = int(self.time_ms.min()), int(np.ptp(self.time_ms)) + 2
        number = np.searchsorted(self.keys, _subject_key(subject, attempt))
        until = np.clip(before_ms - start_ms, 0, span - 1)
        place = np.searchsorted(self.number * span + (self.time_ms - start_ms), number * span + until) - 1
        found: Int64s = np.where((place >= 0) & (self.number[place] == number), self.event[place], 0)
        return found


def void_events() -> list[int]:
    """Events that a correction has taken out of force."""
    return void_facts().events


def read_pool_facts(pool_id: int, span: Span, void: list[int], index: HolderIndex) -> PoolFacts:
    found = read_levels(pool_id, span, void)
    during = {"pool": pool_id, "from": to_datetime(span.start_ms), "to": to_datetime(span.end_ms)}
    waits = read_rows(computing.WAITS, computing.WAIT_COLUMNS, during)
    return PoolFacts(
        found.effective, found.conflicting_events, found.subjects, waits=_wait_levels(waits, index)
    )


def read_levels(pool_id: int, span: Span, void: list[int]) -> LevelsOfPool:
    """What stands at the start of `span`, and every change in it. One query, or two."""
    params = {
        "pool": pool_id,
        "from": to_datetime(span.start_ms),
        "to": to_datetime(span.end_ms),
        "void": void,
    }
    live, facts = read_tables(computing.LEVELS, [computing.LIVE, computing.FACTS], params)
    rows = _named(live, facts)
    levels = Levels(*(rows[name] for name in Levels.__slots__))
    rank = _ranks(levels, rows["event"])
    effective = effective_levels(LevelFacts(levels, rows["ends_ms"], rank))
    conflicts = (rows["event"][effective.conflicts], rows["time_ms"][effective.conflicts])
    return LevelsOfPool(effective, conflicts, Subjects.of(rows, rank))


def _named(live: dict[str, NDArray[Any]], facts: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The columns of Levels and LevelFacts, of facts whose subject is live; subject_id: the row of the subject."""
    packed = facts["packed"]
    kind, attempt = packed & 7, packed >> 32
    place = {key: i for i, key in enumerate(_keys(live["kind"], live["attempt"], live["subject"]))}
    found = np.array([place.get(key, -1) for key in _keys(kind, attempt, facts["subject"])], np.int64)
    counts = np.flatnonzero(found >= 0)
    found = found[counts]
    rows = {
        "kind": kind,
        "attempt": attempt,
        "lendable": (packed & 8).astype(bool),
        "described": (packed & 16).astype(bool),
        "group": (packed >> 8) & 0xFF,
        **{name: facts[name] for name in ("time_ms", "milli", "who", "ends_ms", "event")},
    }
    return {
        **{name: column[counts] for name, column in rows.items()},
        "subject": live["number"][found],
        "subject_id": live["id"][found],
    }


def _keys(kind: Int64s, attempt: Int64s, subject: NDArray[Any]) -> Iterator[tuple[int, int, str]]:
    return zip(kind.tolist(), attempt.tolist(), subject.tolist(), strict=True)


def _subject_key(subject: Int64s, attempt: Int64s) -> Int64s:
    """Subjects are counted from 1 by the query, attempts are 32-bit: together they fit one integer."""
    key: Int64s = (subject << 32) | attempt
    return key


def _ranks(levels: Levels, events: Int64s) -> Int64s:
    """Places in byte order of (source, id), for the few facts where it decides."""
    rank = np.zeros(len(levels), np.int64)
    positions = rivals(levels)
    if len(positions):
        with connection.cursor() as cursor:
            cursor.execute(computing.EVENT_KEYS, {"events": events[positions].tolist()})
            keys = {pk: (uri.encode(), event_id.encode()) for pk, uri, event_id in cursor.fetchall()}
        place = {pk: i for i, pk in enumerate(sorted(keys, key=lambda pk: keys[pk]))}
        rank[positions] = [place[pk] for pk in events[positions].tolist()]
    return rank


def _wait_levels(waits: dict[str, Int64s], index: HolderIndex) -> Levels:
    ending = np.flatnonzero(waits["ends_ms"] < NEVER)
    count, zeros = len(waits["subject"]), np.zeros(len(ending), np.int64)
    subject = np.concatenate([waits["subject"], waits["subject"][ending]])
    time_ms = np.concatenate([waits["starts_ms"], waits["ends_ms"][ending]])
    milli = np.concatenate([waits["milli"], zeros])
    holder = index.index_of(waits["holder"]) if count else zeros
    who = np.concatenate([holder, holder[ending]])
    order = np.lexsort((time_ms, subject))
    nothing = np.zeros(len(order), np.int64)
    return Levels(
        np.full(len(order), int(Kind.WAITING)),
        subject[order],
        nothing,
        time_ms[order],
        milli[order],
        who[order],
        np.ones(len(order), bool),
        nothing,
    )


def with_waits(levels: Levels, waits: Levels) -> Levels:
    """Levels and waits together; waiting sorts after every kind of fact."""
    return Levels(*(np.concatenate([getattr(levels, n), getattr(waits, n)]) for n in Levels.__slots__))


def load_timeline(identities: Iterable[int], index: HolderIndex) -> HolderTimeline:
    """Whose each identity is over time; `unattributed` wherever nothing says."""
    wanted = sorted({identity for identity in identities if identity >= 0})
    with connection.cursor() as cursor:
        cursor.execute(computing.IDENTITIES, {"identities": wanted})
        mapped = cursor.fetchall()
    place = {pk: i for i, pk in enumerate(index.ids.tolist())}
    rows = {(identity, ALWAYS): index.unattributed for identity in wanted}
    ends = []
    for identity, holder, lower, upper in mapped:
        rows[identity, ALWAYS if lower is None else to_ms(lower)] = place[holder]
        if upper is not None:
            ends.append((identity, to_ms(upper)))
    for end in ends:
        rows.setdefault(end, index.unattributed)
    keys = sorted(rows)
    return HolderTimeline(
        np.array([identity for identity, _ in keys], np.int64),
        np.array([from_ms for _, from_ms in keys], np.int64),
        np.array([rows[key] for key in keys], np.int64),
    )


def holder_at(timeline: HolderTimeline, identity: int, instant_ms: int) -> int:
    """The holder of an identity that `timeline` knows."""
    begin, end = np.searchsorted(timeline.identity, [identity, identity + 1])
    row = begin - 1 + np.searchsorted(timeline.from_ms[begin:end], instant_ms, "right")
    return int(timeline.holder[row])


def mapping_cuts(timeline: HolderTimeline) -> list[int]:
    """Instants at which any of the identities changes hands: boundaries of slots."""
    return [int(t) for t in np.unique(timeline.from_ms) if t != ALWAYS]
