"""A worker that dies in the middle of a batch, two that take the same, and a broker that is away."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections, transaction
from rest_framework.test import APIClient

from ingest import tasks
from ingest.models import Batch, BatchState
from ingest.services.booking import book_batch
from ingest.services.inbox import Body, accept_batch
from ledger.embedded import EmbeddedValkey
from ledger.locks import Lock, acquire
from ledger.models import Booking, Event, Level, QuotaStanding, Request, UsageHour
from ledger.services.tokens import create_api_token
from tests.fixtures.services import WorkerFactory
from tests.ingest.feeding import NDJSON, all_facts, event, lines, occupancy, request, small_world

pytestmark = pytest.mark.postgres
EVENTS = 300
PATIENCE_S = 60.0


def content() -> bytes:
    levels = [occupancy(f"o-{n}", "2026-10-01T00:00:00Z", 1, workload=f"w{n}") for n in range(EVENTS)]
    requests = [
        request(f"req-{n}", "2026-10-01T01:00:00Z", "2026-10-01T00:59:00Z", gpu_seconds="1.5")
        for n in range(EVENTS)
    ]
    return lines(*levels, *requests)


def keep(body: bytes = b"", key: str = "") -> int:
    batch, _ = accept_batch(
        Body(body or content(), NDJSON), door="test", submitted_by="test", idempotency_key=key
    )
    return int(batch.pk)


def wait_for(what: Callable[[], bool], said: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


@contextmanager
def last_step_held() -> Iterator[None]:
    """Bookings come as far as their last statement, and no further, until this ends."""
    with transaction.atomic():
        acquire(Lock.BOOKING_SEQUENCE)
        yield


def somebody_waits_for_the_last_step() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
            "WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
        )
        return bool(cursor.fetchone()[0])


def assert_booked_once(batch_id: int) -> None:
    batch = Batch.objects.get(pk=batch_id)
    assert (batch.state, batch.received, batch.booked) == (BatchState.BOOKED, 2 * EVENTS, 2 * EVENTS)
    assert Booking.objects.count() == 1
    assert (Event.objects.count(), Level.objects.count(), Request.objects.count()) == (EVENTS, EVENTS, EVENTS)
    assert UsageHour.objects.get(requests=EVENTS).gpu_us == EVENTS * 1_500_000


def test_a_worker_killed_in_the_middle_of_a_batch_books_it_once(worker_factory: WorkerFactory) -> None:
    small_world()
    batch_id = keep()
    worker = worker_factory()
    with last_step_held():
        tasks.book_batch.delay(batch_id)
        wait_for(somebody_waits_for_the_last_step, worker.log_text())
        worker.kill()
    wait_for(lambda: not somebody_waits_for_the_last_step(), "the dead worker's transaction goes on")
    assert not Event.objects.exists() and not Request.objects.exists(), "half a batch was booked"
    assert Batch.objects.get(pk=batch_id).state == BatchState.RECEIVED
    second = worker_factory()
    Batch.objects.update(received_at="2026-01-01T00:00:00Z")
    tasks.sweep_inbox.delay()
    wait_for(lambda: Batch.objects.get(pk=batch_id).state == BatchState.BOOKED, second.log_text())
    assert_booked_once(batch_id)


def test_two_workers_with_the_same_message_book_once(worker_factory: WorkerFactory) -> None:
    small_world()
    batch_id = keep()
    workers = [worker_factory(), worker_factory()]
    for _ in range(6):
        tasks.book_batch.delay(batch_id)
    wait_for(lambda: Batch.objects.get(pk=batch_id).state == BatchState.BOOKED, workers[0].log_text())
    for worker in workers:
        worker.stop()
    assert_booked_once(batch_id)


@pytest.mark.django_db(transaction=True)
def test_two_bookings_of_the_same_events_at_once_change_nothing() -> None:
    """Shuffled against each other, so that they lock keys in opposite orders and may deadlock."""
    small_world()
    body = content()
    backwards = b"\n".join(reversed(body.split(b"\n")))
    for round_ in range(3):
        batches = [keep(body, f"a{round_}"), keep(backwards, f"b{round_}")]
        failures: list[BaseException] = []

        def book(batch_id: int, failures: list[BaseException] = failures) -> None:
            try:
                book_batch(batch_id, wait=True)
            except BaseException as error:
                failures.append(error)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=book, args=(batch_id,)) for batch_id in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not failures
        booked = Batch.objects.filter(pk__in=batches).values_list("received", "booked", "duplicate")
        assert sum(row[0] for row in booked) == 4 * EVENTS
        assert sum(row[1] for row in booked) == (2 * EVENTS if round_ == 0 else 0)
        if round_ == 0:
            before = all_facts()
    assert all_facts() == before
    assert (Event.objects.count(), Request.objects.count()) == (EVENTS, EVENTS)


@pytest.mark.django_db(transaction=True)
def test_of_two_quotas_of_one_instant_booked_at_once_the_greater_key_stands() -> None:
    """Neither sees the other's while both are at it; without a word between them the last to commit would win."""
    small_world()
    sources = ["/b", "/a"]  # known by now: a source that is new makes the second booking wait for the first
    met = [occupancy("o", "2026-10-01T00:00:00Z", 1) | {"source": source} for source in sources]
    first = book_batch(keep(lines(*met)))
    assert first is not None and first.booked == 2
    data = {"tenant": "acme", "layer": "serving", "resource": "concurrency", "used": 0}
    quotas = [
        event("quota", "q", "2026-10-01T00:00:00Z", **data, limit=limit) | {"source": source}
        for source, limit in zip(sources, (2, 1), strict=True)
    ]
    batches = [keep(lines(quota)) for quota in quotas]
    failures: list[BaseException] = []

    def book(batch_id: int) -> None:
        try:
            book_batch(batch_id, wait=True)
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=book, args=(batch_id,)) for batch_id in batches]
    with last_step_held():
        for count, thread in enumerate(threads, start=1):
            thread.start()
            wait_for(lambda count=count: waiting_for_a_lock() == count, "a booking does not come so far")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not failures
    assert [row.limit_milli for row in QuotaStanding.objects.all()] == [2000]


