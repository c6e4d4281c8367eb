"""Episodes and the preemption balance (domain.md section 6)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from billing.core.episodes import (
    Balance,
    balance,
    episodes,
    every_preemption_is_in_one_episode,
    releasing_from,
)
from billing.core.preemption import Measures, measure
from billing.core.preemption_merge import Preemption
from billing.core.preemption_workload import Holding
from billing.core.released import PoolUse
from tests.core.billing.pool_levels import pool_use

MINUTE = 60_000
HOUR = 60 * MINUTE
GPU_HOUR = 3_600_000_000


def hit(number: int, minute: int, **said: Any) -> tuple[Preemption, Measures]:
    base: dict[str, Any] = {
        "key": ("bj", f"p{number}"),
        "refs": (("/k", f"e{number}"),),
        "decided_at_ms": minute * MINUTE,
        "pool": "h100",
        "milli_gpus": 4000,
        "cause": "priority",
        "victim": "gamma",
        "victim_workload": "wl-g",
        "preemptor": "acme",
        "preemptor_workload": "wl-a",
        "preemptor_source": "structured",
        "released_at_ms": minute * MINUTE,
        "disposition": "stopped",
        "recompute_gpu_us": 0,
    }
    one = Preemption(**base | said)
    return one, measure(one, [])


def uses(capacity: int, *steps: tuple[str, int, int]) -> dict[str, PoolUse]:
    """steps: (workload, minute, milli-GPU it holds from then on)."""
    return {"h100": pool_use(capacity, *((name, minute * MINUTE, milli) for name, minute, milli in steps))}


# gamma held the whole pool and gives 4 away.
GIVEN = ("wl-g", -60, 4000), ("wl-g", 0, 0)


def test_gaps_under_ten_minutes_join_and_longer_ones_part() -> None:
    found = episodes([hit(1, 0), hit(2, 9), hit(3, 19)], {}, uses(0), 2 * HOUR)
    assert [episode.preemptions for episode in found] == [(("bj", "p1"), ("bj", "p2")), (("bj", "p3"),)]


def test_overshoot_and_unused_time() -> None:
    ran = {("bj", "wl-a"): [Holding("h100", 1, ((30 * MINUTE, 6000),))]}
    use = uses(8000, *GIVEN, ("wl-h", -60, 4000), ("wl-h", 0, 0), ("wl-a", 30, 6000))
    (episode,) = episodes([hit(1, 0), hit(2, 0, victim_workload="wl-h")], ran, use, 2 * HOUR)
    # It took 8, used 6 when it ran after half an hour: 8 GPUs unused for half an hour, 2 for the hour and a half left.
    assert (episode.taken_milli_gpus, episode.needed_milli_gpus, episode.overshoot_milli_gpus) == (
        8000,
        6000,
        2000,
    )
    assert episode.unused_gpu_us == 7 * GPU_HOUR
    # 6 of them for the hour and a half that is left.
    assert episode.ran_gpu_us == 9 * GPU_HOUR
    assert episode.ran
    assert episode.hits == (("wl-g", 1), ("wl-h", 1))


def test_what_nobody_ever_occupies_is_unused_up_to_the_horizon() -> None:
    hits = [hit(1, 0), hit(2, 0)]
    (episode,) = episodes(hits, {}, uses(8000, ("wl-g", -60, 8000), ("wl-g", 0, 0)), 2 * HOUR)
    assert not episode.ran
    assert episode.ran_gpu_us == 0
    assert episode.overshoot_milli_gpus is None
    assert episode.unused_gpu_us == 16 * GPU_HOUR
    assert episode.hits == (("wl-g", 2),)


def test_neither_requests_nor_queued_work_nor_an_unknown_preemptor_release_gpus() -> None:
    use = uses(8000, *GIVEN)
    none = [
        hit(1, 0, victim_workload=None, victim_request="r-1"),
        hit(2, 0, queued_only=True),
        hit(3, 0, preemptor_workload=None),
    ]
    assert releasing_from(none) == {}
    assert [one.unused_gpu_us for one in episodes(none, {}, {}, 2 * HOUR)] == [0]
    late = [hit(4, 5), hit(5, 5, released_at_ms=0)]
    assert releasing_from([*none, *late]) == {"h100": 0}
    assert [one.unused_gpu_us for one in episodes(none, {}, use, 2 * HOUR)] == [0]


def test_two_episodes_of_a_pool_never_count_the_same_gpu() -> None:
    """wl-a never takes its 4; wl-b takes its own 4 at once, not those of wl-a, which wl-h occupies after an hour."""
    took = {("bj", "wl-b"): [Holding("h100", 1, ((30 * MINUTE, 4000),))]}
    use = uses(
        8000, *GIVEN, ("wl-k", -60, 4000), ("wl-k", 30, 0), ("wl-b", 30, 4000), ("wl-h", 60, 4000)
    )  # fmt: skip
    found = episodes([hit(1, 0), hit(2, 30, preemptor_workload="wl-b")], took, use, 2 * HOUR)
    assert [(one.preemptor_workload, one.unused_gpu_us) for one in found] == [
        ("wl-a", 4 * GPU_HOUR),
        ("wl-b", 0),
    ]


def test_only_what_it_took_counts_as_run_on_it() -> None:
    """It held 2 before and 9 after; of the 7 it gained 4 were taken, and it gives all back after an hour."""
    held = {("bj", "wl-a"): [Holding("h100", 1, ((-HOUR, 2000), (0, 9000), (HOUR, 0)))]}
    use = uses(20_000, *GIVEN, ("wl-a", -60, 2000), ("wl-a", 0, 9000), ("wl-a", 60, 0))
    (episode,) = episodes([hit(1, 0)], held, use, 2 * HOUR)
    assert (episode.ran_gpu_us, episode.unused_gpu_us, episode.overshoot_milli_gpus) == (4 * GPU_HOUR, 0, 0)


def test_balance() -> None:
    made = balance([hit(1, 0, lost_gpu_us=None), hit(2, 0, recompute_gpu_us=7)], 100, 20, 3)
    assert made == Balance(100, 0, 7, 0, 20, 3)
    assert made.net == 70


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from(["wl-a", "wl-b", None]), st.booleans()), max_size=8
    )
)
def test_every_preemption_of_a_known_workload_is_in_one_episode(
    rows: list[tuple[int, str | None, bool]],
) -> None:
    measured = [
        hit(number, minute, preemptor_workload=workload, queued_only=queued)
        for number, (minute, workload, queued) in enumerate(rows)
    ]
    found = episodes(measured, {}, uses(0), 2 * HOUR)
    assert every_preemption_is_in_one_episode(measured, found) == []
    assert every_preemption_is_in_one_episode([*measured, hit(99, 0)], found) == [
        "('bj', 'p99'): in 0 episodes"
    ]
