"""Dividing a holder's time among its workloads: by class, purpose, user, or workload (domain.md section 4).

At each instant the holder's categories, in table order, are filled from its workloads: those that may not be
preempted first, within a class by apportion over what is left of each occupancy, in workload id order. A holder
whose workloads all belong to one group needs none of this: the group's time is the holder's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from billing.core.allocation import OCCUPIED, PoolSplit
from ledger.core.apportion import apportion_columns
from ledger.core.levels import Kind, Levels, changes_at, sort_order

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

_CHUNK = 1024  # instants looked at together


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
    parts = [_of_plain_holders(split, edges, mixed, who, group)]
    workloads = _Workloads.of(levels, split)
    for holder in mixed.tolist():
        parts.extend(_of_mixed_holder(split, workloads.of_holder(holder), holder, preemptible, edges))
    return _summed(parts)


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


def _of_mixed_holder(
    split: PoolSplit, workloads: _Workloads, holder: int, preemptible: Bools, edges: Int64s
) -> Iterator[GroupRows]:
    time_ms, categories = _categories_over_time(split, holder, workloads, edges)
    length_ms = np.diff(time_ms, append=split.edges[-1])
    slot = np.searchsorted(edges, time_ms, "right") - 1
    for begin in range(0, len(time_ms), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        numbers, occupancy = workloads.table(time_ms[chunk], int(time_ms[chunk][-1] + length_ms[chunk][-1]))
        group = workloads.group[numbers]
        shares = _fill(occupancy, categories[:, chunk], preemptible[group])
        first = np.flatnonzero(np.diff(slot[chunk], prepend=-1))
        per_slot = np.add.reduceat(shares * length_ms[chunk], first, axis=2)
        workload, place = np.nonzero(per_slot.any(axis=0))
        who = np.full(len(place), holder, np.int64)
        yield GroupRows(slot[chunk][first][place], who, group[workload], *per_slot[:, workload, place])


def _fill(occupancy: Int64s, categories: Int64s, preemptible: Bools) -> Int64s:
    """Shares [category, workload, instant] of the holder's `categories` [category, instant]."""
    shares = np.zeros((len(categories), *occupancy.shape), np.int64)
    left = categories.copy()
    for members in (np.flatnonzero(~preemptible), np.flatnonzero(preemptible)):
        if not len(members):
            continue
        remaining = occupancy[members]
        for category in range(len(categories)):
            taken = np.minimum(left[category], remaining.sum(axis=0))
            part = apportion_columns(taken, remaining)
            shares[category, members] = part
            remaining = remaining - part
            left[category] -= taken
    return shares


def _categories_over_time(
    split: PoolSplit, holder: int, workloads: _Workloads, edges: Int64s
) -> tuple[Int64s, Int64s]:
    """(instants, categories [category, instant]) of a holder, at every change of either it or its workloads."""
    steps, bursts = split.steps, split.bursts
    local = int(np.searchsorted(steps.present, holder))
    rows = slice(int(steps.starts[local]), int(steps.starts[local + 1]))
    detail = int(np.searchsorted(bursts.holders, local))
    served = np.flatnonzero(bursts.borrowed[detail] + bursts.excess[detail])
    begin_ms, end_ms = bursts.time_ms[served], bursts.time_ms[served] + bursts.length_ms[served]
    time_ms = np.unique(
        np.concatenate([steps.time_ms[rows], workloads.begin_ms, workloads.end_ms, begin_ms, end_ms, edges])
    )
    time_ms = time_ms[(time_ms >= steps.time_ms[rows.start]) & (time_ms < split.edges[-1])]
    row = rows.start + np.searchsorted(steps.time_ms[rows], time_ms, "right") - 1
    used = steps.used[row]
    borrowed, excess = np.zeros_like(used), np.zeros_like(used)
    if len(served):
        at = np.maximum(np.searchsorted(begin_ms, time_ms, "right") - 1, 0)
        during = (begin_ms[at] <= time_ms) & (time_ms < end_ms[at])
        borrowed[during] = bursts.borrowed[detail, served[at[during]]]
        excess[during] = bursts.excess[detail, served[at[during]]]
    on_demand = steps.occupancy[row] - used - borrowed - excess
    return time_ms, np.stack([used, on_demand, borrowed, excess])


@dataclass(frozen=True, slots=True)
class _Workloads:
    """Occupancies sorted by holder, one row per stretch [begin, end) of a constant level.

    number: counts a holder's workloads (told apart by group too) in id order. group: of each number.
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
            levels.group[rows[first]],
        )

    def of_holder(self, holder: int) -> _Workloads:
        low, high = np.searchsorted(self.who, [holder, holder + 1])
        rows = slice(int(low), int(high))
        number = self.number[rows] - self.number[low]
        group = self.group[self.number[low] : self.number[high - 1] + 1]
        return _Workloads(
            self.who[rows], self.begin_ms[rows], self.end_ms[rows], self.milli[rows], number, group
        )

    def table(self, time_ms: Int64s, end_ms: int) -> tuple[Int64s, Int64s]:
        """(numbers, occupancy [workload, instant]) of the workloads alive between the instants given."""
        alive = np.flatnonzero((self.begin_ms < end_ms) & (self.end_ms > time_ms[0]))
        numbers, row = np.unique(self.number[alive], return_inverse=True)
        changes = np.zeros((len(numbers), len(time_ms) + 1), np.int64)
        begin = np.searchsorted(time_ms, np.maximum(self.begin_ms[alive], time_ms[0]))
        end = np.searchsorted(time_ms, self.end_ms[alive])
        np.add.at(changes, (row, begin), self.milli[alive])
        np.subtract.at(changes, (row, end), self.milli[alive])
        return numbers, np.cumsum(changes[:, :-1], axis=1)


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
