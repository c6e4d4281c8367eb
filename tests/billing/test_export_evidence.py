"""A month's evidence can be checked without the ledger, and any tampering with it is found."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from billing.core.statement import seal
from billing.models import CloseRun, Statement
from billing.services.adjustments import adjust_closed_months
from ingest.models import Batch, BatchState
from ledger.models import Booking, Event
from tests.billing.closed_months import NOVEMBER_5, closable_ledger, close, hold

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture(scope="module")
def evidence(django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked archive of October, made twice after a late fact; both times the same bytes."""
    from django.db import transaction

    folder = tmp_path_factory.mktemp("evidence")
    with django_db_blocker.unblock(), transaction.atomic():
        pool = closable_ledger()
        ids = Event.objects.order_by("line").values_list("event_id", flat=True)
        body = gzip.compress(b"".join(json.dumps({"id": name}).encode() + b"\n" for name in ids), mtime=0)
        Batch.objects.create(
            id=Booking.objects.get().batch,
            door="api",
            content_type="application/x-ndjson",
            idempotency_key="k",
            body=body,
            body_sha256=hashlib.sha256(body).hexdigest(),
            body_bytes=len(body),
            state=BatchState.BOOKED,
        )
        close()
        for name in ("one.zip", "two.zip"):
            call_command("export_evidence", "2026-10", "-o", str(folder / name), "--lines", "5", verbosity=0)
            hold(pool, f"late-{name}", "beta", 20, 21, 1_000)
            adjust_closed_months(NOVEMBER_5)
        (folder / "head").write_text(CloseRun.objects.get().chain_head)
        with pytest.raises(CommandError, match="2026-11 is not closed"):
            call_command("export_evidence", "2026-11")
        assert Statement.objects.filter(period="2026-11", lines__kind="adjustment").exists()
        transaction.set_rollback(True)
    first, second = (zipfile.ZipFile(folder / name) for name in ("one.zip", "two.zip"))
    # What came after the close is in the register of events and in the checklist, and in nothing else.
    differing = [name for name in first.namelist() if first.read(name) != second.read(name)]
    assert set(differing) <= {"SHA256SUMS", "audit.json", "checklist.json"}
    first.extractall(folder / "unpacked")
    return folder


def check(folder: Path, *head: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(folder / "check.py"), *head],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_an_untouched_archive_holds(evidence: Path) -> None:
    head = (evidence / "head").read_text()
    assert check(evidence / "unpacked") == (0, "all of 3 statements hold\n")
    assert check(evidence / "unpacked", head) == (0, "all of 3 statements hold\n")
    assert check(evidence / "unpacked", "f" * 64) == (1, f"the chain ends with {head}, not with {'f' * 64}\n")
    assert len((evidence / "unpacked" / "check.py").read_text().splitlines()) < 100


def test_a_sample_goes_down_to_the_bytes(evidence: Path) -> None:
    rows = json.loads((evidence / "unpacked" / "sample.json").read_bytes())
    assert len(rows) == 5
    for row in rows:
        kinds = {event["kind"] for event in row["events"]}
        reserved = {"reservation"} if row["usage"]["tenant"] == "acme" else set()
        assert kinds == {"capacity", "occupancy"} | reserved
        assert all(event["said"] for event in row["events"])
    assert {name for row in rows for name in row["usage"].values()} & {"acme", "beta"}


def change(path: Path, edit: Callable[[Any], None]) -> None:
    content = json.loads(path.read_bytes())
    edit(content)
    path.write_text(json.dumps(content, ensure_ascii=False))


def bill(folder: Path, tenant: str = "beta") -> Path:
    return folder / "statements" / tenant / "statement.json"


def more_to_pay(content: Any) -> None:
    """Consistent in itself: line and totals."""
    body = content["content"]
    body["lines"][0]["amount_micro"] = str(int(body["lines"][0]["amount_micro"]) + 10_000)
    body["lines"][0]["amount_minor"] = str(int(body["lines"][0]["amount_minor"]) + 1)
    body["total_micro"] = str(int(body["total_micro"]) + 10_000)
    body["total_minor"] = str(int(body["total_minor"]) + 1)


def sealed_again(content: Any) -> None:
    more_to_pay(content)
    previous = content["previous_of_tenant"], content["previous_of_ledger"]
    content["sha256"] = seal(content["content"], *previous)


def chained_again(folder: Path) -> None:
    """A forger who seals the changed bill and names it in the chain; the statement after it gives him away."""
    change(bill(folder), sealed_again)
    sha256 = json.loads(bill(folder).read_bytes())["sha256"]
    change(folder / "chain.json", lambda links: links[1].update(sha256=sha256))


def total_alone(content: Any) -> None:
    content["content"]["total_micro"] = "1"


def hours_away(folder: Path) -> None:
    path = folder / "statements" / "beta" / "usage.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


def raw_changed(folder: Path) -> None:
    (path,) = (folder / "raw").iterdir()
    path.write_bytes(gzip.compress(b"{}\n"))


TAMPERING: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (lambda f: (f / "rates.json").write_text("{}"), "rates.json: not the file that was exported"),
    "a file less": (lambda f: (f / "approvals.json").unlink(), "approvals.json: missing"),
    "a file more": (lambda f: (f / "note.txt").write_text("x"), "note.txt: not listed"),
    "a bill": (lambda f: change(bill(f), more_to_pay), "2026-10-beta: content does not match its hash"),
    "a total": (
        lambda f: change(bill(f), total_alone),
        "2026-10-beta: lines do not add up to the total in micro",
    ),
    "a bill and its hash": (
        lambda f: change(bill(f), sealed_again),
        "stands in the chain or in the statements",
    ),
    "a bill, its hash and the chain": (
        chained_again,
        "2026-10-gamma: does not follow the statement before it",
    ),
    "a bill less": (lambda f: bill(f).unlink(), "stands in the chain or in the statements"),
    "slots": (hours_away, "2026-10-beta: usage.csv is not the file that was sealed"),
    "slots against lines": (hours_away, "lines and slots differ by"),
    "raw bytes": (raw_changed, "not the bytes that were received"),
    "an event of the sample": (
        lambda f: change(f / "sample.json", lambda rows: rows[0]["events"][0].update(id="never")),
        "sample: event never is not in batch 1",
    ),
    "a slot of the sample": (
        lambda f: change(f / "sample.json", lambda rows: rows[0]["usage"].update(gpu_us="1")),
        "is not in its usage.csv",
    ),
}


# A file that only the list of hashes names is found by nothing else once that list is made to fit.
CASES = [
    (kind, again)
    for kind in TAMPERING
    for again in (False, True)
    if not (again and kind.startswith("a file"))
]


@pytest.mark.parametrize(("kind", "listed_again"), CASES)
def test_tampering_is_found(evidence: Path, tmp_path: Path, kind: str, listed_again: bool) -> None:
    """With the list of hashes left as it was, and with one that fits what was done."""
    folder = tmp_path / "unpacked"
    shutil.copytree(evidence / "unpacked", folder)
    tamper, said = TAMPERING[kind]
    tamper(folder)
    if listed_again:
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
        sums = (
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
            for path in paths
        )
        (folder / "SHA256SUMS").write_text("".join(sums))
    code, output = check(folder)
    assert code == 1
    assert said in output
