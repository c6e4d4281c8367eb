"""Released GPUs that nobody has occupied yet: "unused between release and the next occupancy" (domain.md section 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ledger.core.levels import Kind, Levels, changes_at, sort_order

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How a pool is used over time, in milli-GPU.

    times_ms: sorted, each once. idle: capacity less occupancy, from each time until the next; 0 before the first and
    where more is occupied than there is. rises: what workloads hold more than just before, summed over those that do;
    a new attempt of a workload takes over what the one before it held.
    """

    times_ms: Int64s
    idle: Int64s
    rises: Int64s

    @classmethod
    def of(cls, levels: Levels) -> PoolUse:
        """levels: of one pool, sorted by kind, subject, attempt, time."""
        levels = levels.take((levels.kind == Kind.CAPACITY) | (levels.kind == Kind.OCCUPANCY))
        change = np.diff(levels.milli, prepend=0)
        first = levels.starts_run()
        change[first] = levels.milli[first]
        times_ms, place = np.unique(levels.time_ms, return_inverse=True)
        occupies = np.flatnonzero(levels.kind == Kind.OCCUPANCY)
        idle_change = np.zeros(len(times_ms), np.int64)
        np.add.at(idle_change, place, np.where(levels.kind == Kind.OCCUPANCY, -change, change))

        rows = occupies[sort_order(levels.subject[occupies], levels.time_ms[occupies])]
        starts = np.flatnonzero(changes_at(levels.subject[rows], levels.time_ms[rows]))
        rises = np.zeros(len(times_ms), np.int64)
        if len(rows):
            of_workload = np.add.reduceat(change[rows], starts)
            np.add.at(rises, place[rows[starts]], np.maximum(of_workload, 0))
        return cls(times_ms, np.maximum(np.cumsum(idle_change), 0), rises)


@dataclass(frozen=True, slots=True)
class Release:
    """GPUs of one pool that an episode freed. episode: any number of it; own rises are looked up by it."""

    at_ms: int
    milli_gpus: int
    episode: int


def unused_gpu_us(
    releases: Sequence[Release],
    use: PoolUse,
    own_rises: Mapping[int, Mapping[int, int]],
    horizon_ms: int,
) -> dict[int, int]:
    """Episode -> GPU time that the GPUs it released in this pool were unused, up to the horizon, in gpu_us.

    Released GPUs are unused until somebody occupies them. Whatever any workload of the pool holds more than just
    before, from the instant of the release on, takes from them: a preemptor first from what its own episode released,
    then, as everybody, from the earliest release. So no rise is counted against two releases and no GPU is unused for
    two episodes, and what was occupied once is never unused again but by a further release. At no time are more unused
    than the pool has idle; the earliest releases come first there too.

    own_rises: episode -> instant -> by how much its preemptor's occupancy of the pool rises.
    Looks at instants of the pool only while something is unused.
    """
    found = dict.fromkeys((release.episode for release in releases), 0)
    waiting = sorted(releases, key=lambda release: (release.at_ms, release.episode))
    times, idle, rises = use.times_ms, use.idle, use.rises
    open_: list[list[int]] = []  # [episode, milli-GPU not occupied yet], earliest release first
    taken = 0  # of `waiting`
    now_ms = waiting[0].at_ms if waiting else horizon_ms
    while now_ms < horizon_ms:
        while taken < len(waiting) and waiting[taken].at_ms == now_ms:
            open_.append([waiting[taken].episode, waiting[taken].milli_gpus])
            taken += 1
        place = int(np.searchsorted(times, now_ms, "right"))
        if place and times[place - 1] == now_ms and rises[place - 1]:
            _occupy(open_, int(rises[place - 1]), now_ms, own_rises)
            open_ = [one for one in open_ if one[1] > 0]
        next_ms = waiting[taken].at_ms if taken < len(waiting) else horizon_ms
        if open_:
            if place < len(times):
                next_ms = min(next_ms, int(times[place]))
            lasts_ms = min(next_ms, horizon_ms) - now_ms
            left = int(idle[place - 1]) if place else 0
            for episode, milli in open_:
                counted = min(milli, left)
                left -= counted
                found[episode] += counted * lasts_ms
        now_ms = next_ms
    return found


def _occupy(
    open_: list[list[int]], rise_milli: int, at_ms: int, own_rises: Mapping[int, Mapping[int, int]]
) -> None:
    """Take a rise of the pool's occupancy off what is not occupied yet."""
    own = {episode: own_rises.get(episode, {}).get(at_ms, 0) for episode, _ in open_}
    for one in open_:
        takes = min(one[1], own[one[0]], rise_milli)
        one[1] -= takes
        own[one[0]] -= takes
        rise_milli -= takes
    for one in open_:
        takes = min(one[1], rise_milli)
        one[1] -= takes
        rise_milli -= takes
