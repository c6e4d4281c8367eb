"""The split of a holder's time by workload and group, against its definition at every instant."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from billing.core import allocation_cells
from billing.core.allocation import OCCUPIED, split_pool
from billing.core.allocation_within import mixed_holders, split_within_holders
from ledger.core.levels import effective_levels
from ledger.core.units import MS_PER_HOUR
from tests.core.naive_allocation import (
    CAPACITY,
    OCCUPANCY,
    RESERVATION,
    Fact,
    levels_at,
    share,
    split_instant,
)
from tests.core.pools import busy_pool, distinct_ranks, holders_of, hour_edges, pools, to_arrays

PREEMPTIBLE = np.array([False, True, False])


def groups(facts: list[Fact], owner: list[int], edges, days=None) -> dict:
    effective = effective_levels(to_arrays(facts))
    edges = np.array(edges, np.int64)
    split = split_pool(
        effective.levels,
        holders_of(owner),
        edges,
        effective.capacity_from_ms,
        detailed=mixed_holders(effective.levels, int(edges[0]), int(edges[-1])),
    )
    rows = split_within_holders(split, effective.levels, PREEMPTIBLE, days)
    found = {}
    for i in range(len(rows.slot)):
        key = (int(rows.slot[i]), int(rows.holder[i]), int(rows.group[i]))
        assert key not in found
        found[key] = tuple(int(getattr(rows, name)[i]) for name in OCCUPIED)
    return found


def naive_groups(facts: list[Fact], holders: int, owner: list[int], edges) -> dict:
    known = min(f.time_ms for f in facts if f.kind == CAPACITY)
    times = {f.time_ms for f in facts} | {f.ends_ms for f in facts if f.ends_ms} | set(edges) | {known}
    times = sorted(t for t in times if max(edges[0], known) <= t <= edges[-1])
    totals: dict = defaultdict(lambda: [0, 0, 0, 0])
    for start, end in pairwise(times):
        levels = levels_at(facts, start)
        figures = split_instant(levels, holders, owner)
        slot = max(i for i, edge in enumerate(edges) if edge <= start)
        for holder in range(holders):
            mine = [f for f in levels if f.kind == OCCUPANCY and f.who == holder]
            mine.sort(key=lambda f: (f.subject, f.attempt))
            left = {f.subject: f.milli for f in mine}
            amounts = [figures[name][holder] for name in OCCUPIED]
            for last in (False, True):
                members = [f for f in mine if bool(PREEMPTIBLE[f.group]) is last]
                for category in range(4):
                    weights = [left[f.subject] for f in members]
                    taken = min(amounts[category], sum(weights))
                    amounts[category] -= taken
                    for f, part in zip(members, share(taken, weights), strict=True):
                        left[f.subject] -= part
                        totals[slot, holder, f.group][category] += part * (end - start)
            assert not any(amounts)
    return {key: tuple(value) for key, value in totals.items() if any(value)}


@given(pools())
def test_groups_are_filled_as_defined(pool):
    facts, count, owner = pool
    facts, edges = distinct_ranks(facts), hour_edges()
    expected = naive_groups(facts, count, owner, edges)
    assert groups(facts, owner, edges) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocation_cells, "_CHUNK", 1)
        assert groups(facts, owner, edges) == expected


@pytest.mark.parametrize("seed", range(3))
def test_groups_in_busy_pools_too(seed):
    facts, count, owner = busy_pool(seed)
    assert groups(facts, owner, hour_edges()) == naive_groups(facts, count, owner, hour_edges())


@given(pools())
def test_coarser_slots_are_sums_of_finer_ones(pool):
    facts, _, owner = pool
    facts, edges = distinct_ranks(facts), hour_edges()
    whole: dict = defaultdict(lambda: np.zeros(4, np.int64))
    for (_, holder, group), values in groups(facts, owner, edges).items():
        whole[0, holder, group] += np.array(values)
    ends = np.array([edges[0], edges[-1]], np.int64)
    assert groups(facts, owner, edges, ends) == {key: tuple(value) for key, value in whole.items()}


def test_guaranteed_work_is_inside_the_reservation_before_preemptible_work():
    facts = [
        Fact(CAPACITY, 0, 0, 16_000),
        Fact(RESERVATION, 0, 0, 4_000, 0),
        Fact(OCCUPANCY, 0, 0, 3_000, 0, group=1),
        Fact(OCCUPANCY, 1, 0, 2_000, 0, group=0),
        Fact(OCCUPANCY, 2, 0, 1_000, 0, group=2),
    ]
    assert groups(facts, [-1], [0, MS_PER_HOUR]) == {
        (0, 0, 0): (2_000 * MS_PER_HOUR, 0, 0, 0),
        (0, 0, 1): (1_000 * MS_PER_HOUR, 2_000 * MS_PER_HOUR, 0, 0),
        (0, 0, 2): (1_000 * MS_PER_HOUR, 0, 0, 0),
    }
