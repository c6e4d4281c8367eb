from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from billing.core import invariants
from billing.core.allocation import split_pool
from billing.core.allocation_within import mixed_holders, split_within_holders
from ledger.core.levels import effective_levels
from tests.core.pools import distinct_ranks, holders_of, hour_edges, pools, to_arrays
from tests.core.test_allocation import worked_example


def made(facts, owner, edges):
    edges = np.array(edges, np.int64)
    effective = effective_levels(to_arrays(facts))
    mixed = mixed_holders(effective.levels, int(edges[0]), int(edges[-1]))
    split = split_pool(effective.levels, holders_of(owner), edges, effective.capacity_from_ms, detailed=mixed)
    return split, split_within_holders(split, effective.levels, np.array([False, True, False]))


@given(pools())
def test_every_split_proves_itself(pool):
    facts, _, owner = pool
    split, groups = made(distinct_ranks(facts), owner, hour_edges())
    assert invariants.check(split) == []
    assert invariants.groups_add_up(split, groups) == []


@pytest.mark.parametrize(
    ("column", "broken"),
    [
        ("reserved_used", {"capacity", "occupancy", "reservation"}),
        ("on_demand", {"capacity", "occupancy"}),
        ("borrowed", {"capacity", "lent", "occupancy", "pairs borrowed"}),
        ("excess", {"occupancy"}),
        ("lent", {"lent", "reservation", "pairs lent"}),
        ("reserved_idle", {"capacity", "reservation"}),
        ("undelivered", {"capacity", "reservation"}),
        ("oversold", {"reservation"}),
        ("lent_waiting", {"lent_waiting"}),
        ("undelivered_pending", {"undelivered_pending"}),
    ],
)
def test_a_unit_too_much_is_found(column, broken):
    split, _ = made(worked_example(), [-1] * 3, [0, 36_000_000])
    wrong = getattr(split.rows, column).copy()
    wrong[0] += 10**15
    findings = invariants.check(replace(split, rows=replace(split.rows, **{column: wrong})))
    assert {finding.identity for finding in findings} == broken
    assert all(abs(finding.difference_gpu_us) > 10**14 for finding in findings)


def test_what_is_negative_is_found():
    split, groups = made(worked_example(), [-1] * 3, [0, 36_000_000])
    wrong = replace(split, pool=replace(split.pool, unreserved_idle=-split.pool.unreserved_idle))
    assert "negative unreserved_idle" in {finding.identity for finding in invariants.check(wrong)}
    assert invariants.groups_add_up(split, replace(groups, on_demand=groups.on_demand + 1))
