"""Lines as FOCUS charges, by hand: what a closed demo month does not have, and sums that must never be off."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.focus import (
    BilledLine,
    Invoice,
    charge_category,
    charge_columns,
    decimal,
    instant,
    line_columns,
)
from billing.core.focus_columns import COST_AND_USAGE, FOCUS_1_2, FOCUS_1_4
from billing.core.focus_periods import Spread, charge_span
from ledger.core.periods import Month, Span
from ledger.core.units import GPU_US_PER_GPU_HOUR, MS_PER_DAY, MS_PER_HOUR

OCTOBER = Month.parse("2026-10").span("Asia/Shanghai")
INVOICE = Invoice(
    number="2026-10-acme",
    tenant="acme",
    tenant_name="Acme",
    issuer="Example Corp",
    currency="CNY",
    starts_ms=OCTOBER.start_ms,
    ends_ms=OCTOBER.end_ms,
    tags={"cost_center": "42"},
)
GPU = BilledLine(
    position=1,
    kind="usage",
    category="reserved_used",
    quantity=3 * GPU_US_PER_GPU_HOUR,
    unit="gpu_us",
    version_from_ms=OCTOBER.start_ms,
    unit_price_micro=2_500_000,
    billed_micro=7_500_000,
    pool="bj-h100",
    cluster="bj-1",
    gpu_model="H100",
)
TOKENS = replace(
    GPU,
    kind="tokens",
    category="input_overage",
    quantity=1_234_567,
    unit="tokens",
    unit_price_micro=3_000_000,
    billed_micro=3_700_000,
    pool="",
    cluster="",
    gpu_model="",
    model="qwen3",
)


def charge(line: BilledLine, version: str = FOCUS_1_4) -> dict[str, str]:
    whole = charge_columns(line, line.quantity, line.billed_micro or 0, OCTOBER.start_ms, OCTOBER.end_ms)
    return line_columns(line, INVOICE, version) | whole


def test_counts_of_columns_are_the_specifications() -> None:
    of_focus = {
        version: sum(not name.startswith("x_") for name in columns)
        for version, columns in COST_AND_USAGE.items()
    }
    assert of_focus == {FOCUS_1_2: 57, FOCUS_1_4: 65}
    assert all(len(set(columns)) == len(columns) for columns in COST_AND_USAGE.values())


def test_a_reservation_that_was_used() -> None:
    row = charge(GPU)
    assert (row["CapacityReservationId"], row["CapacityReservationStatus"]) == ("bj-h100/acme", "Used")
    assert (row["PricingQuantity"], row["ConsumedQuantity"]) == ("3.000000", "3.000000")
    assert (row["ListUnitPrice"], row["ListCost"], row["BilledCost"]) == ("2.500000", "7.500000", "7.500000")
    assert (row["PricingUnit"], charge(GPU, FOCUS_1_2)["PricingUnit"]) == ("GPU-Hours", "Hours")
    assert row["SkuPriceDetails"] == '{"GpuCount":1,"x_GpuModel":"H100"}'
    assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == (
        "2026-09-30T16:00:00Z",
        "2026-10-31T16:00:00Z",
    )


@pytest.mark.parametrize("category", ["lent", "reserved_idle", "undelivered", "oversold"])
def test_a_reservation_that_was_not_used_consumed_nothing(category: str) -> None:
    row = charge(replace(GPU, category=category))
    assert (row["CapacityReservationStatus"], row["ConsumedQuantity"]) == ("Unused", "0.000000")
    assert (row["PricingQuantity"], row["ResourceId"]) == ("3.000000", row["CapacityReservationId"])
    assert row.get("x_UndeliveredGpuHours", "") == ("3.000000" if category == "undelivered" else "")


def test_tokens_are_priced_by_the_million() -> None:
    row = charge(TOKENS)
    assert (row["PricingQuantity"], row["PricingUnit"]) == ("1.234567", "1000000 Tokens")
    assert (row["ConsumedQuantity"], row["ConsumedUnit"]) == ("1234567.000000", "Tokens")
    assert (row["ListCost"], row["BilledCost"]) == ("3.703701", "3.700000")
    assert (row["ServiceName"], row["ServiceSubcategory"]) == ("qwen3", "Generative AI")
    assert row["CapacityReservationId"] == ""


def test_a_shared_service_names_the_method_of_its_split() -> None:
    row = charge(replace(GPU, kind="shared", category="on_demand", service="chat"))
    assert (row["AllocatedMethodId"], row["AllocatedResourceId"]) == ("shared-service", "acme")
    assert (row["ResourceId"], row["ResourceType"]) == ("chat", "Inference service")
    idle = charge(replace(GPU, kind="shared", category="on_demand", service="chat", service_idle=True))
    assert "AllocatedMethodId" not in idle
    nobody = charge(replace(GPU, kind="shared", category="unreserved_idle"))
    assert (nobody["AllocatedMethodId"], nobody["ConsumedQuantity"]) == ("unreserved-idle", "0.000000")


def test_without_one_price_there_is_no_price() -> None:
    """As in cost_recovery, where a line's cost is apportioned."""
    row = charge(replace(GPU, unit_price_micro=None, billed_micro=1_230_000))
    assert not {"SkuPriceId", "ListUnitPrice", "ContractedUnitPrice", "SkuPriceDetails"} & set(row)
    assert {row[name] for name in ("BilledCost", "ListCost", "ContractedCost", "EffectiveCost")} == {
        "1.230000"
    }


