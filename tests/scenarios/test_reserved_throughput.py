"""Throughput that a token contract reserves is a reservation, with hand-checked numbers (domain.md section 7)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from billing.services.months import compute_month
from tests.scenarios.golden import (
    ALWAYS,
    DECEMBER_5,
    NEXT_MONTH,
    POOL,
    START,
    adjust,
    adjustments,
    allocated,
    billed,
    close,
    compute,
    frozen,
    holds,
    proved,
    reserves,
    tell,
    terms,
    totals,
    world,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

# qwen takes 0.1 GPU-seconds for 1000 tokens in and 2 for 1000 out. 600 000 in and 60 000 out in a minute take
# 600 x 0.1 + 60 x 2 = 180 GPU-seconds: 3 GPUs.
PROMISE = {
    "model": "qwen",
    "pool": POOL,
    "input_tokens_per_minute": 600_000,
    "output_tokens_per_minute": 60_000,
}
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC)


def calibrated(valid_from: datetime = ALWAYS, output_gpu_us: int = 2_000_000) -> None:
    cost = {"input_gpu_us_per_1k": 100_000, "cached_input_gpu_us_per_1k": 0}
    row = {"model": "qwen", "gpu_model": "H100", "valid_from": valid_from, **cost}
    terms(calibration=[row | {"output_gpu_us_per_1k": output_gpu_us}])


def contract(valid_from: datetime = START, *promises: dict[str, Any]) -> list[str]:
    row = {
        "tenant": "acme",
        "valid_from": valid_from,
        "kind": "tokens",
        "reserved_throughput": list(promises),
    }
    return terms(contract=[row])


def work() -> None:
    """For 10 hours acme holds 1 of 10 GPUs and beta 8. With 3 reserved, 7 are free: beta borrows 1."""
    tell(holds("acme", 0, 1), holds("beta", 0, 8), holds("acme", 10, 0), holds("beta", 10, 0))


WITHOUT = {("acme", "on_demand"): 30, ("beta", "on_demand"): 240}
WITH = {
    ("acme", "reserved_used"): 20,  # 10 GPU-hours at 2
    ("acme", "lent"): 20,  # 10 at 2
    ("acme", "lend_credit"): -10,  # what beta pays for them
    ("acme", "reserved_idle"): 10,  # 3 - 1 - 1 = 1 GPU, at 1
    ("beta", "on_demand"): 210,  # 70 at 3
    ("beta", "borrowed"): 10,  # 10 at 1
}


def without_idle_of_nobody() -> dict[tuple[str, str], float]:
    return {key: amount for key, amount in billed().items() if key[0] != "platform"}


def test_reserved_throughput_is_used_lent_and_idle_like_any_reservation() -> None:
    world(10, "acme", "beta")
    calibrated()
    contract(START, PROMISE)
    work()
    compute()
    assert without_idle_of_nobody() == WITH
    assert totals() == {"acme": 40, "beta": 220}


def test_it_adds_to_a_reservation_that_a_scheduler_reports() -> None:
    """1 reported and 3 promised are 4: acme uses 1, lends 2 of 3 (6 are free, beta holds 8), and 1 is idle."""
    world(10, "acme", "beta")
    calibrated()
    contract(START, PROMISE)
    tell(reserves("acme", 0, 1))
    work()
    compute()
    assert [
        sum(hours for _, hours in allocated(what, "acme"))
        for what in ("reserved_used", "lent", "reserved_idle")
    ] == [
        10,
        20,
        10,
    ]


def test_a_contract_with_an_earlier_validity_after_the_close() -> None:
    """All of October is 744 hours: of 3 x 744 = 2232 GPU-hours 10 were used and 10 lent, 2212 idle at 1.

    It ends with October, so that November has the adjustments and nothing else.
    """
    world(10, "acme", "beta")
    calibrated()
    work()
    compute(744)
    assert without_idle_of_nobody() == WITHOUT
    close()
    before = frozen()
    contract(START, PROMISE)
    contract(NOVEMBER)
    adjust()
    assert frozen() == before
    compute_month(NEXT_MONTH, horizon=DECEMBER_5)
    proved()
    found = {(who, what): change for (who, _, what), change in adjustments().items()}
    assert found == {
        ("acme", "on_demand"): (-10, -30),
        ("acme", "reserved_used"): (10, 20),
        ("acme", "lent"): (0, 20),  # lines of money: GPU time that another ran
        ("acme", "lend_credit"): (0, -10),
        ("acme", "reserved_idle"): (2212, 2212),
        ("beta", "on_demand"): (-10, -30),
        ("beta", "borrowed"): (10, 10),
    }
    assert totals("2026-11") == {"acme": 2212, "beta": -20}
    # The reservation is withdrawn again: all is as it was.
    contract(START)
    adjust(DECEMBER_5)
    compute_month(NEXT_MONTH, horizon=DECEMBER_5)
    proved()
    assert totals("2026-11") == {"acme": 0, "beta": 0}


def test_the_calibration_at_the_start_holds_until_a_new_contract_begins() -> None:
    """From November on 1000 tokens out take 1 GPU-second instead of 2: 60 + 60 = 2 GPUs, once a contract begins."""
    world(10, "acme")
    calibrated()
    calibrated(NOVEMBER, 1_000_000)
    contract(START, PROMISE)
    compute_month(NEXT_MONTH, horizon=datetime(2026, 11, 1, 10, tzinfo=UTC))
    assert {hours for _, hours in allocated("reserved_idle", "acme")} == {3}
    contract(NOVEMBER, PROMISE)
    compute_month(NEXT_MONTH, horizon=datetime(2026, 11, 1, 10, tzinfo=UTC))
    proved()
    assert {hours for _, hours in allocated("reserved_idle", "acme")} == {2}
    # A calibration that was wrong is replaced by one with an earlier validity: the contract follows it.
    calibrated(datetime(2026, 10, 20, tzinfo=UTC), 500_000)
    calibrated(NOVEMBER, 500_000)
    compute_month(NEXT_MONTH, horizon=datetime(2026, 11, 1, 10, tzinfo=UTC))
    proved()
    assert {hours for _, hours in allocated("reserved_idle", "acme")} == {1.5}
