"""GPU time unused between a release and the next occupancy (domain.md section 6)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.released import PoolUse, Release, unused_gpu_us
from ledger.core.levels import Kind
from tests.core.billing.pool_levels import BEFORE_MS, pool_levels, pool_use

HOUR = 3_600_000
GPU_HOUR = 3_600_000_000
Step = tuple[str, int, int]


def use(*steps: Step, capacity: int = 8000) -> PoolUse:
    """steps: (workload, hour, milli-GPU)."""
    return pool_use(capacity, *((name, hour * HOUR, milli) for name, hour, milli in steps))


def unused(
    releases: list[tuple[int, int, int]],
    of: PoolUse,
    own: dict[int, dict[int, int]] | None = None,
    horizon: int = 10,
) -> dict[int, int]:
    """releases: (hour, milli-GPU, episode); own: episode -> hour -> rise. In GPU-hours."""
    rises = {number: {hour * HOUR: rise for hour, rise in of_.items()} for number, of_ in (own or {}).items()}
    found = unused_gpu_us(
        [Release(hour * HOUR, milli, number) for hour, milli, number in releases], of, rises, horizon * HOUR
    )
    assert all(gpu_us % GPU_HOUR == 0 for gpu_us in found.values())
    return {number: gpu_us // GPU_HOUR for number, gpu_us in found.items()}


# The victim holds all 8 GPUs and gives 4 of them away at 1 o'clock.
VICTIM: tuple[Step, ...] = (("v", 0, 8000), ("v", 1, 4000))


@pytest.mark.parametrize(
    ("then", "hours"),
    [
        ([("p", 1, 4000)], 0),  # the preemptor takes all at once
        ([("p", 3, 4000)], 4 * 2),  # or later
        ([("p", 3, 3000)], 4 * 2 + 1 * 7),  # a part: the rest is nobody's until the horizon
        ([("p", 3, 3000), ("o", 5, 1000)], 4 * 2 + 1 * 2),  # another takes the rest
        ([("o", 2, 4000)], 4 * 1),  # another takes all
        ([("v", 2, 8000)], 4 * 1),  # the victim itself resumes on them
        ([], 4 * 9),  # nobody ever does
        ([("p", 3, 4000), ("p", 4, 0)], 4 * 2),  # occupied once is enough, however short
        ([("v", 3, 0)], 4 * 9),  # what others leave later was not released by a preemption
        ([("v", 3, 0), ("o", 3, 4000)], 4 * 2),  # who starts takes released GPUs first
        ([("o", 12, 4000)], 4 * 9),  # beyond the horizon
    ],
)
def test_released_gpus_are_unused_until_somebody_occupies_them(then: list[Step], hours: int) -> None:
    assert unused([(1, 4000, 0)], use(*VICTIM, *then)) == {0: hours}


def test_restating_a_level_or_going_on_in_a_new_attempt_occupies_nothing() -> None:
    use_ = PoolUse.of(
        pool_levels(
            (Kind.CAPACITY, "", 0, BEFORE_MS, 8000),
            (Kind.OCCUPANCY, "v", 1, 0, 8000),
            (Kind.OCCUPANCY, "v", 1, HOUR, 4000),
            (Kind.OCCUPANCY, "v", 1, 2 * HOUR, 4000),
            (Kind.OCCUPANCY, "v", 1, 3 * HOUR, 0),
            (Kind.OCCUPANCY, "v", 2, 3 * HOUR, 4000),
            (Kind.RESERVATION, "v", 0, 4 * HOUR, 4000),
            (Kind.OCCUPANCY, "v", 2, 5 * HOUR, 7000),
        )
    )
    assert use_.idle.tolist() == [8000, 0, 4000, 4000, 4000, 1000]
    assert use_.rises.tolist() == [0, 8000, 0, 0, 0, 3000]
    assert unused([(1, 4000, 0)], use_) == {0: 4 * 4 + 1 * 5}


def test_no_more_is_unused_than_is_idle() -> None:
    """Half of the pool goes away at 3 o'clock and comes back at 5: what is not there is not unused meanwhile."""
    held = [(Kind.OCCUPANCY, "v", 0, hour * HOUR, milli) for _, hour, milli in VICTIM]
    capacity = [
        (Kind.CAPACITY, "", 0, hour * HOUR, milli) for hour, milli in ((0, 8000), (3, 5000), (5, 8000))
    ]
    assert unused([(1, 4000, 0)], PoolUse.of(pool_levels(*capacity, *held))) == {0: 4 * 2 + 1 * 2 + 4 * 5}
    # Too much is occupied: nothing is idle, and less than nothing does not count.
    assert unused([(1, 4000, 0)], use(("v", 0, 9000))) == {0: 0}


def test_two_episodes_share_the_idle_gpus_the_rises_and_neither_twice() -> None:
    pool = use(("v", 0, 8000), ("v", 1, 4000), ("v", 2, 0), ("o", 4, 6000))
    # 4 from 1 o'clock and 4 from 2; the 6 take the earlier ones first.
    assert unused([(1, 4000, 0), (2, 4000, 1)], pool) == {0: 4 * 3, 1: 4 * 2 + 2 * 6}
    # Is "o" the second one's preemptor, it takes its own first.
    assert unused([(1, 4000, 0), (2, 4000, 1)], pool, {1: {4: 6000}}) == {0: 4 * 3 + 2 * 6, 1: 4 * 2}
    # Both say they released the same 4 GPUs.
    assert unused([(1, 4000, 0), (1, 4000, 1)], use(*VICTIM)) == {0: 4 * 9, 1: 0}


def test_releases_at_or_after_the_horizon_and_a_pool_without_facts_count_nothing() -> None:
    assert unused([(10, 4000, 0)], use(*VICTIM)) == {0: 0}
    assert unused([(1, 4000, 0)], PoolUse.of(pool_levels())) == {0: 0}
    assert unused([], use(*VICTIM)) == {}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 4).map(lambda n: n * 1000)),
             max_size=12, unique_by=lambda step: step[:2]),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4).map(lambda n: n * 1000), st.integers(0, 2)), max_size=5),
)  # fmt: skip
def test_all_episodes_together_are_the_pool_as_a_whole(
    steps: list[Step], releases: list[tuple[int, int, int]]
) -> None:
    """Hour by hour: what was released less every rise since, at most what is idle, however it is told apart."""
    pool = use(*steps)
    expected, left = 0, 0
    for hour in range(10):
        place = int(np.searchsorted(pool.times_ms, hour * HOUR, "right")) - 1
        rise = int(pool.rises[place]) if pool.times_ms[place] == hour * HOUR else 0
        left = max(left + sum(milli for at, milli, _ in releases if at == hour) - rise, 0)
        expected += min(left, int(pool.idle[place])) // 1000
    assert sum(unused(releases, pool).values()) == expected
    assert sum(unused([(at, milli, 0) for at, milli, _ in releases], pool).values()) == expected
