"""What a month will come to, as a range (domain.md section 9).

The method, so that anybody can redo it: a day still to come is taken to be like the days of its weekday in the eight
weeks before: their median for what is expected, their quartiles (nearest rank) for the range. With fewer than two such
days all days seen stand in. The rest of a day that has begun counts by its share of the day. What is on the books so
far is added; where the books differ from the daily figures (credits, transfers, token contracts), days to come are
scaled by that ratio over the same months. Integers throughout, so the same books give the same forecast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledger.core.units import MS_PER_DAY, round_half_even

WEEKS = 8
LEAST_OF_WEEKDAY = 2
RANKS = ((1, 2), (1, 4), (3, 4))  # of what is expected, at least, at most
_ROOM = 2**57


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


@dataclass(frozen=True, slots=True)
class Seen:
    """What one forecast goes by. daily: figures of complete days. scale: (what the books say, what the daily figures
    say) of the same months."""

    to_date: int
    daily: Mapping[date, int]
    scale: tuple[int, int] = (1, 1)


def forecast(
    to_date: int, daily: Mapping[date, int], to_come: Sequence[DayToCome], scale: tuple[int, int] = (1, 1)
) -> Forecast:
    """Of one alone; the arguments are those of `Seen`."""
    return forecasts([Seen(to_date, daily, scale)], to_come)[0]


def forecasts(seen: Sequence[Seen], to_come: Sequence[DayToCome]) -> list[Forecast]:
    """Of each, in this order. Those who were there on the same days are made at once."""
    if not to_come:
        return [Forecast(one.to_date, one.to_date, one.to_date, one.to_date) for one in seen]
    of_days: defaultdict[tuple[date, ...], list[int]] = defaultdict(list)
    for place, one in enumerate(seen):
        of_days[tuple(one.daily)].append(place)
    made: dict[int, Forecast] = {}
    for days, places in of_days.items():
        ones = [seen[place] for place in places]
        made.update(zip(places, _of_days(days, ones, to_come), strict=True))
    return [made[place] for place in range(len(seen))]


def _of_days(days: Sequence[date], ones: Sequence[Seen], to_come: Sequence[DayToCome]) -> list[Forecast]:
    """`days`: on which all of them were there."""
    if not days:
        return [Forecast(one.to_date, None, None, None) for one in ones]
    rows = [list(one.daily.values()) for one in ones]
    # Sums of a month's days have room; figures that no ledger has are added up as Python's integers.
    is_small = all(-_ROOM < value < _ROOM for row in rows for value in (min(row), max(row)))
    figures: NDArray[Any] = np.array(rows, dtype=np.int64 if is_small else object)
    column = {day: number for number, day in enumerate(days)}
    sums = [np.zeros(len(ones), figures.dtype) for _rank in RANKS]
    for one in to_come:
        alike = np.sort(figures[:, [column[day] for day in _alike(column, one.day)]], axis=1)
        for number, rank in enumerate(RANKS):
            figure = alike[:, _place(alike.shape[1], *rank)]
            if one.rest_ms != one.length_ms:
                shares = [round_half_even(value * one.rest_ms, one.length_ms) for value in figure.tolist()]
                figure = np.array(shares, figures.dtype)
            sums[number] = sums[number] + figure
    found = []
    for one, *parts in zip(ones, *(values.tolist() for values in sums), strict=True):
        expected, low, high = (one.to_date + _scaled(value, one.scale) for value in parts)
        found.append(Forecast(one.to_date, expected, min(low, high), max(low, high)))
    return found


def _alike(days: Collection[date], day: date) -> list[date]:
    """Of these days those that `day` is likely to repeat."""
    same = [day - timedelta(weeks=back) for back in range(1, WEEKS + 1)]
    found = [one for one in same if one in days]
    if len(found) < LEAST_OF_WEEKDAY:
        since = day - timedelta(weeks=WEEKS)
        found = [one for one in days if since <= one < day] or list(days)
    return found


def quantile(values: Sequence[int], numerator: int, denominator: int) -> int:
    """By nearest rank: the smallest of the sorted values that so large a part of them does not exceed."""
    return values[_place(len(values), numerator, denominator)]


def _place(count: int, numerator: int, denominator: int) -> int:
    return max(-(-count * numerator // denominator) - 1, 0)


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
