"""What becomes of alerts: at most one of a subject is not resolved, whatever is found and done."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from billing.core.alert_episodes import ShortStretch
from billing.core.alerts import (
    Finding,
    Known,
    PlannedCapacity,
    Rule,
    capacity_change,
    lapse,
    percent,
    plan,
    shortage,
)

HOUR_MS = 3_600_000


def test_a_threshold_is_exceeded_a_duration_is_reached() -> None:
    rule = Rule("shortage", 4_000_000, 600)
    stretch = ShortStretch("p", 0, None, 4_001, 0)
    assert [one.opens_ms for one in shortage(rule, [stretch], 600_000)] == [600_000]
    assert list(shortage(rule, [stretch], 599_999)) == []
    assert list(shortage(rule, [replace(stretch, deficit=4_000)], HOUR_MS)) == []
    assert list(shortage(replace(rule, pool="q"), [stretch], HOUR_MS)) == []


def test_shortages_with_little_calm_between_them_are_one_until_the_pool_is_calm() -> None:
    rule, minute = Rule("shortage", 0, 0), 60_000
    first = ShortStretch("p", 0, 10 * minute, 4_000, 100)
    second = ShortStretch("p", 69 * minute, 70 * minute, 6_000, 20)
    other = ShortStretch("q", 20 * minute, 30 * minute, 1_000, 1)

    def seen(now: int) -> list[tuple[object, ...]]:
        return [
            (
                one.pool,
                one.started_ms // minute,
                one.ended_ms,
                one.evidence["missing"]["value"],
                one.evidence["lasted"]["value"],
            )
            for one in shortage(rule, [second, other, first], now * minute)
        ]

    assert seen(129) == [("p", 0, None, "6", "70"), ("q", 20, 30 * minute, "1", "10")]
    assert seen(130) == [("p", 0, 70 * minute, "6", "70"), ("q", 20, 30 * minute, "1", "10")]
    late = replace(second, starts_ms=70 * minute, ends_ms=None)
    assert [one.started_ms // minute for one in shortage(rule, [first, late], 80 * minute)] == [0, 70]
    # What is too small or too short for the rule joins nothing together.
    strict = Rule("shortage", 4_000_000, 0)
    assert [one.started_ms // minute for one in shortage(strict, [first, second], 80 * minute)] == [69]


def test_figures() -> None:
    assert [lapse(ms)["value"] + lapse(ms)["unit"] for ms in (0, 1_999, 60_000, 61_000, HOUR_MS)] == [
        "0s",
        "1s",
        "1min",
        "61s",
        "1h",
    ]
    assert [percent(1, 3)["value"], percent(-1, 8)["value"], percent(1, 0)["value"]] == [
        "33.3",
        "-12.5",
        "0.0",
    ]


def test_two_facts_of_one_instant_are_one_announcement() -> None:
    change = PlannedCapacity("p", HOUR_MS, 0, 8_000, 4_000, "then")
    found = list(
        capacity_change(Rule("capacity_change", 0, 7200), [change, replace(change, after=6_000)], 10)
    )
    assert len(found) == 2
    assert [one.evidence["capacity_then"]["value"] for one in plan(found, [], 10).opened] == ["4"]


FINDINGS = st.lists(
    st.builds(
        lambda subject, start, length: Finding(
            subject, start, start, {}, None if length is None else start + length
        ),
        st.sampled_from("ab"),
        st.integers(0, 50),
        st.one_of(st.none(), st.integers(1, 20)),
    ),
    max_size=4,
)


@given(st.lists(st.tuples(FINDINGS, st.booleans()), max_size=8))
def test_one_alert_of_a_subject_at_a_time(looks: list[tuple[list[Finding], bool]]) -> None:
    """Looks at ever later instants; now and then somebody resolves everything by hand."""
    known: dict[int, Known] = {}
    for number, (findings, by_hand) in enumerate(looks):
        now_ms = 100 * (number + 1)
        planned = plan(findings, list(known.values()), now_ms)
        for key, ended_ms in planned.ended:
            assert isinstance(key, int)
            one = known[key]
            known[key] = replace(
                one, holds=False, is_resolved=True, ended_ms=one.ended_ms if one.is_resolved else ended_ms
            )
        for finding in planned.opened:
            is_over = finding.ended_ms is not None
            known[len(known)] = Known(
                len(known), finding.subject, finding.started_ms, finding.ended_ms, is_over, not is_over
            )
        unresolved = [one.subject for one in known.values() if not one.is_resolved]
        assert len(unresolved) == len(set(unresolved))
        holding = {one.subject for one in findings if one.ended_ms is None}
        assert {one.subject for one in known.values() if one.holds} == holding
        again = plan(findings, list(known.values()), now_ms)
        assert (again.ended, [one for one in again.opened if one.ended_ms is None]) == ([], [])
        if by_hand:
            known = {
                key: one if one.is_resolved else replace(one, is_resolved=True, ended_ms=now_ms)
                for key, one in known.items()
            }
