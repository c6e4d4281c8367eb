"""What a booked batch leaves in the tables."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from ingest.core.events import Request as RequestRecord
from ingest.core.parse import ParsedEvent, parse_line
from ingest.core.request_content import earlier_hash, number_values, text_values
from ingest.core.unpack import Limits
from ingest.models import Batch, BatchState, QuarantinedEvent
from ingest.services.booking import Receipt, book_batch
from ledger.core.periods import to_ms
from ledger.models import Booking, DirtySpan, Event, Level, Request, Source, Subject, UsageHour
from tests.ingest.feeding import (
    all_facts,
    deliver,
    deliver_bytes,
    event,
    lines,
    occupancy,
    request,
    small_world,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def world(db: None) -> None:
    small_world()
    DirtySpan.objects.all().delete()


def counts(receipt: Receipt) -> tuple[int, int, int, int, int]:
    return (receipt.received, receipt.booked, receipt.duplicate, receipt.conflict, receipt.quarantined)


def reasons() -> dict[int, str]:
    return dict(QuarantinedEvent.objects.values_list("line", "reason"))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_levels_are_booked_with_their_holder() -> None:
    receipt = deliver(
        event("capacity", "c", "2026-10-01T00:00:00Z", pool="bj-h100", gpus=16),
        event(
            "reservation",
            "r",
            "2026-10-01T00:00:00Z",
            pool="bj-h100",
            gpus="8.5",
            tenant="acme",
            reservation="acme-1",
            lendable=False,
            ends_at="2026-11-01T00:00:00Z",
        ),
        occupancy("o", "2026-10-01T01:00:00+08:00", "1.250", service="chat"),
        event("pending", "p", "2026-10-01T02:00:00Z", pool="bj-h100", queue="q", tenant="beta", requests=4),
    )
    assert counts(receipt) == (4, 4, 0, 0, 0)
    levels = Level.objects.order_by("kind").values_list(
        "kind",
        "subject",
        "attempt",
        "starts_at",
        "ends_at",
        "milli_gpus",
        "lendable",
        "workload_kind",
        "requests",
    )
    assert list(levels) == [
        (1, "", 0, at("2026-10-01"), None, 16_000, True, 0, None),
        (2, "acme-1", 0, at("2026-10-01"), at("2026-11-01"), 8_500, False, 0, None),
        (3, "wl-1", 1, at("2026-09-30T17:00"), None, 1_250, True, 2, None),
        (4, "q", 0, at("2026-10-01T02:00"), None, 0, True, 0, 4),
    ]
    holders = [level.identity and str(level.identity) for level in Level.objects.order_by("kind")]
    assert holders == [None, "tenant:acme", "service:chat", "tenant:beta"]
    assert Source.objects.get().watermark_at == at("2026-10-01T02:00")


def test_the_same_key_is_booked_once_and_other_content_is_a_conflict() -> None:
    first = occupancy("o-1", "2026-10-01T00:00:00Z", 8)
    respelled = occupancy("o-1", "2026-10-01T08:00:00+08:00", "8.000")
    other = occupancy("o-1", "2026-10-01T00:00:00Z", 9)
    assert counts(deliver(first, respelled, other)) == (3, 1, 1, 1, 0)
    assert counts(deliver(other, respelled)) == (2, 0, 1, 1, 0)
    assert Level.objects.get().milli_gpus == 8_000
    kept = QuarantinedEvent.objects.order_by("id").values_list("line", "event_id", "reason")
    assert list(kept) == [(3, "o-1", "conflict"), (1, "o-1", "conflict")]
    assert bytes(QuarantinedEvent.objects.earliest("id").raw) == lines(other)


def test_requests_too_within_a_block_and_over_batches() -> None:
    first = request(
        "r-100", "2026-10-01T00:30:00Z", "2026-10-01T00:29:00Z", gpu_seconds="1.5", input_tokens=10
    )
    respelled = request(
        "r-100", "2026-10-01T00:30:00.000Z", "2026-10-01T08:29:00+08:00", gpu_seconds=1.5, input_tokens="10"
    )
    other = request(
        "r-100", "2026-10-01T00:30:00Z", "2026-10-01T00:29:00Z", gpu_seconds="1.6", input_tokens=10
    )
    next_day = request("r-100", "2026-10-02T00:30:00Z", "2026-10-02T00:29:00Z")
    assert counts(deliver(first, respelled, other, next_day)) == (4, 2, 1, 1, 0)
    assert counts(deliver(other, first, next_day)) == (3, 0, 2, 1, 0)
    assert Request.objects.filter(gpu_us=1_500_000).count() == 1
    hours = UsageHour.objects.order_by("hour").values_list(
        "hour", "requests", "input_tokens", "input_missing", "gpu_us"
    )
    assert list(hours) == [
        (at("2026-10-01"), 1, 10, 0, 1_500_000),
        (at("2026-10-02"), 1, 0, 1, 0),
    ]


def test_repeats_of_consecutive_keys_are_told_from_what_is_new_or_differs_among_them() -> None:
    def delivery(*numbers: int, tokens: int = 5) -> list[dict[str, Any]]:
        finish = {n: f"2026-10-0{1 + n % 2}T00:30:{n}Z" for n in numbers}
        return [
            request(f"r-{n * 7 % 30 + 100}", finish[n], "2026-10-01T00:00:00Z", output_tokens=tokens)
            for n in numbers
        ]

    first = delivery(*range(10, 30))
    assert counts(deliver(*first)) == (20, 20, 0, 0, 0)
    assert counts(deliver(*first)) == (20, 0, 20, 0, 0)
    assert counts(deliver(*reversed(first))) == (20, 0, 20, 0, 0)
    assert counts(deliver(*first[3:9], *first[:4])) == (10, 0, 10, 0, 0)
    other_source = [one | {"source": "/gateways/other"} for one in first[:2]]
    assert counts(deliver(*first, *other_source)) == (22, 2, 20, 0, 0)
    changed = delivery(15, tokens=6)
    assert counts(deliver(*first[:5], *changed, *first[6:])) == (20, 0, 19, 1, 0)
    assert counts(deliver(*first, *delivery(30, 31))) == (22, 2, 20, 0, 0)
    assert Request.objects.count() == 24


@pytest.mark.parametrize("again", [0, 11, 39])
def test_a_repeat_in_any_of_the_blocks_that_one_copy_takes_spoils_none_of_them(
    monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """Forty blocks of one line, some of which need a COPY of their own: rows with a field that the others lack."""
    monkeypatch.setattr("ingest.services.booking.BLOCK_EVENTS", 1)
    monkeypatch.setattr("ingest.core.unpack.BLOCK_BYTES", 200)
    finish = "2026-10-01T00:30:00Z"
    lines = [
        request(
            f"r-{n}",
            finish,
            "2026-10-01T00:00:00Z",
            output_tokens=n,
            **({"attempt": 2} if n % 16 == 9 else {}),
        )
        for n in range(40)
    ]
    assert counts(deliver(lines[again])) == (1, 1, 0, 0, 0)
    assert counts(deliver(*lines)) == (40, 39, 1, 0, 0)
    assert counts(deliver(*lines, *lines[:3])) == (43, 0, 43, 0, 0)
    rows = Request.objects.order_by("output_tokens").values_list(
        "event_id", "attempt", "requests", "service_class"
    )
    assert list(rows) == [(f"r-{n}", 2 if n % 16 == 9 else 1, 1, 0) for n in range(40)]
    hour = UsageHour.objects.get()
    assert (hour.requests, hour.output_tokens) == (40, sum(range(40)))


def test_the_hourly_rollup_spreads_time_in_flight_over_the_hours_it_touched() -> None:
    deliver(
        request("r-101", "2026-10-01T02:10:00Z", "2026-10-01T00:50:00Z", service="chat", output_tokens=7),
        request("r-102", "2026-10-01T03:00:00Z", "2026-10-01T02:59:59.500Z", service="chat", output_tokens=5),
    )
    hours = UsageHour.objects.order_by("hour").values_list(
        "hour", "requests", "output_tokens", "concurrency_us"
    )
    assert list(hours) == [
        (at("2026-10-01T00:00"), 0, 0, 600_000_000),
        (at("2026-10-01T01:00"), 0, 0, 3_600_000_000),
        (at("2026-10-01T02:00"), 1, 7, 600_500_000),
        (at("2026-10-01T03:00"), 1, 5, 0),
    ]
    span = DirtySpan.objects.get().span
    assert (span.lower, span.upper) == (at("2026-10-01T00:00"), at("2026-10-01T04:00"))


def test_usage_counts_in_the_hour_of_its_start() -> None:
    receipt = deliver(
        event(
            "usage",
            "u-1",
            "2026-10-01T02:00:00Z",
            usage="u-1",
            pool="bj-h100",
            model="qwen",
            starts_at="2026-10-01T01:00:00Z",
            ends_at="2026-10-01T02:00:00Z",
            requests=12,
            input_tokens=100,
            concurrency_seconds="1800.5",
        )
    )
    assert counts(receipt) == (1, 1, 0, 0, 0)
    row = UsageHour.objects.get()
    assert (row.hour, row.identity, row.requests, row.input_tokens) == (at("2026-10-01T01:00"), None, 12, 100)
    assert (row.output_missing, row.concurrency_us, row.outcome) == (12, 1_800_500_000, 6)
    assert Request.objects.get().day.isoformat() == "2026-10-01"


def test_one_bad_line_never_rejects_its_neighbours() -> None:
    good = [occupancy(f"o-{n}", f"2026-10-01T0{n}:00:00Z", n) for n in range(3)]
    receipt = deliver(
        good[0],
        b"{not json",
        occupancy("o-9", "2026-10-01T00:00:00Z", -1),
        good[1],
        occupancy("o-8", "2026-10-01T00:00:00Z", 1, tenant="nobody"),
        request("r-200", "2026-10-01T00:00:00Z", "2026-10-01T00:00:00Z", pool="nowhere"),
        request("r-201", "2026-10-01T00:00:00Z", "2026-10-01T00:00:00Z", tenant="nobody"),
        request("r-202", "2026-10-01T00:00:00Z", "2026-10-01T00:00:00Z", service="nothing"),
        b'{"id":"\xff"}',
        good[2],
    )
    assert counts(receipt) == (10, 3, 0, 0, 7)
    assert reasons() == {
        2: "not_json",
        3: "bad_number",
        5: "unknown_tenant",
        6: "unknown_pool",
        7: "unknown_tenant",
        8: "unknown_service",
        9: "bad_encoding",
    }
    assert Event.objects.count() == 3


def test_an_unmapped_identity_is_booked() -> None:
    receipt = deliver(
        occupancy("o-1", "2026-10-01T00:00:00Z", 1, identity={"kind": "k8s_namespace", "value": "who-knows"})
    )
    assert receipt.booked == 1
    assert str(Level.objects.get().identity) == "k8s_namespace:who-knows"


@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_what_a_broken_gzip_still_gives_is_booked(damage: str) -> None:
    events = [
        occupancy(f"o-{n}", "2026-10-01T00:00:00Z", 1, workload=f"w{n}" + "x" * 500) for n in range(4000)
    ]
    packed = gzip.compress(lines(*events))
    broken = packed[: len(packed) // 2] + (b"" if damage == "cut" else b"\x00garbage" * 10)
    receipt = deliver_bytes(broken, encoding="gzip")
    assert receipt.booked > 100
    assert receipt.received == receipt.booked + receipt.quarantined
    assert "broken_compression" in reasons().values()


def test_a_level_is_dirty_from_its_start_to_the_next_level_of_its_subject() -> None:
    deliver(occupancy("o-1", "2026-10-01T00:00:00Z", 4), occupancy("o-3", "2026-10-01T06:00:00Z", 0))
    DirtySpan.objects.all().delete()
    deliver(occupancy("o-2", "2026-10-01T02:00:00Z", 2))
    span = DirtySpan.objects.get().span
    assert (span.lower, span.upper) == (at("2026-10-01T02:00"), at("2026-10-01T06:00"))
    DirtySpan.objects.all().delete()
    deliver(occupancy("o-4", "2026-10-01T07:00:00Z", 8))
    span = DirtySpan.objects.get().span
    assert (span.lower, span.upper) == (at("2026-10-01T07:00"), None)


def test_a_higher_attempt_is_dirty_as_far_as_the_lower_one_would_have_reached() -> None:
    deliver(occupancy("o-1", "2026-10-01T00:00:00Z", 4), occupancy("o-9", "2026-10-02T00:00:00Z", 0))
    DirtySpan.objects.all().delete()
    deliver(
        occupancy("o-2", "2026-10-01T03:00:00Z", 4, attempt=2),
        occupancy("o-3", "2026-10-01T04:00:00Z", 0, attempt=2),
    )
    spans = [(span.span.lower, span.span.upper) for span in DirtySpan.objects.all()]
    assert spans == [(at("2026-10-01T03:00"), None)]


def test_subjects_know_their_first_and_last_level_in_any_order() -> None:
    deliver(occupancy("o-2", "2026-10-01T02:00:00Z", 2))
    deliver(occupancy("o-3", "2026-10-01T03:00:00Z", 0))
    deliver(occupancy("o-1", "2026-10-01T01:00:00Z", 1))
    subject = Subject.objects.get()
    assert (subject.first_at, subject.last_at, subject.last_milli_gpus) == (
        at("2026-10-01T01:00"),
        at("2026-10-01T03:00"),
        0,
    )


def test_a_batch_is_booked_once_and_its_booking_says_so() -> None:
    receipt = deliver(occupancy("o-1", "2026-10-01T00:00:00Z", 1))
    assert book_batch(receipt.batch) is None
    booking = Booking.objects.get(batch=receipt.batch)
    assert booking.sequence is not None and booking.booked_at is not None
    batch = Batch.objects.get(pk=receipt.batch)
    assert (batch.state, batch.received, batch.booked) == (BatchState.BOOKED, 1, 1)
    later = deliver(occupancy("o-2", "2026-10-01T00:00:00Z", 1, workload="w2"))
    after = Booking.objects.get(batch=later.batch).sequence
    assert after is not None and after > booking.sequence


def test_attributes_that_are_not_ours_are_kept_and_make_no_conflict() -> None:
    plain = occupancy("o-1", "2026-10-01T00:00:00Z", 1)
    stamped = plain | {"traceparent": "00-abc", "knativearrivaltime": "2026-10-01T00:00:09Z"}
    assert counts(deliver(stamped)) == (1, 1, 0, 0, 0)
    assert counts(deliver(plain)) == (1, 0, 1, 0, 0)
    body = Event.objects.get().body
    assert (body["traceparent"], body["data"]) == ("00-abc", plain["data"])


def test_days_that_were_pruned_take_no_more_requests() -> None:
    from ledger.models import Ledger
    from ledger.services.masters import ensure_books

    ensure_books()  # a test that empties its tables may have run before
    assert Ledger.objects.update(options={"requests_kept_from": "2026-10-02"}) == 1
    receipt = deliver(
        request("r-300", "2026-10-01T00:00:00Z", "2026-10-01T00:00:00Z"),
        request("r-301", "2026-10-02T00:00:00Z", "2026-10-02T00:00:00Z"),
    )
    assert counts(receipt) == (2, 1, 0, 0, 1)
    assert reasons() == {1: "too_old"}


def scans_of_verdicts() -> int:
    """How often this transaction has read the table of verdicts from end to end."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT seq_scan FROM pg_stat_xact_all_tables WHERE relname = 'stage_verdict'")
        return int(cursor.fetchone()[0])


