"""What a pool looked like just before given instants, from its levels as arrays (domain.md sections 4 and 6).

The same as the sweep of `pool_moments` without what waits to start: sums of holders at all instants at once, so that
the state of every pool of a GPU model can be asked for at each decision of a month.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from billing.core.allocation_at import Held
from billing.core.allocation_levels import PLATFORM, Holders
from ledger.core.levels import Kind, Levels

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PoolInstants:
    """The pool just before each of `instants`, in milli-GPU: changes at the instant itself do not count yet.

    instants: sorted, each once. present: indexes in `holders` of who held or reserved anything. capacity: by instant;
    occupancy, reservation, lendable: by (place in `present`, instant).
    """

    instants: Int64s
    holders: Holders
    present: Int64s
    capacity: Int64s
    occupancy: Int64s
    reservation: Int64s
    lendable: Int64s

    @classmethod
    def of(cls, levels: Levels, holders: Holders, instants: Sequence[int]) -> PoolInstants:
        """levels: of one pool, resolved to holders, sorted by kind, subject, attempt, time."""
        asked = np.array(sorted(set(instants)), np.int64)
        levels = levels.take(levels.time_ms < asked[-1]) if len(asked) else levels.take(levels.time_ms < 0)
        # A row counts from the first instant after it on, and what it replaces no more: differences, summed up.
        since = np.searchsorted(asked, levels.time_ms, "right")
        replaces = np.flatnonzero(~levels.starts_run())
        present = np.unique(levels.who[levels.who >= 0])
        place = np.searchsorted(present, levels.who)
        steps = np.zeros((len(present) + 1, 3, len(asked)), np.int64)  # the last row is the pool's own

        def add(rows: Int64s, at: Int64s, sign: int) -> None:
            kind, who = levels.kind[rows], np.where(levels.who[rows] >= 0, place[rows], len(present))
            column = np.where(kind == Kind.OCCUPANCY, 0, 1)
            np.add.at(steps, (who, column, at), sign * levels.milli[rows])
            lent = (kind == Kind.RESERVATION) & levels.lendable[rows]
            np.add.at(steps, (who[lent], 2, at[lent]), sign * levels.milli[rows[lent]])

        add(np.arange(len(levels)), since, 1)
        add(replaces - 1, since[replaces], -1)
        sums = np.cumsum(steps, axis=2)
        return cls(asked, holders, present, sums[-1, 1], sums[:-1, 0], sums[:-1, 1], sums[:-1, 2])

    def held(self, instant_ms: int) -> dict[str, Held]:
        """Slug -> what it held and had reserved just before one of the instants."""
        at = int(np.searchsorted(self.instants, instant_ms))
        return {
            self.holders.slugs[holder]: Held(*levels)
            for holder, *levels in zip(
                self.present.tolist(),
                self.occupancy[:, at].tolist(),
                self.reservation[:, at].tolist(),
                self.lendable[:, at].tolist(),
                strict=True,
            )
            if levels[0] or levels[1]
        }

    def capacity_at(self, instant_ms: int) -> int:
        return int(self.capacity[np.searchsorted(self.instants, instant_ms)])

    def idle(self) -> Int64s:
        """By instant: unreserved, or lendable with capacity behind it; what `split_at` calls idle."""
        reservation = self._covering_own_services()
        used = np.minimum(self.occupancy, reservation)
        over, gap = (self.occupancy - used).sum(0), reservation - used
        lendable, used_milli = np.minimum(gap, self.lendable).sum(0), used.sum(0)
        free = np.maximum(self.capacity - used_milli - gap.sum(0), 0)
        on_demand = np.minimum(over, free)
        backed = np.maximum(self.capacity - used_milli - on_demand, 0)
        borrowed = np.minimum(np.minimum(over - on_demand, lendable), backed)
        idle: Int64s = free - on_demand + np.minimum(lendable, backed) - borrowed
        return idle

    def _covering_own_services(self) -> Int64s:
        """Reservations once an owner's unused one covers its own services, in id order, as if it were theirs."""
        reservation = self.reservation.copy()
        place = {holder: number for number, holder in enumerate(self.present.tolist())}
        for holder, service in place.items():
            owner = place.get(int(self.holders.owner[holder]), PLATFORM)
            if owner != PLATFORM:
                spare = np.maximum(reservation[owner] - self.occupancy[owner], 0)
                cover = np.minimum(np.maximum(self.occupancy[service] - reservation[service], 0), spare)
                reservation[service] += cover
                reservation[owner] -= cover
        return reservation
