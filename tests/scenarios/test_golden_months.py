"""Months with hand-checked numbers: idle time, lending, prices, tenants that come and go, daylight saving, services."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from billing.models import PoolSlot, Statement
from billing.services.months import compute_month
from ledger.core.periods import Month, to_ms
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import Ledger
from tests.scenarios.golden import (
    NEXT_MONTH,
    Fact,
    allocated,
    at,
    billed,
    compute,
    cost,
    holds,
    policy,
    preempted,
    proved,
    rates,
    reserves,
    served,
    tell,
    terms,
    totals,
    world,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

# Unreserved idle: acme reserves 4 and holds 2, beta holds 1 on demand, gamma nothing; of 10 GPUs, for 10 hours.
# Used or left idle of a reservation: acme 40 GPU-hours, beta 10; unreserved and idle: 50.


@pytest.mark.parametrize(
    ("bears", "idle"),
    [
        ("platform", {"platform": 50}),
        ("proportional", {"acme": 40, "beta": 10}),  # 40 : 10
        ("even", {"acme": 25, "beta": 25}),  # gamma has nothing in the pool
    ],
)
def test_unreserved_idle_in_both_modes(bears: str, idle: dict[str, int]) -> None:
    world(10, "acme", "beta", "gamma")
    cost("2")
    policy(unreserved_idle=bears)
    tell(reserves("acme", 0, 4), holds("acme", 0, 2), holds("beta", 0, 1))
    compute()
    # By the rate card: 20 at 2, 20 idle at 1, 10 at 3, 50 idle at 1; the cost is 100 x 2.
    own = {("acme", "reserved_used"): 40, ("acme", "reserved_idle"): 20, ("beta", "on_demand"): 30}
    by_card = own | {(who, "unreserved_idle"): amount for who, amount in idle.items()}
    assert billed() == by_card | {("platform", "cost_difference"): 60}
    Ledger.objects.update(mode="cost_recovery")
    compute_month(Month.parse("2026-10"), horizon=at(10), everything=True)
    proved()
    # All 100 GPU-hours weigh the same, at 2.
    own = {("acme", "reserved_used"): 40, ("acme", "reserved_idle"): 40, ("beta", "on_demand"): 20}
    assert billed() == own | {(who, "unreserved_idle"): 2 * amount for who, amount in idle.items()}
    assert sum(billed().values()) == 200


# Lending: acme reserves 6 of 8 and holds 1; gamma holds 5: 2 on demand and 3 borrowed, for 10 hours. lent = 30.


def lending(*more: Fact) -> None:
    tell(reserves("acme", 0, 6), holds("acme", 0, 1), holds("gamma", 0, 5), *more)


@pytest.mark.parametrize(
    ("lend_credit", "borrowed", "credit"),
    [
        ("borrower_paid", "1", 30),  # 30 at the borrowed 1, of the 60 that acme is charged
        ("borrower_paid", "5", 60),  # never more than the reserved 2
        ("0.25", "1", 15),  # a quarter of 2, whatever gamma pays
        ("1", "1", 60),
        ("0", "1", 0),
    ],
)
def test_lending_with_each_kind_of_credit(lend_credit: str, borrowed: str, credit: int) -> None:
    world(8, "acme", "gamma")
    rates(borrowed=borrowed)
    policy(lend_credit=lend_credit)
    lending()
    compute()
    expected = {
        ("acme", "reserved_used"): 20,
        ("acme", "lent"): 60,
        ("acme", "lend_credit"): -credit,
        ("acme", "reserved_idle"): 20,  # 6 - 1 - 3 = 2, at 1
        ("gamma", "on_demand"): 60,
        ("gamma", "borrowed"): 30 * int(borrowed),
    }
    assert billed() == {key: amount for key, amount in expected.items() if amount}
    assert totals() == {"acme": 100 - credit, "gamma": 60 + 30 * int(borrowed)}


def test_what_is_lent_while_ones_own_work_waits_is_credited_in_full() -> None:
    """acme's other work lost 1 GPU and waits from hour 4 to 10: of the 3 lent, 1 for 6 hours is its own, at 2."""
    world(8, "acme", "gamma")
    other = {"victim": {"workload": "wl-a2", "tenant": "acme"}, "lost_gpu_seconds": 0}
    lending(
        holds("acme", 2, 1, workload="wl-a2"),
        preempted(4, "acme", 1, **other),
        holds("acme", 4, 0, workload="wl-a2"),
    )
    compute()
    # 6 at 2 and the other 24 at 1.
    assert billed()["acme", "lend_credit"] == -36


