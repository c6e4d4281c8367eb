"""What a month will come to, as a range (domain.md section 9).

The method, so that anybody can redo it: a day still to come is taken to be like the days of its weekday in the eight
weeks before: their median for what is expected, their quartiles (nearest rank) for the range. With fewer than two such
days all days seen stand in. The rest of a day that has begun counts by its share of the day. What is on the books so
far is added; where the books differ from the daily figures (credits, transfers, token contracts), days to come are
scaled by that ratio over the same months. Integers throughout, so the same books give the same forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledger.core.units import MS_PER_DAY, round_half_even

WEEKS = 8
LEAST_OF_WEEKDAY = 2
RANKS = ((1, 2), (1, 4), (3, 4))  # of what is expected, at least, at most
_ROOM = 2**57


class Forecast(NamedTuple):
    """to_date is on the books; expected, low and high are what the whole month comes to. None: nothing to go by."""

    to_date: int
    expected: int | None
    low: int | None
    high: int | None


def certain(value: int) -> Forecast:
    """Of what is over."""
    return Forecast(value, value, value, value)


@dataclass(frozen=True, slots=True)
class DayToCome:
    """A local day, or the rest of one: rest_ms of length_ms."""

    day: date
    rest_ms: int = MS_PER_DAY
    length_ms: int = MS_PER_DAY


@dataclass(frozen=True)
class Seen:
    """Figures of complete days, by which forecasts go: a row per one, a column per day from `first` on. since: the
    column of each one's first day, from which on it knows all; the number of columns if it knows none."""

    first: date
    figures: NDArray[Any]
    since: NDArray[np.int64]


def forecasts(
    to_date: Sequence[int],
    seen: Seen,
    to_come: Sequence[DayToCome],
    scale: Sequence[tuple[int, int]] | None = None,
) -> list[Forecast]:
    """Of each row of `seen`, in this order. scale: (what the books say, what the daily figures say) of the same months,
    None where the books say the same."""
    if not to_come:
        return [certain(value) for value in to_date]
    parts = _parts(seen, to_come)
    if scale is not None:
        parts = [list(map(_scaled, values, scale)) for values in parts]
    known = (seen.since < seen.figures.shape[1]).tolist()
    return [
        Forecast(value, value + expected, value + min(low, high), value + max(low, high))
        if is_known
        else Forecast(value, None, None, None)
        for value, is_known, expected, low, high in zip(to_date, known, *parts, strict=True)
    ]


def _parts(seen: Seen, to_come: Sequence[DayToCome]) -> list[list[int]]:
    """By rank, what the days to come add up to for each row. Rows that know the same days are made at once."""
    count, width = seen.figures.shape
    # Sums of a month's days have room; figures that no ledger has are added up as Python's integers.
    is_small = not seen.figures.size or (seen.figures.min() > -_ROOM and seen.figures.max() < _ROOM)
    figures = seen.figures.astype(np.int64 if is_small else object)
    sums = [np.zeros(count, figures.dtype) for _rank in RANKS]
    for since in np.unique(seen.since[seen.since < width]).tolist():
        rows = np.flatnonzero(seen.since == since)
        for one in to_come:
            columns = _alike(range(since, width), (one.day - seen.first).days)
            alike = np.sort(figures[np.ix_(rows, np.array(columns))], axis=1)
            for number, rank in enumerate(RANKS):
                figure = alike[:, _place(len(columns), *rank)]
                if one.rest_ms != one.length_ms:
                    shares = [
                        round_half_even(value * one.rest_ms, one.length_ms) for value in figure.tolist()
                    ]
                    figure = np.array(shares, figures.dtype)
                sums[number][rows] += figure
    return [values.tolist() for values in sums]


def _alike(known: range, day: int) -> Sequence[int]:
    """Of the days known those that `day` is likely to repeat; days are counted from one date on."""
    found = [one for one in range(day - 7 * WEEKS, day, 7) if one in known]
    if len(found) < LEAST_OF_WEEKDAY:
        found = [one for one in known if day - 7 * WEEKS <= one < day] or list(known)
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
