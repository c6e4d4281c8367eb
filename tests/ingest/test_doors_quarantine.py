"""Quarantine over the API: filtered, tried again, settled."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command

from billing.services.configuration import apply_document
from ingest.core.adapters.base import Refused
from ingest.models import QuarantinedEvent
from ingest.services.booking import book_batch
from ingest.services.native_records import refused_record
from ingest.services.retrying import retry_quarantine
from ingest.services.source_config import source_config
from ledger.models import (
    AuditEntry,
    Level,
    Source,
)
from tests.ingest.doors import NOON, asked_for, audit, call, client, code
from tests.ingest.feeding import SOURCE, deliver, occupancy

__all__ = ["asked_for"]  # the fixture

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_quarantine_is_filtered_tried_again_and_settled(asked_for: list[int]) -> None:
    late = [occupancy(f"l-{n}", NOON, 1, workload=f"w{n}", tenant="late") for n in range(3)]
    receipt = deliver(*late, b"{broken", occupancy("o-1", NOON, 1), occupancy("o-1", NOON, 2))
    api = client("finance")
    rows = call(api, "quarantine/").json()["results"]
    assert sorted((row["line"], row["reason"], row["can_be_retried"]) for row in rows) == [
        (1, "unknown_tenant", True),
        (2, "unknown_tenant", True),
        (3, "unknown_tenant", True),
        (4, "not_json", True),
        (6, "conflict", False),
    ]
    by_reason = call(api, f"quarantine/?reason=unknown_tenant&batch={receipt.batch}&source={SOURCE}").json()
    assert {row["event"] for row in by_reason["results"]} == {"l-0", "l-1", "l-2"}
    apply_document({"tenant": [{"slug": "late"}]})
    one = next(row["id"] for row in rows if row["event"] == "l-1")
    first = call(api, "quarantine/retry/", {"ids": [one]})
    assert (first.status_code, first.json()["lines"]) == (202, 1)
    rest = call(api, "quarantine/retry/", {"reasons": ["unknown_tenant"]}).json()
    assert [sent["lines"] for sent in rest["batches"]] == [2]
    assert asked_for == [first.json()["batches"][0]["batch"], rest["batches"][0]["batch"]]
    assert [book_batch(batch).booked for batch in asked_for] == [1, 2]  # type: ignore[union-attr]
    nothing = call(api, "quarantine/retry/", {"reasons": ["unknown_tenant"]})
    assert code(nothing) == (409, "nothing_to_retry")
    conflict = next(row["id"] for row in rows if row["reason"] == "conflict")
    assert code(call(api, "quarantine/dismiss/", {"ids": [conflict], "reason": ""})) == (422, "no_reason")
    dismissed = call(api, "quarantine/dismiss/", {"ids": [conflict], "reason": "sent twice by a test"})
    assert dismissed.json() == {"lines": 1}
    again = call(api, "quarantine/dismiss/", {"ids": [conflict], "reason": "x"})
    assert code(again) == (409, "nothing_to_dismiss")
    assert {row["reason"] for row in call(api, "quarantine/").json()["results"]} == {"not_json"}
    settled = call(api, "quarantine/?state=settled").json()["results"]
    assert sorted(row["resolution"] for row in settled) == ["dismissed", "retried", "retried", "retried"]
    assert [(action, object_id, reason) for _, action, object_id, reason in audit()] == [
        ("retry_quarantine", "all", ""),
        ("retry_quarantine", "unknown_tenant", ""),
        ("dismiss_quarantine", f"batch {receipt.batch} line 6: conflict", "sent twice by a test"),
    ]


def test_lines_are_dismissed_by_what_retries_are_chosen_by(asked_for: list[int]) -> None:
    """Never all of them for want of a word."""
    first, second = (
        deliver(b"{" + mark, b"[1]", occupancy(f"l-{n}", NOON, 1, tenant="late"))
        for n, mark in enumerate((b"a", b"b"))
    )
    api = client("platform")
    why = {"reason": "half a disk"}

    def dismissed(**chosen: Any) -> int:
        answer = call(api, "quarantine/dismiss/", chosen | why)
        assert answer.status_code == 200, answer.json()
        return int(answer.json()["lines"])

    for nothing in ({}, {"reasons": []}):
        assert code(call(api, "quarantine/dismiss/", nothing | why)) == (422, "nothing_chosen")
    assert dismissed(reasons=["not_object"], batch=first.batch) == 1
    assert dismissed(reasons=["not_json"]) == 2
    assert code(call(api, "quarantine/dismiss/", {"reasons": ["not_json"]} | why))[0] == 409
    waiting = {(row["batch"], row["reason"]) for row in call(api, "quarantine/").json()["results"]}
    assert waiting == {
        (first.batch, "unknown_tenant"),
        (second.batch, "unknown_tenant"),
        (second.batch, "not_object"),
    }
    assert dismissed(source=SOURCE, batch=second.batch) == 1
    assert dismissed(batch=first.batch) == 1
    entry = AuditEntry.objects.filter(action="dismiss_quarantine").order_by("pk")[1]
    assert entry.before == {
        "reasons": ["not_json"],
        "lines": [
            f"batch {batch} line {line}: not_json" for batch, line in [(first.batch, 1), (second.batch, 1)]
        ],
    }


@pytest.mark.parametrize("query", ["?state=never", "?batch=x", "?batch=99999999999999999999", "?reason=%00"])
def test_filters_of_quarantine_that_make_no_sense(query: str) -> None:
    assert call(client(), f"quarantine/{query}").status_code == 400


def columns(**changes: str) -> dict[str, str]:
    return {"id": "job", "time": "at", "workload": "job", "gpus": "gpus", "pool": "part"} | changes


def csv_source(**changes: str) -> Source:
    options = {"type": "occupancy", "columns": columns(**changes), "constants": {"tenant": "acme"}}
    return Source.objects.create(
        uri="/clusters/hpc/csv", name="hpc", adapter="csv", config={"options": options}
    )


def test_a_native_record_is_given_to_its_adapter_again(tmp_path: Any) -> None:
    """As an event it could never be read: it is a row of a table under its header."""
    source = csv_source(gpus="cards")
    file = tmp_path / "jobs.csv"
    file.write_text(
        "job,at,gpus,cards,part\n"
        "j-1,2026-10-01T00:00:00Z,2,2,bj-h100\n"
        "j-2,not a time,3,3,bj-h100\n"
        "j-3,2026-10-01T00:00:00Z,4\n"
        "j-4,2026-10-01T00:00:00Z,5,five,bj-h100\n"
    )
    call_command("import_events", str(file), source="hpc", verbosity=0)
    refused = QuarantinedEvent.objects.order_by("line").values_list("adapter", "reason")
    assert list(refused) == [("csv", "bad_time"), ("csv", "bad_record"), ("", "bad_number")]
    source.config["options"] |= {"time_format": "rfc3339", "columns": columns(gpus="gpus", time="at2")}
    source.save()
    (receipt,) = retry_quarantine(reasons=["bad_record"], by="test")
    assert (receipt.received, receipt.quarantined) == (1, 1), "its table lacks the column now"
    source.config["options"]["columns"] = columns(gpus="gpus")
    source.save()
    QuarantinedEvent.objects.filter(resolved_at=None, reason="bad_time").update(
        raw=b"job,at,gpus,cards,part\nj-2,2026-10-01T01:00:00Z,3,3,bj-h100"
    )
    totals = [(one.received, one.booked, one.quarantined) for one in retry_quarantine(by="test")]
    # j-4 is the adapter's own event, j-2 is right now, and j-3 is still too short.
    assert sorted(totals) == [(1, 0, 1), (1, 0, 1), (1, 1, 0)]
    left = QuarantinedEvent.objects.filter(resolved_at=None, adapter="csv")
    assert [bytes(row.raw).splitlines()[1] for row in left] == [b"j-3,2026-10-01T00:00:00Z,4"]
    assert list(Level.objects.order_by("subject").values_list("subject", "milli_gpus")) == [
        ("j-1", 2000),
        ("j-2", 3000),
    ]
    assert sum(one.received for one in retry_quarantine(by="test")) == 2, "nothing was booked twice or lost"


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_table_with_another_header_is_booked_whole_once_its_source_is_mended(
    delimiter: str, tmp_path: Any
) -> None:
    source = csv_source(gpus="cards")
    rows = ["job,at,gpus,part", *(f"j-{n},2026-10-01T00:00:00Z,{n},bj-h100" for n in (1, 2, 3))]
    file = tmp_path / "jobs.csv"
    file.write_text("\n".join(rows).replace(",", delimiter))
    call_command("import_events", str(file), source="hpc", verbosity=0)
    assert QuarantinedEvent.objects.filter(adapter="csv").count() == 4
    source.config["options"] |= {"columns": columns(), "delimiter": delimiter}
    source.save()
    list(retry_quarantine(by="test"))
    assert not QuarantinedEvent.objects.filter(resolved_at=None).exists()
    levels = Level.objects.order_by("subject").values_list("subject", "milli_gpus")
    assert list(levels) == [(f"j-{n}", 1000 * n) for n in (1, 2, 3)]


def test_a_native_record_whose_source_is_gone_stays_for_a_person() -> None:
    source = csv_source()
    deliver(refused_record(source_config(source), Refused(1, b"a,b\n1,2", "bad_record", "too short")))
    Source.objects.filter(pk=source.pk).update(name=None)
    (receipt,) = retry_quarantine(by="test")
    assert (receipt.received, receipt.quarantined) == (1, 1)
    row = QuarantinedEvent.objects.get(resolved_at=None)
    assert (row.reason, row.adapter, bytes(row.raw)) == ("not_configured", "csv", b"a,b\n1,2")