def test_two_lenders_share_what_two_borrowers_pay() -> None:
    """acme and beta leave 4 and 2 idle; gamma and zeta, both of 3 GPUs, find none unreserved.

    zeta runs preemptible work at 1, gamma other work at 2 (at most the reserved rate counts). gamma in id order first:
    3 of 4 : 2 = 2 from acme and 1 from beta; zeta gets the rest, 2 and 1. So per hour acme earns 2 x 2 + 2 x 1 = 6 and
    beta 1 x 2 + 1 x 1 = 3.
    """
    world(6, "acme", "beta", "gamma", "zeta")
    cheap = {"pool": "h100", "service_class": "preemptible", "borrowed": "1"}
    dear = {"pool": "h100", "reserved_used": "2", "on_demand": "3", "borrowed": "3"}
    terms(rate_card=[{"name": "classes", "valid_from": at(-100), "gpu_hour": [dear, cheap]}])
    tell(
        reserves("acme", 0, 4),
        reserves("beta", 0, 2),
        holds("gamma", 0, 3),
        holds("zeta", 0, 3, service_class="preemptible"),
    )
    compute()
    assert billed() == {
        ("acme", "lent"): 80,
        ("acme", "lend_credit"): -60,
        ("beta", "lent"): 40,
        ("beta", "lend_credit"): -30,
        ("gamma", "borrowed"): 90,
        ("zeta", "borrowed"): 30,
    }


def test_undelivered_time_is_the_platforms() -> None:
    """acme holds all 4 of its 4 reserved, loses 3 at hour 4 and runs again at hour 9: 15 GPU-hours not delivered."""
    world(8, "acme")
    tell(
        reserves("acme", 0, 4),
        holds("acme", 0, 4),
        preempted(4, "acme", 3, cause="maintenance", lost_gpu_seconds=0),
        holds("acme", 4, 1),
        holds("acme", 9, 4),
    )
    compute()
    # Used: 16 + 5 + 4 = 25 at 2. Undelivered at the idle 1.
    assert billed() == {
        ("acme", "reserved_used"): 50,
        ("platform", "undelivered"): 15,
        ("platform", "unreserved_idle"): 40,
    }
    assert totals() == {"acme": 50}


def test_a_price_change_in_mid_month_reaches_every_kind_of_line() -> None:
    """From hour 4 on everything costs one more: 4 hours at the old prices, 6 at the new."""
    world(8, "acme", "gamma")
    rates(at(4), reserved_used="3", reserved_idle="2", on_demand="4", borrowed="2", unreserved_idle="2")
    lending()
    compute()
    assert billed() == {
        ("acme", "reserved_used"): 4 * 2 + 6 * 3,
        ("acme", "lent"): 12 * 2 + 18 * 3,
        ("acme", "lend_credit"): -(12 * 1 + 18 * 2),
        ("acme", "reserved_idle"): 8 * 1 + 12 * 2,
        ("gamma", "on_demand"): 8 * 3 + 12 * 4,
        ("gamma", "borrowed"): 12 * 1 + 18 * 2,
    }


def test_a_tenant_that_appears_resizes_and_leaves() -> None:
    """Nobody before hour 2. It reserves 4, 8 from hour 5, none from hour 8; holds 4, 6 from hour 6, none from 9."""
    world(16, "acme")
    tell(
        reserves("acme", 2, 4),
        holds("acme", 2, 4),
        reserves("acme", 5, 8),
        holds("acme", 6, 6),
        reserves("acme", 8, 0),
        holds("acme", 9, 0),
    )
    compute()
    # Used 4 x 3 + 4 x 1 + 6 x 2 = 28; idle 4 x 1 + 2 x 2 = 8; on demand 6 x 1; the rest of 160 is nobody's.
    assert allocated("reserved_used", "acme") == [(at(h), 4) for h in (2, 3, 4, 5)] + [
        (at(h), 6) for h in (6, 7)
    ]
    assert billed() == {
        ("acme", "reserved_used"): 56,
        ("acme", "reserved_idle"): 8,
        ("acme", "on_demand"): 18,
        ("platform", "unreserved_idle"): 160 - 28 - 8 - 6,
    }
    # A month later it still has an account, so it gets a statement of nothing.
    compute(800, NEXT_MONTH)
    assert totals("2026-11") == {"acme": 0}
    assert Statement.objects.get(number="2026-11-acme").lines.count() == 0


