"""Token contracts and calibrations (domain.md section 7), with hand-checked numbers."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from billing.core.calibration import Observation, TokenCost, deviation, refit
from billing.core.contracts import (
    TokenContract,
    TokenUse,
    conversion_lines,
    conversion_takes_the_revenue,
    overage_is_what_exceeds_the_quota,
    reserved_throughput_milli_gpus,
    token_lines,
)
from billing.core.rating_lines import CONVERSION, Line
from billing.core.rating_prices import RateCard

MAY = 1_588_291_200_000
CARD = RateCard(0, tokens={("qwen", "input"): 1_000_000, ("qwen", "output"): 4_000_000})
CACHED = RateCard(
    0, tokens={**CARD.tokens, ("qwen", "cached_input"): 100_000, ("qwen", "reasoning"): 8_000_000}
)


def use(**counts: int) -> TokenUse:
    return TokenUse("tenant:acme", "qwen", MAY, **counts)


def by_category(lines: list[Line]) -> dict[str, tuple[int, int | None]]:
    return {line.category: (line.quantity, line.amount_micro) for line in lines}


def lines_of(used: TokenUse, card: RateCard = CARD, **terms: Any) -> dict[str, tuple[int, int | None]]:
    return by_category(token_lines(TokenContract("tenant:acme", **terms), [used], {MAY: card}))


def test_tokens_are_priced_per_million_by_kind() -> None:
    assert lines_of(use(input=3_000_000, cached_input=1_000_000, output=500_000)) == {
        "input": (3_000_000, 3_000_000),
        "output": (500_000, 2_000_000),
    }


def test_cached_and_reasoning_tokens_are_apart_where_they_have_a_price() -> None:
    used = use(input=3_000_000, cached_input=1_000_000, output=500_000, reasoning=100_000)
    assert lines_of(used, CACHED) == {
        "input": (2_000_000, 2_000_000),
        "cached_input": (1_000_000, 100_000),
        "output": (400_000, 1_600_000),
        "reasoning": (100_000, 800_000),
    }


def test_a_missing_token_price_leaves_the_amount_empty() -> None:
    assert lines_of(use(input=5), RateCard(0)) == {"input": (5, None)}


def test_overage_is_spread_by_largest_remainder_and_has_its_price() -> None:
    # 4 000 000 used of 3 000 000: a quarter of each line is beyond the quota.
    used = use(input=3_000_000, output=1_000_000)
    assert lines_of(used, quota=3_000_000, overage_price_micro=10_000_000) == {
        "input": (2_250_000, 2_250_000),
        "input_overage": (750_000, 7_500_000),
        "output": (750_000, 3_000_000),
        "output_overage": (250_000, 2_500_000),
    }
    assert lines_of(used, quota=3_000_000)["output_overage"] == (250_000, 1_000_000)
    assert "input_overage" not in lines_of(used, quota=4_000_000)


def test_committed_tokens_are_paid_used_or_not() -> None:
    used = use(input=1_000_000, output=1_000_000)
    # 2 000 000 used for 5.00, 1 000 000 unused at the average of 2.50.
    assert lines_of(used, committed=3_000_000)["committed_unused"] == (1_000_000, 2_500_000)
    assert "committed_unused" not in lines_of(used, committed=2_000_000)
    assert lines_of(use(), committed=7) == {"committed_unused": (7, None)}


def test_the_conversion_account_gives_the_revenue() -> None:
    lines = token_lines(TokenContract("tenant:acme"), [use(input=3_000_000)], {MAY: CARD})
    (taken,) = conversion_lines(lines)
    assert (taken.account, taken.amount_micro, taken.on_behalf_of) == (CONVERSION, -3_000_000, "tenant:acme")
    assert conversion_takes_the_revenue(lines, [taken]) == []
    assert conversion_takes_the_revenue(lines, []) == ["conversion takes 0 of a revenue of 3000000"]


counts = st.integers(0, 10**12)


@given(
    st.lists(st.tuples(counts, counts, counts, counts), max_size=4),
    st.none() | st.integers(0, 10**12),
    st.sampled_from([CARD, CACHED]),
)
def test_overage_and_quantities_add_up(
    months: list[tuple[int, int, int, int]], quota: int | None, card: RateCard
) -> None:
    used = [
        TokenUse(
            "tenant:acme", "qwen", MAY + number, input_, min(cached, input_), output, min(reasoning, output)
        )
        for number, (input_, cached, output, reasoning) in enumerate(months)
    ]
    contract = TokenContract("tenant:acme", quota)
    lines = token_lines(contract, used, {MAY + number: card for number in range(len(months))})
    assert overage_is_what_exceeds_the_quota(contract, lines) == []
    assert sum(line.quantity for line in lines) == sum(one.total for one in used)
    assert conversion_takes_the_revenue(lines, conversion_lines(lines)) == []
    assert len({line.key for line in lines}) == len(lines)


# Calibration

COST = TokenCost(120_000, 6_000, 2_400_000)


def test_a_prediction() -> None:
    # 1000 uncached at 120 000, 1000 cached at 6 000, 500 output at 2 400 000 per thousand.
    assert COST.predict_gpu_us(2000, 1000, 500) == 120_000 + 6_000 + 1_200_000


def test_deviation_against_the_tolerance() -> None:
    seen = Observation(2000, 1000, 500, 1_326_000 * 11 // 10)
    assert (deviation(COST, seen).ppm, deviation(COST, seen).beyond_tolerance) == (100_000, False)
    worse = Observation(2000, 1000, 500, 1_326_000 * 12 // 10)
    assert deviation(COST, worse).beyond_tolerance
    nothing = deviation(COST, Observation(0, 0, 0, 5))
    assert (nothing.ppm, nothing.beyond_tolerance) == (None, True)


def test_reserved_throughput_becomes_gpus_rounded_up() -> None:
    # 1000 output tokens a minute take 2.4 GPU-milliseconds-thousands: 2 400 000 of 60 000 000 gpu_us = 0.04 GPU.
    assert reserved_throughput_milli_gpus(0, 0, 1000, COST) == 40
    assert reserved_throughput_milli_gpus(0, 0, 1001, COST) == 41
    assert reserved_throughput_milli_gpus(0, 0, 0, COST) == 0


def test_a_refit_finds_the_costs_that_made_the_days() -> None:
    true = TokenCost(130_000, 7_000, 2_000_000)
    days = [(2_000, 500, 100), (9_000, 3_000, 700), (4_000, 0, 900)]
    seen = [Observation(i, c, o, true.predict_gpu_us(i, c, o)) for i, c, o in days]
    proposal = refit(seen)
    assert proposal is not None
    assert (proposal.cost, proposal.residual_gpu_us, proposal.observations) == (true, 0, 3)


def test_too_few_days_determine_nothing() -> None:
    assert refit([Observation(10, 0, 5, 100)]) is None
    assert refit([]) is None
    only_output = refit([Observation(0, 0, 5, 100)])
    assert only_output is not None
    assert only_output.cost.output_gpu_us_per_1k == 20_000


@given(
    st.lists(
        st.builds(
            Observation,
            st.integers(0, 10**6),
            st.integers(0, 10**6),
            st.integers(0, 10**6),
            st.integers(0, 10**9),
        ),
        max_size=6,
    )
)
def test_a_refit_never_costs_less_than_nothing_and_never_fits_worse_than_free(
    seen: list[Observation],
) -> None:
    proposal = refit(seen)
    if proposal is not None:
        cost = proposal.cost
        fitted = (cost.input_gpu_us_per_1k, cost.cached_input_gpu_us_per_1k, cost.output_gpu_us_per_1k)
        assert min(fitted) >= 0
        free = sum(one.measured_gpu_us**2 for one in seen) // len(seen)
        # Costs are whole numbers per thousand tokens: that much rounding may show.
        rounding = max(sum(one.row) for one in seen)
        assert proposal.residual_gpu_us <= int(free**0.5) + rounding + 1
