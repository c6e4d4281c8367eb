from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.apportion import (
    Proportions,
    apportion,
    apportion_groups,
    exact_number,
    largest_remainder,
    largest_remainder_groups,
)

weights = st.lists(st.integers(0, 10**6), max_size=6)
wide_weights = st.lists(st.integers(0, 2**59), max_size=6)


def layout(groups):
    starts = np.concatenate([[0], np.cumsum([len(w) for _, w in groups])]).astype(np.int64)
    totals = np.array([t for t, _ in groups], np.int64)
    return totals, np.array([w for _, ws in groups for w in ws], np.int64), starts


def test_apportion_cuts_the_running_sum():
    assert apportion(10, [1, 1, 1]) == [3, 3, 4]
    assert apportion(4, [0, 8, 0, 4]) == [0, 2, 0, 2]
    assert apportion(5, [0, 0]) == [0, 0]
    assert apportion(0, [3, 4]) == [0, 0]
    assert apportion(1, [1, 1]) == [0, 1]


def test_largest_remainder_gives_the_odd_units_to_the_larger_fractions():
    assert largest_remainder(10, [1, 1, 1]) == [4, 3, 3]
    assert largest_remainder(10, [1, 1, 1], keys=["c", "a", "b"]) == [3, 4, 3]
    assert largest_remainder(-10, [1, 1, 1]) == [-3, -3, -4]
    assert largest_remainder(-1, [2, 1]) == [-1, 0]
    assert largest_remainder(7, [0, 0]) == [0, 0]


@given(st.integers(0, 10**7), weights)
def test_apportion_loses_nothing_and_stays_within_two_units(total, weight):
    shares = apportion(total, weight)
    weight_sum = sum(weight)
    assert sum(shares) == (total if weight_sum else 0)
    for share, w in zip(shares, weight, strict=True):
        assert share >= 0
        assert abs(share * weight_sum - total * w) < 2 * max(weight_sum, 1)
        assert total > weight_sum or share <= w


@given(st.integers(-(10**7), 10**7), weights)
def test_largest_remainder_loses_nothing_and_stays_within_one_unit(total, weight):
    shares = largest_remainder(total, weight)
    weight_sum = sum(weight)
    assert sum(shares) == (total if weight_sum else 0)
    for share, w in zip(shares, weight, strict=True):
        assert abs(share * weight_sum - total * w) < max(weight_sum, 1)


@given(st.lists(st.tuples(st.integers(0, 2**61), wide_weights), max_size=5))
def test_apportion_of_many_groups_equals_one_by_one_even_past_64_bits(groups):
    totals, flat, starts = layout(groups)
    expected = [share for total, weight in groups for share in apportion(total, weight)]
    assert apportion_groups(totals, flat, starts).tolist() == expected


@given(st.lists(st.tuples(st.integers(-(2**61), 2**61), wide_weights), max_size=5))
def test_largest_remainder_of_many_groups_equals_one_by_one_even_past_64_bits(groups):
    totals, flat, starts = layout(groups)
    expected = [share for total, weight in groups for share in largest_remainder(total, weight)]
    assert largest_remainder_groups(totals, flat, starts).tolist() == expected


@pytest.mark.parametrize("split", [apportion_groups, largest_remainder_groups])
def test_no_groups_at_all(split):
    empty = np.zeros(0, np.int64)
    assert split(empty, empty, np.zeros(1, np.int64)).tolist() == []


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.data())
def test_proportions_are_exact_up_to_the_products_that_their_type_is_chosen_for(total, whole, data):
    exact = exact_number(max(total, whole), total * whole)
    # A product that is a multiple of the whole, or one unit less, is where a double could slip.
    near = [whole * n // max(total, 1) + d for n in (1, total // 2, total) for d in (-1, 0, 1)]
    parts = [p for p in (*near, data.draw(st.integers(0, whole))) if 0 <= p <= whole]
    columns = np.full(len(parts), total), np.full(len(parts), whole)
    found = Proportions(*columns, exact).floor(np.array(parts, exact))
    assert [int(n) for n in found] == [p * total // max(whole, 1) for p in parts]


def test_doubles_are_chosen_only_where_they_are_exact():
    assert exact_number(2**53 - 1, 2**50 - 1) is np.float64
    assert exact_number(2**53, 0) is np.int64
    assert exact_number(0, 2**50) is np.int64
    assert exact_number(0, 2**63) is object