def test_a_correction_is_an_increment_without_a_price() -> None:
    line = replace(
        GPU, kind="adjustment", quantity=-GPU_US_PER_GPU_HOUR, concerns_month="2026-09", billed_micro=-5_000
    )
    row = charge(line)
    assert (row["ChargeClass"], row["ChargeCategory"], row["x_ConcernsMonth"]) == (
        "Correction",
        "Usage",
        "2026-09",
    )
    assert (row["PricingQuantity"], row["BilledCost"]) == ("-1.000000", "-0.005000")
    assert "SkuPriceId" not in row


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("goodwill", "Credit"),
        ("lend_credit", "Credit"),
        ("delay_credit", "Credit"),
        ("dispute_adjustment", "Credit"),
        ("preemption_lost", "Adjustment"),
        ("preemption_recompute", "Adjustment"),
        ("committed_unused", "Usage"),
        ("cached_input", "Usage"),
        ("excess", "Usage"),
    ],
)
def test_categories_of_charge(category: str, expected: str) -> None:
    assert charge_category(category) == expected
    row = charge(replace(GPU, category=category, kind="credit", unit="amount_micro"))
    assert "PricingQuantity" not in row
    assert ("PricingUnit" in row) is ("ConsumedUnit" in row)


def test_when_a_charge_was_made() -> None:
    at = OCTOBER.start_ms + 5 * MS_PER_DAY + 1_234
    moved = replace(GPU, category="preemption_lost", kind="transfer", version_from_ms=at)
    hour = Span(OCTOBER.start_ms + 5 * MS_PER_DAY, OCTOBER.start_ms + 5 * MS_PER_DAY + MS_PER_HOUR)
    assert charge_span(moved, OCTOBER, []) == hour
    goodwill = replace(GPU, category="goodwill", kind="credit", version_from_ms=OCTOBER.end_ms + 7)
    assert charge_span(goodwill, OCTOBER, []) == OCTOBER
    later = replace(TOKENS, version_from_ms=OCTOBER.start_ms + MS_PER_DAY)
    assert charge_span(TOKENS, OCTOBER, [TOKENS, later, GPU]) == Span(OCTOBER.start_ms, later.version_from_ms)
    assert charge_span(later, OCTOBER, [TOKENS, later]) == Span(later.version_from_ms, OCTOBER.end_ms)


@pytest.mark.parametrize(
    ("scaled", "places", "text"),
    [
        (5, 0, "5.000000"),
        (-5, 2, "-0.050000"),
        (1, 10, "0.0000000001"),
        (10**10, 10, "1.000000"),
        (123_450_000_000_000, 16, "0.012345"),
        (0, 16, "0.000000"),
    ],
)
def test_decimals(scaled: int, places: int, text: str) -> None:
    assert decimal(scaled, places) == text


@given(st.integers(-(10**24), 10**24), st.integers(0, 18))
def test_decimals_are_exact(scaled: int, places: int) -> None:
    assert Decimal(decimal(scaled, places)).scaleb(places).compare(Decimal(scaled)) == 0


def test_instants_are_utc_in_whole_seconds() -> None:
    assert instant(OCTOBER.start_ms + 999) == "2026-09-30T16:00:00Z"


@given(st.integers(-(10**12), 10**12), st.lists(st.integers(1, 10**13), min_size=1, max_size=30))
def test_an_amount_spreads_without_loss_and_evenly(amount: int, parts: list[int]) -> None:
    whole = sum(parts)
    spread = Spread(amount, whole)
    shares = [spread.take(part) for part in parts]
    assert sum(shares) == amount
    assert all(abs(share * whole - amount * part) < whole for share, part in zip(shares, parts, strict=True))
