"""Budgets, forecasts and plans, by hand (domain.md section 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.budgets import Spending, applies, passed
from billing.core.forecast import DayToCome, Forecast, Seen, certain, exhausted_ms, forecasts, quantile
from ledger.core.units import round_half_even

DAY_MS = 86_400_000
MONDAY = date(2026, 10, 5)


def test_thresholds_are_passed_when_reached() -> None:
    assert passed(80, 100, [100, 50, 80]) == [50, 80]
    assert passed(79, 100, [50, 80]) == [50]
    assert passed(None, 100, [50]) == []
    spending = Spending(limit=300, spent=400)
    assert (spending.share_ppm, spending.left) == (1_333_333, -100)


@pytest.mark.parametrize(
    ("of_month", "others", "counts"),
    [
        ("2026-10", ["", "2026-10"], True),
        ("", ["", "2026-10"], False),
        ("", ["", "2026-11"], True),
        ("2026-11", ["2026-11"], False),
    ],
)
def test_a_month_of_its_own_replaces_the_recurring_budget(
    of_month: str, others: list[str], counts: bool
) -> None:
    assert applies(of_month, others, "2026-10") is counts


def test_quantiles_by_nearest_rank() -> None:
    assert [quantile([1, 2, 3, 4], *rank) for rank in ((1, 4), (1, 2), (3, 4))] == [1, 2, 3]
    assert quantile([7], 1, 4) == 7


class One(NamedTuple):
    """daily: a figure for each day from its first on."""

    to_date: int
    daily: Mapping[date, int]
    scale: tuple[int, int] = (1, 1)


def made(ones: Sequence[One], to_come: Sequence[DayToCome]) -> list[Forecast]:
    """All at once; their days end on the same one."""
    days = sorted({day for one in ones for day in one.daily}) or [MONDAY]
    width = (days[-1] - days[0]).days + 1 if any(one.daily for one in ones) else 0
    figures, since = np.zeros((len(ones), width), object), np.full(len(ones), width)
    for row, one in enumerate(ones):
        columns = sorted((day - days[0]).days for day in one.daily)
        assert columns == list(range(width - len(columns), width))
        figures[row, width - len(columns) :] = [one.daily[day] for day in sorted(one.daily)]
        since[row] = width - len(columns)
    if all(abs(int(value)) < 2**63 for value in figures.flat):
        figures = figures.astype(np.int64)
    return forecasts(
        [one.to_date for one in ones], Seen(days[0], figures, since), to_come, [one.scale for one in ones]
    )


def forecast(
    to_date: int, daily: Mapping[date, int], to_come: Sequence[DayToCome], scale: tuple[int, int] = (1, 1)
) -> Forecast:
    return made([One(to_date, daily, scale)], to_come)[0]


def weeks(values: dict[int, list[int]]) -> dict[date, int]:
    """weekday -> its values of the weeks before MONDAY, newest first; other days are as dear as no other."""
    count = max(len(of) for of in values.values())
    daily = {MONDAY - timedelta(days=back): 10**9 for back in range(1, 7 * count + 1)}
    return daily | {
        MONDAY + timedelta(days=weekday, weeks=-week): value
        for weekday, of in values.items()
        for week, value in enumerate(of, start=1)
    }


def test_days_to_come_are_like_their_weekday() -> None:
    """Mondays cost 10, 20, 30, 40 and Tuesdays 1, 2, 3, 4: 20 + 2 expected, 10 + 1 to 30 + 3, on 100 so far."""
    daily = weeks({0: [40, 10, 30, 20], 1: [1, 2, 3, 4]})
    to_come = [DayToCome(MONDAY), DayToCome(MONDAY + timedelta(days=1))]
    assert forecast(100, daily, to_come) == Forecast(100, 122, 111, 133)


def test_the_rest_of_a_day_counts_by_its_share_and_books_scale_it() -> None:
    """A quarter of a Monday of 20: 5, and the books come to half of the daily figures: 2.5, half-even 2."""
    daily = weeks({0: [20, 20]})
    to_come = [DayToCome(MONDAY, DAY_MS // 4, DAY_MS)]
    assert forecast(0, daily, to_come) == Forecast(0, 5, 5, 5)
    assert forecast(50, daily, to_come, (50, 100)) == Forecast(50, 52, 52, 52)


def test_a_weekday_seen_once_is_stood_in_for_by_all_days_and_old_days_do_not_count() -> None:
    """Of eight weeks ago only a Monday and the day after it are near enough; by then the week before was dear."""
    days_ago = {56: 2, 55: 8} | dict.fromkeys(range(57, 64), 1000)
    daily = {MONDAY - timedelta(days=back): value for back, value in days_ago.items()}
    assert forecast(0, daily, [DayToCome(MONDAY)]) == Forecast(0, 2, 2, 8)
    assert forecast(0, daily, [DayToCome(MONDAY + timedelta(days=2))]) == Forecast(0, 1000, 1000, 1000)


def test_a_month_that_is_over_is_certain_and_one_without_any_day_unknown() -> None:
    assert forecast(7, {}, []) == certain(7) == Forecast(7, 7, 7, 7)
    assert forecast(7, {}, [DayToCome(MONDAY)]) == Forecast(7, None, None, None)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60), st.integers(1, 31), st.integers(0, 10**12))
def test_the_range_holds_what_is_expected(values: list[int], days: int, to_date: int) -> None:
    daily = {MONDAY - timedelta(days=place): value for place, value in enumerate(values, start=1)}
    to_come = [DayToCome(MONDAY + timedelta(days=number)) for number in range(days)]
    made = forecast(to_date, daily, to_come)
    assert made.low is not None and made.expected is not None and made.high is not None
    assert to_date <= made.low <= made.expected <= made.high


def by_hand(one: One, to_come: list[DayToCome]) -> Forecast:
    """The method of domain.md section 9, day by day and with nothing but integers."""
    if not one.daily:
        return Forecast(one.to_date, None, None, None)
    sums = [0, 0, 0]
    for day in to_come:
        weekdays = [value for at, value in one.daily.items() if (day.day - at).days in range(7, 57, 7)]
        recent = [value for at, value in one.daily.items() if 0 < (day.day - at).days <= 56]
        values = sorted(weekdays if len(weekdays) >= 2 else recent or list(one.daily.values()))
        for number, rank in enumerate(((1, 2), (1, 4), (3, 4))):
            sums[number] += round_half_even(quantile(values, *rank) * day.rest_ms, day.length_ms)
    booked, daily = one.scale
    scaled = [round_half_even(sum_ * booked, daily) if booked > 0 and daily > 0 else sum_ for sum_ in sums]
    expected, low, high = (one.to_date + value for value in scaled)
    return Forecast(one.to_date, expected, min(low, high), max(low, high))


_FIGURES = st.integers(-(10**14), 10**17) | st.integers(0, 2**70)
_KNOWN = st.tuples(
    st.integers(-(10**12), 10**12),
    st.lists(_FIGURES, max_size=70) | st.lists(st.integers(0, 10**12), max_size=70),
    st.tuples(st.integers(-1, 10**15), st.integers(0, 10**15)),
)


@given(
    st.lists(_KNOWN, max_size=6),
    st.sampled_from([1, 1, 1, 2, 40]),
    st.integers(1, 31),
    st.integers(1, DAY_MS),
)
def test_forecasts_of_many_at_once_are_those_by_hand(
    known: list[tuple[int, list[int], tuple[int, int]]], ended: int, days: int, rest_ms: int
) -> None:
    """ended: how many days before."""
    to_come = [DayToCome(MONDAY, rest_ms)]
    to_come += [DayToCome(MONDAY + timedelta(days=number)) for number in range(1, days)]
    seen = [
        One(to_date, {MONDAY - timedelta(days=ended + back): value for back, value in enumerate(of)}, scale)
        for to_date, of, scale in known
    ]
    # Twice: some were there on the same days, whatever the others were.
    both = [*seen, *(one._replace(to_date=one.to_date + 1) for one in reversed(seen))]
    assert made(both, to_come) == [by_hand(one, to_come) for one in both]


def test_when_a_token_quota_runs_out() -> None:
    """700 a week, 300 left: in three days. Without use, or past the month's end, not at all."""
    recent = [9999, *[100] * 7]
    assert exhausted_ms(1000, 700, recent, 0, 30 * DAY_MS) == 3 * DAY_MS
    assert exhausted_ms(1000, 700, recent, 0, 3 * DAY_MS) is None
    assert exhausted_ms(1000, 700, [0, 0], 0, 30 * DAY_MS) is None
    assert exhausted_ms(1000, 1000, [], 5, 30 * DAY_MS) == 5
