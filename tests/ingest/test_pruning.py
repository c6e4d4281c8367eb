"""Raw requests past retention: archived with their hashes, dropped, and the books none the worse (domain.md 10)."""

from __future__ import annotations

import hashlib
import io
import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from ingest.management.commands import prune_requests as command
from ingest.models import Batch, QuarantinedEvent
from ingest.services import pruning
from ledger.checks import batches_lose_nothing
from ledger.models import FactFinding, Ledger, Period, PeriodState, PrunedDay, Request, UsageHour
from tests.ingest.feeding import deliver, event, forget_days, request, small_world
from tests.ingest.test_corrections import correction

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

CLOSED_AT = datetime(2026, 11, 5, tzinfo=UTC)
MUCH_LATER = datetime(2100, 1, 1, tzinfo=UTC)
FIRST, SECOND = date(2026, 10, 1), date(2026, 10, 2)


@pytest.fixture(autouse=True)
def world(db: None) -> None:
    """Two requests on the first day, one on the second; October is closed."""
    forget_days()
    small_world()
    deliver(
        request("r-1", "2026-10-01T02:10:00Z", "2026-10-01T02:00:00Z", input_tokens=5, gpu_seconds="1.5"),
        request("r-2", "2026-10-01T23:10:00Z", "2026-10-01T23:00:00Z", input_tokens=7),
        request("r-3", "2026-10-02T02:10:00Z", "2026-10-02T02:00:00Z", input_tokens=9),
    )
    october()


def october(**fields: Any) -> Period:
    closed = {
        "starts_at": datetime(2026, 10, 1, tzinfo=UTC),
        "ends_at": datetime(2026, 11, 1, tzinfo=UTC),
        "state": PeriodState.CLOSED,
        "cut_sequence": 1,
        "closed_at": CLOSED_AT,
    }
    return Period.objects.get_or_create(month="2026-10", defaults=closed | fields)[0]


def reopened(**fields: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ledger_period DISABLE TRIGGER USER")
        Period.objects.update(**fields)
        cursor.execute("ALTER TABLE ledger_period ENABLE TRIGGER USER")


def reason_at(now: datetime) -> str:
    days, kept = pruning.prunable_days(now)
    assert days == [] and kept is not None and kept.day == FIRST
    return kept.why


def test_a_day_goes_only_when_nothing_needs_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    day_over = datetime(2026, 10, 2, tzinfo=UTC)
    assert reason_at(day_over + timedelta(days=400, seconds=-1)) == "kept for 400 days"
    assert pruning.prunable_days(day_over + timedelta(days=400)) == (
        [FIRST],
        pruning.Kept(SECOND, "kept for 400 days"),
    )
    Ledger.objects.update(options={"request_retention_days": 10})
    assert reason_at(CLOSED_AT + timedelta(days=59)) == "2026-10 can be disputed until 2027-01-04"
    assert pruning.prunable_days(CLOSED_AT + timedelta(days=60)) == ([FIRST, SECOND], None)
    monkeypatch.setattr("billing.selectors.disputes.months_in_dispute", lambda: {"2026-10"})
    assert reason_at(MUCH_LATER) == "2026-10 has an open dispute"
    reopened(state=PeriodState.REVIEW)
    assert reason_at(MUCH_LATER) == "2026-10 is not closed"
    reopened(starts_at=datetime(2026, 10, 1, 1, tzinfo=UTC), state=PeriodState.CLOSED)
    assert reason_at(MUCH_LATER) == "its month is not closed"


def test_what_is_dropped_is_in_the_archive_and_the_roll_up_stays(tmp_path: Path) -> None:
    before = list(UsageHour.objects.order_by("hour").values_list("hour", "input_tokens", "gpu_us"))
    (pruned,) = pruning.prune_requests([FIRST], tmp_path)
    assert (pruned.day, pruned.rows) == (FIRST, 2)
    assert list(Request.objects.values_list("event_id", flat=True)) == ["r-3"]
    assert list(UsageHour.objects.order_by("hour").values_list("hour", "input_tokens", "gpu_us")) == before
    file = tmp_path / "requests-2026-10-01.csv.zst"
    rows = list(pruning.archived_rows(file))
    assert [(row["event_id"], row["pool"], row["identity_value"], row["input_tokens"]) for row in rows] == [
        ("r-1", "bj-h100", "acme", "5"),
        ("r-2", "bj-h100", "acme", "7"),
    ]
    assert (rows[0]["gpu_us"], rows[1]["gpu_us"]) == ("1500000", "")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest == {
        "files": {
            file.name: {
                "day": "2026-10-01",
                "rows": 2,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }
        }
    }
    assert PrunedDay.objects.get().sha256 == pruned.sha256 == manifest["files"][file.name]["sha256"]
    assert list(batches_lose_nothing(None)) == []


def test_events_of_a_pruned_day_are_too_old_and_others_are_booked(tmp_path: Path) -> None:
    list(pruning.prune_requests([FIRST], tmp_path))
    receipt = deliver(
        request("r-1", "2026-10-01T02:10:00Z", "2026-10-01T02:00:00Z", input_tokens=5, gpu_seconds="1.5"),
        request("r-4", "2026-10-02T04:10:00Z", "2026-10-02T04:00:00Z", input_tokens=1),
    )
    assert (receipt.booked, receipt.quarantined) == (1, 1)
    assert QuarantinedEvent.objects.get().reason == "too_old"


def test_a_correction_of_a_pruned_request_is_told_and_its_replacement_refused(tmp_path: Path) -> None:
    list(pruning.prune_requests([FIRST], tmp_path))
    instead = request("r-1b", "2026-10-01T02:10:00Z", "2026-10-01T02:00:00Z", input_tokens=4)
    receipt = deliver(
        correction("c-1", "2026-10-20T00:00:00Z", "r-1", instead),
        correction("c-2", "2026-10-21T00:00:00Z", "r-2"),
        correction("c-3", "2026-10-22T00:00:00Z", "r-3"),
        correction("c-4", "2026-10-23T00:00:00Z", "r-5"),
    )
    assert (receipt.booked, receipt.quarantined) == (3, 1)
    assert QuarantinedEvent.objects.get().reason == "too_old"
    assert found_missing() == {"r-2", "r-5"}
    # What came after its correction is no longer missed; nor does it count.
    deliver(request("r-5", "2026-10-02T05:10:00Z", "2026-10-02T05:00:00Z", input_tokens=1))
    assert found_missing() == {"r-2"}
    assert not FactFinding.objects.filter(blocks_close=True).exists()
    assert list(batches_lose_nothing(None)) == []


def test_before_anything_is_pruned_a_correction_may_come_first() -> None:
    deliver(correction("c-1", "2026-10-20T00:00:00Z", "r-9"))
    assert found_missing() == set()


def found_missing() -> set[str]:
    findings = FactFinding.objects.filter(code="correction_of_nothing")
    return {finding.detail["event"] for finding in findings}


def test_a_file_that_cannot_be_read_back_keeps_its_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "archived_rows", lambda path: iter([{}]))
    with pytest.raises(pruning.ArchiveBroken):
        list(pruning.prune_requests([FIRST], tmp_path))
    assert Request.objects.count() == 3
    assert not PrunedDay.objects.exists() and "requests_kept_from" not in Ledger.objects.get().options


