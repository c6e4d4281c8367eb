"""From facts to what was really held: the rules of domain.md section 3, for the facts of one pool.

A *fact* states a whole level of a subject from an instant on. Facts come in any order, may contradict each other,
and may end by themselves. `effective_levels` turns them into one clean step function per subject and attempt;
`resolve_holders` then says whose it is at each instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ledger.core.units import INT64_MAX

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

NEVER = INT64_MAX
ALWAYS = -INT64_MAX


class Kind(IntEnum):
    """What a level counts. WAITING is derived from preemptions (section 6), never a fact."""

    CAPACITY = 1
    RESERVATION = 2
    OCCUPANCY = 3
    PENDING = 4
    WAITING = 5


@dataclass(frozen=True, slots=True)
class Levels:
    """Level changes of one pool as arrays of one length, each row holding until the next of its subject.

    kind: `Kind`. subject: any integer naming the subject within its kind; where subjects are compared (the split
    by workload) smaller means earlier in id order. attempt: 0 where the kind has none. who: the identity's index as
    facts name it, the holder's index once resolved, -1 for capacity. milli: milli-GPU, the whole level. lendable:
    of reservations. group: any key of the workload that its time is told apart by, such as class and purpose.
    """

    kind: Int64s
    subject: Int64s
    attempt: Int64s
    time_ms: Int64s
    milli: Int64s
    who: Int64s
    lendable: Bools
    group: Int64s

    def __len__(self) -> int:
        return len(self.time_ms)

    def take(self, index: Int64s | Bools) -> Levels:
        return Levels(*(getattr(self, name)[index] for name in self.__slots__))

    def starts_run(self) -> Bools:
        """True at the first row of each subject and attempt, for rows in order of effective_levels."""
        return changes_at(self.kind, self.subject, self.attempt)

    def until_ms(self) -> Int64s:
        """When each row's level ends: the next row of its subject and attempt, or NEVER."""
        until = np.append(self.time_ms[1:], NEVER)
        until[:-1][self.starts_run()[1:]] = NEVER
        return until[: len(self)]


@dataclass(frozen=True, slots=True)
class LevelFacts:
    """Facts as booked. ends_ms: when this very level ends by itself, or NEVER. rank: place of the fact's
    (source, id) in byte order; it only matters among facts of one subject and instant (see `rivals`)."""

    levels: Levels
    ends_ms: Int64s
    rank: Int64s


@dataclass(frozen=True, slots=True)
class EffectiveLevels:
    """levels: sorted by kind, subject, attempt, time. conflicts: positions (in the facts given) of facts that lost
    against a different one of the same subject and instant. capacity_from_ms: the pool's first capacity fact, or
    None: before it nothing can be split."""

    levels: Levels
    conflicts: Int64s
    capacity_from_ms: int | None


def effective_levels(facts: LevelFacts) -> EffectiveLevels:
    """Apply section 3: one fact per subject and instant, ends of reservations, attempts that end lower ones."""
    levels = facts.levels
    order = sort_order(levels.kind, levels.subject, levels.attempt, levels.time_ms, facts.rank)
    levels, ends_ms = levels.take(order), facts.ends_ms[order]
    holds, conflicts = _one_fact_per_instant(levels, ends_ms)
    levels = _with_ends(levels.take(holds), ends_ms[holds])
    levels = _end_lower_attempts(levels)
    capacity = levels.time_ms[levels.kind == Kind.CAPACITY]
    return EffectiveLevels(levels, order[conflicts], int(capacity[0]) if len(capacity) else None)


def rivals(levels: Levels) -> Int64s:
    """Positions of facts that share subject and instant with another: the only ones whose rank matters."""
    order = sort_order(levels.kind, levels.subject, levels.attempt, levels.time_ms)
    first = changes_at(*(c[order] for c in (levels.kind, levels.subject, levels.attempt, levels.time_ms)))
    alone = first & np.append(first[1:], True)[: len(first)]
    positions: Int64s = order[~alone]
    return positions


def _one_fact_per_instant(levels: Levels, ends_ms: Int64s) -> tuple[Bools, Bools]:
    """(the rows that hold: the greatest rank of each subject and instant; the rows that lost to other content)."""
    first = changes_at(levels.kind, levels.subject, levels.attempt, levels.time_ms)
    holds = np.append(first[1:], True)[: len(first)]
    if holds.all():
        return holds, ~holds
    group = np.cumsum(first) - 1
    winner = np.flatnonzero(holds)[group]
    content = (levels.milli, levels.who, levels.lendable, levels.group, ends_ms)
    differs = np.zeros(len(first), bool)
    for column in content:
        differs |= column != column[winner]
    return holds, differs


def _with_ends(levels: Levels, ends_ms: Int64s) -> Levels:
    """Add a level of 0 where a reservation's own end comes while that very level is still in force."""
    ends = np.flatnonzero((levels.kind == Kind.RESERVATION) & (ends_ms < levels.until_ms()))
    if not len(ends):
        return levels
    released = levels.take(ends)
    released.time_ms[:] = ends_ms[ends]
    released.milli[:] = 0
    return _merged(levels, released)


