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
from ledger.core.apportion import Proportions, apportion_columns, exact_number, running_sums
from ledger.core.levels import changes_at

Int64s = NDArray[np.int64]
Table = NDArray[Any]  # whole numbers in the type that exact_number chose

# Instants x holders looked at together: bounds memory, and keeps a table within the processor's cache.
_CHUNK = 1 << 17


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


# Each holder's shares at each instant, by category; a category that is 0 everywhere may be left out. lent_waiting is
# the part of lent up to the owner's own waiting work, undelivered_pending the part of undelivered for work that had
# not started yet.
Shares = dict[str, Table]
SHARED = (
    "borrowed",
    "excess",
    "lent",
    "lent_waiting",
    "undelivered",
    "undelivered_pending",
    "oversold",
)


@dataclass(frozen=True, slots=True)
class Standing:
    """What each holder's shares are weighed by at each instant: its burst, its idle reservation, the lendable part of
    that, and its waiting work (None where nobody's waits)."""

    over: Table
    gap: Table
    lendable_gap: Table
    waiting: Table | None


def share_out(amounts: Amounts, standing: Standing) -> Shares:
    """Apportion the amounts over the holders, each on what the step before left."""
    over, gap, waiting = standing.over, standing.gap, standing.waiting
    shares = {}
    beyond = over - apportion_columns(amounts.on_demand, over)
    shares["borrowed"] = apportion_columns(amounts.borrowed, beyond)
    if shares["borrowed"] is not beyond:
        shares["excess"] = beyond - shares["borrowed"]
    shares["lent"] = apportion_columns(amounts.borrowed, standing.lendable_gap)
    if amounts.oversold.any():
        shares["oversold"] = apportion_columns(amounts.oversold, gap - shares["lent"])
    if waiting is not None:
        given = shares["lent"] + shares.get("oversold", 0)
        shares["lent_waiting"] = np.minimum(shares["lent"], waiting)
        shares["undelivered"] = np.minimum(gap - given, np.maximum(waiting - given, 0))
    return shares


def add_pending(shares: Shares, gap: Table, pending: Pending, parties: Int64s, time_ms: Int64s) -> None:
    """Give pending workloads, in id order, what fits whole into what is left of their holders' idle reservations.

    gap: [party, instant]. parties: indexes of the holders. time_ms: the instants, sorted. Changes `shares`.
    """
    shares.setdefault("undelivered", np.zeros_like(gap))
    shares["undelivered_pending"] = np.zeros_like(gap)
    left = gap - shares["lent"] - shares.get("oversold", 0) - shares["undelivered"]
    here = np.flatnonzero((pending.start_ms <= time_ms[-1]) & (pending.end_ms > time_ms[0]))
    here = here[np.isin(pending.holder[here], parties)]
    party = np.searchsorted(parties, pending.holder[here])
    begin = np.searchsorted(time_ms, pending.start_ms[here])
    end = np.searchsorted(time_ms, pending.end_ms[here])
    for row, of, low, high in zip(here.tolist(), party.tolist(), begin.tolist(), end.tolist(), strict=True):
        milli = int(pending.milli[row])
        given = np.where(left[of, low:high] >= milli, milli, 0)
        left[of, low:high] -= given
        shares["undelivered"][of, low:high] += given
        shares["undelivered_pending"][of, low:high] += given


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
    totals = {name: np.zeros((len(steps.present), len(edges) - 1), np.int64) for name in SHARED}
    pairs = _PairSums(steps, cuts, np.searchsorted(cuts, edges[pool.slot], "right") - 1)
    bursts = _BurstLog(detailed, pool)
    standings = _Standings(steps)
    for chunk, parties, rows in _rows_by_chunk(steps, pool.time_ms):
        here = pool.take(chunk)
        exact = _number_for(here)
        standing = standings.of(rows, exact)
        shares = share_out(Amounts.at(here), standing)
        if len(pending.holder):
            add_pending(shares, standing.gap, pending, steps.present[parties], here.time_ms)
        length_ms: Table = here.length_ms.astype(exact)
        _add_by_slot(totals, shares, parties, here.slot, length_ms)
        pairs.add(chunk, parties, shares, length_ms)
        bursts.add(chunk, parties, shares)
    return Contention(totals, pairs.lending(), bursts.bursts)


