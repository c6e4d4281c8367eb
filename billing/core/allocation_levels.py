"""What each holder holds of one pool, as step functions, and the pool's sums at each instant (domain.md section 4).

First step of the split: from levels of subjects to O_i, R_i, W_i of holders, then to used, over and gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ledger.core.levels import Kind, Levels, changes_at, sort_order

Int64s = NDArray[np.int64]

PLATFORM = -1


@dataclass(frozen=True, slots=True)
class Holders:
    """Everybody who can hold GPUs, in id order (byte order of slugs); a holder is its index here.

    owner: for a shared service the index of the tenant that owns it, or PLATFORM; PLATFORM for everybody else.
    """

    slugs: tuple[str, ...]
    owner: Int64s

    def __post_init__(self) -> None:
        if list(self.slugs) != sorted(set(self.slugs)) or len(self.slugs) != len(self.owner):
            raise ValueError("holders come in byte order of their slugs, each once, each with an owner")
        if (self.owner[self.owner[self.owner >= 0]] >= 0).any():
            raise ValueError("a service is owned by a tenant or the platform, not by a service")


@dataclass(frozen=True, slots=True)
class HolderSteps:
    """Step functions of the holders present: rows sorted by (holder, time), each holding until the next of its
    holder, the last until `end_ms`. Every holder has a row at the start. milli-GPU throughout.

    present: the holders' indexes in `Holders`; `holder` counts within it. starts: first row of each, and the end.
    """

    present: Int64s
    starts: Int64s
    end_ms: int
    holder: Int64s
    time_ms: Int64s
    occupancy: Int64s
    reservation: Int64s
    lendable: Int64s
    waiting: Int64s

    @property
    def used(self) -> Int64s:
        return np.minimum(self.occupancy, self.reservation)

    def lengths_ms(self) -> Int64s:
        until = np.append(self.time_ms[1:], self.end_ms)[: len(self.time_ms)]
        until[self.starts[1:] - 1] = self.end_ms
        lengths: Int64s = until - self.time_ms
        return lengths


def holder_steps(levels: Levels, holders: Holders, start_ms: int, end_ms: int) -> HolderSteps:
    """Sum levels by holder over [start_ms, end_ms); earlier changes make up the opening state.

    `levels`: as `effective_levels` returns them, holders resolved. An owner's unused reservation has already
    covered its own services in the result.
    """
    who, time_ms, deltas = _deltas(levels, start_ms, end_ms)
    present = np.flatnonzero(np.bincount(who))
    holder = np.searchsorted(present, who)
    order = sort_order(holder, time_ms)
    holder, time_ms = holder[order], time_ms[order]
    last = np.append(changes_at(holder, time_ms)[1:], True)[: len(order)]
    running = [np.cumsum(delta[order])[last] for delta in deltas]
    holder, time_ms = holder[last], time_ms[last]
    starts = np.searchsorted(holder, np.arange(len(present) + 1))
    # All sums run on over holders; what the holders before had reached is taken off again.
    columns = [total - np.append(0, total)[starts[:-1]][holder] for total in running]
    steps = HolderSteps(present, starts, end_ms, holder, time_ms, *columns)
    return _cover_own_services(steps, holders)


def _deltas(levels: Levels, start_ms: int, end_ms: int) -> tuple[Int64s, Int64s, list[Int64s]]:
    """(holder, time, [occupancy, reservation, lendable, waiting deltas]) of every change.

    Each level adds itself to its holder when it begins and takes itself away when it ends, so that a subject which
    changes hands, or a reservation whose lendability changes, needs no case of its own.
    """
    until_ms = levels.until_ms()
    held = np.flatnonzero(
        (levels.milli > 0) & (levels.who >= 0) & (levels.time_ms < end_ms) & (until_ms > start_ms)
    )
    ended = held[until_ms[held] < end_ms]
    rows = np.concatenate([held, ended])
    time_ms = np.concatenate([np.maximum(levels.time_ms[held], start_ms), until_ms[ended]])
    change = np.concatenate([levels.milli[held], -levels.milli[ended]])
    kind = levels.kind[rows]
    reserves = kind == Kind.RESERVATION
    by_kind = [
        change * (kind == Kind.OCCUPANCY),
        change * reserves,
        change * (reserves & levels.lendable[rows]),
        change * (kind == Kind.WAITING),
    ]
    return _with_opening_rows(levels.who[rows], time_ms, by_kind, start_ms)


def _with_opening_rows(
    who: Int64s, time_ms: Int64s, deltas: list[Int64s], start_ms: int
) -> tuple[Int64s, Int64s, list[Int64s]]:
    """Give every holder a change of 0 at the start, so that its step function is defined everywhere."""
    opening = np.flatnonzero(np.bincount(who))
    nothing = np.zeros(len(opening), np.int64)
    return (
        np.concatenate([opening, who]),
        np.concatenate([nothing + start_ms, time_ms]),
        [np.concatenate([nothing, delta]) for delta in deltas],
    )


def _cover_own_services(steps: HolderSteps, holders: Holders) -> HolderSteps:
    """An owner's unused reservation first covers its own services, in id order, as if it were theirs.

    Returns the steps with the covering part of the owner's reservation moved to the services.
    """
    owner = holders.owner[steps.present]
    families = [
        (int(o), np.flatnonzero(owner == steps.present[o]))
        for o in np.flatnonzero(np.isin(steps.present, owner[owner >= 0]))
    ]
    if not families:
        return steps
    touched = np.zeros(len(steps.present), bool)
    pieces = []
    for own, services in families:
        members = [own, *services.tolist()]
        touched[members] = True
        pieces.append(_covered_family(steps, members))
    kept = ~touched[steps.holder]
    columns = [getattr(steps, name)[kept] for name in _STEP_COLUMNS]
    columns = [np.concatenate([a, *b]) for a, b in zip(columns, zip(*pieces, strict=True), strict=True)]
    order = sort_order(columns[0], columns[1])
    columns = [column[order] for column in columns]
    starts = np.searchsorted(columns[0], np.arange(len(steps.present) + 1))
    return HolderSteps(steps.present, starts, steps.end_ms, *columns)


_STEP_COLUMNS = ("holder", "time_ms", "occupancy", "reservation", "lendable", "waiting")


def _covered_family(steps: HolderSteps, members: list[int]) -> list[Int64s]:
    """The steps of an owner (first of `members`) and its services, with the owner's spare reservation moved.

    All members get a row at every instant at which one of them changes.
    """
    slices = [slice(steps.starts[m], steps.starts[m + 1]) for m in members]
    times = np.unique(np.concatenate([steps.time_ms[s] for s in slices]))
    in_force = [s.start + np.searchsorted(steps.time_ms[s], times, "right") - 1 for s in slices]
    reservation = [steps.reservation[rows] for rows in in_force]
    occupancy = [steps.occupancy[rows] for rows in in_force]
    spare = np.maximum(reservation[0] - occupancy[0], 0)
    for service in range(1, len(members)):
        uncovered = np.maximum(occupancy[service] - reservation[service], 0)
        cover = np.minimum(uncovered, spare)
        reservation[service] = reservation[service] + cover
        reservation[0] = reservation[0] - cover
        spare = spare - cover
    rows = np.concatenate(in_force)
    return [
        np.repeat(np.array(members), len(times)),
        np.tile(times, len(members)),
        np.concatenate(occupancy),
        np.concatenate(reservation),
        steps.lendable[rows],
        steps.waiting[rows],
    ]


@dataclass(frozen=True, slots=True)
class PoolInstants:
    """The pool's sums between any two changes: [time, time + length) lies in one slot. milli-GPU throughout."""

    time_ms: Int64s
    length_ms: Int64s
    slot: Int64s
    capacity: Int64s
    used: Int64s
    over: Int64s
    gap: Int64s
    lendable_gap: Int64s
    waiting: Int64s

    def take(self, index: Int64s | slice) -> PoolInstants:
        return PoolInstants(*(getattr(self, name)[index] for name in self.__slots__))