def _end_lower_attempts(levels: Levels) -> Levels:
    """A higher attempt of a workload ends the lower ones at its first fact; what they say later is void."""
    first = levels.starts_run()
    runs = np.flatnonzero(first)
    same_workload = ~changes_at(levels.kind[runs], levels.subject[runs])
    if not same_workload.any():
        return levels
    run_of_row = np.cumsum(first) - 1
    ended_ms = _earliest_later_start(levels.time_ms[runs], same_workload)
    still = levels.time_ms < ended_ms[run_of_row]
    kept = levels.take(still)
    kept_runs = run_of_row[still]
    last = np.append(kept_runs[1:] != kept_runs[:-1], True)[: len(kept)]
    cut = np.flatnonzero(last & (kept.milli > 0) & (ended_ms[kept_runs] < NEVER))
    ended = kept.take(cut)
    ended.time_ms[:] = ended_ms[kept_runs[cut]]
    ended.milli[:] = 0
    return _merged(kept, ended)


def _earliest_later_start(start_ms: Int64s, same_workload: Bools) -> Int64s:
    """For each attempt the earliest start of the workload's higher attempts, NEVER for the highest one.

    `same_workload[i]`: run i is a further attempt of run i - 1's workload.
    """
    workload = np.cumsum(~same_workload)
    span = int(start_ms.max()) - int(start_ms.min()) + 1
    # Read backwards, workloads only get smaller: one running minimum serves all of them.
    keyed = workload * span + (start_ms - start_ms.min())
    earliest = np.minimum.accumulate(keyed[::-1])[::-1] - workload * span + start_ms.min()
    ended_ms = np.full(len(start_ms), NEVER, np.int64)
    ended_ms[:-1][same_workload[1:]] = earliest[1:][same_workload[1:]]
    return ended_ms


def _merged(levels: Levels, more: Levels) -> Levels:
    both = Levels(*(np.concatenate([getattr(levels, n), getattr(more, n)]) for n in Levels.__slots__))
    return both.take(sort_order(both.kind, both.subject, both.attempt, both.time_ms))


@dataclass(frozen=True, slots=True)
class HolderTimeline:
    """Whose an identity is, over time: rows sorted by (identity, from_ms), each identity's first from ALWAYS."""

    identity: Int64s
    from_ms: Int64s
    holder: Int64s


def resolve_holders(levels: Levels, timeline: HolderTimeline) -> Levels:
    """Replace identities by holders; where a mapping changes under a level, the level is cut there.

    `levels` as effective_levels returns them; every identity used must have a row in `timeline`.
    """
    named = levels.who >= 0
    first_row = np.searchsorted(timeline.identity, levels.who)
    remapped = np.unique(timeline.identity[1:][timeline.identity[1:] == timeline.identity[:-1]])
    cuts = _cuts_under_levels(levels, timeline, remapped)
    if len(cuts):
        levels = _merged(levels, cuts)
        named = levels.who >= 0
        first_row = np.searchsorted(timeline.identity, levels.who)
    row = np.where(named, first_row, 0)
    for identity in remapped.tolist():
        rows = np.flatnonzero(levels.who == identity)
        begin, end = np.searchsorted(timeline.identity, [identity, identity + 1])
        row[rows] = begin - 1 + np.searchsorted(timeline.from_ms[begin:end], levels.time_ms[rows], "right")
    holder = np.where(named, timeline.holder[row], -1) if len(timeline.holder) else levels.who
    return Levels(
        levels.kind,
        levels.subject,
        levels.attempt,
        levels.time_ms,
        levels.milli,
        holder,
        levels.lendable,
        levels.group,
    )


def _cuts_under_levels(levels: Levels, timeline: HolderTimeline, remapped: Int64s) -> Levels:
    """Copies of the levels during which their identity changes hands, each at the instant that it does."""
    until_ms = levels.until_ms()
    source_rows, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for identity in remapped.tolist():
        begin, end = np.searchsorted(timeline.identity, [identity, identity + 1])
        rows = np.flatnonzero((levels.who == identity) & (levels.milli > 0))
        for change_ms in timeline.from_ms[begin + 1 : end].tolist():
            under = rows[(levels.time_ms[rows] < change_ms) & (change_ms < until_ms[rows])]
            source_rows.append(under)
            times.append(np.full(len(under), change_ms, np.int64))
    cuts = levels.take(np.concatenate(source_rows))
    cuts.time_ms[:] = np.concatenate(times)
    return cuts


def changes_at(*columns: Int64s) -> Bools:
    """True where any column differs from the row before, and at the first row."""
    changed = np.ones(len(columns[0]), bool)
    if len(changed):
        changed[1:] = False
        for column in columns:
            changed[1:] |= column[1:] != column[:-1]
    return changed


def sort_order(*columns: Int64s) -> Int64s:
    """The order that sorts by the columns, the first being the most significant; rows that are alike in any order.

    Packs all columns into one integer where they fit into 63 bits: one sort instead of one per column.
    """
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    lows = [int(column.min()) for column in columns]
    widths = [(int(column.max()) - low).bit_length() for column, low in zip(columns, lows, strict=True)]
    if sum(widths) > 63:
        return np.lexsort(columns[::-1])
    key = np.zeros(len(columns[0]), np.int64)
    for column, low, width in zip(columns, lows, widths, strict=True):
        if width:
            key = (key << width) | (column - low)
    return np.argsort(key)