@pytest.mark.parametrize(
    ("zone", "month", "starts", "ends", "hours"),
    [
        ("Europe/Berlin", "2026-03", "2026-02-28T23:00Z", "2026-03-31T22:00Z", 743),  # a day of 23 hours
        ("Europe/Berlin", "2025-10", "2025-09-30T22:00Z", "2025-10-31T23:00Z", 745),  # a day of 25 hours
        ("America/New_York", "2026-03", "2026-03-01T05:00Z", "2026-04-01T04:00Z", 743),
        ("America/New_York", "2025-11", "2025-11-01T04:00Z", "2025-12-01T05:00Z", 721),
    ],
)
def test_a_month_with_a_change_of_the_clock(
    zone: str, month: str, starts: str, ends: str, hours: int
) -> None:
    """acme holds 2 of 4 GPUs all along: as many hours as there are, each once, and no slot is longer than one."""
    begin = (datetime(2025, 1, 1, tzinfo=UTC) - at(0)).total_seconds() / 3600
    world(4, "acme", begin=begin)
    terms(ledger={"billing_time_zone": zone})
    tell(holds("acme", begin, 2))
    starts_at, ends_at = datetime.fromisoformat(starts), datetime.fromisoformat(ends)
    compute_month(Month.parse(month), horizon=ends_at)
    proved()
    slots = list(PoolSlot.objects.order_by("starts_at").values_list("starts_at", "capacity_gpu_us"))
    assert len(slots) == hours
    assert {capacity for _, capacity in slots} == {4 * GPU_US_PER_GPU_HOUR}
    assert slots[0][0] == starts_at
    assert to_ms(slots[-1][0]) == to_ms(ends_at) - 3_600_000
    assert billed(month) == {("acme", "on_demand"): 6 * hours, ("platform", "unreserved_idle"): 2 * hours}


def test_a_service_without_requests_in_some_hours_is_its_owners_then() -> None:
    """gamma's chat holds 4 on demand for 4 hours; it serves acme and beta 3 : 1 in hours 0 and 2, nobody in 1 and 3."""
    world(8, "acme", "beta", "gamma")
    terms(service=[{"slug": "chat", "pool": "h100", "owner": "gamma"}])
    tell(
        holds("chat", 0, 4, workload="chat-0", service="chat"),
        *(served("chat", "acme", hour, gpu_seconds=300) for hour in (0, 2)),
        *(served("chat", "beta", hour, gpu_seconds=100) for hour in (0, 2)),
    )
    compute(4)
    assert billed() == {
        ("acme", "on_demand"): 2 * 3 * 3,
        ("beta", "on_demand"): 2 * 1 * 3,
        ("gamma", "on_demand"): 2 * 4 * 3,
        ("platform", "unreserved_idle"): 16,
    }


@pytest.mark.parametrize("bears", ["platform", "proportional", "even"])
@pytest.mark.parametrize("mode", ["rate_card", "cost_recovery"])
def test_a_pool_without_users_keeps_its_cost_visible(mode: str, bears: str) -> None:
    """16 GPUs for 10 hours at a cost of 2, and nobody on them: 320, whatever the mode and policy."""
    world(16, "acme")
    Ledger.objects.update(mode=mode)
    policy(unreserved_idle=bears)
    cost("2")
    compute()
    expected = {("platform", "unreserved_idle"): 320}
    if mode == "rate_card":
        expected = {("platform", "unreserved_idle"): 160, ("platform", "cost_difference"): 160}
    assert billed() == expected
    assert totals() == {"acme": 0}


def test_a_token_quota_with_overage() -> None:
    """acme pays by tokens: 2 million are its quota; it uses 3 million input at 1 and 1 million output at 4.

    Half of each is beyond the quota: 1.5 x 1 + 0.5 x 4 = 3.50 inside it and 2 at 10 beyond. The 24 GPU-hours of chat
    that it was served, 72 at 3, go to the conversion account, less those 23.50.
    """
    world(8, "acme", "beta")
    prices = [{"model": "qwen", "input": "1", "output": "4"}]
    rates(token=prices)
    terms(
        service=[{"slug": "chat", "pool": "h100"}],
        contract=[
            {
                "tenant": "acme",
                "valid_from": datetime(2026, 9, 1, tzinfo=UTC),
                "kind": "tokens",
                "token_quota": 2_000_000,
                "overage_price": "10",
            }
        ],
    )
    million = {"input_tokens": 750_000, "output_tokens": 250_000}
    tell(
        holds("chat", 0, 8, workload="chat-0", service="chat"),
        *(served("chat", "acme", hour, gpu_seconds=300, **million) for hour in range(4)),
        *(served("chat", "beta", hour, gpu_seconds=100, input_tokens=1) for hour in range(4)),
    )
    compute(4)
    found = billed()
    assert {what: amount for (who, what), amount in found.items() if who == "acme"} == {
        "input": 1.5,
        "input_overage": 15,
        "output": 2,
        "output_overage": 5,
    }
    assert sum(amount for (who, _), amount in found.items() if who == "conversion") == 72 - 23.5
    assert found["beta", "on_demand"] == 24
