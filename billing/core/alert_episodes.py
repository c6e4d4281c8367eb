"""One alert for what a person on call sees as one: shortages of a pool with little calm between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ledger.core.units import MS_PER_HOUR

CALM_MS = MS_PER_HOUR  # so long a pool must not be short before a shortage of it is another one


@dataclass(frozen=True, slots=True)
class ShortStretch:
    """A shortage of a pool, milli-GPU; ends_ms None while it lasts. The deficit is the greatest so far."""

    pool: str
    starts_ms: int
    ends_ms: int | None
    deficit: int
    deficit_gpu_us: int


def in_episodes(stretches: Iterable[ShortStretch]) -> list[ShortStretch]:
    """Stretches of a pool with less than CALM_MS between them as one.

    deficit: the greatest of them; deficit_gpu_us: of all. In order of pool and start.
    """
    found: list[ShortStretch] = []
    for one in sorted(stretches, key=lambda one: (one.pool, one.starts_ms)):
        last = found[-1] if found and found[-1].pool == one.pool else None
        if last is not None and (last.ends_ms is None or one.starts_ms - last.ends_ms < CALM_MS):
            found[-1] = replace(
                last,
                ends_ms=None
                if last.ends_ms is None or one.ends_ms is None
                else max(last.ends_ms, one.ends_ms),
                deficit=max(last.deficit, one.deficit),
                deficit_gpu_us=last.deficit_gpu_us + one.deficit_gpu_us,
            )
        else:
            found.append(one)
    return found


def is_calm(one: ShortStretch, now_ms: int) -> bool:
    """Whether an episode is over: nothing has followed it for long enough."""
    return one.ends_ms is not None and now_ms - one.ends_ms >= CALM_MS
