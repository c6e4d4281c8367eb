"""Corrections: whatever the order of arrival, what they replace no longer counts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ingest.models import QuarantinedEvent
from ledger.models import Correction, DirtySpan, Event, Level, Request, Subject, UsageHour
from tests.ingest.feeding import SOURCE, all_facts, deliver, event, occupancy, request, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def world(db: None) -> None:
    small_world()


def correction(event_id: str, time: str, target: str, replacement: Any = None) -> dict[str, Any]:
    data = {"supersedes": {"source": SOURCE, "id": target}, "reason": "wrong"}
    return event("correction", event_id, time, **data, **({"event": replacement} if replacement else {}))


def a_request(event_id: str, tokens: int) -> dict[str, Any]:
    return request(
        event_id,
        "2026-10-01T02:10:00Z",
        "2026-10-01T00:50:00Z",
        input_tokens=tokens,
        gpu_seconds=f"{tokens}.5",
    )


def counted() -> dict[str, int]:
    rows = UsageHour.objects.all()
    names = (
        "requests",
        "input_tokens",
        "input_missing",
        "output_missing",
        "gpu_us",
        "gpu_missing",
        "concurrency_us",
    )
    return {name: sum(getattr(row, name) for row in rows) for name in names}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_corrected_requests_leave_the_rollup_in_any_order(order: tuple[int, ...]) -> None:
    """Two corrections of one request: the later one's replacement counts, the earlier one's does not."""
    events = [
        a_request("r-100", 100),
        correction("c-1", "2026-10-02T00:00:00Z", "r-100", a_request("r-101", 7)),
        correction("c-2", "2026-10-03T00:00:00Z", "r-100", a_request("r-102", 30)),
    ]
    for place in order:
        receipt = deliver(events[place])
        assert (receipt.received, receipt.booked) == (1, 1)
    assert Request.objects.count() == 3
    assert counted() == {
        "requests": 1,
        "input_tokens": 30,
        "input_missing": 0,
        "output_missing": 1,
        "gpu_us": 30_500_000,
        "gpu_missing": 0,
        "concurrency_us": 80 * 60 * 1_000_000,
    }
    before = all_facts()
    assert deliver(*events).duplicate == 3
    assert all_facts() == before


def test_a_withdrawn_request_counts_nothing_even_within_one_batch() -> None:
    deliver(correction("c-1", "2026-10-02T00:00:00Z", "r-100"), a_request("r-100", 100))
    assert set(counted().values()) == {0}


def test_a_replacement_level_is_booked_and_the_old_one_is_dirty() -> None:
    deliver(occupancy("o-1", "2026-10-01T00:00:00Z", 0))
    DirtySpan.objects.all().delete()
    replacement = occupancy("o-1b", "2026-10-01T03:00:00Z", 4)
    receipt = deliver(correction("c-1", "2026-10-02T00:00:00Z", "o-1", replacement))
    assert receipt.booked == 1
    assert sorted(Level.objects.values_list("milli_gpus", flat=True)) == [0, 4000]
    assert Event.objects.count() == 3
    found = Correction.objects.get()
    assert (found.replacement_source, found.replacement_event_id) == (SOURCE, "o-1b")
    lowers = [span.span.lower.hour for span in DirtySpan.objects.all()]
    assert min(lowers) == 0
    # The level of 0 no longer says that nothing is held.
    assert Subject.objects.get().last_milli_gpus > 0


def test_a_withdrawn_release_keeps_its_subject_watched_whoever_comes_first() -> None:
    deliver(occupancy("o-1", "2026-10-01T00:00:00Z", 4), correction("c", "2026-10-02T00:00:00Z", "o-2"))
    deliver(occupancy("o-2", "2026-10-01T05:00:00Z", 0))
    assert Subject.objects.get().last_milli_gpus > 0


def test_a_replacement_whose_key_is_taken_is_a_conflict_of_its_correction() -> None:
    deliver(occupancy("o-1", "2026-10-01T00:00:00Z", 1), occupancy("o-2", "2026-10-01T01:00:00Z", 2))
    receipt = deliver(
        correction("c-1", "2026-10-02T00:00:00Z", "o-1", occupancy("o-2", "2026-10-01T01:00:00Z", 3))
    )
    assert (receipt.booked, receipt.conflict) == (0, 1)
    assert QuarantinedEvent.objects.get().reason == "conflict"
    assert not Correction.objects.exists()


def test_a_conflicting_correction_does_not_bring_its_replacement() -> None:
    deliver(correction("c-1", "2026-10-02T00:00:00Z", "o-1"))
    other = correction("c-1", "2026-10-02T00:00:00Z", "o-1", occupancy("o-9", "2026-10-01T01:00:00Z", 3))
    with_request = correction("c-1", "2026-10-02T00:00:00Z", "o-1", a_request("r-900", 3))
    receipt = deliver(other, with_request)
    assert (receipt.booked, receipt.conflict) == (0, 2)
    assert not Level.objects.exists() and not Request.objects.exists()


NESTED = [
    a_request("r-100", 100),
    correction("c-1", "2026-10-02T00:00:00Z", "r-100", a_request("r-101", 7)),
    correction("c-2", "2026-10-03T00:00:00Z", "c-1"),
    correction("c-3", "2026-10-04T00:00:00Z", "c-2"),
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_withdrawn_correction_gives_the_request_back_in_any_order(order: tuple[int, ...]) -> None:
    for place in order:
        deliver(NESTED[place])
    assert (counted()["requests"], counted()["input_tokens"], counted()["gpu_us"]) == (1, 100, 100_500_000)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2)])
def test_a_withdrawn_withdrawal_lets_the_correction_count_again(order: tuple[int, ...]) -> None:
    for place in order:
        deliver(NESTED[place])
    assert counted() == {
        "requests": 1,
        "input_tokens": 7,
        "input_missing": 0,
        "output_missing": 1,
        "gpu_us": 7_500_000,
        "gpu_missing": 0,
        "concurrency_us": 80 * 60 * 1_000_000,
    }


def test_a_withdrawn_correction_of_a_level_dirties_it_again() -> None:
    deliver(occupancy("o-1", "2026-10-01T03:00:00Z", 4), correction("c-1", "2026-10-02T00:00:00Z", "o-1"))
    DirtySpan.objects.all().delete()
    deliver(correction("c-2", "2026-10-03T00:00:00Z", "c-1"))
    assert [span.span.lower.hour for span in DirtySpan.objects.all()] == [3]
