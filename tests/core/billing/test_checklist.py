"""The closing checklist from literals (domain.md section 10)."""

from __future__ import annotations

import pytest

from billing.core.checklist import (
    ItemState,
    MonthEvidence,
    SourceSeen,
    blocked,
    checklist,
    incomplete,
    months_out_of_order,
    silent,
    with_waivers,
)

END, NOW = 1_000, 1_500


def seen(**what: object) -> MonthEvidence:
    return MonthEvidence(ends_ms=END, now_ms=NOW, **what)  # type: ignore[arg-type]


def test_nothing_wrong_is_clean() -> None:
    items = checklist(seen())
    assert {item.state for item in items} == {ItemState.CLEAN}
    assert len({item.code for item in items}) == len(items) == 15


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("earlier_open", "order"),
        ("behind", "computed"),
        ("unprocessed", "batches"),
        ("quarantined", "quarantine"),
        ("unattributed", "attribution"),
        ("unreconciled", "reconciliation"),
        ("exceptions", "exceptions"),
        ("missing_prices", "prices"),
        ("unproved", "conservation"),
        ("stale_approvals", "approvals"),
    ],
)
def test_each_kind_of_evidence_blocks_its_own_item(field: str, code: str) -> None:
    assert [item.code for item in blocked(checklist(seen(**{field: ["this"]})))] == [code]


@pytest.mark.parametrize(
    ("watermark", "signed_off", "complete"),
    [(None, None, False), (999, None, False), (1_000, None, True), (5, 1_000, True), (5, 999, False)],
)
def test_a_source_is_complete_past_the_end(
    watermark: int | None, signed_off: int | None, complete: bool
) -> None:
    source = SourceSeen("s", watermark, signed_off, None)
    assert incomplete(seen(sources=[source])) == ([] if complete else ["s"])


@pytest.mark.parametrize(
    ("watermark", "signed_off", "silence_after", "is_silent"),
    [
        (1_400, None, 100, False),
        (1_399, None, 100, True),
        (1_399, None, None, False),
        (1_399, 1_000, 100, False),
        (None, None, 100, True),
    ],
)
def test_a_source_is_silent_beyond_its_limit(
    watermark: int | None, signed_off: int | None, silence_after: int | None, is_silent: bool
) -> None:
    source = SourceSeen("s", watermark, signed_off, silence_after)
    assert silent(seen(sources=[source])) == (["s"] if is_silent else [])


def test_a_waiver_holds_for_its_evidence_only() -> None:
    items = checklist(seen(exceptions=["oversold: 1"]))
    waivers = {(item.code, item.evidence_sha256): "known" for item in blocked(items)}
    assert [item.state for item in with_waivers(items, waivers) if item.evidence] == [ItemState.WAIVED]
    more = checklist(seen(exceptions=["oversold: 2"]))
    assert [item.code for item in blocked(with_waivers(more, waivers))] == ["exceptions"]


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("quarantined_elsewhere", "quarantine_elsewhere"),
        ("unapproved", "drafts"),
        ("awaiting_approval", "second_person"),
    ],
)
def test_what_only_informs_is_open_and_neither_blocks_nor_can_be_waived(field: str, code: str) -> None:
    """Section 10 names what a close needs; an approval is not among it."""
    items = checklist(seen(**{field: ["this"]}))
    assert [(item.code, item.state, item.blocks) for item in items if item.evidence] == [
        (code, ItemState.OPEN, False)
    ]
    waivers = {(item.code, item.evidence_sha256): "known" for item in items}
    assert {item.state for item in with_waivers(items, waivers)} == {ItemState.CLEAN, ItemState.OPEN}
    assert blocked(items) == []
    assert {item.code for item in items if not item.blocks} == {
        "quarantine_elsewhere",
        "drafts",
        "second_person",
    }


def test_order_is_beyond_any_waiver() -> None:
    items = checklist(seen(earlier_open=["2026-09"], behind=["x"], stale_approvals=["y"]))
    waivers = {(item.code, item.evidence_sha256): "in a hurry" for item in items}
    assert [item.code for item in blocked(with_waivers(items, waivers))] == ["order", "computed", "approvals"]


def test_months_before_this_one_come_first() -> None:
    assert months_out_of_order("2026-10", ["2026-11", "2026-09", "2025-12", "2026-10"]) == [
        "2025-12",
        "2026-09",
    ]
