"""import_events, retry_quarantine and map_identity, as somebody at a terminal meets them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from ingest.management.commands import import_events
from ingest.models import Batch, QuarantinedEvent
from ingest.services import importing
from ledger.core import zstd
from ledger.management.base import BadInput, InputBrokeOff
from ledger.models import AuditEntry, Event, Level, Source
from tests.ingest.feeding import all_facts, deliver, event, lines, occupancy, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def world(db: None) -> None:
    small_world()


def said(command: str, *arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(command, *arguments, stdout=out, stderr=io.StringIO(), **options)
    return out.getvalue().strip()


def some(count: int) -> list[dict[str, Any]]:
    return [occupancy(f"o-{n}", "2026-10-01T00:00:00Z", n % 5, workload=f"w{n}") for n in range(count)]


def test_files_of_every_kind(tmp_path: Path) -> None:
    content = lines(*some(10))
    (tmp_path / "a.ndjson").write_bytes(content)
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(content))
    (tmp_path / "c.ndjson.zst").write_bytes(zstd.compress(content))
    (tmp_path / "d.json").write_text(json.dumps(some(11), indent=2))
    assert said("import_events", str(tmp_path / "a.ndjson")).startswith("received 10, booked 10, duplicate 0")
    for name in ("b.ndjson.gz", "c.ndjson.zst"):
        assert said("import_events", str(tmp_path / name)).startswith("received 10, booked 0, duplicate 10")
    assert said("import_events", str(tmp_path / "d.json")).startswith("received 11, booked 1, duplicate 10")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(lines(*some(3))))
    monkeypatch.setattr("sys.stdin", stdin)
    assert said("import_events", "-").startswith("received 3, booked 3")


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_compression_is_told_by_the_bytes_and_not_by_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(lines(*some(3)))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert said("import_events", "-").startswith("received 3, booked 3")
    (tmp_path / "a.ndjson").write_bytes(packed)
    (tmp_path / "b.gz").write_bytes(lines(*some(4)))
    Source.objects.create(uri="/x", name="x", adapter="cloudevents", config={})
    for name, options in (("a.ndjson", {}), ("a.ndjson", {"source": "x"})):
        told = said("import_events", str(tmp_path / name), **options)
        assert told.startswith("received 3, booked 0, duplicate 3, conflict 0, quarantined 0")
    assert said("import_events", str(tmp_path / "b.gz")).startswith("received 4, booked 1, duplicate 3")


RUBBISH = {
    "bzip2": bz2.compress(lines(*some(200))),
    "random": random.Random(1).randbytes(100_000),
    "utf-16": "\n".join(json.dumps(one) for one in some(9)).encode("utf-16"),
    "tape": gzip.compress(b"events.ndjson" + b"\0" * 4_000 + lines(*some(9))),
    "twice": gzip.compress(gzip.compress(lines(*some(9)))),
}


@pytest.mark.parametrize("name", RUBBISH)
@pytest.mark.parametrize("options", [{}, {"source": "x"}])
def test_what_is_no_text_is_refused_whole(tmp_path: Path, name: str, options: dict[str, str]) -> None:
    Source.objects.create(uri="/x", name="x", adapter="cloudevents", config={})
    file = tmp_path / name
    file.write_bytes(RUBBISH[name])
    with pytest.raises(
        BadInput, match=f"^{file}: neither text nor gzip or zstd of text; nothing was stored$"
    ):
        said("import_events", str(file), **options)
    assert not Batch.objects.exists() and not QuarantinedEvent.objects.exists()


def test_lines_that_are_no_text_among_others_keep_to_themselves(tmp_path: Path) -> None:
    """Those of events do so also where they are all there is: their sender is known, and a person can look."""
    file = tmp_path / "a.ndjson"
    file.write_bytes(lines(b"\xff\0", *some(3), b'{"id":"\xff"}'))
    assert said("import_events", str(file)).startswith("received 5, booked 3")
    file.write_bytes(lines(b'{"id":"\xff"}'))
    assert said("import_events", str(file)).startswith("received 1, booked 0")


def test_a_large_file_becomes_batches_that_know_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_EVENTS", 4)
    events: list[Any] = some(10)
    events[7] = b"{broken"
    file = tmp_path / "a.ndjson"
    file.write_bytes(lines(*events))
    assert said("import_events", str(file)) == (
        "received 10, booked 9, duplicate 0, conflict 0, quarantined 1\n  not_json: 1"
    )
    assert list(Batch.objects.order_by("id").values_list("first_line", "received")) == [
        (1, 4),
        (5, 4),
        (9, 2),
    ]
    assert QuarantinedEvent.objects.get().line == 8


def test_progress_goes_on_when_all_is_read_and_not_yet_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_EVENTS", 4)
    monkeypatch.setattr("ledger.management.progress.LINE_SECONDS", 0.0)
    file = tmp_path / "a.ndjson"
    file.write_bytes(lines(*some(10)))
    told = io.StringIO()
    call_command("import_events", str(file), stdout=io.StringIO(), stderr=told)
    details = [line.partition("; ")[2] for line in told.getvalue().splitlines()]
    assert list(dict.fromkeys(details)) == [
        "",
        "0 events settled, booking 4 more",
        "4 events settled",
        "4 events settled, booking 4 more",
        "8 events settled",
        "8 events settled, booking 2 more",
        "10 events settled",
    ]


def test_an_interrupted_import_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "BATCH_EVENTS", 4)
    file = tmp_path / "a.ndjson"
    file.write_bytes(lines(*some(10)))
    book, calls = importing.book_batch, []

    def interrupted(batch_id: int, **options: Any) -> Any:
        calls.append(batch_id)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return book(batch_id, **options)

    monkeypatch.setattr(importing, "book_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        said("import_events", str(file))
    monkeypatch.setattr(importing, "book_batch", book)
    assert said("import_events", str(file)).startswith("received 10, booked 6, duplicate 4, conflict 0")
    assert Event.objects.count() == 10


def test_dry_run_tells_all_and_keeps_nothing(tmp_path: Path) -> None:
    before = all_facts()
    file = tmp_path / "a.ndjson"
    file.write_bytes(lines(*some(2), occupancy("o-9", "2026-10-01T00:00:00Z", 1, tenant="nobody")))
    assert said("import_events", str(file), dry_run=True) == (
        "received 3, booked 2, duplicate 0, conflict 0, quarantined 1\n  unknown_tenant: 1"
    )
    assert all_facts() == before
    assert not Batch.objects.exists()


def test_a_line_of_many_mebibytes_and_a_broken_end(tmp_path: Path) -> None:
    huge = b'{"id":"big","x":"' + b"x" * (3 * 1024 * 1024) + b'"}'
    packed = gzip.compress(lines(some(1)[0], huge, *some(40)[1:]), 1)
    file = tmp_path / "a.ndjson.gz"
    file.write_bytes(packed[:-200])
    told = io.StringIO()
    with pytest.raises(InputBrokeOff):
        call_command("import_events", str(file), stdout=told, stderr=io.StringIO())
    assert "broken_compression: 1" in told.getvalue() and "event_too_large: 1" in told.getvalue()
    assert QuarantinedEvent.objects.get(reason="event_too_large").event_id == "big"
    assert Event.objects.filter(event_id="o-0").exists()


def status_of(*arguments: str) -> int:
    """The exit status on the command line."""
    command = import_events.Command(stdout=io.StringIO(), stderr=io.StringIO())
    try:
        command.run_from_argv(["manage.py", "import_events", *arguments])
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_a_file_that_breaks_off_is_told_by_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every form, also when it comes again; what could be read is booked. Refused lines in between are not that."""
    monkeypatch.setattr(importing, "BATCH_EVENTS", 4)
    monkeypatch.setattr("django.core.management.base.connections.close_all", lambda: None)
    Source.objects.create(uri="/x", name="x", adapter="cloudevents", config={})
    content, array = lines(*some(10)), json.dumps(some(10)).encode()
    whole = {
        "a.ndjson": content,
        "a.ndjson.gz": gzip.compress(content),
        "a.ndjson.zst": zstd.compress(content),
        "a.json": array,
    }
    for name, body in whole.items():
        for cut in (0, 7):
            (tmp_path / name).write_bytes(body[: len(body) - cut])
            for again in ("--source=x",), (), ():
                assert (name, cut, again, status_of(str(tmp_path / name), *again)) == (
                    name,
                    cut,
                    again,
                    3 if cut else 0,
                )
    assert Event.objects.count() == 10
    (tmp_path / "b.ndjson").write_bytes(
        lines(b"{broken", some(11)[10], event("nothing", "n", "2026-10-01T00:00:00Z"))
    )
    assert status_of(str(tmp_path / "b.ndjson")) == 0
    (tmp_path / "a.ndjson.gz").write_bytes(whole["a.ndjson.gz"][:-7])
    for options in ("--dry-run", "--verbosity=0"):
        assert status_of(str(tmp_path / "a.ndjson.gz"), str(tmp_path / "b.ndjson"), options) == 3
    assert status_of(str(tmp_path / "nothing")) == 2
    assert Event.objects.count() == 11


