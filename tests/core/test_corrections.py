"""Which facts corrections void, from literals (domain.md section 3)."""

from __future__ import annotations

import itertools

import pytest

from ledger.core.corrections import CorrectionFact, Key, void_keys


def fact(name: str, time_ms: int, target: str, replacement: str | None = None) -> CorrectionFact:
    return CorrectionFact(
        ("s", name), time_ms, ("s", target), None if replacement is None else ("s", replacement)
    )


def void(*facts: CorrectionFact) -> set[str]:
    """Whatever the order in which they are given."""
    results: list[set[Key]] = [void_keys(order) for order in itertools.permutations(facts)]
    assert all(result == results[0] for result in results)
    return {event_id for _, event_id in results[0]}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([fact("c1", 1, "e")], {"e"}),
        ([fact("c1", 1, "e", "n1")], {"e"}),
        # The greatest wins: the other one's replacement does not count.
        ([fact("c1", 1, "e", "n1"), fact("c2", 2, "e", "n2")], {"e", "n1"}),
        ([fact("c1", 2, "e", "n1"), fact("c2", 2, "e", "n2")], {"e", "n1"}),
        # A withdrawn correction does not count: its event does again, its replacement does not.
        ([fact("c1", 1, "e", "n1"), fact("c2", 2, "c1")], {"c1", "n1"}),
        # ... and hands over to the next greatest.
        ([fact("c1", 1, "e", "n1"), fact("c2", 2, "e", "n2"), fact("c3", 3, "c2")], {"e", "c2", "n2"}),
        # The withdrawal is itself withdrawn: the correction counts again.
        ([fact("c1", 1, "e", "n1"), fact("c2", 2, "c1"), fact("c3", 3, "c2")], {"e", "c2"}),
        # A correction may be withdrawn by one that is dated before it.
        ([fact("c1", 5, "e"), fact("c2", 2, "c1")], {"c1"}),
        # A chain: the replacement is corrected in its turn.
        ([fact("c1", 1, "e", "n1"), fact("c2", 2, "n1", "n2")], {"e", "n1"}),
        # In a circle the greatest counts.
        ([fact("c1", 1, "c2"), fact("c2", 2, "c1")], {"c1"}),
        ([fact("c1", 1, "c1")], set()),
    ],
)
def test_what_does_not_count(facts: list[CorrectionFact], expected: set[str]) -> None:
    assert void(*facts) == expected


def test_bytes_decide_between_equal_times() -> None:
    first, last = fact("Z", 1, "e", "n1"), fact("a", 1, "e", "n2")
    assert void(first, last) == {"e", "n1"}
