"""Target minus posted (domain.md section 10), for any history of targets."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.transfers import (
    INVARIANTS,
    Flow,
    Posted,
    Posting,
    Target,
    apply_postings,
    balances,
    posting_id,
    postings,
)

USAGE = Flow("2020-05/acme/used", "gpu_us", "pool:h100", "tenant:acme")


def run(history: list[dict[Flow, int]]) -> tuple[dict[Flow, Posted], list[Posting]]:
    """Post each month's target in turn; returns what stands posted and all transfers."""
    posted: dict[Flow, Posted] = {}
    transfers: list[Posting] = []
    for wanted in history:
        new = postings([Target(flow, quantity, "usage") for flow, quantity in wanted.items()], posted)
        posted = apply_postings(posted, new)
        transfers += new
    return posted, transfers


flows = st.builds(
    lambda tenant, pool, unit: Flow(f"2020-05/{tenant}/{pool}", unit, f"pool:{pool}", f"tenant:{tenant}"),
    st.sampled_from("abc"),
    st.sampled_from("xy"),
    st.sampled_from(["gpu_us", "amount_micro"]),
)
histories = st.lists(st.dictionaries(flows, st.integers(-(10**15), 10**15), max_size=6), max_size=6)


def test_first_posting_then_a_correction_down_then_nothing() -> None:
    posted, transfers = run([{USAGE: 100}, {USAGE: 70}, {USAGE: 70}])
    assert [(t.debit, t.credit, t.quantity) for t in transfers] == [
        ("pool:h100", "tenant:acme", 100),
        ("tenant:acme", "pool:h100", 30),
    ]
    assert posted == {USAGE: Posted(70, 2)}


def test_a_flow_without_target_is_taken_back_whole() -> None:
    posted, transfers = run([{USAGE: 100}, {}])
    assert [(t.debit, t.quantity, t.reason) for t in transfers] == [
        ("pool:h100", 100, "usage"),
        ("tenant:acme", 100, "reversal"),
    ]
    assert posted[USAGE].quantity == 0


def test_going_back_and_forth_never_repeats_an_id() -> None:
    _, transfers = run([{USAGE: 1}, {USAGE: 0}, {USAGE: 1}, {USAGE: 0}, {USAGE: 1}])
    assert len({transfer.id for transfer in transfers}) == 5


def test_the_id_is_fixed_for_ever() -> None:
    assert posting_id("2020-05/acme/used", "gpu_us", 0, 100, 0) == UUID(
        "b3835ec5-6417-5d4c-ac4f-4dadc98e9d0a"
    )


def test_two_targets_under_one_key_are_refused() -> None:
    other = Flow(USAGE.key, USAGE.unit, "pool:other", USAGE.credit)
    with pytest.raises(ValueError, match="two targets"):
        postings([Target(USAGE, 1, "a"), Target(other, 1, "a")], {})


def test_a_key_keeps_its_accounts() -> None:
    other = Flow(USAGE.key, USAGE.unit, "pool:other", USAGE.credit)
    with pytest.raises(ValueError, match="was posted between pool:other"):
        postings([Target(USAGE, 1, "a")], {other: Posted(1, 1)})


@given(histories)
def test_posted_equals_target_after_every_computation(history: list[dict[Flow, int]]) -> None:
    _, transfers = run(history)
    last = history[-1] if history else {}
    as_posted = [(flow, quantity) for flow, quantity in last.items() if quantity]
    stands: dict[tuple[str, str, str], int] = {}
    for transfer in transfers:
        for account, signed in ((transfer.debit, -transfer.quantity), (transfer.credit, transfer.quantity)):
            name = (transfer.key, transfer.unit, account)
            stands[name] = stands.get(name, 0) + signed
    wanted = {(flow.key, flow.unit, flow.credit): quantity for flow, quantity in as_posted}
    wanted |= {(flow.key, flow.unit, flow.debit): -quantity for flow, quantity in as_posted}
    assert {name: quantity for name, quantity in stands.items() if quantity} == wanted


@given(histories)
def test_posting_twice_posts_nothing(history: list[dict[Flow, int]]) -> None:
    posted, _ = run(history)
    last = history[-1] if history else {}
    assert postings([Target(flow, quantity, "usage") for flow, quantity in last.items()], posted) == []


@given(histories)
def test_invariants_hold_and_ids_are_unique(history: list[dict[Flow, int]]) -> None:
    _, transfers = run(history)
    assert [problem for invariant in INVARIANTS for problem in invariant(transfers)] == []
    assert len({transfer.id for transfer in transfers}) == len(transfers)


@given(histories)
def test_the_way_to_a_target_does_not_matter(history: list[dict[Flow, int]]) -> None:
    _, all_of_them = run(history)
    _, at_once = run(history[-1:])
    assert {name: net for name, net in balances(all_of_them).items() if net} == {
        name: net for name, net in balances(at_once).items() if net
    }


def test_invariants_find_what_is_broken() -> None:
    broken = Posting(UUID(int=1), "k", "gpu_us", "a", "a", -5, "r")
    findings = [problem for invariant in INVARIANTS for problem in invariant([broken])]
    assert findings == [f"{UUID(int=1)}: quantity -5", f"{UUID(int=1)}: from a to itself"]