def test_progress_shows_the_bytes_that_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.management.progress.LINE_SECONDS", 0.0)
    file = tmp_path / "a.ndjson"
    file.write_bytes(lines(*some(10)))
    told = io.StringIO()
    call_command("import_events", str(file), stdout=io.StringIO(), stderr=told)
    size = file.stat().st_size
    shown = [
        line for line in told.getvalue().splitlines() if "booking" in line or "10 events settled" in line
    ]
    assert len(shown) > 1
    assert all(f": {size} of {size} bytes (100 %)" in line for line in shown)


def test_a_source_reads_its_native_format(tmp_path: Path) -> None:
    Source.objects.create(uri="/x", name="x", adapter="cloudevents", config={})
    file = tmp_path / "a.json"
    file.write_bytes(lines(b"[1, 2", *some(3)))
    told = said("import_events", str(file), source="x")
    assert told.startswith("received 4, booked 3, duplicate 0, conflict 0, quarantined 1")
    with pytest.raises(CommandError, match="no source is called 'y'; configured: x"):
        said("import_events", str(file), source="y")


def test_native_records_larger_than_an_event_keep_their_bytes_and_longer_ones_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "LONGEST_NATIVE_LINE", 3 * 1024 * 1024)
    Source.objects.create(uri="/x", name="x", adapter="litellm-spendlogs", config={})
    row = {
        "litellm_call_id": "a",
        "team_id": "t",
        "model": "m",
        "status": "success",
        "startTime": "2026-10-01T00:00:00Z",
        "endTime": "2026-10-01T00:00:01Z",
    }
    large = json.dumps({**row, "messages": "x" * (2 * 1024 * 1024)}).encode()
    huge = json.dumps({**row, "litellm_call_id": "b", "messages": "x" * (4 * 1024 * 1024)}).encode()
    file = tmp_path / "a.ndjson"
    file.write_bytes(lines(large, huge, json.dumps({**row, "litellm_call_id": "c"}).encode()))
    assert said("import_events", str(file), source="x") == (
        "received 3, booked 0, duplicate 0, conflict 0, quarantined 3\n  too_large: 1\n  unmapped_pool: 2"
    )
    kept = QuarantinedEvent.objects.filter(reason="unmapped_pool").order_by("line").first()
    assert kept is not None and bytes(kept.raw) == large
    Source.objects.filter(uri="/x").update(config={"pool": "bj-h100"})
    assert said("retry_quarantine").startswith("received 2, booked 2, duplicate 0")


