"""`POST /api/v1/events/` and the receipts, as a sender sees them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from rest_framework.test import APIClient

from ingest.core.unpack import Limits
from ingest.models import Batch, BatchState
from ingest.services.booking import book_batch
from ledger.core import zstd
from ledger.models import Event, Membership, Role, Source, User
from ledger.services.tokens import create_api_token
from tests.ingest.feeding import NDJSON, SOURCE, lines, occupancy, request, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]
EVENTS = "/api/v1/events/"


@pytest.fixture(autouse=True)
def asked_for(monkeypatch: pytest.MonkeyPatch, db: None) -> Iterator[list[int]]:
    """Batches that somebody was asked to book; nobody does it here unless a test says so."""
    small_world()
    asked: list[int] = []
    monkeypatch.setattr("ingest.api.views.request_booking", asked.append)
    yield asked


def client(role: str = "ingest", name: str = "gateway", sources: list[Source] | None = None) -> APIClient:
    _, secret = create_api_token(name, role, sources=sources)
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


def post(api: APIClient, content: bytes, content_type: str = NDJSON, **headers: str) -> Any:
    return api.post(EVENTS, data=content, content_type=content_type, headers=headers)


def an_event(event_id: str = "o-1", gpus: Any = 1) -> dict[str, Any]:
    return occupancy(event_id, "2026-10-01T00:00:00Z", gpus)


def test_a_batch_is_kept_and_then_booked(asked_for: list[int]) -> None:
    api = client()
    answer = post(api, lines(an_event("o-1"), b"{", an_event("o-2")))
    assert answer.status_code == 202
    batch_id = answer.json()["batch"]
    assert answer.json()["received"] == 3
    assert answer["Location"] == answer.json()["status_url"]
    assert asked_for == [batch_id]
    status = api.get(answer.json()["status_url"]).json()
    assert (status["state"], status["booked"]) == ("received", None)
    book_batch(batch_id)
    status = api.get(answer.json()["status_url"]).json()
    assert {
        name: status[name] for name in ("state", "received", "booked", "duplicate", "conflict", "quarantined")
    } == {
        "state": "booked",
        "received": 3,
        "booked": 2,
        "duplicate": 0,
        "conflict": 0,
        "quarantined": 1,
    }
    assert [(line["line"], line["reason"]) for line in status["lines"]] == [(2, "not_json")]


FORMS = [
    ("application/cloudevents+json", json.dumps(an_event(), indent=1).encode()),
    ("application/cloudevents+json; charset=utf-8", json.dumps(an_event()).encode()),
    ("application/cloudevents-batch+json", json.dumps([an_event()]).encode()),
    ("application/json", json.dumps([an_event()]).encode()),
    ("application/json", json.dumps(an_event()).encode()),
    ("application/x-ndjson", lines(an_event()) + b"\n\n"),
]


@pytest.mark.parametrize(("content_type", "content"), FORMS)
@pytest.mark.parametrize("encoding", ["", "gzip", "zstd"])
def test_every_form_and_encoding(content_type: str, content: bytes, encoding: str) -> None:
    packers = {"": bytes, "gzip": gzip.compress, "zstd": zstd.compress}
    answer = post(client(), packers[encoding](content), content_type, **{"Content-Encoding": encoding})
    assert (answer.status_code, answer.json()["received"]) == (202, 1)
    receipt = book_batch(answer.json()["batch"])
    assert receipt is not None and receipt.booked == 1


@pytest.mark.parametrize(("content_type", "content"), FORMS)
def test_every_form_is_taken_from_a_browser_too(content_type: str, content: bytes) -> None:
    """The check against cross-site requests must neither parse the body nor be left out."""
    user = User.objects.create_user("anna", password="x")
    Membership.objects.create(user=user, role=Role.PLATFORM)
    api = APIClient(enforce_csrf_checks=True)
    api.force_login(user)
    assert post(api, content, content_type).json()["detail"] == "CSRF Failed: CSRF cookie not set."
    token = "t" * 32
    api.cookies["csrftoken"] = token
    answer = post(api, content, content_type, **{"X-CSRFToken": token})
    assert (answer.status_code, answer.json()["received"]) == (202, 1)


def test_the_same_body_or_the_same_key_gives_the_first_batch(asked_for: list[int]) -> None:
    api = client()
    first = post(api, lines(an_event("o-1"))).json()["batch"]
    assert post(api, lines(an_event("o-1"))).json()["batch"] == first
    keyed = post(api, lines(an_event("o-1")), **{"Idempotency-Key": "k-1"}).json()["batch"]
    assert keyed != first
    assert post(api, lines(an_event("o-2")), **{"Idempotency-Key": "k-1"}).json()["batch"] == keyed
    assert post(client(name="other"), lines(an_event("o-1"))).json()["batch"] not in (first, keyed)
    assert len(asked_for) == 3


@pytest.mark.parametrize(
    ("content", "encoding", "status", "code"),
    [
        (gzip.compress(lines(an_event())), "", 415, "undeclared_encoding"),
        (zstd.compress(lines(an_event())), "identity", 415, "undeclared_encoding"),
        (gzip.compress(gzip.compress(lines(an_event()))), "gzip", 400, "not_text"),
        (bytes(range(256)) * 20, "", 400, "not_text"),
    ],
)
@pytest.mark.parametrize("content_type", [NDJSON, "application/json"])
def test_a_body_that_is_no_text_is_one_problem(
    content: bytes, encoding: str, status: int, code: str, content_type: str
) -> None:
    answer = post(client(), content, content_type, **{"Content-Encoding": encoding})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not Batch.objects.exists()


@pytest.mark.parametrize(
    ("limit", "value", "content", "content_type", "status", "code"),
    [
        ("body_bytes", 100, lines(an_event()), NDJSON, 413, "body_too_large"),
        ("unpacked_bytes", 200, lines(an_event("a-1"), an_event("a-2")), NDJSON, 413, "unpacked_too_large"),
        ("events", 1, lines(an_event("a-1"), an_event("a-2")), NDJSON, 413, "too_many_events"),
        ("event_bytes", 90, lines(an_event()), "application/cloudevents+json", 413, "event_too_large"),
        ("depth", 1, lines(an_event()), "application/cloudevents+json", 400, "too_deep"),
        ("depth", 32, b"", NDJSON, 400, "no_events"),
        ("depth", 32, b"{}", "text/plain", 415, "unsupported_type"),
        ("depth", 32, b'[{"a":1}', "application/json", 400, "not_an_array"),
    ],
)
def test_each_limit_has_a_status_and_a_code(
    settings: Any, limit: str, value: int, content: bytes, content_type: str, status: int, code: str
) -> None:
    settings.INGEST_LIMITS = {limit: value}
    answer = post(client(), content, content_type)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer["Content-Type"] == "application/problem+json"
    assert not Batch.objects.exists()


def test_a_bomb_and_a_broken_body_are_refused_in_time() -> None:
    api = client()
    bomb = gzip.compress(b" " * 1024 * 1024 * 8)
    assert asdict(Limits())["unpacked_bytes"] > len(bomb)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ingest.services.limits.Limits", lambda: Limits(unpacked_bytes=1024 * 1024))
        answer = post(api, bomb, **{"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (413, "unpacked_too_large")
    broken = gzip.compress(lines(an_event()))[:-9]
    answer = post(api, broken, **{"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["code"]) == (400, "broken_compression")
    answer = post(api, broken, **{"Content-Encoding": "br"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_encoding")


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"\x00" * 50, b"[" * 100_000, b'"text"', b"NaN", b"9" * 10_000]
)
@pytest.mark.parametrize("content_type", ["application/json", NDJSON, "application/cloudevents+json"])
def test_nonsense_is_never_a_server_error(content: bytes, content_type: str) -> None:
    answer = post(client(), content, content_type)
    assert answer.status_code in (202, 400)
    if answer.status_code == 202:
        receipt = book_batch(answer.json()["batch"])
        assert receipt is not None
        assert receipt.received == receipt.quarantined > 0


@pytest.mark.parametrize(
    ("role", "status"), [("ingest", 202), ("platform", 202), ("finance", 403), ("auditor", 403)]
)
def test_who_may_send(role: str, status: int) -> None:
    assert post(client(role), lines(an_event())).status_code == status


def test_nobody_may_send() -> None:
    assert post(APIClient(), lines(an_event())).status_code == 401


def test_a_sender_sees_its_own_batches_only() -> None:
    mine, other, platform = client(), client(name="other"), client("platform", "ops")
    batch_id = post(mine, lines(an_event())).json()["batch"]
    assert other.get(f"/api/v1/batches/{batch_id}/").status_code == 404
    assert other.get("/api/v1/batches/").json()["results"] == []
    assert [row["batch"] for row in mine.get("/api/v1/batches/?state=received").json()["results"]] == [
        batch_id
    ]
    assert platform.get(f"/api/v1/batches/{batch_id}/").json()["submitted_by"] == "token:gateway"
    assert platform.get("/api/v1/batches/?state=odd").status_code == 400
    assert platform.get("/api/v1/batches/?nope=1").status_code == 400


def test_a_token_of_one_source_cannot_speak_for_another() -> None:
    source = Source.objects.create(uri="/only-this")
    answer = post(client(sources=[source]), lines(an_event()))
    receipt = book_batch(answer.json()["batch"])
    assert receipt is not None and (receipt.booked, receipt.quarantined) == (0, 1)


def test_what_was_booked_under_a_key() -> None:
    sent = lines(
        an_event("o-1"), request("r-100", "2026-10-01T00:00:00Z", "2026-09-30T23:59:00Z", gpu_seconds="2")
    )
    batch_id = post(client(), sent).json()["batch"]
    book_batch(batch_id)
    api = client("auditor", "check")
    row = api.get(EVENTS, {"source": SOURCE, "id": "o-1"}).json()["results"][0]
    assert (row["type"], row["batch"], row["line"]) == ("ledger.occupancy.v1", batch_id, 1)
    assert row["event"]["data"]["gpus"] == 1
    row = api.get(EVENTS, {"source": SOURCE, "id": "r-100"}).json()["results"][0]
    assert (row["type"], row["event"]["gpu_us"]) == ("ledger.request.v1", 2_000_000)
    assert row["event"]["identity"] == {"kind": "tenant", "value": "acme"}
    assert api.get(EVENTS, {"source": SOURCE, "id": "none"}).json()["results"] == []
    assert api.get(EVENTS, {"source": SOURCE}).status_code == 400
    assert client().get(EVENTS, {"source": SOURCE, "id": "o-1"}).status_code == 403


def test_a_post_without_the_slash_is_taken_too() -> None:
    answer = client().post("/api/v1/events", data=lines(an_event()), content_type=NDJSON)
    assert answer.status_code == 202


def test_what_nobody_books_is_found_by_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    from ingest import tasks
    from ingest.services import inbox

    batch_id = post(client(), lines(an_event())).json()["batch"]
    monkeypatch.setattr(tasks.book_batch, "delay", tasks.book_batch)
    tasks.sweep_inbox()
    assert not Event.objects.exists(), "a batch that was just asked for is left alone"
    Batch.objects.update(received_at=Batch.objects.get().received_at - timedelta(minutes=5))
    tasks.sweep_inbox()
    assert Batch.objects.get(pk=batch_id).state == BatchState.BOOKED
    assert inbox.take_left_behind() == []
