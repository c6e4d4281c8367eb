"""Which month a refused line counts in: that of its time, else of what it speaks of, else of its reception."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from billing.selectors.checklist import month_checklist
from ingest.models import Batch, QuarantinedEvent
from ingest.selectors.month_evidence import month_evidence
from ingest.services.booking import book_batch
from ingest.services.inbox import Body, accept_batch
from ingest.services.retrying import dismiss_quarantine, retry_quarantine
from ledger.models import Period
from ledger.services.audit import SYSTEM, Actor
from tests.ingest.feeding import NDJSON, deliver, lines, occupancy

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

MONTHS = [datetime(2026, number, 1, tzinfo=UTC) for number in (9, 10, 11, 12)]


def blocks() -> list[tuple[tuple[str, int], ...]]:
    """What blocks September, October and November."""
    return [month_evidence(*span).quarantined for span in itertools.pairwise(MONTHS)]


def told() -> list[tuple[tuple[str, int], ...]]:
    return [month_evidence(*span).elsewhere for span in itertools.pairwise(MONTHS)]


def received(at: datetime, *sent: Any) -> None:
    """A delivery that came at an instant of the test's own."""
    batch, _ = accept_batch(Body(lines(*sent), NDJSON), door="test", submitted_by="test")
    Batch.objects.filter(pk=batch.pk).update(received_at=at)
    assert book_batch(batch.pk) is not None


def test_a_line_without_a_time_counts_in_the_month_it_came_in_and_is_told_to_those_before() -> None:
    received(datetime(2026, 10, 15, tzinfo=UTC), b"{broken")
    assert blocks() == [(), (("not_json", 1),), ()]
    assert told() == [(("not_json", 1),), (), (("not_json", 1),)]


def test_a_line_whose_time_cannot_be_read_counts_in_the_month_it_speaks_of() -> None:
    received(
        datetime(2026, 11, 15, tzinfo=UTC),
        occupancy("o-1", "2026-10-31T23:59:59", 1),  # without its offset
        b'{"id": "o-2", "time": "2026-09-02T10:00:00Z", "data": {"at": "2026-09-30T23:00:00+08:00", "x": ',
        b'{"id": "o-3", "time": "2026-10-05T10:00:00Z", "data": {"until": "2199-01-01T00:00:00Z"',
    )
    assert [dict(month) for month in blocks()] == [
        {"not_json": 1},
        {"not_json": 1, "time_without_offset": 1},
        {},
    ]


def test_a_line_with_a_time_counts_there_and_is_told_to_the_months_after() -> None:
    deliver(occupancy("o-1", "2026-09-15T00:00:00Z", 1))
    assert [dict(month) for month in blocks()] == [{"unknown_pool": 1}, {}, {}]
    assert [dict(month) for month in told()] == [{}, {"unknown_pool": 1}, {"unknown_pool": 1}]


def test_a_retry_that_changes_nothing_moves_no_line_to_another_month() -> None:
    received(datetime(2026, 10, 15, tzinfo=UTC), b"{broken", b"{also")
    for _ in range(2):
        assert [one.quarantined for one in retry_quarantine(by="test")] == [2]
        assert blocks() == [(), (("not_json", 2),), ()]


def test_a_month_closes_over_lines_that_are_set_aside_with_a_reason() -> None:
    received(datetime(2026, 10, 15, tzinfo=UTC), b"{broken")
    ids = list(QuarantinedEvent.objects.values_list("pk", flat=True))
    dismiss_quarantine(Actor(SYSTEM), "half a line of a disk that was full", ids)
    assert (blocks(), told()) == ([(), (), ()], [(), (), ()])


def test_the_checklist_tells_what_counts_elsewhere_and_does_not_block() -> None:
    received(datetime(2026, 10, 15, tzinfo=UTC), b"{broken")
    september = Period(month="2026-09", starts_at=MONTHS[0], ends_at=MONTHS[1])
    items = {item.code: item for item in month_checklist(september, MONTHS[3], unproved=[])}
    assert items["quarantine"].evidence == ()
    elsewhere = items["quarantine_elsewhere"]
    assert ([str(one) for one in elsewhere.evidence], elsewhere.blocks) == (["not_json: 1"], False)