def _rows_by_chunk(steps: HolderSteps, time_ms: Int64s) -> Iterator[tuple[slice, Int64s, Int64s]]:
    """Chunks of the instants with the holders that take part in each and their rows in force: [party, instant].

    Nobody without a burst or an idle reservation gets a share.
    """
    takes_part = steps.occupancy != steps.reservation
    by_time = np.argsort(steps.time_ms)
    first_instant = np.searchsorted(time_ms, steps.time_ms[by_time])
    state = steps.starts[:-1].copy()
    size = max(_CHUNK // max(len(steps.present), 1), 1)
    for begin in range(0, len(time_ms), size):
        end = min(begin + size, len(time_ms))
        low, high = np.searchsorted(first_instant, [begin, end])
        changed, instant = by_time[low:high], first_instant[low:high] - begin
        # Of several changes of a holder before an instant the last one assigned, so the latest, stays.
        before = state.copy()
        state[steps.holder[changed]] = changed
        party = takes_part[before]
        party[steps.holder[changed[takes_part[changed]]]] = True
        parties = np.flatnonzero(party)
        rows = np.zeros((len(parties), end - begin), np.int64)
        rows[:, 0] = before[parties]
        of_party = np.flatnonzero(party[steps.holder[changed]])
        place = np.searchsorted(parties, steps.holder[changed[of_party]])
        rows[place, instant[of_party]] = changed[of_party]
        np.maximum.accumulate(rows, axis=1, out=rows)
        yield slice(begin, end), parties, rows


class _Standings:
    """Standings of the holders' rows, each column once per type of number."""

    def __init__(self, steps: HolderSteps) -> None:
        over, gap = steps.occupancy - steps.used, steps.reservation - steps.used
        self.columns = [over, gap, np.minimum(gap, steps.lendable)]
        if steps.waiting.any():
            self.columns.append(steps.waiting)
        self.typed: dict[type, list[Table]] = {}

    def of(self, rows: Int64s, exact: type) -> Standing:
        """The standings of `rows` [party, instant]."""
        if exact not in self.typed:
            self.typed[exact] = [column.astype(exact) for column in self.columns]
        over, gap, lendable_gap, *waiting = (column.take(rows) for column in self.typed[exact])
        return Standing(over, gap, lendable_gap, waiting[0] if waiting else None)


def _number_for(pool: PoolInstants) -> type:
    """A type that holds every product and sum of the chunk exactly: level x level, and level x time added up."""
    most = int((pool.over + pool.gap + pool.waiting).max())
    return exact_number(most * int(pool.length_ms.sum()), most * most)


def _add_by_slot(
    totals: dict[str, Int64s], shares: Shares, parties: Int64s, slot: Int64s, length_ms: Table
) -> None:
    first = np.flatnonzero(np.diff(slot, prepend=-1))
    cells = np.ix_(parties, slot[first])
    for name, table in shares.items():
        per_slot = np.add.reduceat(table * length_ms, first, axis=1)
        totals[name][cells] += per_slot.astype(np.int64)


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
        self.bursts.borrowed[row, chunk] = shares["borrowed"][party]
        if "excess" in shares:
            self.bursts.excess[row, chunk] = shares["excess"][party]


class _PairSums:
    """Adds up lender x borrower pairs: for each borrower in id order, its borrowed is apportioned by what remains
    of each lender's lent.

    `apportion` cuts the running sum of its weights, so running sums over the lenders are all that is carried from
    one borrower to the next: reached = floor(T S / S_all), and S - reached is the next borrower's running sum.
    """

    def __init__(self, steps: HolderSteps, cuts: Int64s, segment: Int64s) -> None:
        """cuts: where the segments begin. segment: that each instant is in."""
        self.present, self.cuts, self.segment = steps.present, cuts, segment
        count = len(steps.present)
        self.gpu_us = np.zeros((len(cuts), count, count), np.int64)  # [segment, borrower, lender]

    def add(self, chunk: slice, parties: Int64s, shares: Shares, length_ms: Table) -> None:
        """Add a chunk of instants."""
        lenders = np.flatnonzero(shares["lent"].max(axis=1))
        if not len(lenders):
            return
        borrowed = shares["borrowed"]
        borrowers = np.flatnonzero(borrowed.max(axis=1))
        segment = self.segment[chunk]
        bounds = [*np.flatnonzero(changes_at(segment)).tolist(), len(segment)]
        reached_gpu_us = np.zeros((len(bounds) - 1, len(borrowers), len(lenders)), borrowed.dtype)
        running = running_sums(shares["lent"][lenders])
        for turn, borrower in enumerate(borrowers):
            if turn < len(borrowers) - 1:
                reached = Proportions(borrowed[borrower], running[-1], borrowed.dtype.type).floor(running)
                running -= reached
            else:  # Borrowed and lent add up to the same: the last one has what remains.
                reached = running
            for part, (low, high) in enumerate(pairwise(bounds)):
                reached_gpu_us[part, turn] = np.vecdot(reached[:, low:high], length_ms[low:high])
        by_lender = np.diff(reached_gpu_us, axis=2, prepend=0).astype(np.int64)
        cells = np.ix_(segment[bounds[:-1]], parties[borrowers], parties[lenders])
        self.gpu_us[cells] += by_lender

    def lending(self) -> Lending:
        segment, lender, borrower = np.nonzero(self.gpu_us.transpose(0, 2, 1))
        return Lending(
            self.cuts[segment],
            self.present[lender],
            self.present[borrower],
            self.gpu_us[segment, borrower, lender],
        )