def test_the_command_says_what_goes_and_what_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        @staticmethod
        def now() -> datetime:
            return MUCH_LATER

    monkeypatch.setattr(command, "timezone", Clock)
    out = io.StringIO()
    call_command("prune_requests", archive=tmp_path, dry_run=True, stdout=out)
    assert out.getvalue().splitlines() == ["would prune 2026-10-01", "would prune 2026-10-02"]
    assert Request.objects.count() == 3
    out = io.StringIO()
    call_command("prune_requests", archive=tmp_path, stdout=out, stderr=io.StringIO())
    assert out.getvalue().splitlines() == [
        "2 days with 3 requests archived and dropped, 1 batch bodies forgotten"
    ]
    assert Ledger.objects.get().options["requests_kept_from"] == "2026-10-03"
    assert Batch.objects.get().body is None


def test_bodies_with_something_in_quarantine_are_kept() -> None:
    deliver(b"not json")
    assert pruning.forget_bodies(MUCH_LATER) == 1
    assert [batch.body is None for batch in Batch.objects.order_by("pk")] == [True, False]


def test_partitions_are_made_ahead_once() -> None:
    now = datetime(2026, 10, 1, 23, tzinfo=UTC)
    assert pruning.make_partitions(now) == [date(2026, 10, day) for day in range(3, 9)]
    assert pruning.make_partitions(now) == []


def test_a_replacement_is_not_counted_beside_its_correction() -> None:
    """verify_ledger compared rows with bookings and found a batch with a replacement to hold one too many."""
    new = request("r-9", "2026-10-02T02:10:00Z", "2026-10-02T02:00:00Z", input_tokens=1)
    target = {"source": "/clusters/bj-1/kueue", "id": "r-3"}
    deliver(event("correction", "c-1", "2026-10-03T00:00:00Z", supersedes=target, reason="wrong", event=new))
    assert list(batches_lose_nothing(None)) == []
