"""Printed amounts, canonical JSON and the chain of statements (domain.md sections 8 and 10)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.canonical_json import canonical_json, canonical_sha256
from billing.core.rating_lines import Line
from billing.core.sentences import Sentence
from billing.core.statement import GENESIS, INVARIANTS, Link, bill, broken_links, chain, seal

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def line(amount_micro: int | None, category: str = "on_demand") -> Line:
    return Line(
        account="tenant:acme",
        kind="usage",
        category=category,
        quantity=1,
        unit="gpu_us",
        version_from_ms=0,
        amount_micro=amount_micro,
    )


# Printing


def test_the_total_is_rounded_once_and_lines_add_up_to_it() -> None:
    printed = bill([line(3_334_000, "a"), line(3_334_000, "b"), line(3_334_000, "c")])
    # 10.002 prints as 10.00; three times 3.33 is 9.99, so the first of equal fractions gets a cent.
    assert (printed.total_micro, printed.total_minor) == (10_002_000, 1000)
    assert [(one.amount_minor, one.rounding_micro) for one in printed.lines] == [
        (334, 6_000),
        (333, -4_000),
        (333, -4_000),
    ]


def test_negative_amounts_are_floored_toward_minus_infinity() -> None:
    printed = bill([line(-5_000, "a"), line(15_000, "b")])
    # -0.005 floors to -0.01, 0.015 to 0.01; the total 0.01 needs one more cent, which goes to the first.
    assert [one.amount_minor for one in printed.lines] == [0, 1]
    assert printed.total_minor == 1


def test_half_cents_of_the_total_go_to_even() -> None:
    assert [bill([line(micro)]).total_minor for micro in (5_000, 15_000, -5_000, 25_001)] == [0, 2, 0, 3]


def test_a_line_without_an_amount_prints_none() -> None:
    printed = bill([line(None, "a"), line(10_000, "b")])
    assert [one.amount_minor for one in printed.lines] == [None, 1]


def test_currencies_without_a_minor_unit() -> None:
    assert bill([line(1_500_000)], minor_places=0).total_minor == 2
    assert bill([line(1_500_500)], minor_places=3).total_minor == 1500


@given(st.lists(st.integers(-(10**12), 10**12), max_size=12), st.sampled_from([0, 2, 3]))
def test_printed_lines_always_sum_to_the_printed_total(amounts: list[int], places: int) -> None:
    printed = bill([line(amount, f"c{number:02d}") for number, amount in enumerate(amounts)], places)
    assert [problem for invariant in INVARIANTS for problem in invariant(printed)] == []
    unit = 10 ** (6 - places)
    assert all(abs(one.rounding_micro) < unit for one in printed.lines)


# Canonical JSON


def test_the_spelling_of_rfc_8785() -> None:
    value = {"€": 1, "\r": '\x0f\n"\\', "1": [True, None, -5], "\U0001f600": {}, "ö": "/\u2028", "\ufb33": []}
    # Names by UTF-16 code units: the emoji's surrogate (d83d) comes before U+FB33.
    assert canonical_json(value).decode() == (
        '{"\\r":"\\u000f\\n\\"\\\\","1":[true,null,-5],"ö":"/\u2028","€":1,"\U0001f600":{},"\ufb33":[]}'
    )


@given(json_values)
def test_it_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(st.text(), st.integers(0, 9)))
def test_the_order_of_names_does_not_matter(value: dict[str, int]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


@pytest.mark.parametrize("value", [1.5, b"x", object(), {1: 2}])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        canonical_json(value)


def test_integers_that_a_double_cannot_hold_are_refused() -> None:
    assert canonical_json(2**53 - 1) == b"9007199254740991"
    with pytest.raises(ValueError, match="write it as a string"):
        canonical_json(2**53)


def test_a_known_hash() -> None:
    # printf '{"a":1}' | sha256sum
    assert canonical_sha256({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


# The chain

CONTENTS: list[tuple[str, str, dict[str, Any]]] = [
    ("2020-06", "acme", {"total": "3"}),
    ("2020-05", "beta", {"total": "2"}),
    ("2020-05", "acme", {"total": "1"}),
]


def test_both_chains_run_by_month_then_slug_from_64_zeros() -> None:
    first, second, third = chain(CONTENTS)
    assert [(one.month, one.tenant) for one in (first, second, third)] == [
        ("2020-05", "acme"),
        ("2020-05", "beta"),
        ("2020-06", "acme"),
    ]
    assert (first.previous_of_tenant, first.previous_of_ledger) == (GENESIS, GENESIS)
    assert (second.previous_of_tenant, second.previous_of_ledger) == (GENESIS, first.sha256)
    assert (third.previous_of_tenant, third.previous_of_ledger) == (first.sha256, second.sha256)
    assert first.sha256 == seal({"total": "1"}, GENESIS, GENESIS)


def told(problems: list[Sentence]) -> list[str]:
    return [str(problem) for problem in problems]


def test_a_change_anywhere_is_found() -> None:
    links = chain(CONTENTS)
    contents = {(month, tenant): content for month, tenant, content in CONTENTS}
    assert broken_links(links, contents) == []
    contents["2020-05", "acme"] = {"total": "9"}
    assert told(broken_links(links, contents)) == ["2020-05 acme: the content does not give its hash"]


def test_a_statement_that_is_gone_or_resealed_is_found() -> None:
    first, second, third = chain(CONTENTS)
    contents = {(month, tenant): content for month, tenant, content in CONTENTS}
    assert told(broken_links([first, third], contents)) == [
        "2020-06 acme does not follow the ledger's previous statement"
    ]
    forged = {**contents, ("2020-05", "acme"): {"total": "9"}}
    resealed = Link("acme", "2020-05", seal({"total": "9"}, GENESIS, GENESIS), GENESIS, GENESIS)
    assert told(broken_links([resealed, second, third], forged)) == [
        "2020-05 beta does not follow the ledger's previous statement",
        "2020-06 acme does not follow the tenant's previous statement",
    ]
