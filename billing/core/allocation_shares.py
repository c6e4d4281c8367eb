"""Contended stretches: who shares what, instant by instant (domain.md section 4).

Reads like the section: what the pool has to share out, each holder's shares of it, then who lent to whom. Tables
are [holder, instant], holders in id order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from billing.core.allocation_levels import HolderSteps, PoolInstants
from ledger.core.apportion import apportion_columns, exact_number, floor_div, running_sums

Int64s = NDArray[np.int64]
Table = NDArray[Any]  # whole numbers in the type that exact_number chose

# Instants x holders looked at together: bounds memory, and keeps a table within the processor's cache.
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Lending:
    """Pairs lender x borrower: rows sorted by (start, lender, borrower); start_ms begins the segment; gpu_us."""

    start_ms: Int64s
    lender: Int64s
    borrower: Int64s
    gpu_us: Int64s


@dataclass(frozen=True, slots=True)
class Bursts:
    """How holders' bursts were served at contended instants: tables [one of `holders`, instant] in milli-GPU.
    At other instants all of a burst is on demand."""

    holders: Int64s
    time_ms: Int64s
    length_ms: Int64s
    borrowed: Int64s
    excess: Int64s


@dataclass(frozen=True, slots=True)
class Pending:
    """Work that waits to start, where the policy counts it: rows sorted by (holder, id of the workload, start), each a
    level over [start_ms, end_ms). holder: its index; milli: GPUs it asks for, all or nothing."""

    holder: Int64s
    start_ms: Int64s
    end_ms: Int64s
    milli: Int64s

    @classmethod
    def none(cls) -> Pending:
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing, nothing)

    def waits_at(self, time_ms: Int64s) -> NDArray[np.bool_]:
        """Whether anything waits at each of the instants, which are sorted."""
        change = np.zeros(len(time_ms) + 1, np.int64)
        np.add.at(change, np.searchsorted(time_ms, self.start_ms), 1)
        np.subtract.at(change, np.searchsorted(time_ms, self.end_ms), 1)
        waits: NDArray[np.bool_] = np.cumsum(change[:-1]) > 0
        return waits


@dataclass(frozen=True, slots=True)
class Contention:
    """gpu_us of each share, [holder, slot] over the holders present; the pairs; and, for the holders asked for,
    their bursts' shares at every contended instant."""

    gpu_us: dict[str, Int64s]
    lending: Lending
    bursts: Bursts


@dataclass(frozen=True, slots=True)
class Amounts:
    """What the pool as a whole has to share out at each instant; milli-GPU."""

    on_demand: Int64s
    borrowed: Int64s
    oversold: Int64s

    @classmethod
    def at(cls, pool: PoolInstants) -> Amounts:
        free = pool.capacity - pool.used - pool.gap
        on_demand = np.minimum(pool.over, np.maximum(free, 0))
        backed = np.maximum(pool.capacity - pool.used - on_demand, 0)
        borrowed = np.minimum(np.minimum(pool.over - on_demand, pool.lendable_gap), backed)
        oversold = np.minimum(np.maximum(-free, 0), pool.gap - borrowed)
        return cls(on_demand, borrowed, oversold)


@dataclass(frozen=True, slots=True)
class Shares:
    """Each holder's shares at each instant; lent_waiting is the part of lent up to the owner's own waiting work,
    undelivered_pending the part of undelivered for work that had not started yet."""

    borrowed: Table
    excess: Table
    lent: Table
    lent_waiting: Table
    undelivered: Table
    undelivered_pending: Table
    oversold: Table


def share_out(
    amounts: Amounts, occupancy: Table, reservation: Table, lendable: Table, waiting: Table
) -> Shares:
    """Apportion the amounts over the holders, each on what the step before left."""
    over = np.maximum(occupancy - reservation, 0)
    gap = np.maximum(reservation - occupancy, 0)
    beyond = over - apportion_columns(amounts.on_demand, over)
    borrowed = apportion_columns(amounts.borrowed, beyond)
    lent = apportion_columns(amounts.borrowed, np.minimum(gap, lendable))
    oversold = apportion_columns(amounts.oversold, gap - lent)
    lent_waiting, undelivered = np.zeros_like(lent), np.zeros_like(lent)
    if waiting.any():
        lent_waiting = np.minimum(lent, waiting)
        undelivered = np.minimum(gap - lent - oversold, np.maximum(waiting - lent - oversold, 0))
    pending = np.zeros_like(undelivered)
    return Shares(borrowed, beyond - borrowed, lent, lent_waiting, undelivered, pending, oversold)