def test_missing_files_are_one_line() -> None:
    with pytest.raises((CommandError, FileNotFoundError), match="nothing-here"):
        said("import_events", "nothing-here")


def test_retry_books_each_line_once() -> None:
    late = [
        occupancy(f"late-{n}", "2026-10-01T00:00:00Z", n, tenant="late", workload=f"w{n}") for n in range(3)
    ]
    deliver(*late, b"{broken", some(1)[0])
    assert said("retry_quarantine", reason=["unknown_tenant"]).startswith("received 3, booked 0, duplicate 0")
    small_world_with("late")
    assert said("retry_quarantine", reason=["unknown_tenant"]).startswith("received 3, booked 3, duplicate 0")
    assert Level.objects.count() == 4
    waiting = QuarantinedEvent.objects.filter(resolved_at=None)
    assert [row.reason for row in waiting] == ["not_json"]
    with pytest.raises(CommandError, match="nothing in quarantine fits"):
        said("retry_quarantine", reason=["unknown_tenant"])
    assert said("retry_quarantine").startswith("received 1, booked 0")
    told = AuditEntry.objects.filter(action="retry_quarantine").order_by("pk")
    assert [(entry.actor, entry.object_id, entry.after["lines"]) for entry in told] == [
        ("command line", "unknown_tenant", 3),
        ("command line", "unknown_tenant", 3),
        ("command line", "all", 1),
    ]


def small_world_with(slug: str) -> None:
    from billing.services.configuration import apply_document

    apply_document({"tenant": [{"slug": slug}]})


def test_conflicts_are_not_tried_again() -> None:
    deliver(occupancy("o-1", "2026-10-01T00:00:00Z", 1), occupancy("o-1", "2026-10-01T00:00:00Z", 2))
    assert said("retry_quarantine").startswith("received 0")


def test_mapping_an_identity() -> None:
    identity = {"kind": "k8s_namespace", "value": "team-a"}
    deliver(
        event(
            "occupancy",
            "o-1",
            "2026-10-01T00:00:00Z",
            workload="w",
            pool="bj-h100",
            gpus=1,
            identity=identity,
        )
    )
    assert said("map_identity", "k8s_namespace", "team-a", "acme") == "k8s_namespace:team-a is acme's"
    assert said("map_identity", "k8s_namespace", "team-a", "acme").endswith("already")
    for arguments, message in [
        (("shoe", "team-a", "acme"), "KIND: 'shoe' is not a kind of identity"),
        (("k8s_namespace", "team-a", "nobody"), "no tenant is called 'nobody'"),
        (("k8s_namespace", "team-a", "beta"), "already maps to"),
    ]:
        with pytest.raises(CommandError, match=message):
            said("map_identity", *arguments)
    with pytest.raises(CommandError, match=r"--from: .* lacks its offset"):
        said("map_identity", "k8s_namespace", "b", "acme", valid_from="2026-10-01T00:00:00")
