"""Dividing a holder's time among its workloads: by class, purpose, user, or workload (domain.md section 4).

At each instant the holder's categories, in table order, are filled from its workloads: those that may not be
preempted first, within a class by apportion over what is left of each occupancy, in workload id order. A holder
whose workloads all belong to one group needs none of this: the group's time is the holder's.

For the others, all at once: time is cut into *stretches* in which a holder's workloads stay the same (these are the
rows of its steps), and each of these into *cells* in which its categories stay the same too (allocation_cells.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from billing.core.allocation import OCCUPIED, PoolSplit
from billing.core.allocation_cells import Cells, Members, fill
from billing.core.allocation_levels import HolderSteps
from ledger.core.levels import NEVER, Kind, Levels, changes_at, sort_order

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GroupRows:
    """gpu_us per slot, holder and group of its workloads; sorted by these three, rows of 0 left out."""

    slot: Int64s
    holder: Int64s
    group: Int64s
    reserved_used: Int64s
    on_demand: Int64s
    borrowed: Int64s
    excess: Int64s


def mixed_holders(levels: Levels, start_ms: int, end_ms: int) -> Int64s:
    """Holders with workloads of more than one group in [start_ms, end_ms): split_pool's `detailed`."""
    who, _ = _holders_groups(_occupancies(levels, start_ms, end_ms))
    return np.unique(who[1:][who[1:] == who[:-1]])


def split_within_holders(
    split: PoolSplit, levels: Levels, preemptible: Bools, edges: Int64s | None = None
) -> GroupRows:
    """Divide every holder's occupied time among its groups.

    split: with all of `mixed_holders` detailed. levels: those it was made from. preemptible[g]: whether group g's
    workloads are filled last; workloads without a class count as guaranteed. edges: slots of the result where they
    are not the split's own (whole days, say); each must be one of the split's edges.
    """
    edges = split.edges if edges is None else edges
    levels = _occupancies(levels, int(split.edges[0]), int(split.edges[-1]))
    who, group = _holders_groups(levels)
    mixed = np.unique(who[1:][who[1:] == who[:-1]])
    plain = _of_plain_holders(split, edges, mixed, who, group)
    return _summed([plain, _of_mixed_holders(split, levels, mixed, preemptible, edges)])


def _occupancies(levels: Levels, start_ms: int, end_ms: int) -> Levels:
    until_ms = levels.until_ms()
    inside = (levels.time_ms < end_ms) & (until_ms > start_ms)
    return levels.take((levels.kind == Kind.OCCUPANCY) & ((levels.milli == 0) | inside))


def _holders_groups(levels: Levels) -> tuple[Int64s, Int64s]:
    """The distinct (holder, group) pairs that hold something, sorted."""
    holds = levels.milli > 0
    who, group = levels.who[holds], levels.group[holds]
    order = sort_order(who, group)
    who, group = who[order], group[order]
    first = changes_at(who, group)
    return who[first], group[first]


def _of_plain_holders(
    split: PoolSplit, edges: Int64s, mixed: Int64s, who: Int64s, group: Int64s
) -> GroupRows:
    rows = split.rows
    plain = np.flatnonzero(~np.isin(rows.holder, mixed) & (rows.occupancy > 0))
    slot = np.searchsorted(edges, split.edges[rows.slot[plain]], "right") - 1
    groups = group[np.searchsorted(who, rows.holder[plain])]
    return GroupRows(slot, rows.holder[plain], groups, *(getattr(rows, name)[plain] for name in OCCUPIED))


def _of_mixed_holders(
    split: PoolSplit, levels: Levels, mixed: Int64s, preemptible: Bools, edges: Int64s
) -> GroupRows:
    stretches = _Stretches.of(split.steps, np.flatnonzero(np.isin(split.steps.present, mixed)), edges)
    workloads = _Workloads.of(levels, split)
    stretch, row = stretches.covered(workloads)
    last = preemptible[workloads.group[row]]
    order = sort_order(stretch, last.astype(np.int64), workloads.number[row])
    stretch, row = stretch[order], row[order]
    members = Members(stretch, last[order], workloads.milli[row])
    used = split.steps.used[stretches.row]
    gpu_us = fill(members, used, stretches.end_ms - stretches.begin_ms, stretches.cells(split))
    filled = np.flatnonzero(gpu_us.any(axis=0))
    return GroupRows(
        np.searchsorted(edges, stretches.begin_ms[stretch[filled]], "right") - 1,
        workloads.who[row[filled]],
        workloads.group[row[filled]],
        *gpu_us[:, filled],
    )