def add_pending(shares: Shares, gap: Table, pending: Pending, parties: Int64s, time_ms: Int64s) -> None:
    """Give pending workloads, in id order, what fits whole into what is left of their holders' idle reservations.

    gap: [party, instant]. parties: indexes of the holders. time_ms: the instants, sorted. Changes `shares`.
    """
    left = gap - shares.lent - shares.oversold - shares.undelivered
    here = np.flatnonzero((pending.start_ms <= time_ms[-1]) & (pending.end_ms > time_ms[0]))
    here = here[np.isin(pending.holder[here], parties)]
    party = np.searchsorted(parties, pending.holder[here])
    begin = np.searchsorted(time_ms, pending.start_ms[here])
    end = np.searchsorted(time_ms, pending.end_ms[here])
    for row, of, low, high in zip(here.tolist(), party.tolist(), begin.tolist(), end.tolist(), strict=True):
        milli = int(pending.milli[row])
        given = np.where(left[of, low:high] >= milli, milli, 0)
        left[of, low:high] -= given
        shares.undelivered[of, low:high] += given
        shares.undelivered_pending[of, low:high] += given


def contended(instants: PoolInstants, pending: Pending) -> PoolInstants:
    """The instants at which a share depends on others: bursts beyond free capacity, overselling, waiting work."""
    free = np.maximum(instants.capacity - instants.used - instants.gap, 0)
    oversold = (instants.capacity < instants.used + instants.gap) & (instants.gap > 0)
    waits = ((instants.waiting > 0) | pending.waits_at(instants.time_ms)) & (instants.gap > 0)
    return instants.take(np.flatnonzero((instants.over > free) | oversold | waits))


def split_contended(
    steps: HolderSteps,
    pool: PoolInstants,
    edges: Int64s,
    cuts: Int64s,
    detailed: Int64s,
    pending: Pending,
) -> Contention:
    """Apportion every contended instant; add the shares up by holder and slot, and the pairs by segment.

    pool: the contended instants. edges: of the slots. cuts: where segments of the pairs begin. detailed: holders
    (counted among those present) whose bursts are returned instant by instant.
    """
    totals = {name: np.zeros((len(steps.present), len(edges) - 1), np.int64) for name in Shares.__slots__}
    pairs = _PairSums(steps, cuts)
    bursts = _BurstLog(detailed, pool)
    segments = np.searchsorted(cuts, edges[pool.slot], "right") - 1
    takes_part = steps.occupancy != steps.reservation
    for chunk, rows in _rows_by_chunk(steps, pool.time_ms, segments):
        here = pool.take(chunk)
        exact = _number_for(here)
        # Nobody without a burst or an idle reservation gets a share.
        parties = np.flatnonzero(takes_part[rows].any(axis=1))
        occupancy, reservation, lendable, waiting = _levels_of(steps, rows[parties], exact)
        shares = share_out(Amounts.at(here), occupancy, reservation, lendable, waiting)
        if len(pending.holder):
            gap = np.maximum(reservation - occupancy, 0)
            add_pending(shares, gap, pending, steps.present[parties], here.time_ms)
        length_ms: Table = here.length_ms.astype(exact)
        _add_by_slot(totals, shares, parties, here.slot, length_ms)
        pairs.add(int(segments[chunk.start]), parties, shares, length_ms)
        bursts.add(chunk, parties, shares)
    return Contention(totals, pairs.lending(), bursts.bursts)


