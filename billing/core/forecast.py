"""What a month will come to, as a range (domain.md section 9).

The method, so that anybody can redo it: a day still to come is taken to be like the days of its weekday in the eight
weeks before: their median for what is expected, their quartiles (nearest rank) for the range. With fewer than two such
days all days seen stand in. The rest of a day that has begun counts by its share of the day. What is on the books so
far is added; where the books differ from the daily figures (credits, transfers, token contracts), days to come are
scaled by that ratio over the same months. Integers throughout, so the same books give the same forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from ledger.core.units import MS_PER_DAY, round_half_even

WEEKS = 8
LEAST_OF_WEEKDAY = 2


@dataclass(frozen=True, slots=True)
class Forecast:
    """to_date is on the books; expected, low and high are what the whole month comes to. None: nothing to go by."""

    to_date: int
    expected: int | None
    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class DayToCome:
    """A local day, or the rest of one: rest_ms of length_ms."""

    day: date
    rest_ms: int = MS_PER_DAY
    length_ms: int = MS_PER_DAY


def forecast(
    to_date: int, daily: Mapping[date, int], to_come: Sequence[DayToCome], scale: tuple[int, int] = (1, 1)
) -> Forecast:
    """daily: figures of complete days. scale: (what the books say, what the daily figures say) of the same months."""
    if not to_come:
        return Forecast(to_date, to_date, to_date, to_date)
    if not daily:
        return Forecast(to_date, None, None, None)
    alike = [_alike(daily, one.day) for one in to_come]
    expected, low, high = (
        to_date
        + _scaled(
            sum(
                round_half_even(quantile(values, *rank) * one.rest_ms, one.length_ms)
                for values, one in zip(alike, to_come, strict=True)
            ),
            scale,
        )
        for rank in ((1, 2), (1, 4), (3, 4))
    )
    return Forecast(to_date, expected, min(low, high), max(low, high))


def _alike(daily: Mapping[date, int], day: date) -> list[int]:
    """The figures that a day is likely to repeat, in order."""
    same = [day - timedelta(weeks=back) for back in range(1, WEEKS + 1)]
    values = [daily[one] for one in same if one in daily]
    if len(values) < LEAST_OF_WEEKDAY:
        since = day - timedelta(weeks=WEEKS)
        values = [value for one, value in daily.items() if since <= one < day] or list(daily.values())
    return sorted(values)


def quantile(values: Sequence[int], numerator: int, denominator: int) -> int:
    """By nearest rank: the smallest of the sorted values that so large a part of them does not exceed."""
    place = -(-len(values) * numerator // denominator)
    return values[max(place - 1, 0)]


def _scaled(value: int, scale: tuple[int, int]) -> int:
    booked, daily = scale
    return round_half_even(value * booked, daily) if booked > 0 and daily > 0 else value


def exhausted_ms(quota: int, used: int, recent: Sequence[int], now_ms: int, ends_ms: int) -> int | None:
    """When a quota is used up if the last seven complete days go on; None if not before `ends_ms`.

    recent: use of the last complete days, oldest first. A quota that is used up already is so now.
    """
    if used >= quota:
        return now_ms
    week = recent[-7:]
    if not sum(week):
        return None
    at_ms = now_ms + -(-(quota - used) * len(week) * MS_PER_DAY // sum(week))
    return at_ms if at_ms < ends_ms else None
