"""When a charge that is not known by the slot was made, and how an amount spreads over slots as they stream by."""

from __future__ import annotations

from collections.abc import Sequence

from billing.core.focus import BilledLine
from ledger.core.periods import Span
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR


def charge_span(line: BilledLine, month: Span, lines: Sequence[BilledLine]) -> Span:
    """The stretch of the month that a line is about. month: the one that it concerns.

    A transfer and an adjustment of it: the hour of the decision. A delay credit: its day. Other credits: the month.
    Anything else: from the start of its version of the terms to the start of the next one that has such a line.
    """
    at = line.version_from_ms
    if line.category in ("goodwill", "dispute_adjustment") or not month.start_ms <= at < month.end_ms:
        return month
    if line.category.startswith("preemption_"):
        start = at - at % MS_PER_HOUR
        return Span(max(start, month.start_ms), min(start + MS_PER_HOUR, month.end_ms))
    if line.category == "delay_credit":
        return Span(at, min(at - at % MS_PER_DAY + MS_PER_DAY, month.end_ms))
    same = _kind_of(line)
    later = [one.version_from_ms for one in lines if one.version_from_ms > at and _kind_of(one) == same]
    return Span(at, min([*later, month.end_ms]))


def _kind_of(line: BilledLine) -> tuple[object, ...]:
    return (
        line.kind,
        line.category,
        line.pool,
        line.service,
        line.model,
        line.service_class,
        line.purpose,
        line.service_idle,
        line.concerns_month,
    )


class Spread:
    """An amount over parts of a known whole, in the order they come: running sums, floored, so that nothing is lost.

    The parts need not be known beforehand; once they add up to `whole`, the shares add up to `amount`.
    """

    __slots__ = ("_amount", "_given", "_seen", "_whole")

    def __init__(self, amount: int, whole: int) -> None:
        self._amount, self._whole = amount, whole
        self._seen = self._given = 0

    def take(self, part: int) -> int:
        self._seen += part
        due = self._amount * self._seen // self._whole if self._whole else 0
        share, self._given = due - self._given, due
        return share
