"""What became of each reservation, where a holder has several in a pool (domain.md section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledger.core.apportion import apportion


@dataclass(frozen=True, slots=True)
class Reserved:
    """One reservation's GPU time over some time; gpu_us."""

    reservation: str
    gpu_us: int
    lendable: bool = True


@dataclass(frozen=True, slots=True)
class Use:
    """gpu_us; reserved is the sum of the first five. undelivered_pending: the part of undelivered for work that had not
    started yet."""

    used: int = 0
    lent: int = 0
    idle: int = 0
    undelivered: int = 0
    oversold: int = 0
    undelivered_pending: int = 0

    @property
    def reserved(self) -> int:
        return self.used + self.lent + self.idle + self.undelivered + self.oversold


def use_of_reservations(reserved: Sequence[Reserved], use: Use) -> list[Use]:
    """A holder's use divided over its reservations, in the order given (id order).

    Use fills those that may not be lent first; lent comes from those that may; what is left of each is undelivered,
    oversold and idle in proportion. What covered the holder's own services is used. Every reservation's parts add up
    to it, and every part, except `used`, to the holder's.
    """
    left = [one.gpu_us for one in reserved]
    covered = max(sum(left) - use.reserved, 0)
    parts: dict[str, list[int]] = {}

    def take(name: str, total: int, weights: Sequence[int]) -> None:
        shares = apportion(min(total, sum(weights)), list(weights))
        parts[name] = [a + b for a, b in zip(parts.get(name, [0] * len(left)), shares, strict=True)]
        for place, share in enumerate(shares):
            left[place] -= share

    lendable = [one.gpu_us if one.lendable else 0 for one in reserved]
    # What was lent can only come from lendable ones: it is set aside before use fills the rest.
    take("lent", use.lent, lendable)
    used = use.used + covered
    fixed = [0 if one.lendable else here for one, here in zip(reserved, left, strict=True)]
    take("used", min(used, sum(fixed)), fixed)
    take("used", used - min(used, sum(fixed)), list(left))
    take("undelivered", use.undelivered, list(left))
    take("oversold", use.oversold, list(left))
    undelivered = parts["undelivered"]
    pending = apportion(min(use.undelivered_pending, sum(undelivered)), undelivered)
    return [
        Use(
            parts["used"][place],
            parts["lent"][place],
            left[place],
            parts["undelivered"][place],
            parts["oversold"][place],
            pending[place],
        )
        for place in range(len(reserved))
    ]
