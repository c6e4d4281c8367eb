"""Episodes and the preemption balance (domain.md section 6)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from billing.core.episodes import Balance, balance, episodes, every_preemption_is_in_one_episode
from billing.core.preemption import Measures, measure
from billing.core.preemption_merge import Preemption
from billing.core.preemption_workload import Holding

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


def test_gaps_under_ten_minutes_join_and_longer_ones_part() -> None:
    found = episodes([hit(1, 0), hit(2, 9), hit(3, 19)], {}, 2 * HOUR)
    assert [episode.preemptions for episode in found] == [(("bj", "p1"), ("bj", "p2")), (("bj", "p3"),)]


def test_overshoot_and_unused_time() -> None:
    ran = {("bj", "wl-a"): [Holding("h100", 1, ((30 * MINUTE, 6000),))]}
    (episode,) = episodes([hit(1, 0), hit(2, 0, victim_workload="wl-h")], ran, 2 * HOUR)
    # It took 8, used 6 when it ran after half an hour: 8 GPUs unused for half an hour.
    assert (episode.taken_milli_gpus, episode.needed_milli_gpus, episode.overshoot_milli_gpus) == (
        8000,
        6000,
        2000,
    )
    assert episode.unused_gpu_us == 4 * GPU_HOUR
    # 6 of them for the hour and a half that is left.
    assert episode.ran_gpu_us == 9 * GPU_HOUR
    assert episode.ran
    assert episode.hits == (("wl-g", 1), ("wl-h", 1))


def test_a_preemptor_that_never_ran_wasted_everything_up_to_the_horizon() -> None:
    (episode,) = episodes([hit(1, 0), hit(2, 0)], {}, 2 * HOUR)
    assert not episode.ran
    assert episode.ran_gpu_us == 0
    assert episode.overshoot_milli_gpus is None
    assert episode.unused_gpu_us == 16 * GPU_HOUR
    assert episode.hits == (("wl-g", 2),)


def test_only_what_it_took_counts_as_run_on_it() -> None:
    """It held 2 before and 9 after; of the 7 it gained 4 were taken, and it gives all back after an hour."""
    held = {("bj", "wl-a"): [Holding("h100", 1, ((-HOUR, 2000), (0, 9000), (HOUR, 0)))]}
    (episode,) = episodes([hit(1, 0)], held, 2 * HOUR)
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
    found = episodes(measured, {}, 2 * HOUR)
    assert every_preemption_is_in_one_episode(measured, found) == []
    assert every_preemption_is_in_one_episode([*measured, hit(99, 0)], found) == [
        "('bj', 'p99'): in 0 episodes"
    ]