@dataclass(frozen=True, slots=True)
class _Stretches:
    """Times in which a holder's workloads stay the same: sorted by (holder, begin), cut at the slots' edges.

    holder: counted among those present. row: of the holder's steps.
    """

    present: Int64s
    holder: Int64s
    begin_ms: Int64s
    end_ms: Int64s
    row: Int64s

    @classmethod
    def of(cls, steps: HolderSteps, holders: Int64s, edges: Int64s) -> _Stretches:
        rows = np.flatnonzero(np.isin(steps.holder, holders))
        cuts = edges[(edges > steps.time_ms.min(initial=NEVER)) & (edges < steps.end_ms)]
        holder = np.concatenate([steps.holder[rows], np.repeat(holders, len(cuts))])
        begin_ms = np.concatenate([steps.time_ms[rows], np.tile(cuts, len(holders))])
        # An edge is in the row before it, or in the one that begins there: the greater one of all so far.
        row = np.concatenate([rows, np.full(len(holders) * len(cuts), -1)])
        order = sort_order(holder, begin_ms)
        holder, begin_ms, row = holder[order], begin_ms[order], np.maximum.accumulate(row[order])
        last = np.append(changes_at(holder, begin_ms)[1:], True)[: len(holder)]
        holder, begin_ms, row = holder[last], begin_ms[last], row[last]
        end_ms = np.append(begin_ms[1:], steps.end_ms)[: len(holder)]
        end_ms[:-1][holder[1:] != holder[:-1]] = steps.end_ms
        return cls(steps.present, holder, begin_ms, end_ms, row)

    def find(self, holder: Int64s, time_ms: Int64s) -> Int64s:
        """The first stretch of each holder that begins at the time or later (or the next holder's first)."""
        if not len(self.holder):
            return np.zeros(len(holder), np.int64)
        start_ms = self.begin_ms[0]
        span = int(self.end_ms.max() - start_ms) + 1
        keys = self.holder * span + (self.begin_ms - start_ms)
        found: Int64s = np.searchsorted(keys, holder * span + (time_ms - start_ms))
        return found

    def covered(self, workloads: _Workloads) -> tuple[Int64s, Int64s]:
        """(stretch, row of the workloads) of every stretch that a row lasts through."""
        rows = np.flatnonzero(np.isin(workloads.who, self.present[self.holder]))
        holder = np.searchsorted(self.present, workloads.who[rows])
        start_ms = self.begin_ms.min(initial=NEVER)
        low = self.find(holder, np.maximum(workloads.begin_ms[rows], start_ms))
        high = self.find(holder, np.maximum(workloads.end_ms[rows], start_ms))
        counts = high - low
        offsets = np.cumsum(counts) - counts
        return np.arange(counts.sum()) + np.repeat(low - offsets, counts), np.repeat(rows, counts)

    def cells(self, split: PoolSplit) -> Cells:
        """The times when a holder's burst was not served on demand alone."""
        steps, bursts = split.steps, split.bursts
        inside = np.isin(bursts.holders, self.holder)
        detail, instant = np.nonzero((bursts.borrowed + bursts.excess) * inside[:, None])
        stretch = self.find(bursts.holders[detail], bursts.time_ms[instant] + 1) - 1
        over = (steps.occupancy - steps.used)[self.row][stretch]
        borrowed, excess = bursts.borrowed[detail, instant], bursts.excess[detail, instant]
        return Cells(stretch, bursts.length_ms[instant], over - borrowed - excess, over - excess)


@dataclass(frozen=True, slots=True)
class _Workloads:
    """Occupancies sorted by holder, one row per stretch [begin, end) of a constant level.

    number: counts workloads (told apart by group too) by holder, in id order. group: of each row.
    """

    who: Int64s
    begin_ms: Int64s
    end_ms: Int64s
    milli: Int64s
    number: Int64s
    group: Int64s

    @classmethod
    def of(cls, levels: Levels, split: PoolSplit) -> _Workloads:
        until_ms = np.minimum(levels.until_ms(), split.edges[-1])
        begin_ms = np.maximum(levels.time_ms, split.edges[0])
        rows = np.flatnonzero((levels.milli > 0) & (begin_ms < until_ms))
        keys = (levels.who, levels.subject, levels.attempt, levels.group)
        rows = rows[sort_order(*(key[rows] for key in keys))]
        first = changes_at(*(key[rows] for key in keys))
        number = np.cumsum(first) - 1
        return cls(
            levels.who[rows],
            begin_ms[rows],
            until_ms[rows],
            levels.milli[rows],
            number,
            levels.group[rows],
        )


def _summed(parts: list[GroupRows]) -> GroupRows:
    slot, holder, group = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("slot", "holder", "group")
    )
    order = sort_order(slot, holder, group)
    slot, holder, group = slot[order], holder[order], group[order]
    first = np.flatnonzero(changes_at(slot, holder, group))
    values = []
    for name in OCCUPIED:
        column = np.concatenate([getattr(part, name) for part in parts])[order]
        values.append(np.add.reduceat(column, first) if len(first) else column)
    return GroupRows(slot[first], holder[first], group[first], *values)
