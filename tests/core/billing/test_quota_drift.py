"""Where two quota layers disagree, and what is left of a quota, by hand (domain.md section 9)."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from billing.core.quota import RESOURCES, Standing, remaining
from billing.core.quota_drift import Drift, QuotaFact, Thresholds, drift_episodes, used_ppm
from ledger.core.periods import Span

HOUR = 3_600_000
GPU_HOUR = 3_600_000_000
DAY = Span(0, 24 * HOUR)
ONE = Fraction(1)


def gpus(hour: int, limit: int, used: int, scope: str = "bj") -> QuotaFact:
    return QuotaFact(hour * HOUR, "cluster", "gpus", scope, limit * 1000, used * 1000, ONE)


def flight(hour: int, limit: int, used: int, per_gpu: int | None = None, scope: str = "svc") -> QuotaFact:
    converts = None if per_gpu is None else Fraction(1, per_gpu)
    return QuotaFact(hour * HOUR, "serving", "concurrency", scope, limit * 1000, used * 1000, converts)


def test_serving_is_full_while_the_cluster_has_room() -> None:
    """From hour 1 to 4 all 90 are in flight; 14 of 20 GPUs are used: 6 idle, then 8. At 3 somebody raised nothing;
    at 4 the serving limit was raised to 120."""
    facts = [
        gpus(0, 20, 14),
        flight(0, 90, 80),
        flight(1, 90, 90),
        gpus(2, 20, 12),
        flight(4, 120, 100),
    ]
    assert drift_episodes(facts, DAY) == [
        Drift(1 * HOUR, 4 * HOUR, "serving", (6 + 8 + 8) * GPU_HOUR, 3 * HOUR)
    ]
    assert drift_episodes(facts, DAY)[0].loose_layer == "cluster"


def test_the_cluster_is_full_while_serving_has_room_in_gpus_by_calibration() -> None:
    """10 of 100 in flight, 30 per GPU: 3 GPUs' worth is unused; without a calibration nobody knows how much."""
    for per_gpu, unused in ((30, 2 * 3 * GPU_HOUR), (None, None)):
        facts = [gpus(0, 20, 20), flight(0, 100, 10, per_gpu), gpus(2, 20, 10)]
        assert drift_episodes(facts, DAY) == [Drift(0, 2 * HOUR, "cluster", unused, None)]


def test_it_lasts_at_the_end_and_counts_only_inside_the_span() -> None:
    facts = [gpus(0, 10, 2), flight(0, 10, 10)]
    assert drift_episodes(facts, Span(2 * HOUR, 5 * HOUR)) == [Drift(0, None, "serving", 24 * GPU_HOUR, None)]


def test_both_full_or_both_loose_is_no_drift_and_the_thresholds_are_the_callers() -> None:
    assert drift_episodes([gpus(0, 10, 10), flight(0, 10, 10)], DAY) == []
    assert drift_episodes([gpus(0, 10, 1), flight(0, 10, 1)], DAY) == []
    assert drift_episodes([gpus(0, 10, 8), flight(0, 10, 9)], DAY) == []
    assert len(drift_episodes([gpus(0, 10, 8), flight(0, 10, 9)], DAY, Thresholds(900_000, 800_000))) == 1
    assert drift_episodes([flight(0, 10, 10)], DAY) == []


def test_scopes_add_up_in_gpus_where_all_convert() -> None:
    """100 of 100 at 100 per GPU and 0 of 10 at 1 per GPU: 1 of 11 GPUs, although 100 of 110 are in flight."""
    assert used_ppm([flight(0, 100, 100, 100, "a"), flight(0, 10, 0, 1, "b")]) == 90_909
    assert used_ppm([flight(0, 100, 100, None, "a"), flight(0, 10, 0, 1, "b")]) == 909_090


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.integers(0, 5), st.integers(0, 5)), max_size=20)
)
def test_episodes_follow_each_other_inside_the_span(facts: list[tuple[int, bool, int, int]]) -> None:
    made = [(gpus if cluster else flight)(hour, limit, used) for hour, cluster, limit, used in facts]
    found = drift_episodes(made, DAY)
    edges = [edge for one in found for edge in (one.starts_ms, one.ends_ms)]
    assert edges == sorted(edges, key=lambda edge: DAY.end_ms if edge is None else edge)
    assert all(edge is not None for edge in edges[:-1])


def quota(
    layer: str, resource: str, limit: int, used: int, service: str = "", ends_ms: int | None = None
) -> Standing:
    return Standing(layer, resource, "", service, limit, used, 0, ends_ms)


def test_the_tightest_layer_counts_and_scopes_of_a_layer_add_up() -> None:
    standings = [
        quota("contract", "tokens_per_month", 1000, 400, ends_ms=10),
        quota("serving", "tokens_per_month", 700, 200),
        quota("serving", "concurrency", 90, 80, "a"),
        quota("serving", "concurrency", 20, 25, "b"),
        quota("cluster", "gpus", 8, 3),
    ]
    left = dict.fromkeys(RESOURCES)
    assert remaining([], 5) == left
    assert remaining(standings, 5) == {**left, "tokens_per_month": 500, "concurrency": 10, "gpus": 5}
    # The contract's month is over: what was used in it is no longer.
    assert remaining(standings[:1], 10) == {**left, "tokens_per_month": 1000}
    # A bound without a scope holds for all scopes together.
    bounded = [*standings, quota("serving", "concurrency", 100, 96)]
    assert remaining(bounded, 5)["concurrency"] == 4
