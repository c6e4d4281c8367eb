"""Who stood where, and who pays what (domain.md section 6), with hand-checked numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.preemption_charges import (
    PLATFORM,
    PreemptionPolicy,
    Served,
    Share,
    charges,
    delay_credit_micro,
    nothing_charged_twice,
    payer_of,
    shares_add_up,
    split_share,
)
from billing.core.preemption_merge import Preemption
from billing.core.preemption_standing import (
    Elsewhere,
    Standing,
    Taken,
    entitled_milli_gpus,
    idle_elsewhere,
    preemptors_inside_reservation,
    resumed_state,
)

GPU_HOUR = 3_600_000_000
PRICES = {"reserved_used": 2_000_000, "on_demand": 3_000_000, "borrowed": 1_000_000, "excess": 3_000_000}
ENTITLEMENT, VICTIM, PREEMPTOR, BY_PLATFORM = (
    PreemptionPolicy(name) for name in ("entitlement", "victim", "preemptor", "platform")
)


def preemption(number: int = 1, **said: Any) -> Preemption:
    base: dict[str, Any] = {
        "key": ("bj", f"p{number}"),
        "refs": (("/k", f"e{number}"),),
        "decided_at_ms": 100,
        "pool": "h100",
        "milli_gpus": 4000,
        "cause": "priority",
        "victim": "gamma",
        "preemptor": "acme",
        "preemptor_source": "structured",
    }
    return Preemption(**base | said)


def share(**said: Any) -> Share:
    base: dict[str, Any] = {
        "account": "tenant:gamma",
        "milli_gpus": 4000,
        "entitled_milli_gpus": 1000,
        "waiting_gpu_us": 0,
        "lost_gpu_us": 8 * GPU_HOUR,
        "recompute_gpu_us": None,
    }
    return Share(**base | said)


# Entitlement


def test_entitled_is_what_lay_inside_the_reservation() -> None:
    taken = [Taken(preemption(), 100)]
    for occupancy, reservation, entitled in (
        (8000, 0, 0),
        (8000, 8000, 4000),
        (8000, 7000, 3000),
        (2000, 8000, 4000),
    ):
        standing = {preemption().key: Standing(occupancy, reservation)}
        assert entitled_milli_gpus(taken, standing) == {preemption().key: entitled}


def test_earlier_preemptions_not_yet_released_count_as_gone() -> None:
    # 8 held, 4 reserved: of two times 4 the first is beyond the reservation, the second inside it.
    one, two = preemption(1), preemption(2)
    standing = {one.key: Standing(8000, 4000), two.key: Standing(8000, 4000)}
    assert entitled_milli_gpus([Taken(two, 100), Taken(one, 100)], standing) == {one.key: 0, two.key: 4000}
    # Once the first is released the left limit says so itself.
    later = replace(two, decided_at_ms=101)
    standing[later.key] = Standing(4000, 4000)
    assert entitled_milli_gpus([Taken(one, 100), Taken(later, 101)], standing) == {one.key: 0, two.key: 4000}


def test_the_preemptors_reservation_covers_only_so_many() -> None:
    one, two = preemption(1), preemption(2)
    standings = {one.key: Standing(0, 6000), two.key: Standing(0, 6000)}
    assert preemptors_inside_reservation([Taken(one, 100), Taken(two, 100)], standings) == {one.key}


# Idle elsewhere


def test_idle_elsewhere_is_shared_out_in_order_and_given_whole() -> None:
    ones = [preemption(number) for number in (1, 2, 3)]
    found = idle_elsewhere(ones, {(100, "h100"): {"a": 3000, "b": 9000, "h100": 50_000}})
    assert found == {
        ones[0].key: Elsewhere(4000, "b"),
        ones[1].key: Elsewhere(4000, "b"),
        ones[2].key: Elsewhere(0, None, {"a": 3000, "b": 1000}),
    }


@given(st.lists(st.integers(1, 5), max_size=6), st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)))
def test_no_idle_gpu_is_counted_twice(gpus: list[int], idle: dict[str, int]) -> None:
    ones = [preemption(number, milli_gpus=milli) for number, milli in enumerate(gpus)]
    found = idle_elsewhere(ones, {(100, "h100"): idle})
    for pool, milli in idle.items():
        assert sum(one.milli_gpus for one in found.values() if one.pool == pool) <= milli


def test_resumed_on_a_full_or_an_idle_pool() -> None:
    assert (resumed_state(4000, 4000), resumed_state(3999, 4000)) == ("idle", "full")


# Who pays


@pytest.mark.parametrize(
    ("policy", "said", "account", "inside", "payer"),
    [
        (ENTITLEMENT, {}, "tenant:acme", False, "tenant:acme"),
        (ENTITLEMENT, {}, "tenant:acme", True, PLATFORM),
        (ENTITLEMENT, {"preemptor": None}, None, False, PLATFORM),
        (ENTITLEMENT, {"cause": "capacity_lost"}, "tenant:acme", False, PLATFORM),
        (ENTITLEMENT, {"cause": "maintenance"}, "tenant:acme", False, PLATFORM),
        (VICTIM, {}, "tenant:acme", False, None),
        (PREEMPTOR, {}, "tenant:acme", True, "tenant:acme"),
        (PREEMPTOR, {"preemptor": None}, None, False, PLATFORM),
        (BY_PLATFORM, {}, "tenant:acme", False, PLATFORM),
        (PREEMPTOR, {"queued_only": True}, "tenant:acme", False, None),
        (
            PREEMPTOR,
            {"preemptor_source": "inferred", "confidence_ppm": 900_000},
            "tenant:acme",
            False,
            PLATFORM,
        ),
        (
            PREEMPTOR,
            {"preemptor_source": "inferred", "confidence_ppm": 1_000_000},
            "tenant:acme",
            False,
            "tenant:acme",
        ),
        (PREEMPTOR, {"preemptor_source": "inferred"}, "tenant:acme", False, PLATFORM),
        (
            replace(PREEMPTOR, min_confidence_ppm=800_000),
            {"preemptor_source": "inferred", "confidence_ppm": 900_000},
            "tenant:acme",
            False,
            "tenant:acme",
        ),
    ],
)
def test_payer(
    policy: PreemptionPolicy, said: dict[str, Any], account: str | None, inside: bool, payer: str | None
) -> None:
    assert payer_of(preemption(**said), account, inside, policy) == payer


# How much


def test_by_entitlement_only_the_entitled_fraction_moves_at_the_reserved_rate() -> None:
    (charge,) = charges(preemption(), share(), "tenant:acme", ENTITLEMENT, Standing(), PRICES, PRICES)
    # A quarter of 8 GPU-hours, at 2.00.
    assert (charge.victim, charge.payer) == ("tenant:gamma", "tenant:acme")
    assert (charge.gpu_us, charge.amount_micro) == (2 * GPU_HOUR, 4_000_000)


def test_otherwise_the_rest_moves_at_what_it_was() -> None:
    standing = Standing(8000, 0, on_demand=4000, borrowed=2000, excess=0)
    (charge,) = charges(preemption(), share(), PLATFORM, BY_PLATFORM, standing, PRICES, PRICES)
    # 2 GPU-hours at 2.00 reserved, 4 at 3.00 on demand, 2 at 1.00 borrowed.
    assert (charge.gpu_us, charge.amount_micro) == (8 * GPU_HOUR, 18_000_000)


def test_recompute_is_priced_where_and_when_it_ran_again() -> None:
    hit = share(entitled_milli_gpus=4000, recompute_gpu_us=GPU_HOUR)
    lost, recompute = charges(
        preemption(), hit, "tenant:acme", ENTITLEMENT, Standing(), PRICES, {"reserved_used": 5_000_000}
    )
    assert (lost.measure, lost.amount_micro) == ("lost", 16_000_000)
    assert (recompute.measure, recompute.amount_micro) == ("recompute", 5_000_000)


def test_nothing_moves_to_oneself_or_for_unknown_time() -> None:
    hit = share(entitled_milli_gpus=4000)
    assert charges(preemption(), hit, None, VICTIM, Standing(), PRICES, PRICES) == []
    assert charges(preemption(), hit, "tenant:gamma", PREEMPTOR, Standing(), PRICES, PRICES) == []
    unknown = share(entitled_milli_gpus=4000, lost_gpu_us=None)
    assert charges(preemption(), unknown, PLATFORM, BY_PLATFORM, Standing(), PRICES, PRICES) == []


def test_a_missing_price_leaves_the_amount_open() -> None:
    (charge,) = charges(preemption(), share(), PLATFORM, ENTITLEMENT, Standing(), {}, {})
    assert (charge.gpu_us, charge.amount_micro) == (2 * GPU_HOUR, None)


def test_a_shared_service_is_split_by_the_gpu_time_of_voided_requests() -> None:
    whole = share(account=PLATFORM, lost_gpu_us=10, waiting_gpu_us=7, entitled_milli_gpus=4000)
    parts = split_share(whole, {"tenant:b": 1, "tenant:a": 2, "tenant:z": 0})
    assert [(part.account, part.milli_gpus, part.lost_gpu_us, part.waiting_gpu_us) for part in parts] == [
        ("tenant:a", 2667, 7, 4),
        ("tenant:b", 1333, 3, 3),
    ]
    assert shares_add_up(whole, parts) == []
    assert split_share(whole, {}) == [whole]


def test_a_tenants_entitlement_in_a_service_is_its_serving_quota() -> None:
    whole = share(account=PLATFORM, milli_gpus=3000, entitled_milli_gpus=3000)
    weights = {"tenant:a": 2, "tenant:b": 1}

    def entitled(served: Served) -> list[int]:
        return [part.entitled_milli_gpus for part in split_share(whole, weights, served)]

    # Nobody has a quota: the service's reservation counts, as it does where no calibration converts one.
    assert entitled(Served()) == [2000, 1000]
    assert entitled(Served({"tenant:a": 500, "tenant:b": None})) == [500, 1000]
    # Others without one are entitled to nothing; nobody is to more than it lost.
    assert entitled(Served({"tenant:a": 500})) == [500, 0]
    assert entitled(Served({"tenant:a": 9000, "tenant:b": 0})) == [2000, 0]
    # What was had beyond the quota goes first: of a's 3000, 500 were beyond.
    assert entitled(Served({"tenant:a": 2500}, {"tenant:a": 3000})) == [1500, 0]
    # The owner's own part is covered by what the service reserved.
    own = split_share(replace(whole, account="tenant:a"), weights, Served({"tenant:b": 0}))
    assert [part.entitled_milli_gpus for part in own] == [2000, 0]


def test_money_moves_back_to_whoever_paid_for_the_occupancy() -> None:
    (charge,) = charges(preemption(), share(), "tenant:acme", PREEMPTOR, Standing(), PRICES, PRICES, PLATFORM)
    assert (charge.victim, charge.payer) == (PLATFORM, "tenant:acme")
    assert charges(preemption(), share(), PLATFORM, BY_PLATFORM, Standing(), PRICES, PRICES, PLATFORM) == []


@given(
    st.builds(
        Share,
        st.just("tenant:v"),
        st.integers(0, 8),
        st.integers(0, 8),
        st.integers(0, 10**12),
        st.none() | st.integers(0, 10**12),
        st.none() | st.integers(0, 10**12),
    ).filter(lambda one: one.entitled_milli_gpus <= one.milli_gpus),
    st.dictionaries(st.sampled_from(["tenant:a", "tenant:b", "tenant:c"]), st.integers(0, 10**9)),
    st.sampled_from([ENTITLEMENT, PREEMPTOR, BY_PLATFORM]),
    st.builds(Standing, *[st.integers(0, 8)] * 5),
    st.builds(
        Served,
        st.dictionaries(st.sampled_from(["tenant:a", "tenant:b"]), st.none() | st.integers(0, 9)),
        st.dictionaries(st.sampled_from(["tenant:a", "tenant:b"]), st.integers(0, 9)),
    ),
)
def test_splitting_loses_nothing_and_nothing_is_charged_twice(
    whole: Share, weights: dict[str, int], policy: PreemptionPolicy, standing: Standing, served: Served
) -> None:
    parts = split_share(whole, weights, served)
    assert shares_add_up(whole, parts) == []
    for part in parts:
        assert 0 <= part.entitled_milli_gpus <= part.milli_gpus
        made = charges(preemption(), part, PLATFORM, policy, standing, PRICES, PRICES)
        assert nothing_charged_twice(part, made) == []
        if policy.charged_to != "entitlement":
            charged = sum(charge.gpu_us for charge in made)
            assert charged == (part.lost_gpu_us or 0) + (part.recompute_gpu_us or 0)


def test_delay_credit_is_for_entitled_time_that_waited_or_was_lost() -> None:
    hit = share(entitled_milli_gpus=1000, lost_gpu_us=8 * GPU_HOUR)
    # A quarter of 8 lost and 4 waited GPU-hours, at 0.50.
    assert delay_credit_micro([hit], [4 * GPU_HOUR], 500_000) == 1_500_000
    assert delay_credit_micro([hit], [4 * GPU_HOUR], 0) == 0


def test_invariants_find_what_is_broken() -> None:
    assert shares_add_up(share(), [share(lost_gpu_us=1)]) == [
        f"lost_gpu_us: parts sum to 1, not {8 * GPU_HOUR}"
    ]
    made = charges(preemption(), share(), PLATFORM, BY_PLATFORM, Standing(), PRICES, PRICES)
    assert nothing_charged_twice(share(lost_gpu_us=1), made) == [f"lost: {8 * GPU_HOUR} gpu_us charged of 1"]
