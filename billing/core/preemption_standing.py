"""Where victim and pools stood just before a decision: entitled, idle elsewhere, where it resumed (section 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from billing.core.preemption_merge import Key, Preemption


@dataclass(frozen=True, slots=True)
class Standing:
    """A holder in a pool just before an instant (left limits); milli-GPU.

    reservation includes what an owner's unused reservation covers of its own service. on_demand, borrowed and
    excess: how its occupancy beyond the reservation was split at that instant.
    """

    occupancy: int = 0
    reservation: int = 0
    on_demand: int = 0
    borrowed: int = 0
    excess: int = 0


NOTHING_HELD = Standing()


@dataclass(frozen=True, slots=True)
class Taken:
    """A preemption with its release, as far as the order of several matters."""

    preemption: Preemption
    released_at_ms: int

    def still_held_at(self, instant_ms: int) -> bool:
        """Whether the left limit at `instant_ms` still counts its GPUs."""
        return self.released_at_ms >= instant_ms


def entitled_milli_gpus(taken: Sequence[Taken], standings: Mapping[Key, Standing]) -> dict[Key, int]:
    """The part of each preemption's GPUs that was inside the victim's reservation.

    standings: of the victim in the pool, just before each decision.
    """
    held = held_milli_gpus(taken, standings)
    entitled = {}
    for one in taken:
        key, milli_gpus = one.preemption.key, one.preemption.milli_gpus
        beyond = max(held[key] - standings.get(key, NOTHING_HELD).reservation, 0)
        entitled[key] = 0 if one.preemption.queued_only else milli_gpus - min(milli_gpus, beyond)
    return entitled


def held_milli_gpus(taken: Sequence[Taken], standings: Mapping[Key, Standing]) -> dict[Key, int]:
    """O_v of each preemption: what the victim held in the pool just before, not below 0.

    Preemptions of one holder and pool are taken in order; it is the left limit less the GPUs of earlier ones not yet
    released. standings: as above.
    """
    earlier: dict[tuple[str, str], list[Taken]] = {}
    held = {}
    for one in sorted(taken, key=lambda one: one.preemption.order):
        preemption = one.preemption
        standing = standings.get(preemption.key, NOTHING_HELD)
        before = earlier.setdefault((preemption.victim, preemption.pool), [])
        going = sum(
            other.preemption.milli_gpus for other in before if other.still_held_at(preemption.decided_at_ms)
        )
        held[preemption.key] = max(standing.occupancy - going, 0)
        if not preemption.queued_only:
            before.append(one)
    return held


def preemptors_inside_reservation(taken: Sequence[Taken], standings: Mapping[Key, Standing]) -> set[Key]:
    """Preemptions whose preemptor, with the GPUs it takes, stays inside its own reservation.

    standings: of the preemptor in the pool, just before each decision; GPUs that it takes by earlier preemptions
    and does not hold yet count as its own. Where the victim is entitled too, the pool is oversold.
    """
    earlier: dict[tuple[str, str], list[Taken]] = {}
    inside = set()
    for one in sorted(taken, key=lambda one: one.preemption.order):
        preemption = one.preemption
        if preemption.preemptor is None or preemption.queued_only:
            continue
        standing = standings.get(preemption.key, NOTHING_HELD)
        before = earlier.setdefault((preemption.preemptor, preemption.pool), [])
        coming = sum(
            other.preemption.milli_gpus for other in before if other.still_held_at(preemption.decided_at_ms)
        )
        if standing.occupancy + coming + preemption.milli_gpus <= standing.reservation:
            inside.add(preemption.key)
        before.append(one)
    return inside


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """GPUs of the same model that were idle in other pools just before the decision.

    milli_gpus: all of the preemption's where one pool could have given them whole, else 0. fragments: what smaller
    remains there were, by pool.
    """

    milli_gpus: int = 0
    pool: str | None = None
    fragments: dict[str, int] = field(default_factory=dict)


def idle_elsewhere(
    preemptions: Sequence[Preemption], idle_milli: Mapping[tuple[int, str], Mapping[str, int]]
) -> dict[Key, Elsewhere]:
    """Could each preemption have been avoided? Idle GPUs are shared out in order, so none is counted twice.

    idle_milli: (decided_at_ms, pool that was hit) -> idle (unreserved or lendable) GPUs of each pool of the same
    model just before; the pool itself is left out. Pools are asked for in order, and only until one could have given
    all: what reads them may do so when it is asked.
    """
    given: dict[tuple[int, str], int] = {}
    found = {}
    for preemption in sorted(preemptions, key=lambda preemption: preemption.order):
        if preemption.queued_only or preemption.milli_gpus == 0:
            continue
        at_ms = preemption.decided_at_ms
        idle = idle_milli.get((at_ms, preemption.pool), {})
        fragments: dict[str, int] = {}
        for pool in sorted(idle):
            if pool == preemption.pool:
                continue
            left = idle[pool] - given.get((at_ms, pool), 0)
            if left >= preemption.milli_gpus:
                given[at_ms, pool] = given.get((at_ms, pool), 0) + preemption.milli_gpus
                found[preemption.key] = Elsewhere(preemption.milli_gpus, pool)
                break
            if left > 0:
                fragments[pool] = left
        else:
            found[preemption.key] = Elsewhere(fragments=fragments)
    return found


def resumed_state(idle_milli_before: int, milli_gpus: int) -> str:
    """Whether the pool it resumed in had the GPUs idle just before ('idle'), or they had to be made free ('full')."""
    return "idle" if idle_milli_before >= milli_gpus else "full"
