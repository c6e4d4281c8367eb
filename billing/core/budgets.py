"""How far a budget is used up, and which of its thresholds are passed (domain.md section 9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ledger.core.units import round_half_even

PERCENT = 100


@dataclass(frozen=True, slots=True)
class Spending:
    """A budget's limit and what was spent and is expected by the month's end, in its own unit."""

    limit: int
    spent: int
    expected: int | None = None
    high: int | None = None

    @property
    def share_ppm(self) -> int:
        """Spent of the limit, in millionths."""
        return round_half_even(self.spent * 1_000_000, self.limit)

    @property
    def left(self) -> int:
        """Below 0 once it is exceeded."""
        return self.limit - self.spent


def passed(value: int | None, limit: int, thresholds: Iterable[int]) -> list[int]:
    """The percentages of `limit` that `value` has reached, ascending."""
    if value is None:
        return []
    return sorted(percent for percent in thresholds if value * PERCENT >= limit * percent)


def applies(of_month: str, others: Iterable[str], month: str) -> bool:
    """Whether a budget counts in a month: its own month's, or a recurring one that no own one replaces.

    others: months of the other budgets of the same tenant and kind.
    """
    return of_month == month or (not of_month and month not in set(others))
