"""Figures are the digits of the exports, set for the eye."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.figures import duration_parts, in_myriads, is_zero, percent_change, percentages, set_digits
from ledger.core.units import fixed_decimal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", "0"),
        ("999.50", "999.50"),
        ("1864.17", "1\u202f864.17"),
        ("-1234567.8900", "\u22121\u202f234\u202f567.8900"),
        ("-12", "\u221212"),
        ("100000", "100\u202f000"),
    ],
)
def test_digits_in_groups_of_three_with_a_real_minus(text: str, expected: str) -> None:
    assert set_digits(text) == expected


@given(st.integers(-(10**18), 10**18), st.integers(0, 10))
def test_taking_the_typography_away_leaves_the_exported_text(scaled: int, places: int) -> None:
    text = fixed_decimal(scaled, places)
    assert set_digits(text).replace("\u202f", "").replace("\u2212", "-") == text


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=9))
def test_percentages_add_up_and_are_off_by_less_than_their_last_place(parts: list[int]) -> None:
    shares = [Fraction(text) for text in percentages(parts)]
    if not sum(parts):
        assert set(shares) == {0}
        return
    assert sum(shares) == 100
    for part, share in zip(parts, shares, strict=True):
        assert abs(share - Fraction(100 * part, sum(parts))) < Fraction(1, 10)


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (110, 100, "10.0"),
        (90, 100, "-10.0"),
        (100, 100, "0.0"),
        (0, 100, "-100.0"),
        (100, 0, None),
        (2001, 2000, "0.1"),
        (1999, 2000, "-0.1"),
        (-90, -100, "-10.0"),
        (50, -100, "-150.0"),
    ],
)
def test_change_is_against_the_month_before(now: int, before: int, expected: str | None) -> None:
    assert percent_change(now, before) == expected


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (4_200_000, [(1, "h"), (10, "min")]),
        (3_600_000, [(1, "h")]),
        (90_061_000, [(1, "d"), (1, "h")]),
        (22_713, [(22, "s"), (713, "ms")]),
        (0, [(0, "s")]),
        (60_500, [(1, "min"), (500, "ms")]),
    ],
)
def test_a_span_of_time_in_its_two_largest_units(milliseconds: int, expected: list[tuple[int, str]]) -> None:
    assert duration_parts(milliseconds) == expected


@pytest.mark.parametrize(("text", "expected"), [("0", True), ("-0.00", True), ("0.01", False), ("10", False)])
def test_zero_is_what_prints_nothing_but_zeros(text: str, expected: bool) -> None:
    assert is_zero(text) is expected


@pytest.mark.parametrize(
    ("scaled", "places", "expected"),
    [
        (999_999, 2, None),
        (1_000_000, 2, ("1.00", "wan")),
        (142_676_296, 2, ("142.68", "wan")),
        (-142_676_296, 2, ("-142.68", "wan")),
        (1_000_500, 2, ("1.00", "wan")),
        (12_345_678_901, 2, ("1.23", "yi")),
        (9_999_999_999, 2, ("10000.00", "wan")),
        (10_000, 0, ("1.00", "wan")),
        (0, 2, None),
    ],
)
def test_large_sums_in_the_units_of_chinese(
    scaled: int, places: int, expected: tuple[str, str] | None
) -> None:
    assert in_myriads(scaled, places) == expected
