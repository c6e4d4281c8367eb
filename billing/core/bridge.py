"""From last month's total to this one's: how much of the difference is price, volume, idle time and so on.

Pure arithmetic over the lines of two statements (interfaces.md, the statement's page). The steps add up to the
difference exactly, in micro units; what printing rounds is a step of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ledger.core.units import round_half_even

# In the order in which they are read.
PRICE, VOLUME, IDLE, PREEMPTION, CREDITS, ADJUSTMENTS = (
    "price",
    "volume",
    "idle",
    "preemption",
    "credits",
    "adjustments",
)
ROUNDING = "rounding"
STEPS = (PRICE, VOLUME, IDLE, PREEMPTION, CREDITS, ADJUSTMENTS, ROUNDING)

_OF_QUANTITY = frozenset({"usage", "shared", "tokens"})
_STEP_OF_KIND = {"transfer": PREEMPTION, "credit": CREDITS, "adjustment": ADJUSTMENTS}
_IDLE_CATEGORIES = frozenset(
    {"reserved_idle", "undelivered", "oversold", "unreserved_idle", "cost_unallocated"}
)


@dataclass(frozen=True, slots=True)
class BridgeLine:
    """A line as far as the bridge needs it. key: what it is about, without the version of its terms.

    quantity is in the line's own unit; amount_micro None: a price is missing.
    """

    key: tuple[str, ...]
    kind: str
    category: str
    quantity: int
    amount_micro: int | None
    service_idle: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the bridge. printed_minor of all steps add up to the difference of the printed totals."""

    name: str
    amount_micro: int
    printed_minor: int


@dataclass(frozen=True, slots=True)
class Printed:
    """A statement's exact and printed total; minor_micro: micro units in one minor unit."""

    total_micro: int
    total_minor: int
    minor_micro: int


@dataclass(slots=True)
class _Sum:
    quantity: int = 0
    amount_micro: int = 0


def bridge(
    before: Iterable[BridgeLine], after: Iterable[BridgeLine], was: Printed, now: Printed
) -> list[Step] | None:
    """The steps other than zero, in order; None where a price is missing on either side.

    Of what is there in both months the volume step is the change of quantity at the earlier average price (rounded
    half-even), and the price step all the rest. What is new or gone is volume. For idle time the change of quantity is
    the idle step. Movements of money (preemptions, credits, adjustments) are steps as they are.
    """
    old, new = list(before), list(after)
    if any(line.amount_micro is None for line in (*old, *new)):
        return None
    micro: defaultdict[str, int] = defaultdict(int)
    sums_before, sums_after = _sums(old), _sums(new)
    for about in {*sums_before, *sums_after}:
        for step, amount in _steps_of(about, sums_before.get(about, _Sum()), sums_after.get(about, _Sum())):
            micro[step] += amount
    return _printed(micro, was, now)


_About = tuple[str, str, bool, tuple[str, ...]]


def _sums(lines: Iterable[BridgeLine]) -> dict[_About, _Sum]:
    sums: defaultdict[_About, _Sum] = defaultdict(_Sum)
    for line in lines:
        of = sums[line.kind, line.category, line.service_idle, line.key]
        of.quantity += line.quantity
        of.amount_micro += line.amount_micro or 0
    return sums


def _steps_of(about: _About, old: _Sum, new: _Sum) -> list[tuple[str, int]]:
    kind, category, service_idle, _key = about
    difference = new.amount_micro - old.amount_micro
    if kind not in _OF_QUANTITY:
        return [(_STEP_OF_KIND.get(kind, ADJUSTMENTS), difference)]
    of_quantity = IDLE if service_idle or category in _IDLE_CATEGORIES else VOLUME
    if not old.quantity or not new.quantity:
        return [(of_quantity, difference)]
    moved = round_half_even(old.amount_micro * (new.quantity - old.quantity), old.quantity)
    return [(of_quantity, moved), (PRICE, difference - moved)]


def _printed(micro: dict[str, int], was: Printed, now: Printed) -> list[Step]:
    steps = [
        Step(name, micro[name], round_half_even(micro[name], now.minor_micro))
        for name in STEPS
        if micro.get(name)
    ]
    exact = now.total_micro - was.total_micro - sum(step.amount_micro for step in steps)
    printed = now.total_minor - was.total_minor - sum(step.printed_minor for step in steps)
    return [*steps, Step(ROUNDING, exact, printed)] if exact or printed else steps
