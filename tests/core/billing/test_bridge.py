"""The bridge from last month: hand-computed steps, and that they always add up to the difference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.bridge import STEPS, BridgeLine, Printed, Step, bridge

CENT = 10_000
UNIT = 1_000_000


def line(kind: str, category: str, quantity: int, amount: int | None, idle: bool = False) -> BridgeLine:
    return BridgeLine(("pool",), kind, category, quantity, amount, idle)


def total(lines: list[BridgeLine]) -> Printed:
    micro = sum(one.amount_micro or 0 for one in lines)
    return Printed(micro, round(micro / CENT), CENT)


def test_every_kind_of_change_has_its_step() -> None:
    before = [
        line("usage", "on_demand", 100, 200 * UNIT),  # 2.00 each
        line("usage", "reserved_idle", 10, 10 * UNIT),  # 1.00 each
        line("shared", "borrowed", 5, 5 * UNIT),  # gone
        line("transfer", "preemption_lost", 3, 7 * UNIT),
        line("credit", "goodwill", -1, -1 * UNIT),
    ]
    after = [
        # Two versions of the terms: 60 at 2.00 and 60 at 3.00.
        line("usage", "on_demand", 60, 120 * UNIT),
        line("usage", "on_demand", 60, 180 * UNIT),
        line("usage", "reserved_idle", 14, 21 * UNIT),  # 4 more at 1.00; 14 now at 1.50
        line("usage", "on_demand", 2, 8 * UNIT, idle=True),  # a service's idle time, new
        line("transfer", "preemption_lost", 1, 2 * UNIT),
        line("credit", "goodwill", -4, -4 * UNIT),
        line("adjustment", "on_demand", 1, 9 * UNIT),
    ]
    assert bridge(before, after, total(before), total(after)) == [
        Step("price", (300 - 240 + 21 - 14) * UNIT, 6_700),
        Step("volume", (20 * 2 - 5) * UNIT, 3_500),
        Step("idle", (4 + 8) * UNIT, 1_200),
        Step("preemption", -5 * UNIT, -500),
        Step("credits", -3 * UNIT, -300),
        Step("adjustments", 9 * UNIT, 900),
    ]


def test_what_printing_rounds_is_a_step() -> None:
    before, after = (
        [line("usage", "on_demand", 1, 4_000)],
        [
            line("usage", "on_demand", 2, 8_000),
            line("transfer", "preemption_lost", 1, 4_000),
        ],
    )
    assert bridge(before, after, Printed(4_000, 0, CENT), Printed(12_000, 1, CENT)) == [
        Step("volume", 4_000, 0),
        Step("preemption", 4_000, 0),
        Step("rounding", 0, 1),
    ]


@pytest.mark.parametrize("side", [0, 1])
def test_a_missing_price_leaves_no_bridge(side: int) -> None:
    known, unknown = [line("usage", "on_demand", 1, 1)], [line("usage", "on_demand", 1, None)]
    sides = (unknown, known) if side == 0 else (known, unknown)
    assert bridge(*sides, total(known), total(known)) is None


def test_two_equal_months_differ_in_nothing() -> None:
    lines = [line("usage", "on_demand", 7, 13), line("tokens", "input", 0, 5)]
    assert bridge(lines, lines, total(lines), total(lines)) == []


LINES = st.lists(
    st.builds(
        BridgeLine,
        st.tuples(st.sampled_from(["a", "b"])),
        st.sampled_from(["usage", "shared", "tokens", "transfer", "credit", "adjustment"]),
        st.sampled_from(["on_demand", "reserved_idle", "goodwill"]),
        st.integers(-(10**15), 10**15),
        st.integers(-(10**15), 10**15),
        st.booleans(),
    ),
    max_size=8,
)


@given(LINES, LINES)
def test_the_steps_add_up_to_the_difference_exactly_and_as_printed(
    before: list[BridgeLine], after: list[BridgeLine]
) -> None:
    was, now = total(before), total(after)
    steps = bridge(before, after, was, now)
    assert steps is not None
    assert sum(step.amount_micro for step in steps) == now.total_micro - was.total_micro
    assert sum(step.printed_minor for step in steps) == now.total_minor - was.total_minor
    assert [step.name for step in steps] == [name for name in STEPS if name in {step.name for step in steps}]
