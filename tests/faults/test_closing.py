"""A worker that is killed in the middle of a close, in each of its steps, and two workers at one close while facts
arrive: one set of statements, proved by every check of verify_ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, connections, transaction

from billing import tasks
from billing.models import CloseRun, RunState, Statement, StatementAnnex, StatementState
from billing.services.adjustments import adjust_closed_months
from billing.services.closing import STEPS, start_close
from billing.services.periods import open_review
from ledger.locks import Lock, acquire
from ledger.models import AuditEntry, Period, PeriodState, Pool
from tests.billing.closed_months import ANNA, NOVEMBER, NOVEMBER_5, OCTOBER, closable_ledger, findings, hold
from tests.fixtures.services import WorkerFactory

pytestmark = pytest.mark.postgres
PATIENCE_S = 30.0


def wait_for(what: Callable[[], bool], said: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)


# Not from pg_stat_activity, of which a transaction sees what it saw first.
WAITING = """
SELECT count(*) FROM pg_locks waiting
WHERE NOT granted AND EXISTS (
    SELECT 1 FROM pg_locks held JOIN pg_database ON pg_database.oid = held.database
    WHERE held.pid = waiting.pid AND datname = current_database())
"""


def somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(WAITING)
        return bool(cursor.fetchone()[0])


def insert_november() -> None:
    Period.objects.create(month=str(NOVEMBER), starts_at="2026-11-01T00:00Z", ends_at="2026-12-01T00:00Z")


def lock_table(name: str, mode: str) -> Callable[[], None]:
    def lock() -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {name} IN {mode} MODE")

    return lock


# What holds a worker up in the middle of each step, its work so far done and not committed.
HELD_UP_BY = {
    "compute": lock_table("billing_statement", "SHARE"),  # everything but the drafts is written
    "check": lock_table("billing_checklistwaiver", "ACCESS EXCLUSIVE"),
    "issue": lock_table("ledger_auditentry", "SHARE"),  # files, seals and the month's state are written
    "announce": insert_november,  # the month is closed; the next one is about to open
}


@contextmanager
def held_up_in(step: str) -> Iterator[None]:
    with transaction.atomic():
        HELD_UP_BY[step]()
        yield
        transaction.set_rollback(True)


def closing_october() -> tuple[Pool, CloseRun]:
    """October in review, and a fact that came after its drafts were made."""
    pool = closable_ledger()
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    run = start_close(OCTOBER, ANNA)
    hold(pool, "wl-9", "beta", 1, 3, 1_000)
    return pool, run


def assert_closed_once(run: CloseRun) -> None:
    run.refresh_from_db()
    assert (run.state, [step["state"] for step in run.steps]) == (RunState.DONE, ["done"] * 4)
    issued = Statement.objects.filter(state=StatementState.ISSUED)
    assert list(issued.order_by("number").values_list("number", flat=True)) == [
        "2026-10-acme",
        "2026-10-beta",
        "2026-10-gamma",
    ]
    assert StatementAnnex.objects.count() == 15
    assert AuditEntry.objects.filter(action="close_month").count() == 1
    assert CloseRun.objects.count() == 1
    assert findings() == []


@pytest.mark.parametrize("step", list(STEPS))
def test_a_worker_killed_in_the_middle_of_a_step_leaves_a_close_that_goes_on(
    worker_factory: WorkerFactory, step: str
) -> None:
    _, run = closing_october()
    worker = worker_factory()
    with held_up_in(step):
        tasks.close_month.delay(run.pk)
        wait_for(somebody_waits, worker.log_text)
        worker.kill()
    wait_for(lambda: not somebody_waits(), lambda: "the dead worker's transaction goes on")
    run.refresh_from_db()
    before = list(STEPS)[: list(STEPS).index(step)]
    assert [one["name"] for one in run.steps if one["state"] == "done"] == before
    is_closed = step == "announce"
    assert (Period.objects.get(month="2026-10").state == PeriodState.CLOSED) is is_closed
    assert Statement.objects.filter(state=StatementState.ISSUED).exists() is is_closed
    assert StatementAnnex.objects.exists() is is_closed
    second = worker_factory()
    tasks.go_on_closing.delay()
    wait_for(lambda: CloseRun.objects.get().state == RunState.DONE, second.log_text)
    assert_closed_once(run)
    assert Statement.objects.get(number="2026-10-beta").total_minor == 12_600


def test_two_workers_at_one_close_while_facts_arrive(worker_factory: WorkerFactory) -> None:
    pool, run = closing_october()
    workers = [worker_factory(), worker_factory()]
    stop = threading.Event()
    held = []

    def facts_arrive() -> None:
        try:
            while not stop.is_set() and len(held) < 100:
                with transaction.atomic():
                    acquire(Lock.BOOKING_SEQUENCE)  # as every booking does before it commits
                    hold(pool, f"late-{len(held)}", "beta", 20 + len(held), 21 + len(held), 1_000)
                held.append(len(held))
        finally:
            connections.close_all()

    feeding = threading.Thread(target=facts_arrive)
    feeding.start()
    for _ in range(3):
        tasks.close_month.delay(run.pk)
    wait_for(lambda: CloseRun.objects.get().state == RunState.DONE, workers[0].log_text)
    stop.set()
    feeding.join(timeout=PATIENCE_S)
    for worker in workers:
        worker.stop()
    assert held
    # What came too late for the cut is an adjustment of November; beta pays for all of it, once.
    adjust_closed_months(NOVEMBER_5)
    assert_closed_once(run)
    totals = Statement.objects.filter(tenant__holder__slug="beta").values_list("total_minor", flat=True)
    assert sum(totals) == 12_600 + 300 * len(held)
