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


def test_what_only_changed_its_version_is_no_line() -> None:
    """A price that begins later is told: beta's line is cut in two, at the same price for its 7 GPU-hours."""
    later = replace(HELD, version_from_ms=HELD.version_from_ms + 5)
    cut = f"2026-09|tenant:beta|{later.key}"
    versions = [
        moved(GPU_US, 3, "tenant:beta", "pool:bj-h100"),
        moved(MONEY, 9, "pool:bj-h100", "tenant:beta"),
        moved(GPU_US, 3, "pool:bj-h100", "tenant:beta", cut),
    ]
    assert adjustment_lines([*versions, moved(MONEY, 9, "tenant:beta", "pool:bj-h100", cut)]) == []
    # Where it is dearer the difference is one line, in money, about the time from the first version on.
    (line,) = adjustment_lines([*versions, moved(MONEY, 12, "tenant:beta", "pool:bj-h100", cut)])
    assert (line.quantity, line.unit, line.amount_micro) == (3, MONEY, 3)
    assert line.version_from_ms == HELD.version_from_ms


def test_a_preemption_that_moved_to_another_instant_is_no_line_and_others_stay_apart() -> None:
    paid = replace(HELD, kind="transfer", category="preemption_lost", preemptions=("p1",))
    later = replace(paid, version_from_ms=paid.version_from_ms + 5)
    other = replace(later, preemptions=("p2",))
    back, forth = ("tenant:acme", "tenant:beta"), ("tenant:beta", "tenant:acme")
    keys = [f"2026-09|tenant:beta|{one.key}" for one in (paid, later, other)]
    same = [moved(MONEY, 5, *back, keys[0]), moved(MONEY, 5, *forth, keys[1])]
    assert adjustment_lines(same) == []
    found = adjustment_lines([*same, moved(MONEY, 6, *forth, keys[2])])
    assert [(line.account, line.amount_micro, line.preemptions) for line in found] == [
        ("tenant:acme", -6, ("p2",)),
        ("tenant:beta", 6, ("p2",)),
    ]


def test_credits_stand_for_themselves() -> None:
    one = replace(HELD, kind="credit", category="goodwill", version_from_ms=1)
    keys = [f"2026-09|tenant:beta|{replace(one, version_from_ms=at).key}" for at in (1, 2)]
    found = adjustment_lines(moved(MONEY, 4, "platform", "tenant:beta", key) for key in keys)
    assert [line.amount_micro for line in found if line.account == "tenant:beta"] == [-4, -4]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    ("usage", "on_demand"),
                    ("credit", "lend_credit"),
                    ("credit", "goodwill"),
                    ("transfer", "preemption_lost"),
                ]
            ),
            st.integers(0, 3),
            st.sampled_from([GPU_US, MONEY]),
            st.integers(1, 5),
            st.permutations(["tenant:a", "tenant:b", "pool:p", "platform"]),
        ),
        max_size=12,
    )
)
def test_netting_loses_nothing_and_leaves_no_pair(
    parts: list[tuple[tuple[str, str], int, str, int, list[str]]],
) -> None:
    made = []
    owed = dict.fromkeys(("tenant:a", "tenant:b", "platform"), 0)
    for (kind, category), version, unit, quantity, (debit, credit, *_) in parts:
        line = replace(HELD, kind=kind, category=category, version_from_ms=version)
        made.append(moved(unit, quantity, debit, credit, f"2026-09|{debit}|{line.key}"))
        if unit == MONEY:
            owed |= {who: owed[who] + quantity for who in (debit,) if who in owed}
            owed |= {who: owed[who] - quantity for who in (credit,) if who in owed}
    lines = adjustment_lines(made)
    assert len({(line.account, line.key) for line in lines}) == len(lines)
    assert {who: sum(one.amount_micro or 0 for one in lines if one.account == who) for who in owed} == owed
    named = [(one.account, one.category) for one in lines if one.category != "goodwill"]
    # Nothing else sets these apart, so what is left of each is one line.
    assert len(set(named)) == len(named)


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