def waiting_for_a_lock() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(cursor.fetchone()[0])


def sender() -> APIClient:
    _, secret = create_api_token("gateway", "ingest")
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


def silent_port() -> socket.socket:
    """Accepts connections and never says a word: worse than a refusal."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)
    return listener


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("broker", ["refuses", "is silent"])
def test_with_the_broker_down_a_post_gets_its_202_at_once(
    celery_at: Callable[[str], None], broker: str
) -> None:
    small_world()
    with silent_port() as listener:
        port = listener.getsockname()[1] if broker == "is silent" else 9
        celery_at(f"redis://127.0.0.1:{port}/0")
        api = sender()
        began = time.monotonic()
        answer = api.post("/api/v1/events/", data=content(), content_type=NDJSON)
        assert (answer.status_code, answer.json()["received"]) == (202, 2 * EVENTS)
        assert time.monotonic() - began < 5
        assert Batch.objects.get().state == BatchState.RECEIVED


@pytest.mark.broker
def test_and_is_booked_when_the_broker_returns(
    worker_factory: WorkerFactory, valkey_of_test: EmbeddedValkey, celery_at: Callable[[str], None]
) -> None:
    small_world()
    url = valkey_of_test.url(valkey_of_test.acquire())
    valkey_of_test.release()
    celery_at(url)
    answer: Any = sender().post("/api/v1/events/", data=content(), content_type=NDJSON)
    assert answer.status_code == 202
    valkey_of_test.acquire()
    worker = worker_factory(BROKER_URL=url, LEDGER_QUEUE=tasks.current_app.conf.task_default_queue)
    Batch.objects.update(received_at="2026-01-01T00:00:00Z")
    tasks.sweep_inbox.delay()
    batch_id = answer.json()["batch"]
    wait_for(lambda: Batch.objects.get(pk=batch_id).state == BatchState.BOOKED, worker.log_text())
    assert_booked_once(batch_id)
