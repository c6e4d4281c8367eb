"""The funnel and the price of refusing, by hand (domain.md section 9)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.core.demand import (
    OUTCOMES,
    Declined,
    Funnel,
    Killing,
    KillingCost,
    Worth,
    declined,
    funnel,
    killing_cost,
    token_product,
    worth,
)

GPU_HOUR = 3_600_000_000


def test_retries_count_once_as_what_became_of_them() -> None:
    """10 completed, 3 of them on a second attempt: of 5 preempted 2, of 2 timed out 1 were tried again."""
    found = funnel(
        {"completed": 10, "preempted": 5, "timed_out": 2, "aborted": 1},
        {"preempted": 2, "timed_out": 1},
        rejected=4,
        explicit=3,
    )
    assert found == Funnel(10, 4, 3, 1, 1, 0, explicit=3)
    assert (found.asked, found.failures) == (19, 9)
    assert found.explicit_ppm == 333_333
    assert funnel({"completed": 1}, {}).explicit_ppm is None


@given(st.lists(st.integers(0, 1000), min_size=5, max_size=5), st.integers(0, 50))
def test_asked_is_the_sum_of_what_became_of_it(counts: list[int], refused: int) -> None:
    names = [name for name in OUTCOMES if name != "rejected"]
    found = funnel(dict(zip(names, counts, strict=True)), {}, refused)
    assert found.asked == sum(counts) + refused
    assert found.failures == found.asked - found.completed


def test_parts_of_tokens_are_priced_apart_only_where_they_have_a_price() -> None:
    """100 in (40 cached), 10 out (4 reasoning)."""
    prices = {"input": 5, "cached_input": 1, "output": 20, "reasoning": None}
    assert token_product(prices, 100, 40, 10, 4) == 60 * 5 + 40 * 1 + 10 * 20
    assert token_product({"input": 5}, 100, 40, 0, 0) == 100 * 5
    assert token_product({"input": 5}, 100, 0, 1, 0) is None
    assert token_product({}, 0, 0, 0, 0) == 0


# 10 requests of 1000 tokens each, worth 2 per million tokens, and 1 GPU-hour each at 3.
BY = Worth(10, 10_000, 10_000 * 2_000_000, 10 * GPU_HOUR, 10 * GPU_HOUR * 3_000_000)


def test_refused_requests_are_worth_what_completed_ones_were() -> None:
    """5 refused: 3 stated 9000 tokens together, 2 are taken as 1000 each: 11 000 tokens at 2 per million."""
    found = declined(5, 9_000, 2, BY)
    assert found == Declined(5, 11_000, 11 * GPU_HOUR, 22_000, "token_price")


def test_without_a_token_price_gpu_time_stands_in_and_without_any_nothing_is_made_up() -> None:
    unpriced = Worth(10, 10_000, None, 10 * GPU_HOUR, 10 * GPU_HOUR * 3_000_000)
    assert declined(2, 0, 2, unpriced) == Declined(2, 2_000, 2 * GPU_HOUR, 6_000_000, "gpu_time")
    assert declined(2, 0, 2, Worth()) == Declined(2, None, None, None, "")
    assert declined(0, 0, 0, BY) == Declined(0, 0, 0, 0, "")


def test_killing_costs_what_preemptions_re_queued_per_gpu() -> None:
    """Preemptions took 8 GPUs and re-queued 12 GPU-hours: 1.5 per GPU. 11 GPU-hours refused: 16.5 at 3."""
    refused = declined(5, 9_000, 2, BY)
    found = killing_cost(refused, BY, Killing(8_000, 12 * GPU_HOUR))
    assert found == KillingCost(int(16.5 * GPU_HOUR), 49_500_000)
    assert killing_cost(refused, BY, Killing()) is None
    assert killing_cost(declined(1, 0, 1, Worth()), Worth(), Killing(1, 1)) is None


def test_a_missing_price_matters_only_where_there_was_something_to_price() -> None:
    assert worth([BY, Worth()]) == BY
    assert worth([BY, Worth(1, 5, None)]).token_product is None