def pool_instants(
    steps: HolderSteps, levels: Levels, edges: Int64s, others_ms: Int64s | None = None
) -> PoolInstants:
    """Sum used, over, gap, lendable gap and waiting over holders, at every instant at which anything changes.

    edges: the slots' edges; changes before the first edge make up the opening state. others_ms: more instants to look
    at, which change nothing by themselves.
    """
    is_capacity = levels.kind == Kind.CAPACITY
    capacity = levels.milli[is_capacity]
    capacity_ms = np.maximum(levels.time_ms[is_capacity], edges[0])
    used = steps.used
    gap = steps.reservation - used
    columns = [
        _step_changes(steps, values)
        for values in (used, steps.occupancy - used, gap, np.minimum(gap, steps.lendable), steps.waiting)
    ]
    columns.insert(0, np.zeros(len(steps.time_ms), np.int64))
    others_ms = edges if others_ms is None else np.concatenate([edges, others_ms])
    padding = len(others_ms)
    time_ms = np.concatenate([steps.time_ms, capacity_ms, others_ms])
    order = np.argsort(time_ms)
    time_ms = time_ms[order]
    last = np.append(time_ms[1:] != time_ms[:-1], True)
    sums = []
    for row, column in enumerate(columns):
        of_capacity = np.diff(capacity, prepend=0) if row == 0 else np.zeros(len(capacity), np.int64)
        padded = np.concatenate([column, of_capacity, np.zeros(padding, np.int64)])
        sums.append(np.cumsum(padded[order])[last][:-1])
    time_ms = time_ms[last]
    within = slice(0, int(np.searchsorted(time_ms, edges[-1])))
    starts = time_ms[within]
    slot = np.searchsorted(edges, starts, "right") - 1
    return PoolInstants(starts, np.diff(time_ms)[within], slot, *(total[within] for total in sums))


def _step_changes(steps: HolderSteps, values: Int64s) -> Int64s:
    """What each row adds to the sum over holders: its value less the value before of the same holder."""
    changes = np.diff(values, prepend=0)
    first = steps.starts[:-1]
    changes[first] = values[first]
    return changes
