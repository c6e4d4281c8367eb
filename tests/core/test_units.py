from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core import units


@pytest.mark.parametrize(
    ("value", "milli"),
    [
        ("8", 8000),
        ("0.125", 125),
        ("1.5000", 1500),
        (7, 7000),
        (Decimal("0.001"), 1),
        ("1e1", 10_000),
        ("0", 0),
    ],
)
def test_gpus_become_milli_gpus(value, milli):
    assert units.parse_milli_gpus(value) == milli


@pytest.mark.parametrize(
    "value",
    [
        "0.0001",
        "-1",
        "NaN",
        "Infinity",
        "",
        " 1",
        "1_0",
        "１",
        "+1",
        ".5",
        "1.",
        "0x10",
        "1e30",
        True,
        0.5,
        None,
    ],
)
def test_what_is_not_an_exact_quantity_is_refused(value):
    with pytest.raises(ValueError):
        units.parse_milli_gpus(value)


def test_seconds_become_microseconds():
    assert units.parse_seconds_us("1.270440") == 1_270_440
    assert units.parse_seconds_us("640.5") == 640_500_000
    with pytest.raises(ValueError, match="more than 6 decimal places"):
        units.parse_seconds_us("0.0000001")
    with pytest.raises(ValueError, match="too large"):
        units.parse_seconds_us("9223372036854.775808")


@pytest.mark.parametrize(
    ("numerator", "denominator", "rounded"),
    [(1, 2, 0), (3, 2, 2), (5, 2, 2), (-1, 2, 0), (-3, 2, -2), (7, -2, -4), (10, 3, 3), (11, 3, 4)],
)
def test_ties_go_to_the_even_integer(numerator, denominator, rounded):
    assert units.round_half_even(numerator, denominator) == rounded


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**15))
def test_rounding_agrees_with_decimal(numerator, denominator):
    error = abs(2 * (numerator - units.round_half_even(numerator, denominator) * denominator))
    assert error <= denominator


@given(st.integers(-(2**63), 2**63))
def test_gpu_hours_text_determines_the_integer(gpu_us):
    hours = Decimal(units.gpu_hours_text(gpu_us))
    assert int((hours * units.GPU_US_PER_GPU_HOUR).to_integral_value()) == gpu_us


def test_texts():
    assert units.gpu_hours_text(44 * units.GPU_US_PER_GPU_HOUR) == "44"
    assert units.gpu_hours_text(units.GPU_US_PER_GPU_HOUR // 8) == "0.125"
    assert units.gpu_hours_fixed(units.GPU_US_PER_GPU_HOUR // 8) == "0.12"
    assert units.gpu_hours_fixed(-3 * units.GPU_US_PER_GPU_HOUR // 8) == "-0.38"
    assert units.milli_gpus_text(-1500) == "-1.5"
    assert units.milli_gpus_text(10_000) == "10"
    assert units.seconds_text(640_500_000) == "640.5"
    assert units.micro_text(1_250_000) == "1.25"
    assert units.money_fixed(1_005_000) == "1.00"
    assert units.money_fixed(1_015_000) == "1.02"
    assert units.money_fixed(1_500_000, 0) == "2"


@pytest.mark.parametrize("text", ["1e3", "1E2", "+5", " 5", "5.", ".5", "0x1", "١", "1_000", "1,000", ""])
def test_an_amount_in_text_is_digits_and_a_point(text):
    assert not units.is_plain_decimal(text)
    with pytest.raises(ValueError, match="is not a decimal number"):
        units.parse_micro(text)
