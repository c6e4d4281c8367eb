"""GPU time per request: the worked check of the formulas, and that they always sum to what was busy."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.core.gpu_time import (
    Served,
    Step,
    StepWeights,
    TokenWeights,
    Work,
    busy_gpu_us,
    idle_gpu_us,
    step_shares,
    upper_bound_gpu_us,
    window_shares,
)

TP4 = 4_000


def worked_steps() -> list[Step]:
    return [
        Step(120_000, {"A": Work(prefill_tokens=1000)}),
        Step(30_000, {"A": Work(decode_tokens=1), "B": Work(decode_tokens=1)}),
        Step(50_000, {"C": Work(prefill_tokens=200), "A": Work(decode_tokens=1)}),
    ]


def test_worked_check_of_step_shares() -> None:
    shares = step_shares(TP4, worked_steps(), StepWeights(alpha=1, beta=1, gamma=0))
    assert shares.by_request == {"A": 540_995, "B": 60_000, "C": 199_005}
    assert shares.busy_gpu_us == 800_000
    assert idle_gpu_us(TP4, (0, 1_000), shares.busy_gpu_us) == 3_200_000


def test_one_step_rounds_by_larger_fraction_then_smaller_id() -> None:
    thirds = Step(1, {"b": Work(decode_tokens=1), "a": Work(decode_tokens=1), "c": Work(decode_tokens=1)})
    assert step_shares(1_000, [thirds], StepWeights()).by_request == {"a": 1, "b": 0, "c": 0}


def test_kv_context_counts_by_the_thousand() -> None:
    step = Step(
        3_000, {"long": Work(decode_tokens=1, kv_context_tokens=1_000), "short": Work(decode_tokens=1)}
    )
    shares = step_shares(1_000, [step], StepWeights(alpha=1, beta=1, gamma=1))
    assert shares.by_request == {"long": 2_000, "short": 1_000}


def test_a_step_nobody_is_known_to_have_been_in_is_not_spread() -> None:
    shares = step_shares(TP4, [Step(10_000, {}), Step(10_000, {"A": Work(decode_tokens=1)})], StepWeights())
    assert shares.by_request == {"A": 40_000}
    assert shares.unattributed_gpu_us == 40_000


work = st.builds(Work, st.integers(0, 5000), st.integers(0, 8), st.integers(0, 200_000))
steps = st.lists(
    st.builds(Step, st.integers(0, 10**7), st.dictionaries(st.sampled_from("abcdef"), work, max_size=6)),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(1, 64_000), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_step_shares_sum_to_the_busy_time(
    given_steps: list[Step], gpus_milli: int, alpha: int, beta: int, gamma: int
) -> None:
    shares = step_shares(gpus_milli, given_steps, StepWeights(alpha, beta, gamma))
    assert shares.busy_gpu_us == sum(busy_gpu_us(gpus_milli, step.wall_us) for step in given_steps)
    assert all(share >= 0 for share in shares.by_request.values())


def served(
    name: str, starts_ms: int, ends_ms: int, tokens: tuple[int | None, int | None, int | None]
) -> Served:
    return Served(name, starts_ms, ends_ms, *tokens)


def test_window_shares_weigh_uncached_input_and_output() -> None:
    requests = [served("a", 0, 10, (1_000, 900, 0)), served("b", 0, 10, (100, None, 100))]
    shares = window_shares(300, (0, 1_000), requests, TokenWeights(a=1, b=1))
    assert shares.by_request == {"a": 100, "b": 200}


def test_a_request_across_two_windows_is_split_by_overlap() -> None:
    long, short = served("long", 500, 2_500, (400, 0, 0)), served("short", 1_200, 1_300, (300, 0, 0))
    weights = TokenWeights(a=1, b=1)
    assert window_shares(100, (0, 1_000), [long, short], weights).by_request == {"long": 100}
    # In the second window: half of `long` (200 of its 400 tokens) against all of `short` (300).
    assert window_shares(100, (1_000, 2_000), [long, short], weights).by_request == {"long": 40, "short": 60}


def test_a_request_without_counts_weighs_nothing_and_is_named() -> None:
    requests = [served("known", 0, 1, (10, 0, 10)), served("mute", 0, 1, (None, None, None))]
    shares = window_shares(77, (0, 1_000), requests, TokenWeights(a=1, b=1))
    assert shares.by_request == {"known": 77}
    assert shares.unweighed == ("mute",)


def test_busy_time_without_any_request_stays_unattributed() -> None:
    shares = window_shares(77, (0, 1_000), [served("x", 2_000, 3_000, (1, 0, 1))], TokenWeights(a=1, b=1))
    assert shares.by_request == {}
    assert shares.unattributed_gpu_us == 77


spans = st.tuples(st.integers(0, 5_000), st.integers(0, 5_000)).map(sorted)
counts = st.one_of(st.none(), st.integers(0, 10_000))
many = st.lists(st.tuples(spans, counts, counts, counts), max_size=8)


@settings(max_examples=60, deadline=None)
@given(many, st.integers(0, 10**15), st.integers(0, 500), st.integers(0, 500))
def test_window_shares_sum_to_the_busy_time(
    raw: list[tuple[list[int], int | None, int | None, int | None]], busy: int, a: int, b: int
) -> None:
    requests = [Served(str(i), s, e, t, c, o) for i, ((s, e), t, c, o) in enumerate(raw)]
    shares = window_shares(busy, (1_000, 4_000), requests, TokenWeights(a, b))
    assert shares.busy_gpu_us == busy
    assert window_shares(busy, (1_000, 4_000), requests[::-1], TokenWeights(a, b)) == shares


def test_the_upper_bound_counts_a_shared_batch_for_each() -> None:
    """Two requests side by side for 200 ms on 4 GPUs: together twice what was there, so never a charge."""
    bounds = [upper_bound_gpu_us(TP4, 50, 150) for _ in range(2)]
    assert sum(bounds) == 2 * busy_gpu_us(TP4, 200_000)
