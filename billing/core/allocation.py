"""Splitting a pool's capacity: whose every GPU was, in every slot, in exact integers (domain.md section 4).

The split is defined at each instant. Two observations make it fast without changing a unit of it:

- While nobody has to share (every burst fits into unreserved capacity, nothing is oversold, nobody waits), each
  holder's categories follow from its own levels alone: used, over and gap, integrated over time.
- Only in *contended* stretches do shares depend on all holders at once; there, and only there, every instant is
  apportioned (allocation_shares.py).

So: integrate everybody's own levels; split the contended stretches; put the two together. Sums of levels over time
are taken in 64-bit integers, whose differences stay exact even where a running sum wraps around.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from billing.core.allocation_levels import Holders, HolderSteps, PoolInstants, holder_steps, pool_instants
from billing.core.allocation_shares import (
    Bursts,
    Contention,
    Lending,
    Pending,
    contended,
    split_contended,
)
from ledger.core.levels import Levels

Int64s = NDArray[np.int64]

# In the order of domain.md's table.
OCCUPIED = ("reserved_used", "on_demand", "borrowed", "excess")
_NOBODY = np.zeros(0, np.int64)
HOLDER_CATEGORIES = (
    *OCCUPIED,
    "lent",
    "lent_waiting",
    "reserved_idle",
    "undelivered",
    "undelivered_pending",
    "oversold",
)


@dataclass(frozen=True, slots=True)
class HolderRows:
    """One row per slot and holder that held or reserved anything in it; gpu_us, sorted by slot and holder.

    lent_waiting: the part of `lent` up to the owner's own waiting work, credited in full. undelivered_pending: the part
    of `undelivered` for work that had not started yet, where the policy counts it. occupancy and reservation: the
    levels' own integrals (an owner's reservation without what covered its services), which the categories add up to.
    """

    slot: Int64s
    holder: Int64s
    reserved_used: Int64s
    on_demand: Int64s
    borrowed: Int64s
    excess: Int64s
    lent: Int64s
    lent_waiting: Int64s
    reserved_idle: Int64s
    undelivered: Int64s
    undelivered_pending: Int64s
    oversold: Int64s
    occupancy: Int64s
    reservation: Int64s


@dataclass(frozen=True, slots=True)
class PoolRows:
    """One value per slot; gpu_us."""

    capacity: Int64s
    unreserved_idle: Int64s
    over_reserved: Int64s


@dataclass(frozen=True, slots=True)
class PoolSplit:
    """The split of one pool. edges: slot i is [edges[i], edges[i + 1]). lending: pairs per segment.

    split_from_ms: before this instant the capacity is unknown and nothing was split (None: never known); it is
    the first edge or earlier where all is well.
    """

    edges: Int64s
    rows: HolderRows
    pool: PoolRows
    lending: Lending
    split_from_ms: int | None
    steps: HolderSteps = field(repr=False)
    bursts: Bursts = field(repr=False)


def split_pool(
    levels: Levels,
    holders: Holders,
    edges: Int64s,
    capacity_from_ms: int | None,
    lending_cuts: Iterable[int] = (),
    detailed: Int64s = _NOBODY,
    pending: Pending | None = None,
) -> PoolSplit:
    """Split one pool over the slots given by `edges`.

    levels: effective, holders resolved; changes before edges[0] make up the opening state. capacity_from_ms: the
    pool's first capacity fact ever (nothing is split before). lending_cuts: instants at which the segments of
    lender x borrower pairs begin anew; each must be an edge. detailed: holders whose bursts are needed instant by
    instant, for the split by workload. pending: work that waits to start and counts as undelivered where it fits.
    """
    known_from = int(edges[-1]) if capacity_from_ms is None else capacity_from_ms
    # Slots before the first capacity fact shrink to nothing instead of being dropped: indexes stay the caller's.
    clipped = np.clip(edges, min(known_from, int(edges[-1])), None)
    steps = holder_steps(levels, holders, int(clipped[0]), int(clipped[-1]))
    pending = _within(Pending.none() if pending is None else pending, clipped)
    instants = pool_instants(steps, levels, clipped, np.concatenate([pending.start_ms, pending.end_ms]))
    cuts = np.array(sorted({int(edges[0]), *lending_cuts}), np.int64)
    among_present = np.flatnonzero(np.isin(steps.present, detailed))
    contention = split_contended(steps, contended(instants, pending), edges, cuts, among_present, pending)
    return PoolSplit(
        edges,
        _holder_rows(steps, clipped, contention),
        _pool_rows(instants, len(edges) - 1),
        contention.lending,
        capacity_from_ms,
        steps,
        contention.bursts,
    )


def _within(pending: Pending, edges: Int64s) -> Pending:
    """The part of it that lies between the first and the last edge."""
    start_ms, end_ms = np.maximum(pending.start_ms, edges[0]), np.minimum(pending.end_ms, edges[-1])
    rows = np.flatnonzero((start_ms < end_ms) & (pending.milli > 0))
    return Pending(pending.holder[rows], start_ms[rows], end_ms[rows], pending.milli[rows])


def _holder_rows(steps: HolderSteps, edges: Int64s, contention: Contention) -> HolderRows:
    """Own levels integrated, corrected by what contention took away from or gave to each holder."""
    used = steps.used
    reserved_used = _integrals(steps, used, edges)
    occupancy = _integrals(steps, steps.occupancy, edges)
    reservation = _integrals(steps, steps.reservation, edges)
    shares = contention.gpu_us
    on_demand = occupancy - reserved_used - shares["borrowed"] - shares["excess"]
    idle = reservation - reserved_used - shares["lent"] - shares["undelivered"] - shares["oversold"]
    slot, holder = np.nonzero((occupancy | reservation).T)
    columns = {
        "reserved_used": reserved_used,
        "on_demand": on_demand,
        "reserved_idle": idle,
        "occupancy": occupancy,
        "reservation": reservation,
        **shares,
    }
    return HolderRows(
        slot=slot,
        holder=steps.present[holder],
        **{name: values[holder, slot] for name, values in columns.items()},
    )


def _integrals(steps: HolderSteps, values: Int64s, edges: Int64s) -> Int64s:
    """The integral of each holder's step function `values` over each slot: array [holder, slot] in gpu_us."""
    area = values * steps.lengths_ms()
    before = np.cumsum(area) - area
    row = _rows_in_force(steps, edges)
    reached = before[row] + values[row] * (edges - steps.time_ms[row])
    integrals: Int64s = np.diff(reached, axis=1)
    return integrals


def _rows_in_force(steps: HolderSteps, edges: Int64s) -> Int64s:
    """The row in force at each edge: array [holder, edge]. Found by counting rows, not by searching."""
    count = len(edges)
    first_edge = np.searchsorted(edges, steps.time_ms)
    rows_at = np.bincount(steps.holder * count + first_edge, minlength=len(steps.present) * count)
    in_force: Int64s = (np.cumsum(rows_at) - 1).reshape(len(steps.present), count)
    return in_force


def _pool_rows(instants: PoolInstants, slots: int) -> PoolRows:
    free = instants.capacity - instants.used - instants.gap
    unreserved_idle = np.maximum(np.maximum(free, 0) - instants.over, 0)
    over_reserved = np.maximum(instants.used - instants.capacity, 0)

    def per_slot(milli: Int64s) -> Int64s:
        total = np.zeros(slots, np.int64)
        np.add.at(total, instants.slot, milli * instants.length_ms)
        return total

    return PoolRows(per_slot(instants.capacity), per_slot(unreserved_idle), per_slot(over_reserved))
