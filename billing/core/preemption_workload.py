"""What a victim held over time, and what can be read off it (domain.md sections 3 and 6)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Holding:
    """What one attempt of a workload held in one pool.

    steps: (from_ms, milli_gpus) in ascending time, each until the next; 0 before the first. serving: replicas of a
    service, whose running time is no work that could be lost. checkpoints_ms: checkpoints it is known to have made.
    classes: (from_ms, service class, purpose), where these were stated; '' is none.
    """

    pool: str
    attempt: int
    steps: tuple[tuple[int, int], ...]
    serving: bool = False
    checkpoints_ms: tuple[int, ...] = ()
    classes: tuple[tuple[int, str, str], ...] = ()

    def at(self, instant_ms: int) -> int:
        return self._level(bisect_right(self.steps, instant_ms, key=_time))

    def just_before(self, instant_ms: int) -> int:
        """The left limit."""
        return self._level(bisect_left(self.steps, instant_ms, key=_time))

    def class_just_before(self, instant_ms: int) -> tuple[str, str]:
        """(service class, purpose) as the left limit: what it ran as until the instant."""
        passed = bisect_left(self.classes, instant_ms, key=lambda step: step[0])
        return self.classes[passed - 1][1:] if passed else ("", "")

    def next_drop_ms(self, from_ms: int) -> int | None:
        """The first instant at or after `from_ms` at which it holds less than just before."""
        return next((at for at, before, after in self._changes() if at >= from_ms and after < before), None)

    def next_rise_ms(self, from_ms: int) -> int | None:
        """The first instant at or after `from_ms` at which it holds more than just before.

        Only a rise is "running again": a victim that lost a part goes on holding the rest, and restating a level
        changes nothing (domain.md 11.7).
        """
        return next((at for at, before, after in self._changes() if at >= from_ms and after > before), None)

    def changes(self) -> Iterable[tuple[int, int]]:
        """(instant, by how much the level changes) of every step."""
        return ((at_ms, after - before) for at_ms, before, after in self._changes())

    def unbroken_since_ms(self, instant_ms: int) -> int | None:
        """When the stretch without a 0 that reaches up to just before `instant_ms` began; None if it held nothing."""
        since_ms = None
        for at_ms, _, after in self._changes():
            if at_ms >= instant_ms:
                break
            if after == 0:
                since_ms = None
            elif since_ms is None:
                since_ms = at_ms
        return since_ms

    def gpu_us_until(self, end_ms: int) -> int:
        """GPU time booked for it before `end_ms`."""
        return sum(
            milli * max(min(next_ms, end_ms) - at_ms, 0)
            for (at_ms, milli), (next_ms, _) in pairwise((*self.steps, (end_ms, 0)))
        )

    def _level(self, steps_passed: int) -> int:
        return self.steps[steps_passed - 1][1] if steps_passed else 0

    def _changes(self) -> Iterable[tuple[int, int, int]]:
        """(instant, level before, level after) of every step."""
        return ((at_ms, before, after) for (_, before), (at_ms, after) in pairwise(((0, 0), *self.steps)))


def _time(step: tuple[int, int]) -> int:
    return step[0]


def rises(history: Sequence[Holding], pool: str) -> dict[int, int]:
    """Instant -> how many milli-GPU more the workload holds in the pool than just before, over all its attempts."""
    total: Counter[int] = Counter()
    for holding in history:
        if holding.pool == pool:
            for at_ms, change in holding.changes():
                total[at_ms] += change
    return {at_ms: change for at_ms, change in total.items() if change > 0}


def victim_holding(history: Sequence[Holding], pool: str, attempt: int | None, at_ms: int) -> Holding | None:
    """The holding that a preemption hit: its attempt, else the highest one that held something just before."""
    here = [holding for holding in history if holding.pool == pool]
    if attempt is not None:
        return next((holding for holding in here if holding.attempt == attempt), None)
    held = [holding for holding in here if holding.just_before(at_ms) > 0]
    return max(held, key=lambda holding: holding.attempt, default=None)


@dataclass(frozen=True, slots=True)
class OccupancyFact:
    """What one event says an attempt holds from an instant on. ref: (source, id)."""

    pool: str
    attempt: int
    starts_ms: int
    milli_gpus: int
    ref: tuple[str, str]
    serving: bool = False
    checkpoint_ms: int | None = None
    service_class: str = ""
    purpose: str = ""


def holdings(facts: Iterable[OccupancyFact]) -> tuple[Holding, ...]:
    """The facts of one workload as step functions (domain.md section 3).

    Of several facts of one attempt and instant the greatest (source, id) holds; in one pool a higher attempt ends
    lower ones at its start, and what those say later is void.
    """
    of_pool: dict[str, dict[int, dict[int, OccupancyFact]]] = {}
    for fact in sorted(facts, key=lambda fact: fact.ref):
        of_pool.setdefault(fact.pool, {}).setdefault(fact.attempt, {})[fact.starts_ms] = fact
    return tuple(holding for pool in sorted(of_pool) for holding in _holdings_of_pool(pool, of_pool[pool]))


def _holdings_of_pool(pool: str, attempts: dict[int, dict[int, OccupancyFact]]) -> Iterable[Holding]:
    ended_ms: int | None = None
    for attempt in sorted(attempts, reverse=True):
        facts = [
            fact for at_ms, fact in sorted(attempts[attempt].items()) if ended_ms is None or at_ms < ended_ms
        ]
        if facts:
            steps = [(fact.starts_ms, fact.milli_gpus) for fact in facts]
            if ended_ms is not None and steps[-1][1] > 0:
                steps.append((ended_ms, 0))
            yield Holding(
                pool,
                attempt,
                tuple(steps),
                serving=facts[-1].serving,
                checkpoints_ms=tuple(fact.checkpoint_ms for fact in facts if fact.checkpoint_ms is not None),
                classes=tuple((fact.starts_ms, fact.service_class, fact.purpose) for fact in facts),
            )
        first_ms = min(attempts[attempt])
        ended_ms = first_ms if ended_ms is None else min(ended_ms, first_ms)
