from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from billing.core.services_split import IDLE, Served, ServiceTime, borne_for_others, split_services
from ledger.core.apportion import largest_remainder

gpu_us = st.integers(0, 10**15)
tenants = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**14)), max_size=4)
services = st.lists(st.tuples(st.lists(gpu_us, min_size=4, max_size=4), st.booleans(), tenants), max_size=4)


def divide(rows):
    """rows: (four categories, measured?, [(key weight, measured gpu_us) of tenants 0, 1, ...])."""
    sizes = [len(served) for _, _, served in rows]
    flat = [entry for _, _, served in rows for entry in served]
    return split_services(
        ServiceTime(
            np.array([time for time, _, _ in rows], np.int64).reshape(-1, 4),
            np.array([measured for _, measured, _ in rows], bool),
        ),
        Served(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.array([tenant for size in sizes for tenant in range(size)], np.int64),
            np.array([weight for weight, _ in flat], np.int64),
            np.array([measured for _, measured in flat], np.int64),
        ),
    )


def as_dict(time):
    return {
        (int(r), int(t)): v.tolist()
        for r, t, v in zip(time.row, time.tenant, time.gpu_us, strict=True)
        if v.any()
    }


def naive(time, measured, served):
    """Section 5 for one service and slot."""
    if not measured:
        shares = [largest_remainder(part, [weight for weight, _ in served]) for part in time]
    else:
        left = [m for _, m in served]
        if sum(left) > sum(time):
            left = largest_remainder(sum(time), left)
        shares = []
        for part in time:
            shares.append(largest_remainder(min(part, sum(left)), left))
            left = [a - b for a, b in zip(left, shares[-1], strict=True)]
    divided = {tenant: [shares[c][tenant] for c in range(4)] for tenant in range(len(served))}
    divided[IDLE] = [time[c] - sum(shares[c]) for c in range(4)]
    return {tenant: values for tenant, values in divided.items() if any(values)}


@given(services)
def test_services_are_divided_as_section_5_says(rows):
    expected = {
        (row, tenant): values for row, given in enumerate(rows) for tenant, values in naive(*given).items()
    }
    assert as_dict(divide(rows)) == expected


@given(services)
def test_nothing_is_lost_whatever_the_basis(rows):
    time = divide(rows)
    for row, (categories, _, served) in enumerate(rows):
        here = time.row == row
        assert time.gpu_us[here].sum(axis=0).tolist() == categories
        assert time.would_measure[here].sum(axis=0).tolist() == categories
        assert (row in time.exceeded) == (sum(m for _, m in served) > sum(categories))
    assert borne_for_others(time).sum() == 0


def test_spread_divides_everything_by_the_key():
    time = divide([([10, 0, 0, 0], False, [(1, 2), (1, 1), (1, 0)])])
    assert as_dict(time) == {(0, 0): [4, 0, 0, 0], (0, 1): [3, 0, 0, 0], (0, 2): [3, 0, 0, 0]}
    assert dict(zip(time.tenant.tolist(), borne_for_others(time)[:, 0].tolist(), strict=True)) == {
        IDLE: -7,
        0: 2,
        1: 2,
        2: 3,
    }


def test_measured_leaves_the_rest_idle_and_fills_categories_in_order():
    assert as_dict(divide([([6, 4, 0, 0], True, [(0, 5), (0, 3)])])) == {
        (0, IDLE): [0, 2, 0, 0],
        (0, 0): [4, 1, 0, 0],
        (0, 1): [2, 1, 0, 0],
    }


def test_measured_beyond_the_occupancy_is_scaled_down_and_reported():
    time = divide([([6, 0, 0, 0], True, [(0, 9), (0, 3)])])
    assert as_dict(time) == {(0, 0): [5, 0, 0, 0], (0, 1): [1, 0, 0, 0]}
    assert time.exceeded.tolist() == [0]


def test_a_slot_without_requests_or_without_a_key_is_idle():
    assert as_dict(divide([([6, 1, 0, 0], False, []), ([5, 0, 0, 2], False, [(0, 3)])])) == {
        (0, IDLE): [6, 1, 0, 0],
        (1, IDLE): [5, 0, 0, 2],
    }
