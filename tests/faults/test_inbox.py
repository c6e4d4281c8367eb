"""What is in the inbox is booked once: with a worker killed in the middle of it, and with a broker that was down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from rest_framework.test import APIClient

from ingest.models import Batch
from ingest.services import inbox
from ingest.services.inbox import Body, accept_batch
from ingest.tasks import request_booking, sweep_inbox
from ledger.api.authentication import create_api_token
from ledger.locks import NAMESPACE, Lock
from ledger.models import Booking, Event, Level, Request, UsageHour
from tests.fixtures.services import WorkerFactory, WorkerProcess, test_database_url
from tests.ingest.feeding import NDJSON, lines, occupancy, request, small_world

pytestmark = [pytest.mark.postgres, pytest.mark.broker, pytest.mark.django_db(transaction=True)]

LEVELS, REQUESTS = 20, 200
PATIENT_S = 60.0
NOBODY_ANSWERS = "redis://127.0.0.1:1/0"


def body() -> bytes:
    levels = [occupancy(f"o{n}", f"2026-10-03T00:00:{n:02d}Z", n) for n in range(LEVELS)]
    minute = "2026-10-03T01:00"
    requests = [
        request(f"r{n}", f"{minute}:05Z", f"{minute}:00Z", input_tokens=10, output_tokens=1)
        for n in range(REQUESTS)
    ]
    return lines(*levels, *requests)


def wait_until(condition: Callable[[], bool], what: str, worker: WorkerProcess | None = None) -> None:
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen; worker said: {worker.log_text() if worker else '-'}")
        time.sleep(0.05)


@contextmanager
def no_booking_commits() -> Iterator[None]:
    """Hold what every booking takes last, so that one stands still with all of its work done and not committed."""
    with psycopg.connect(test_database_url()) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s, %s)", [NAMESPACE, int(Lock.BOOKING_SEQUENCE)])
        yield
        other.rollback()


def waits_for_the_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s",
            [int(Lock.BOOKING_SEQUENCE)],
        )
        return bool(cursor.fetchone()[0])


def assert_booked_once() -> None:
    assert list(
        Booking.objects.values_list("received", "booked", "duplicate", "conflict", "quarantined")
    ) == [(LEVELS + REQUESTS, LEVELS + REQUESTS, 0, 0, 0)]
    assert (Event.objects.count(), Level.objects.count(), Request.objects.count()) == (
        LEVELS,
        LEVELS,
        REQUESTS,
    )
    assert list(UsageHour.objects.values_list("requests", "input_tokens", "output_tokens")) == [
        (REQUESTS, 10 * REQUESTS, REQUESTS)
    ]


def test_a_worker_killed_in_the_middle_of_a_batch_leaves_it_to_the_next(
    worker_factory: WorkerFactory,
) -> None:
    small_world()
    first = worker_factory()
    batch, _ = accept_batch(Body(body(), NDJSON), door="test", submitted_by="test")
    with no_booking_commits():
        request_booking(batch.pk)
        wait_until(waits_for_the_lock, "the booking", first)
        first.kill()
    # The server notices that its client is gone when it has the lock, and only the client could have committed.
    wait_until(lambda: not waits_for_the_lock(), "the end of the killed worker's session")
    assert not Booking.objects.exists()
    assert not Level.objects.exists()
    assert not Request.objects.exists()
    second = worker_factory()
    request_booking(batch.pk)
    request_booking(batch.pk)
    wait_until(lambda: Batch.objects.get().state == "booked", "the second booking", second)
    second.stop()
    assert_booked_once()


def test_two_workers_with_one_batch_book_it_once(worker_factory: WorkerFactory) -> None:
    small_world()
    worker = worker_factory(concurrency=2)
    batch, _ = accept_batch(Body(body(), NDJSON), door="test", submitted_by="test")
    for _ in range(6):
        request_booking(batch.pk)
    wait_until(lambda: Batch.objects.get().state == "booked", "the booking", worker)
    worker.stop()
    assert_booked_once()


def test_with_the_broker_down_a_post_gets_its_202_and_is_booked_when_the_broker_is_back(
    worker_factory: WorkerFactory,
    broker_url: str,
    celery_at: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_world()
    _, secret = create_api_token("scheduler", "platform")
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    celery_at(NOBODY_ANSWERS)
    response = api.post("/api/v1/events/", body(), content_type=NDJSON)
    assert response.status_code == 202, response.content
    document = response.json()
    assert document["received"] == LEVELS + REQUESTS
    assert api.get(document["status_url"]).json()["state"] == "received"
    again = api.post("/api/v1/events/", body(), content_type=NDJSON)
    assert again.json()["batch"] == document["batch"]
    assert not Booking.objects.exists()
    # The broker is back; what beat does every few seconds finds the batch.
    celery_at(broker_url)
    worker = worker_factory()
    monkeypatch.setattr(inbox.take_left_behind, "__defaults__", (timedelta(0),))
    sweep_inbox()
    wait_until(lambda: Batch.objects.get().state == "booked", "the booking", worker)
    worker.stop()
    assert_booked_once()
