"""The rules of section 3, one by one; the differential tests of the split cover their combinations."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.levels import (
    ALWAYS,
    HolderTimeline,
    effective_levels,
    resolve_holders,
    rivals,
    sort_order,
)
from tests.core.naive_allocation import CAPACITY, OCCUPANCY, RESERVATION, Fact
from tests.core.pools import distinct_ranks, pools, to_arrays


def rows(levels):
    columns = (levels.kind, levels.subject, levels.attempt, levels.time_ms, levels.milli, levels.who)
    return [tuple(int(c[i]) for c in columns) for i in range(len(levels))]


def effective(*facts: Fact):
    return effective_levels(to_arrays(list(facts)))


def test_equal_facts_of_one_instant_are_one_and_no_conflict():
    result = effective(Fact(OCCUPANCY, 7, 5, 1_000, 0, rank=1), Fact(OCCUPANCY, 7, 5, 1_000, 0, rank=2))
    assert rows(result.levels) == [(OCCUPANCY, 7, 0, 5, 1_000, 0)]
    assert len(result.conflicts) == 0


def test_of_different_facts_of_one_instant_the_greatest_source_and_id_holds():
    result = effective(
        Fact(OCCUPANCY, 7, 5, 1_000, 0, rank=2),
        Fact(OCCUPANCY, 7, 5, 3_000, 0, rank=3),
        Fact(OCCUPANCY, 7, 5, 3_000, 0, rank=1),
        Fact(OCCUPANCY, 8, 5, 1_000, 0, rank=0),
    )
    assert rows(result.levels) == [(OCCUPANCY, 7, 0, 5, 3_000, 0), (OCCUPANCY, 8, 0, 5, 1_000, 0)]
    assert result.conflicts.tolist() == [0]


def test_rivals_are_the_facts_whose_rank_matters():
    facts = to_arrays([Fact(OCCUPANCY, 7, 5, 1), Fact(OCCUPANCY, 8, 5, 1), Fact(OCCUPANCY, 7, 5, 2)])
    assert sorted(rivals(facts.levels).tolist()) == [0, 2]
    assert rivals(to_arrays([]).levels).tolist() == []


def test_a_reservation_ends_by_itself_only_while_that_level_is_in_force():
    result = effective(
        Fact(RESERVATION, 1, 0, 4_000, 0, ends_ms=10),
        Fact(RESERVATION, 1, 5, 6_000, 0, ends_ms=20),
        Fact(RESERVATION, 2, 0, 1_000, 0, ends_ms=10),
        Fact(RESERVATION, 2, 10, 2_000, 0),
    )
    assert rows(result.levels) == [
        (RESERVATION, 1, 0, 0, 4_000, 0),
        (RESERVATION, 1, 0, 5, 6_000, 0),
        (RESERVATION, 1, 0, 20, 0, 0),
        (RESERVATION, 2, 0, 0, 1_000, 0),
        (RESERVATION, 2, 0, 10, 2_000, 0),
    ]


def test_a_higher_attempt_ends_lower_ones_at_its_start_whatever_they_say_later():
    result = effective(
        Fact(OCCUPANCY, 1, 0, 4_000, 0, attempt=1),
        Fact(OCCUPANCY, 1, 30, 0, 0, attempt=1),
        Fact(OCCUPANCY, 1, 25, 9_000, 0, attempt=2),
        Fact(OCCUPANCY, 1, 20, 2_000, 0, attempt=3),
        Fact(OCCUPANCY, 2, 40, 5_000, 0, attempt=1),
    )
    assert rows(result.levels) == [
        (OCCUPANCY, 1, 1, 0, 4_000, 0),
        (OCCUPANCY, 1, 1, 20, 0, 0),
        (OCCUPANCY, 1, 3, 20, 2_000, 0),
        (OCCUPANCY, 2, 1, 40, 5_000, 0),
    ]


def test_capacity_is_unknown_before_its_first_fact():
    assert effective(Fact(CAPACITY, 0, 7, 0), Fact(CAPACITY, 0, 3, 8_000)).capacity_from_ms == 3
    assert effective(Fact(OCCUPANCY, 0, 7, 1, 0)).capacity_from_ms is None


def test_a_level_is_cut_where_its_identity_changes_hands():
    timeline = HolderTimeline(
        np.array([0, 1, 1, 1]), np.array([ALWAYS, ALWAYS, 10, 20]), np.array([5, 6, 7, 6])
    )
    levels = effective(
        Fact(CAPACITY, 0, 0, 16_000),
        Fact(OCCUPANCY, 1, 0, 1_000, 0),
        Fact(OCCUPANCY, 2, 5, 2_000, 1),
        Fact(OCCUPANCY, 2, 15, 3_000, 1),
        Fact(OCCUPANCY, 2, 30, 0, 1),
        Fact(OCCUPANCY, 3, 10, 4_000, 1),
    ).levels
    assert rows(resolve_holders(levels, timeline)) == [
        (CAPACITY, 0, 0, 0, 16_000, -1),
        (OCCUPANCY, 1, 0, 0, 1_000, 5),
        (OCCUPANCY, 2, 0, 5, 2_000, 6),
        (OCCUPANCY, 2, 0, 10, 2_000, 7),
        (OCCUPANCY, 2, 0, 15, 3_000, 7),
        (OCCUPANCY, 2, 0, 20, 3_000, 6),
        (OCCUPANCY, 2, 0, 30, 0, 6),
        (OCCUPANCY, 3, 0, 10, 4_000, 7),
        (OCCUPANCY, 3, 0, 20, 4_000, 6),
    ]


@given(pools())
def test_effective_levels_are_sorted_and_state_each_instant_once(pool):
    levels = effective_levels(to_arrays(distinct_ranks(pool[0]))).levels
    keys = [row[:4] for row in rows(levels)]
    assert keys == sorted(set(keys))


@given(st.lists(st.tuples(*[st.integers(-(2**62), 2**62)] * 3), max_size=8), st.integers(0, 62))
def test_sort_order_sorts_narrow_and_wide_columns_alike(table, shift):
    table = [tuple(value >> shift for value in row) for row in table]
    columns = [np.array([row[i] for row in table], np.int64) for i in range(3)]
    assert [table[i] for i in sort_order(*columns)] == sorted(table)