def test_each_batch_of_a_long_session_reads_its_verdicts_as_seldom_as_the_first() -> None:
    """The planner knows of the last batch's verdicts, and that none of them are left: a scan costs it nothing then,
    not even one for each event. But they grow while it scans."""
    scans = [0]
    for batch in range(3):
        deliver(
            *[occupancy(f"o-{batch}-{n}", "2026-10-01T00:00:00Z", 1, workload=f"w{n}") for n in range(400)]
        )
        scans.append(scans_of_verdicts())
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE stage_event, stage_verdict")  # as the end of its transaction does
    first, second, third = (after - before for before, after in pairwise(scans))
    assert second <= first + 5 and third <= first + 5


def test_a_json_array_gives_the_same_books_as_lines() -> None:
    events = [occupancy(f"o-{n}", f"2026-10-01T0{n}:00:00Z", n) for n in range(5)]
    deliver(*events)
    before = all_facts()
    receipt = deliver_bytes(json.dumps(events, indent=2).encode(), "application/cloudevents-batch+json")
    assert counts(receipt) == (5, 0, 5, 0, 0)
    assert all_facts() == before


def test_the_register_refuses_changes() -> None:
    deliver(request("r-400", "2026-10-01T00:00:00Z", "2026-10-01T00:00:00Z"))
    with pytest.raises(Exception, match="append-only"), connection.cursor() as cursor:
        cursor.execute("UPDATE ledger_request SET gpu_us = 1")


