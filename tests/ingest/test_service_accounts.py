"""A service account for ingest writes events of its own sources, whatever their type, and reads its receipts alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rest_framework.test import APIClient

from ingest.core.events import TYPES
from ingest.models import Batch, QuarantinedEvent
from ingest.services.booking import Receipt, book_batch
from ledger.models import Event, Level, Role, Source
from ledger.services.tokens import create_api_token
from tests.ingest.feeding import NDJSON, event, lines, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

OWN, OTHERS = "/clusters/bj-1/kueue", "/clusters/bj-2/kueue"
NOON = "2026-10-01T12:00:00Z"
WHO = {"tenant": "acme", "pool": "bj-h100"}
DATA: dict[str, dict[str, Any]] = {
    "capacity": {"pool": "bj-h100", "gpus": 8},
    "reservation": {**WHO, "reservation": "r-1", "gpus": 4},
    "occupancy": {**WHO, "workload": "wl-1", "gpus": 2},
    "pending": {**WHO, "workload": "wl-2", "gpus": 2},
    "preemption": {
        "preemption": "p-1",
        "victim": {"workload": "wl-1", "tenant": "acme"},
        "preemptor_source": "none",
        "pool": "bj-h100",
        "gpus": 1,
        "cause": "priority",
    },
    "resume": {"preemption": "p-1", "pool": "bj-h100"},
    "request": {**WHO, "request": "q-1", "model": "qwen", "started_at": NOON, "outcome": "ok"},
    "usage": {
        **WHO,
        "usage": "u-1",
        "model": "qwen",
        "starts_at": "2026-10-01T11:00:00Z",
        "ends_at": NOON,
        "requests": 1,
    },
    "rejection": {"tenant": "acme", "layer": "quota", "reason": "full", "status": 429},
    "quota": {"tenant": "acme", "layer": "serving", "resource": "concurrency", "limit": 5, "used": 1},
    "correction": {"supersedes": {"source": OWN, "id": "nothing-yet"}, "reason": "a slip"},
}


@pytest.fixture(autouse=True)
def nobody_books(monkeypatch: pytest.MonkeyPatch, db: None) -> Iterator[None]:
    small_world()
    monkeypatch.setattr("ingest.api.views.request_booking", lambda batch: None)
    monkeypatch.setattr("ingest.api.quarantine.request_booking", lambda batch: None)
    yield


def sender(name: str = "kueue", *sources: str, role: str = Role.INGEST) -> APIClient:
    rows = [Source.objects.get_or_create(uri=uri)[0] for uri in sources]
    _, secret = create_api_token(name, role, sources=rows)
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


def sent(api: APIClient, *events: Any) -> Receipt:
    answer = api.post("/api/v1/events/", data=lines(*events), content_type=NDJSON)
    assert answer.status_code == 202, answer.content
    receipt = book_batch(answer.json()["batch"])
    assert receipt is not None
    return receipt


def of(source: str, kind: str, event_id: str = "", **data: Any) -> dict[str, Any]:
    return {**event(kind, event_id or f"{kind}-1", NOON, **(data or DATA[kind])), "source": source}


def reasons() -> set[str]:
    return set(QuarantinedEvent.objects.values_list("reason", flat=True))


def test_every_type_of_event_is_tried_here() -> None:
    assert {f"ledger.{kind}.v1" for kind in DATA} == set(TYPES)


@pytest.mark.parametrize("kind", sorted(DATA))
def test_an_event_of_each_type_is_booked_of_the_own_source_and_of_no_other(kind: str) -> None:
    api = sender("kueue", OWN)
    receipt = sent(api, of(OTHERS, kind))
    assert (receipt.booked, receipt.quarantined) == (0, 1)
    assert reasons() == {"source_not_allowed"}
    receipt = sent(api, of(OWN, kind))
    assert (receipt.booked, receipt.quarantined) == (1, 0)


def test_one_foreign_event_does_not_hold_up_its_neighbours() -> None:
    receipt = sent(sender("kueue", OWN), *(of(source, kind) for kind in DATA for source in (OWN, OTHERS)))
    assert (receipt.booked, receipt.quarantined) == (len(DATA), len(DATA))
    assert set(QuarantinedEvent.objects.values_list("source_uri", flat=True)) == {OTHERS}


def test_a_correction_takes_nothing_of_another_source_away() -> None:
    sent(sender("ops", role=Role.PLATFORM), of(OTHERS, "occupancy", "theirs"))
    api = sender("kueue", OWN)
    withdrawal = of(OWN, "correction", "c-1", supersedes={"source": OTHERS, "id": "theirs"}, reason="not so")
    receipt = sent(api, withdrawal)
    assert (receipt.booked, receipt.quarantined, reasons()) == (0, 1, {"source_not_allowed"})
    replacement = {**withdrawal["data"], "event": of(OWN, "occupancy", "mine-now")}
    receipt = sent(api, of(OWN, "correction", "c-2", **replacement))
    assert (receipt.booked, receipt.quarantined) == (0, 1)
    assert Level.objects.filter(subject="wl-1", milli_gpus=2000).count() == 1
    assert set(Event.objects.values_list("event_id", flat=True)) == {"theirs"}


def test_a_correction_of_an_own_event_puts_no_event_of_another_source_in_its_place() -> None:
    api = sender("kueue", OWN)
    sent(api, of(OWN, "occupancy", "mine"))
    supersedes = {"supersedes": {"source": OWN, "id": "mine"}, "reason": "it was theirs"}
    receipt = sent(api, of(OWN, "correction", "c-1", **supersedes, event=of(OTHERS, "occupancy", "smuggled")))
    assert (receipt.booked, receipt.quarantined, reasons()) == (0, 1, {"source_not_allowed"})
    receipt = sent(api, of(OWN, "correction", "c-2", **supersedes, event=of(OWN, "occupancy", "mine-2")))
    assert (receipt.booked, receipt.quarantined) == (1, 0)
    assert not Event.objects.filter(event_id="smuggled").exists()


def test_retrying_what_was_refused_gives_the_sender_no_more_rights() -> None:
    sent(sender("kueue", OWN), of(OTHERS, "occupancy"))
    platform = sender("ops", role=Role.PLATFORM)
    row = QuarantinedEvent.objects.get()
    answer = platform.post("/api/v1/quarantine/retry/", {"ids": [row.pk]}, format="json")
    if answer.status_code == 202:
        for one in answer.json()["batches"]:
            receipt = book_batch(one["batch"])
            assert receipt is not None and receipt.booked == 0
    assert not Event.objects.exists()


def test_it_reads_receipts_of_its_own_and_nothing_else() -> None:
    mine, other = sender("kueue", OWN), sender("other", OTHERS)
    sent(mine, of(OWN, "occupancy"))
    sent(other, of(OTHERS, "occupancy"))
    own, foreign = (Batch.objects.get(submitted_by=f"token:{name}").pk for name in ("kueue", "other"))
    assert mine.get(f"/api/v1/batches/{own}/").status_code == 200
    assert [row["batch"] for row in mine.get("/api/v1/batches/").json()["results"]] == [own]
    theirs, nothing = (mine.get(f"/api/v1/batches/{number}/") for number in (foreign, 987_654))
    assert theirs.status_code == nothing.status_code == 404
    assert json.loads(theirs.content)["detail"] == json.loads(nothing.content)["detail"]
    for path in ("quarantine/", "facts/", "sources/", "identities/", f"events/?source={OWN}&id=occupancy-1"):
        assert mine.get(f"/api/v1/{path}").status_code == 403, path
