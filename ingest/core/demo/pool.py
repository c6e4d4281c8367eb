"""One simulated pool: who holds what, and what may be admitted so that capacity always backs occupancy.

The admission rule is domain.md section 4 read backwards: a pool never holds more than its capacity, and what its
holders hold beyond their reservations fits into unreserved GPUs plus the idle part of lendable reservations, so that
the books of the month show no `excess`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ingest.core.demo.cast import PoolPlan
from ingest.core.demo.workload import State, Workload

Held = dict[str, int]


@dataclass
class Pool:
    """All quantities in milli-GPU. held: by holder, victims that drain included. claims: promised to workloads
    whose victims are still leaving. draining: held, but told to go. cordoned: capacity that takes nobody new because it
    leaves soon."""

    plan: PoolPlan
    capacity: int
    cordoned: int = 0
    lendable: Held = field(default_factory=dict)
    fixed: Held = field(default_factory=dict)
    held: Held = field(default_factory=dict)
    claims: Held = field(default_factory=dict)
    draining: Held = field(default_factory=dict)
    running: dict[str, Workload] = field(default_factory=dict)
    queue: list[Workload] = field(default_factory=list)
    sweep_at: int | None = None

    @property
    def slug(self) -> str:
        return self.plan.slug

    def reserved(self, holder: str) -> int:
        return self.lendable.get(holder, 0) + self.fixed.get(holder, 0)

    def planned(self) -> Held:
        """What is held once everybody who was told to go has gone and everybody promised a place has come."""
        planned = dict(self.held)
        for holder, milli in self.draining.items():
            planned[holder] = planned.get(holder, 0) - milli
        for holder, milli in self.claims.items():
            planned[holder] = planned.get(holder, 0) + milli
        return planned

    def backs_now(self, held: Held) -> bool:
        return self._backs(held, self.capacity)

    def backs(self, planned: Held) -> bool:
        """The same once everybody has gone who was told to, and what is cordoned."""
        return self._backs(planned, self.capacity - self.cordoned)

    def _backs(self, held: Held, capacity: int) -> bool:
        """Whether capacity and reservations back these holdings (see the module)."""
        if sum(held.values()) > capacity:
            return False
        over = sum(max(milli - self.reserved(holder), 0) for holder, milli in held.items())
        if not over:
            return True
        reserved = lendable_gap = 0
        for holder, lendable in self.lendable.items():
            own = held.get(holder, 0)
            fixed = self.fixed.get(holder, 0)
            reserved += lendable + fixed
            # Use fills what may not be lent first.
            lendable_gap += min(max(lendable + fixed - own, 0), lendable)
        reserved += sum(fixed for holder, fixed in self.fixed.items() if holder not in self.lendable)
        return over <= max(capacity - reserved, 0) + lendable_gap

    def has_room(self, workload: Workload) -> bool:
        """Both now, while victims still drain, and once they have gone."""
        return self.backs_now(plus(self.held, workload)) and self.backs(plus(self.planned(), workload))

    def is_entitled(self, workload: Workload) -> bool:
        """It fits whole into its holder's own reservation."""
        planned = self.planned().get(workload.holder, 0)
        return planned + workload.milli_gpus <= self.reserved(workload.holder)

    def over(self, holder: str) -> int:
        return max(self.planned().get(holder, 0) - self.reserved(holder), 0)

    def idle(self) -> int:
        return self.capacity - sum(self.held.values())

    def can_be_told_to_go(self) -> list[Workload]:
        return [workload for workload in self.running.values() if workload.state is State.RUNNING]

    def take(self, workload: Workload) -> None:
        _add(self.held, workload.holder, workload.milli_gpus)
        self.running[workload.id] = workload

    def give_back(self, workload: Workload) -> None:
        _add(self.held, workload.holder, -workload.milli_gpus)
        if workload.state is State.DRAINING:
            _add(self.draining, workload.holder, -workload.milli_gpus)
        del self.running[workload.id]

    def tell_to_go(self, workload: Workload) -> None:
        workload.state = State.DRAINING
        _add(self.draining, workload.holder, workload.milli_gpus)

    def promise(self, workload: Workload) -> None:
        workload.state = State.CLAIMING
        _add(self.claims, workload.holder, workload.milli_gpus)

    def drop_promise(self, workload: Workload) -> None:
        _add(self.claims, workload.holder, -workload.milli_gpus)


def plus(held: Held, workload: Workload) -> Held:
    return {**held, workload.holder: held.get(workload.holder, 0) + workload.milli_gpus}


def minus(held: Held, workload: Workload) -> Held:
    return {**held, workload.holder: held.get(workload.holder, 0) - workload.milli_gpus}


def _add(held: Held, holder: str, milli_gpus: int) -> None:
    held[holder] = held.get(holder, 0) + milli_gpus
