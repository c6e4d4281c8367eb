"""Rating in both modes, with hand-checked numbers and for any month (domain.md section 8)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.cost_recovery import (
    PoolCost,
    cost_difference_lines,
    derived_price,
    distribute_cost,
    everything_equals_the_cost,
)
from billing.core.rating import INVARIANTS, RatingPolicy, Terms, ramp_percent, rate_gpu_time
from billing.core.rating_credits import LentPair
from billing.core.rating_idle import idle_shares
from billing.core.rating_lines import (
    CONVERSION,
    PLATFORM,
    Line,
    Quantity,
    missing_prices,
    tenant_account,
)
from billing.core.rating_prices import PriceBook, RateCard

GPU_HOUR = 3_600_000_000
MAY = 1_588_291_200_000
CARD = RateCard(
    0,
    pool_hour={
        ("h100", "reserved_used", ""): 2_000_000,
        ("h100", "reserved_idle", ""): 1_600_000,
        ("h100", "on_demand", ""): 2_500_000,
        ("h100", "on_demand", "preemptible"): 1_000_000,
        ("h100", "borrowed", ""): 1_200_000,
    },
)
BOOK = PriceBook([CARD], {"h100": "H100", "a100": "A100"})
TERMS = Terms(BOOK)


def quantity(category: str, hours: int = 1, **said: Any) -> Quantity:
    base: dict[str, Any] = {
        "account": "tenant:acme",
        "holder": "acme",
        "pool": "h100",
        "category": category,
        "gpu_us": hours * GPU_HOUR,
        "version_from_ms": MAY,
    }
    return Quantity(**base | said)


def amounts(lines: list[Line]) -> dict[tuple[str, str], int | None]:
    return {(line.account, line.category): line.amount_micro for line in lines}


# Prices


def test_fallbacks_and_what_has_none() -> None:
    only_used = RateCard(0, pool_hour={("h100", "reserved_used", ""): 7})
    assert {c: only_used.price("h100", "H100", c) for c in ("reserved_idle", "unreserved_idle", "lent")} == {
        "reserved_idle": 7,
        "unreserved_idle": 7,
        "lent": 7,
    }
    only_burst = RateCard(0, pool_hour={("h100", "on_demand", ""): 9})
    assert (only_burst.price("h100", "H100", "borrowed"), only_burst.price("h100", "H100", "excess")) == (
        9,
        9,
    )
    assert only_burst.price("h100", "H100", "reserved_used") is None


def test_the_pool_beats_the_model_and_the_class_beats_the_general_price() -> None:
    card = RateCard(
        0,
        pool_hour={("h100", "on_demand", ""): 1},
        model_hour={("H100", "on_demand", "preemptible"): 2, ("H100", "borrowed", ""): 3},
    )
    assert card.price("h100", "H100", "on_demand", "preemptible") == 1
    assert card.price("other", "H100", "on_demand", "preemptible") == 2
    assert card.price("h100", "H100", "borrowed") == 3


def test_the_latest_version_is_in_force_until_it_ends() -> None:
    book = PriceBook([CARD, RateCard(100, ended_ms=200)], {"h100": "H100"})
    assert book.card_at(-1) is None
    assert book.card_at(99) is CARD
    assert book.card_at(100) is book.cards[1]
    assert book.card_at(200) is None
    assert [book.stretch_ms(at) for at in (-1, 0, 99, 100, 199, 200)] == [-1, 0, 0, 100, 100, 200]


# Lines


def test_an_amount_is_rounded_half_even_once() -> None:
    # 0.5 and 1.5 micro units: 1 GPU-hour is 3.6e9 gpu_us at a price of 1 micro unit.
    card = PriceBook([RateCard(0, pool_hour={("h100", "on_demand", ""): 1})], {"h100": "H100"})
    for gpu_us, micro in ((1_800_000_000, 0), (5_400_000_000, 2), (1_800_000_001, 1)):
        (line,) = rate_gpu_time([quantity("on_demand", gpu_us=gpu_us)], {}, [], Terms(card))
        assert line.amount_micro == micro


def test_the_real_months_rounding() -> None:
    card = PriceBook([RateCard(0, pool_hour={("h100", "on_demand", ""): 3_333_300})], {"h100": "H100"})
    (line,) = rate_gpu_time([quantity("on_demand", gpu_us=19_409_694_369)], {}, [], Terms(card))
    assert line.amount_micro == 17_971_760


def test_every_category_has_its_payer() -> None:
    lines = rate_gpu_time(
        [
            quantity(name)
            for name in ("reserved_used", "on_demand", "reserved_idle", "excess", "undelivered", "oversold")
        ],
        {("h100", MAY): 10 * GPU_HOUR},
        [],
        TERMS,
    )
    assert amounts(lines) == {
        ("tenant:acme", "reserved_used"): 2_000_000,
        ("tenant:acme", "on_demand"): 2_500_000,
        ("tenant:acme", "reserved_idle"): 1_600_000,
        ("tenant:acme", "excess"): 2_500_000,
        ("tenant:acme", "undelivered"): 0,
        ("tenant:acme", "oversold"): 0,
        (PLATFORM, "undelivered"): 1_600_000,
        (PLATFORM, "unreserved_idle"): 16_000_000,
    }


def test_a_class_has_its_own_line_and_price() -> None:
    lines = rate_gpu_time(
        [quantity("on_demand"), quantity("on_demand", service_class="preemptible")], {}, [], TERMS
    )
    assert sorted(line.amount_micro or 0 for line in lines) == [1_000_000, 2_500_000]


def test_a_missing_price_leaves_the_amount_empty_and_is_found() -> None:
    lines = rate_gpu_time([quantity("on_demand", pool="a100")], {("a100", MAY): 5}, [], TERMS)
    assert [(line.account, line.amount_micro) for line in lines] == [(PLATFORM, None), ("tenant:acme", None)]
    assert [(found.code, found.account, found.subject) for found in missing_prices(lines)] == [
        ("price_missing", "tenant:acme", "on_demand")
    ]


def test_load_tests_and_drills_are_the_platforms_and_warm_up_the_owners() -> None:
    ones = [quantity("on_demand", purpose=purpose) for purpose in ("warmup", "load_test", "drill")]
    lines = rate_gpu_time(ones, {}, [], TERMS)
    paid = {(line.account, line.purpose): line.amount_micro for line in lines}
    assert paid == {
        ("tenant:acme", "warmup"): 2_500_000,
        ("tenant:acme", "load_test"): 0,
        ("tenant:acme", "drill"): 0,
        (PLATFORM, "load_test"): 2_500_000,
        (PLATFORM, "drill"): 2_500_000,
    }
    policy = RatingPolicy(0, purpose_payers={"drill": "owner"})
    (line,) = rate_gpu_time([ones[2]], {}, [], replace(TERMS, policies=(policy,)))
    assert (line.account, line.amount_micro) == ("tenant:acme", 2_500_000)


def test_the_ramp_shows_full_and_charged_amounts() -> None:
    terms = replace(TERMS, ramp_percent={"tenant:acme": 25})
    (line,) = rate_gpu_time([quantity("reserved_idle")], {}, [], terms)
    assert (line.full_amount_micro, line.amount_micro) == (1_600_000, 400_000)
    assert [ramp_percent([0, 25, 50], month) for month in (0, 1, 2, 3, -1)] == [0, 25, 50, 100, 100]


# Lending: the worked example of section 4 (acme lent 20 GPU-hours to gamma)

LENT = [
    quantity("lent", 20),
    quantity("borrowed", 20, account="tenant:gamma", holder="gamma"),
]
PAIR = [LentPair("h100", MAY, "acme", "gamma", 20 * GPU_HOUR)]


def credit(terms: Terms, lent: list[Quantity] = LENT, pairs: list[LentPair] = PAIR) -> int | None:
    return amounts(rate_gpu_time(lent, {}, pairs, terms)).get(("tenant:acme", "lend_credit"))


def test_lending_earns_what_the_borrower_paid() -> None:
    lines = amounts(rate_gpu_time(LENT, {}, PAIR, TERMS))
    assert lines == {
        ("tenant:acme", "lent"): 40_000_000,
        ("tenant:acme", "lend_credit"): -24_000_000,
        ("tenant:gamma", "borrowed"): 24_000_000,
    }


def test_the_credit_is_at_most_the_reserved_rate() -> None:
    dear = RateCard(
        0, pool_hour={("h100", "reserved_used", ""): 2_000_000, ("h100", "on_demand", ""): 9_000_000}
    )
    assert credit(Terms(PriceBook([dear], {"h100": "H100"}))) == -40_000_000


def test_a_fixed_share_of_the_reserved_rate() -> None:
    half = RatingPolicy(0, lend_credit_share=Fraction(1, 2))
    assert credit(replace(TERMS, policies=(half,))) == -20_000_000
    nothing = RatingPolicy(0, lend_credit_share=Fraction(0))
    assert credit(replace(TERMS, policies=(nothing,))) is None


def test_what_was_lent_while_ones_own_work_waited_is_credited_in_full() -> None:
    waited = [replace(LENT[0], waiting_gpu_us=5 * GPU_HOUR), LENT[1]]
    # 5 at 2.00, 15 at the borrowed 1.20.
    assert credit(TERMS, waited) == -(10_000_000 + 18_000_000)


def test_terms_that_change_while_prices_do_not_leave_the_credit_alone() -> None:
    # The same 20 GPU-hours in two versions of the policy, in one stretch of prices: 5 and 15, both at 1.20.
    later = MAY + 1
    lent = [quantity("lent", 5), quantity("lent", 15, version_from_ms=later)]
    borrowed = [
        quantity("borrowed", hours, account="tenant:gamma", holder="gamma", version_from_ms=at)
        for hours, at in ((5, MAY), (15, later))
    ]
    lines = rate_gpu_time([*lent, *borrowed], {}, PAIR, TERMS)
    credits = [line.amount_micro for line in lines if line.category == "lend_credit"]
    assert credits == [-6_000_000, -18_000_000]


# Unreserved idle


def test_unreserved_idle_by_policy() -> None:
    held = [quantity("reserved_used", 3), quantity("on_demand", 1, account="tenant:beta", holder="beta")]
    assert idle_shares("platform", "h100", 9, held) == {PLATFORM: 9}
    assert idle_shares("proportional", "h100", 9, held) == {"tenant:acme": 7, "tenant:beta": 2}
    assert idle_shares("even", "h100", 9, held) == {"tenant:acme": 5, "tenant:beta": 4}
    assert idle_shares("even", "a100", 9, held) == {PLATFORM: 9}
    only_service_idle = [quantity("on_demand", account=PLATFORM, service="chat", service_idle=True)]
    assert idle_shares("even", "h100", 9, only_service_idle) == {PLATFORM: 9}


# Token contracts


def test_a_token_contract_replaces_only_the_time_of_shared_services() -> None:
    terms = replace(TERMS, token_accounts=frozenset({"tenant:acme"}))
    lines = rate_gpu_time([quantity("on_demand", service="chat"), quantity("on_demand")], {}, [], terms)
    assert {(line.account, line.service): line.amount_micro for line in lines} == {
        ("tenant:acme", "chat"): 0,
        (CONVERSION, "chat"): 2_500_000,
        ("tenant:acme", ""): 2_500_000,
    }


# Cost recovery

COST = PoolCost("h100", MAY, 1_000_000, 100 * GPU_HOUR)


def test_cost_is_apportioned_exactly() -> None:
    held = [
        quantity("reserved_used", 1),
        quantity("reserved_idle", 1),
        quantity("on_demand", 1, account="tenant:beta", holder="beta"),
        quantity("lent", 7),
        quantity("undelivered", 1),
    ]
    costs = [replace(COST, capacity_gpu_us=GPU_HOUR)]
    lines = distribute_cost(costs, held, {("h100", MAY): 2 * GPU_HOUR}, TERMS)
    # 1 000 000 micro units over 6 equal GPU-hours, the two of the platform's idle time as one line.
    assert amounts(lines) == {
        ("tenant:acme", "reserved_used"): 166_667,
        ("tenant:acme", "reserved_idle"): 166_667,
        ("tenant:acme", "lent"): 0,
        ("tenant:acme", "undelivered"): 0,
        ("tenant:beta", "on_demand"): 166_666,
        (PLATFORM, "undelivered"): 166_667,
        (PLATFORM, "unreserved_idle"): 333_333,
    }
    assert everything_equals_the_cost(costs, lines) == []


def test_a_pool_without_users_keeps_its_cost_visible() -> None:
    lines = distribute_cost([COST], [], {}, TERMS)
    assert amounts(lines) == {(PLATFORM, "cost_unallocated"): 100_000_000}


def test_in_rate_card_mode_the_difference_is_a_platform_line() -> None:
    rated = rate_gpu_time([quantity("on_demand", 10)], {}, [], TERMS)
    difference = cost_difference_lines([COST], rated)
    assert amounts(difference) == {(PLATFORM, "cost_difference"): 75_000_000}
    assert everything_equals_the_cost([COST], rated + difference) == []


def test_the_derived_price() -> None:
    assert derived_price(COST, 50 * GPU_HOUR) == 2_000_000
    assert derived_price(COST, 0) is None


def test_a_wrong_distribution_is_found() -> None:
    lines = distribute_cost([COST], [quantity("on_demand")], {}, TERMS)
    short = [replace(lines[0], amount_micro=1)]
    assert everything_equals_the_cost([COST], short) == ["h100: charged 1 of a cost of 100000000"]


# Any month

CATEGORIES = (
    "reserved_used",
    "on_demand",
    "borrowed",
    "excess",
    "lent",
    "reserved_idle",
    "undelivered",
    "oversold",
)


@st.composite
def months(draw: st.DrawFn) -> list[Quantity]:
    """Quantities of one month; distinct in what names a line."""
    found: dict[tuple[str, ...], Quantity] = {}
    for _ in range(draw(st.integers(0, 10))):
        slug = draw(st.sampled_from("abc"))
        one = quantity(
            draw(st.sampled_from(CATEGORIES)),
            account=tenant_account(slug),
            holder=slug,
            gpu_us=draw(st.integers(1, 10**15)),
            purpose=draw(st.sampled_from(["", "drill"])),
            service=draw(st.sampled_from(["", "chat"])),
        )
        found[one.account, one.category, one.purpose, one.service] = one
    return list(found.values())


@given(months(), st.integers(0, 10**15), st.sampled_from(["platform", "proportional", "even"]))
def test_rating_invariants(held: list[Quantity], idle: int, policy: str) -> None:
    terms = replace(TERMS, policies=(RatingPolicy(0, unreserved_idle=policy),))
    lines = rate_gpu_time(held, {("h100", MAY): idle}, [], terms)
    assert [problem for invariant in INVARIANTS for problem in invariant(held, lines)] == []
    assert sum(line.quantity for line in lines if line.category == "unreserved_idle") == idle


@given(
    months(),
    st.integers(0, 10**15),
    st.integers(0, 10**15),
    st.integers(0, 10**7),
    st.sampled_from(["platform", "proportional", "even"]),
)
def test_cost_recovery_is_exact_whatever_the_policy(
    held: list[Quantity], idle: int, capacity: int, price: int, policy: str
) -> None:
    terms = replace(
        TERMS,
        policies=(RatingPolicy(0, unreserved_idle=policy),),
        token_accounts=frozenset({"tenant:b"}),
    )
    costs = [PoolCost("h100", MAY, price, capacity)]
    lines = distribute_cost(costs, held, {("h100", MAY): idle}, terms)
    assert everything_equals_the_cost(costs, lines) == []
    assert all(line.amount_micro is not None and line.amount_micro >= 0 for line in lines)


POLICIES = st.builds(
    RatingPolicy,
    st.just(0),
    unreserved_idle=st.sampled_from(["platform", "proportional", "even"]),
    purpose_payers=st.dictionaries(st.just("drill"), st.sampled_from(["platform", "owner"])),
)


@given(months(), st.integers(0, 10**15), POLICIES, POLICIES)
def test_policies_of_one_kind_never_change_a_total(
    held: list[Quantity], idle: int, one: RatingPolicy, other: RatingPolicy
) -> None:
    """Who bears idle time or a drill moves amounts between accounts; each line is rounded once, half a unit at most."""
    totals, counts = [], []
    for policy in (one, other):
        lines = rate_gpu_time(held, {("h100", MAY): idle}, [], replace(TERMS, policies=(policy,)))
        totals.append(sum(line.amount_micro or 0 for line in lines))
        counts.append(sum(line.category == "unreserved_idle" for line in lines))
    assert 2 * abs(totals[0] - totals[1]) <= sum(counts)
    if one.unreserved_idle == other.unreserved_idle:
        assert totals[0] == totals[1]


@pytest.mark.parametrize(
    ("broken", "finding"),
    [
        (
            [],
            "tenant:acme usage|h100||||on_demand|||001588291200000||||: not billed with its 3600000000 gpu_us",
        ),
        ([0, 0], "tenant:acme usage|h100||||on_demand|||001588291200000||||: two lines"),
    ],
)
def test_invariants_find_what_is_broken(broken: list[int], finding: str) -> None:
    held = [quantity("on_demand")]
    lines = rate_gpu_time(held, {}, [], TERMS)
    given_lines = [lines[position] for position in broken]
    assert [p for invariant in INVARIANTS for p in invariant(held, given_lines)] == [finding]
