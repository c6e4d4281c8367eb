"""What a victim held over time, and what can be read off it (domain.md sections 3 and 6)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Holding:
    """What one attempt of a workload held in one pool.

    steps: (from_ms, milli_gpus) in ascending time, each until the next; 0 before the first. serving: replicas of a
    service, whose running time is no work that could be lost. checkpoints_ms: checkpoints it is known to have made.
    """

    pool: str
    attempt: int
    steps: tuple[tuple[int, int], ...]
    serving: bool = False
    checkpoints_ms: tuple[int, ...] = ()

    def at(self, instant_ms: int) -> int:
        return self._level(bisect_right(self.steps, instant_ms, key=_time))

    def just_before(self, instant_ms: int) -> int:
        """The left limit."""
        return self._level(bisect_left(self.steps, instant_ms, key=_time))

    def next_drop_ms(self, from_ms: int) -> int | None:
        """The first instant at or after `from_ms` at which it holds less than just before."""
        return next((at for at, before, after in self._changes() if at >= from_ms and after < before), None)

    def next_rise_ms(self, from_ms: int) -> int | None:
        """The first instant at or after `from_ms` at which it holds more than just before.

        Only a rise is "running again": a victim that lost a part goes on holding the rest, and restating a level
        changes nothing (domain.md 11.7).
        """
        return next((at for at, before, after in self._changes() if at >= from_ms and after > before), None)

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


def victim_holding(history: Sequence[Holding], pool: str, attempt: int | None, at_ms: int) -> Holding | None:
    """The holding that a preemption hit: its attempt, else the highest one that held something just before."""
    here = [holding for holding in history if holding.pool == pool]
    if attempt is not None:
        return next((holding for holding in here if holding.attempt == attempt), None)
    held = [holding for holding in here if holding.just_before(at_ms) > 0]
    return max(held, key=lambda holding: holding.attempt, default=None)
