"""Filling a holder's categories from its workloads: the arithmetic below allocation_within.py (domain.md section 4).

Within a stretch workloads and the covered part of their holder are constant, so `reserved_used` is apportioned once.
How the burst beyond it was served may change at every instant at which others' levels change: each such time is a
*cell*, in which on demand, borrowed and excess are apportioned in turn over what is left of each workload.

`apportion` cuts running sums, so only running sums are carried along; shares are their differences at the end. What
a running sum reaches in a category is called `reached` throughout, in milli-GPU or, added up over time, in gpu_us.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledger.core.apportion import Proportions, exact_number, group_sums
from ledger.core.levels import changes_at

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Pairs of a workload and a cell looked at together: bounds memory, and keeps a column in the processor's cache.
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Members:
    """The workloads of every stretch: rows sorted by (stretch, last, id of the workload).

    last: whether it is filled last. milli: its occupancy. Those of a stretch add up to its holder's occupancy.
    """

    stretch: Int64s
    last: Bools
    milli: Int64s


@dataclass(frozen=True, slots=True)
class Cells:
    """Times in which not all of a burst was on demand, sorted by stretch; amounts in milli-GPU.

    served: what was on demand or borrowed. The rest of the burst was excess.
    """

    stretch: Int64s
    length_ms: Int64s
    on_demand: Int64s
    served: Int64s


def fill(members: Members, used: Int64s, length_ms: Int64s, cells: Cells) -> Int64s:
    """gpu_us [category, member], categories in table order. used, length_ms: of each stretch."""
    groups = _Groups.of(members, used)
    group = np.repeat(np.arange(len(groups.begin)), groups.sizes)
    running = np.cumsum(members.milli)
    running -= np.repeat(running[groups.begin] - members.milli[groups.begin], groups.sizes)
    most = int(groups.milli.max(initial=0))
    covered = (
        Proportions(groups.used, groups.milli, exact_number(most, most * most)).take(group).floor(running)
    )
    burst = running - covered
    length_ms = length_ms[members.stretch]
    reached = np.zeros((4, len(group)), np.int64)
    reached[0] = covered * length_ms
    for member, borrowed, excess in _reached_in_cells(groups, burst, cells):
        reached[2, member], reached[3, member] = borrowed, excess
    reached[1] = burst * length_ms - reached[2] - reached[3]
    shares = np.diff(reached, axis=1, prepend=0)
    shares[:, groups.begin] = reached[:, groups.begin]
    return shares


@dataclass(frozen=True, slots=True)
class _Groups:
    """Members of one stretch that are filled together: rows from `begin` on. milli: their occupancy; used: what of it
    is covered; over: the rest; over_before: what those filled earlier have left for the burst."""

    stretch: Int64s
    begin: Int64s
    sizes: Int64s
    milli: Int64s
    used: Int64s
    over: Int64s
    over_before: Int64s

    @classmethod
    def of(cls, members: Members, used: Int64s) -> _Groups:
        begin = np.flatnonzero(changes_at(members.stretch, members.last.astype(np.int64)))
        starts = np.append(begin, len(members.stretch))
        stretch, milli = members.stretch[begin], group_sums(members.milli, starts)
        used = np.clip(used[stretch] - _of_group_before(stretch, milli), 0, milli)
        over = milli - used
        return cls(stretch, begin, np.diff(starts), milli, used, over, _of_group_before(stretch, over))

    def take(self, index: slice | Int64s) -> _Groups:
        return _Groups(*(getattr(self, name)[index] for name in self.__slots__))


def _of_group_before(stretch: Int64s, values: Int64s) -> Int64s:
    """The value of the group before in the same stretch, or 0. A stretch has two groups at most."""
    before = np.zeros_like(values)
    before[1:] = np.where(stretch[1:] == stretch[:-1], values[:-1], 0)
    return before


def _reached_in_cells(
    groups: _Groups, burst: Int64s, cells: Cells
) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
    """(members, gpu_us borrowed, gpu_us in excess) that running sums of the burst reach, chunk by chunk."""
    low = np.searchsorted(cells.stretch, groups.stretch)
    counts = np.searchsorted(cells.stretch, groups.stretch, "right") - low
    those = np.flatnonzero((counts > 0) & (groups.over > 0))
    for chunk in _chunks(counts[those] * groups.sizes[those]):
        here = those[chunk]
        yield _reached_in_chunk(groups.take(here), burst, cells, low[here], counts[here])


def _reached_in_chunk(
    groups: _Groups, burst: Int64s, cells: Cells, low: Int64s, counts: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """The groups have `counts` cells each, from `low` on."""
    cell = _ranges(low, counts)
    over = np.repeat(groups.over, counts)
    before = np.repeat(groups.over_before, counts)
    on_demand = np.clip(cells.on_demand[cell] - before, 0, over)
    served = np.clip(cells.served[cell] - before, 0, over)
    length_ms = cells.length_ms[cell]

    first = np.cumsum(counts) - counts
    most = int(groups.over.max())
    exact = exact_number(most * int(np.add.reduceat(length_ms, first).max()), most * most)
    member = _ranges(groups.begin, groups.sizes)
    own_counts = np.repeat(counts, groups.sizes)
    pair = _ranges(np.repeat(first, groups.sizes), own_counts)
    row = np.cumsum(own_counts) - own_counts
    length: NDArray[Any] = length_ms.astype(exact).take(pair)

    left: NDArray[Any] = np.repeat(burst[member].astype(exact), own_counts)
    left -= Proportions(on_demand, over, exact).take(pair).floor(left)
    borrowed = np.add.reduceat(left * length, row).astype(np.int64)
    if (served == over).all():
        return member, borrowed, np.zeros_like(borrowed)
    left -= Proportions(served - on_demand, over - on_demand, exact).take(pair).floor(left)
    excess = np.add.reduceat(left * length, row).astype(np.int64)
    return member, borrowed - excess, excess


def _ranges(begins: Int64s, counts: Int64s) -> Int64s:
    """begins[0], begins[0] + 1, ... (counts[0] of them), then from begins[1] on, and so on."""
    first = np.cumsum(counts) - counts
    numbers: Int64s = np.repeat(begins - first, counts)
    numbers += np.arange(len(numbers))
    return numbers


def _chunks(counts: Int64s) -> Iterator[slice]:
    """Slices of rows of about _CHUNK pairs each."""
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        before = int(ends[begin]) - int(counts[begin])
        end = max(int(np.searchsorted(ends, before + _CHUNK, "right")), begin + 1)
        yield slice(begin, end)
        begin = end
