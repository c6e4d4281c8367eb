"""Rules that measure, in hindsight: when they are looked at, and what a run of looks comes to."""

from __future__ import annotations

from billing.core.alert_history import looks, stretches
from billing.core.alerts import Finding
from ledger.core.periods import Span

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def found(subject: str, at_ms: int, value: str = "1") -> Finding:
    return Finding(subject, at_ms, at_ms, {"n": {"value": value, "unit": "count"}})


def test_looks_follow_each_other_as_long_as_is_measured_and_at_least_daily() -> None:
    assert looks(Span(0, 3 * HOUR_MS + 5), 3600) == [HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS, 3 * HOUR_MS + 5]
    assert looks(Span(0, 2 * DAY_MS), 7 * 86_400) == [DAY_MS, 2 * DAY_MS]
    assert looks(Span(7, 9), 3600) == [9]


def test_a_run_of_looks_is_one_finding_with_its_last_evidence() -> None:
    looked = [
        (1, [found("a", 1), found("b", 1)]),
        (2, [found("a", 2, "2"), found("a", 2, "9")]),
        (3, []),
        (4, [found("a", 4), found("c", 4)]),
        (5, [found("c", 5, "5")]),
    ]
    told = [
        (one.subject, one.started_ms, one.opens_ms, one.ended_ms, one.evidence["n"]["value"])
        for one in stretches(looked)
    ]
    assert told == [("a", 1, 1, 3, "2"), ("b", 1, 1, 2, "1"), ("a", 4, 4, 5, "1"), ("c", 4, 4, None, "5")]