def test_a_sender_may_speak_only_for_its_sources(db: Any) -> None:
    from ingest.services.inbox import Body, accept_batch

    allowed = Source.objects.create(uri="/mine")
    mine = occupancy("o-1", "2026-10-01T00:00:00Z", 1) | {"source": "/mine"}
    events = lines(
        mine,
        occupancy("o-2", "2026-10-01T00:00:00Z", 1),
        request("r-500", "2026-10-01T00:00:00Z", "2026-10-01T00:00:00Z"),
    )
    batch, _ = accept_batch(
        Body(events, "application/x-ndjson"),
        door="api",
        submitted_by="token:x",
        allowed_sources=frozenset({allowed.pk}),
    )
    receipt = book_batch(batch.pk)
    assert receipt is not None and counts(receipt) == (3, 1, 0, 0, 2)
    assert reasons() == {2: "source_not_allowed", 3: "source_not_allowed"}


@pytest.mark.parametrize("tokens", [5, 6])
def test_a_repeat_of_what_was_booked_under_the_hash_of_earlier_versions_is_no_conflict(tokens: int) -> None:
    line = request(
        "r-1", "2026-10-01T00:30:00Z", "2026-10-01T00:00:00Z", output_tokens=5, labels={"b": "1", "a": "é"}
    )
    other = request("r-2", "2026-10-01T00:30:00Z", "2026-10-01T00:00:00Z", output_tokens=tokens)
    assert counts(deliver(line)) == (1, 1, 0, 0, 0)
    parsed = parse_line(1, json.dumps(line).encode(), to_ms(timezone.now()), Limits())
    assert isinstance(parsed, ParsedEvent) and isinstance(parsed.record, RequestRecord)
    earlier = earlier_hash(number_values(parsed.record, parsed.time_ms), text_values(parsed.record))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ledger_request DISABLE TRIGGER append_only")
        cursor.execute("UPDATE ledger_request SET content_hash = %s", [earlier])
        cursor.execute("ALTER TABLE ledger_request ENABLE TRIGGER append_only")
    changed = line | {"data": line["data"] | {"output_tokens": tokens}}
    expected = (2, 1, 1, 0, 0) if tokens == 5 else (2, 1, 0, 1, 0)
    assert counts(deliver(changed, other)) == expected
