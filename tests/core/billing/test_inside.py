"""A bill told apart inside the tenant: hand-divided amounts, and that nothing is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.core.inside import Group, Held, Part, parts_of_bill

USED: Group = ("bj-h100", "", "guaranteed", "reserved_used")
IDLE: Group = ("bj-h100", "", "", "reserved_idle")
EXTRA: Group = ("bj-h100", "", "", "on_demand")


def test_each_line_is_divided_by_the_time_of_its_own_group() -> None:
    held = [Held(USED, "ann", 1), Held(USED, "bo", 2), Held(EXTRA, "bo", 5), Held(IDLE, "", 4)]
    assert parts_of_bill(held, {USED: 100, EXTRA: 50, IDLE: 7}) == [
        Part("bo", 7, 67 + 50),
        Part("", 4, 7),
        Part("ann", 1, 33),
    ]


def test_a_line_without_a_price_is_unknown_to_those_who_share_it() -> None:
    held = [Held(USED, "ann", 1), Held(EXTRA, "bo", 1)]
    assert parts_of_bill(held, {USED: None, EXTRA: 5}) == [Part("ann", 1, None), Part("bo", 1, 5)]


def test_an_amount_that_no_time_stands_for_goes_to_no_one() -> None:
    assert parts_of_bill([Held(USED, "ann", 1)], {USED: 3, IDLE: 9}) == [Part("ann", 1, 3), Part("", 0, 9)]


GROUPS = st.sampled_from([USED, IDLE, EXTRA])
HELD = st.lists(st.builds(Held, GROUPS, st.sampled_from(["", "a", "b", "c"]), st.integers(0, 10**15)))


@given(HELD, st.dictionaries(GROUPS, st.integers(-(10**12), 10**12)))
def test_the_parts_add_up_to_time_and_amounts(held: list[Held], amounts: dict[Group, int | None]) -> None:
    parts = parts_of_bill(held, amounts)
    assert sum(part.gpu_us for part in parts) == sum(one.gpu_us for one in held)
    assert sum(part.amount_micro or 0 for part in parts) == sum(amount or 0 for amount in amounts.values())
    assert len({part.name for part in parts}) == len(parts)
