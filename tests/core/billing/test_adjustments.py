"""From transfers that concern other months to adjustment lines (domain.md section 10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.adjustments import Moved, adjustment_lines, line_of_key
from billing.core.posting import targets_of
from billing.core.rating_lines import GPU_US, MONEY, Line

HELD = Line(
    account="tenant:beta",
    kind="usage",
    category="on_demand",
    quantity=7,
    unit=GPU_US,
    version_from_ms=1_790_812_800_000,
    amount_micro=21,
    pool="bj-h100",
)
KEY = f"2026-09|tenant:beta|{HELD.key}"

word = st.text(st.sampled_from("abc-1"), max_size=4)


def moved(unit: str, quantity: int, debit: str, credit: str, key: str = KEY) -> Moved:
    return Moved("2026-09", key, unit, debit, credit, quantity)


def test_gpu_time_and_money_of_one_line_meet() -> None:
    lines = adjustment_lines(
        [moved(GPU_US, 7, "pool:bj-h100", "tenant:beta"), moved(MONEY, 21, "tenant:beta", "pool:bj-h100")]
    )
    assert [(line.account, line.kind, line.category, line.concerns_month) for line in lines] == [
        ("tenant:beta", "adjustment", "on_demand", "2026-09")
    ]
    assert (lines[0].quantity, lines[0].unit, lines[0].amount_micro) == (7, GPU_US, 21)


def test_what_is_taken_back_is_negative() -> None:
    lines = adjustment_lines(
        [moved(GPU_US, 7, "tenant:beta", "pool:bj-h100"), moved(MONEY, 21, "pool:bj-h100", "tenant:beta")]
    )
    assert (lines[0].quantity, lines[0].amount_micro) == (-7, -21)


def test_money_between_tenants_is_on_both_bills_with_its_preemption() -> None:
    paid = replace(HELD, kind="transfer", category="preemption_lost", preemptions=("p1",))
    other = replace(paid, preemptions=("p2",))
    lines = adjustment_lines(
        moved(MONEY, amount, "tenant:beta", "tenant:acme", f"2026-09|tenant:beta|{line.key}")
        for line, amount in ((paid, 5), (other, 6))
    )
    assert [(line.account, line.amount_micro, line.quantity, line.unit) for line in lines] == [
        ("tenant:acme", -11, -11, MONEY),
        ("tenant:beta", 11, 11, MONEY),
    ]
    assert lines[0].preemptions == ("p1", "p2")


def test_what_nets_to_nothing_is_no_line() -> None:
    there, back = ("tenant:beta", "platform"), ("platform", "tenant:beta")
    assert adjustment_lines([moved(MONEY, 4, *there), moved(MONEY, 4, *back)]) == []


def test_adjustment_lines_post_nothing() -> None:
    lines = adjustment_lines([moved(MONEY, 21, "tenant:beta", "pool:bj-h100")])
    assert targets_of("2026-10", lines) == []


@given(
    st.builds(
        Line,
        account=word.map("tenant:".__add__),
        kind=st.sampled_from(["usage", "credit", "transfer"]),
        category=word,
        quantity=st.just(0),
        unit=st.just(GPU_US),
        version_from_ms=st.integers(0, 10**13),
        amount_micro=st.just(0),
        pool=word,
        service=word,
        model=st.text(st.sampled_from("ab|/-"), max_size=6),
        service_class=word,
        purpose=word,
        service_idle=st.booleans(),
        on_behalf_of=word,
        counter_account=word,
        concerns_month=word,
    )
)
def test_a_key_names_its_line(line: Line) -> None:
    assert line_of_key(f"2026-09|{line.account}|{line.key}") == line


def test_a_key_that_names_no_line_is_refused() -> None:
    with pytest.raises(ValueError, match="names no line"):
        line_of_key("2026-09|tenant:beta|usage")