def _rows_by_chunk(steps: HolderSteps, time_ms: Int64s, segments: Int64s) -> Iterator[tuple[slice, Int64s]]:
    """Chunks of the instants, each within one segment, with the row in force of every holder: [holder, instant]."""
    by_time = np.argsort(steps.time_ms)
    first_instant = np.searchsorted(time_ms, steps.time_ms[by_time])
    state = steps.starts[:-1]
    for begin, end in _chunk_bounds(segments, max(_CHUNK // max(len(steps.present), 1), 1)):
        low, high = np.searchsorted(first_instant, [begin, end])
        changed = by_time[low:high]
        rows = np.zeros((len(steps.present), end - begin), np.int64)
        rows[:, 0] = state
        # Of several changes of a holder before an instant the last one assigned, so the latest, stays.
        rows[steps.holder[changed], first_instant[low:high] - begin] = changed
        np.maximum.accumulate(rows, axis=1, out=rows)
        state = rows[:, -1]
        yield slice(begin, end), rows


def _chunk_bounds(segments: Int64s, size: int) -> Iterator[tuple[int, int]]:
    bounds = np.flatnonzero(np.diff(segments, prepend=-1)).tolist()
    for low, high in pairwise([*bounds, len(segments)]):
        for begin in range(low, high, size):
            yield begin, min(begin + size, high)


def _levels_of(steps: HolderSteps, rows: Int64s, exact: type) -> tuple[Table, Table, Table, Table]:
    """(occupancy, reservation, lendable, waiting) of the rows."""
    return (
        steps.occupancy[rows].astype(exact),
        steps.reservation[rows].astype(exact),
        steps.lendable[rows].astype(exact),
        steps.waiting[rows].astype(exact),
    )


def _number_for(pool: PoolInstants) -> type:
    """A type that holds every product and sum of the chunk exactly: level x level, and level x time added up."""
    most = int((pool.over + pool.gap + pool.waiting).max())
    return exact_number(most * max(most, int(pool.length_ms.sum())))


def _add_by_slot(
    totals: dict[str, Int64s], shares: Shares, parties: Int64s, slot: Int64s, length_ms: Table
) -> None:
    first = np.flatnonzero(np.diff(slot, prepend=-1))
    cells = np.ix_(parties, slot[first])
    for name, total in totals.items():
        table = getattr(shares, name)
        if table.any():
            per_slot = np.add.reduceat(table * length_ms, first, axis=1)
            total[cells] += per_slot.astype(np.int64)


class _BurstLog:
    """Keeps the shares of the detailed holders' bursts, chunk by chunk."""

    def __init__(self, detailed: Int64s, pool: PoolInstants) -> None:
        shape = (len(detailed), len(pool.time_ms) if len(detailed) else 0)
        times = (pool.time_ms, pool.length_ms) if len(detailed) else (pool.time_ms[:0], pool.length_ms[:0])
        self.bursts = Bursts(detailed, *times, np.zeros(shape, np.int64), np.zeros(shape, np.int64))

    def add(self, chunk: slice, parties: Int64s, shares: Shares) -> None:
        row = np.flatnonzero(np.isin(self.bursts.holders, parties))
        if not len(row):
            return
        party = np.searchsorted(parties, self.bursts.holders[row])
        self.bursts.borrowed[row, chunk] = shares.borrowed[party]
        self.bursts.excess[row, chunk] = shares.excess[party]


class _PairSums:
    """Adds up lender x borrower pairs: for each borrower in id order, its borrowed is apportioned by what remains
    of each lender's lent.

    `apportion` cuts the running sum of its weights, so running sums over the lenders are all that is carried from
    one borrower to the next: reached = floor(T S / S_all), and S - reached is the next borrower's running sum.
    """

    def __init__(self, steps: HolderSteps, cuts: Int64s) -> None:
        self.present, self.cuts = steps.present, cuts
        count = len(steps.present)
        self.gpu_us = np.zeros((len(cuts), count, count), np.int64)  # [segment, borrower, lender]

    def add(self, segment: int, parties: Int64s, shares: Shares, length_ms: Table) -> None:
        """Add instants of one segment."""
        lenders = np.flatnonzero(shares.lent.any(axis=1))
        if not len(lenders):
            return
        borrowers = np.flatnonzero(shares.borrowed.any(axis=1))
        running = running_sums(shares.lent[lenders])
        reached_gpu_us = np.zeros((len(borrowers), len(lenders)), running.dtype)
        for turn, borrower in enumerate(borrowers):
            reached = floor_div(running * shares.borrowed[borrower], running[-1])
            running -= reached
            reached_gpu_us[turn] = reached @ length_ms
        by_lender = np.diff(reached_gpu_us, axis=1, prepend=0).astype(np.int64)
        self.gpu_us[segment, parties[borrowers, None], parties[lenders]] += by_lender

    def lending(self) -> Lending:
        segment, lender, borrower = np.nonzero(self.gpu_us.transpose(0, 2, 1))
        return Lending(
            self.cuts[segment],
            self.present[lender],
            self.present[borrower],
            self.gpu_us[segment, borrower, lender],
        )
