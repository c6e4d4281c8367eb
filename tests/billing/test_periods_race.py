"""Several workers at the books at once: first that they collide without the lock, then that they do not with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import QuerySet

from billing.models import Approval, CloseRun, RunState, Statement, StatementAnnex, StatementState
from billing.selectors.annexes import annex_rows
from billing.selectors.detail import slices_of_file
from billing.services import allocation, approvals, closing, months, snapshot
from billing.services.closing import run_close, start_close
from billing.services.credits import request_credit
from billing.services.months import MonthClosed, compute_month
from billing.services.periods import open_review
from billing.services.proposals import propose
from ledger.core.units import GPU_US_PER_GPU_HOUR, MICRO_PER_UNIT
from ledger.locks import Lock, acquire
from ledger.models import AuditEntry, Ledger, Period, Pool, Tenant
from ledger.services.audit import Actor
from ledger.services.masters import ensure_books
from tests.billing.closed_months import ANNA, BO, NOVEMBER_5, OCTOBER, closable_ledger, findings, hold
from tests.billing.level_facts import hour

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

PATIENCE_S = 2.0


@pytest.fixture
def in_review() -> Pool:
    """October in review, with a credit that is granted and not posted yet."""
    pool = closable_ledger()
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    Ledger.objects.update(options={"approvals": False})
    beta, october = Tenant.objects.get(holder__slug="beta"), Period.objects.get(month="2026-10")
    assert request_credit(beta, october, 5 * MICRO_PER_UNIT, "for the outage", ANNA) is None
    return pool


def at_once(*jobs: Callable[[], Any]) -> list[Exception]:
    """Run the jobs in threads of their own connection; returns what they raised."""
    errors: list[Exception] = []

    def run(job: Callable[[], Any]) -> None:
        try:
            job()
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    return errors


def beat_and_close_meet(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Beat has posted the credit and not committed when a close comes by; each waits a while for the other."""
    posted, closed = threading.Event(), threading.Event()
    real, run = months.draft_statements, start_close(OCTOBER, ANNA)

    def slowly(*args: Any, **kwargs: Any) -> int:
        if not posted.is_set():
            posted.set()
            closed.wait(PATIENCE_S)
        return real(*args, **kwargs)

    def close_october() -> None:
        assert posted.wait(PATIENCE_S * 10)
        run_close(run.pk, now=NOVEMBER_5)
        closed.set()

    monkeypatch.setattr(months, "draft_statements", slowly)
    return at_once(lambda: compute_month(OCTOBER, horizon=hour(31 * 24)), close_october)


def test_without_the_lock_a_computation_and_a_close_collide(
    in_review: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (snapshot, closing, allocation):
        monkeypatch.setattr(module, "acquire", lambda lock: None)
    monkeypatch.setattr(snapshot, "try_acquire", lambda lock: True)
    monkeypatch.setattr(snapshot, "_TRIES", 1)  # a collision is an error, not one more try
    assert beat_and_close_meet(monkeypatch) != []


def test_with_the_lock_a_computation_and_a_close_take_turns(
    in_review: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert beat_and_close_meet(monkeypatch) == []
    assert CloseRun.objects.get().state == RunState.DONE
    assert Statement.objects.get(number="2026-10-beta").total_minor == 11_500
    assert findings() == []


def two_closes_meet(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Two workers at one close, both wanting to issue; each waits a while for the other to have begun as well."""
    run = start_close(OCTOBER, ANNA)
    for step in ("compute", "check"):
        closing._do_step(run.pk, step, NOVEMBER_5)
    both, issue = threading.Barrier(2), closing.STEPS["issue"]

    def together(*args: Any) -> str:
        with suppress(threading.BrokenBarrierError):
            both.wait(PATIENCE_S / 2)
        return issue(*args)

    monkeypatch.setitem(closing.STEPS, "issue", together)
    worker = partial(run_close, run.pk, now=NOVEMBER_5)
    return at_once(worker, worker)


def times_closed() -> int:
    return AuditEntry.objects.filter(action="close_month").count()


def test_without_its_locks_two_closes_collide(in_review: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lock of the books and that of the run's row the month is closed twice, or a worker fails."""
    for module in (snapshot, closing, allocation):
        monkeypatch.setattr(module, "acquire", lambda lock: None)
    monkeypatch.setattr(snapshot, "try_acquire", lambda lock: True)
    monkeypatch.setattr(snapshot, "_TRIES", 1)
    monkeypatch.setattr(QuerySet, "select_for_update", lambda rows, **_: rows)
    errors = two_closes_meet(monkeypatch)
    assert errors != [] or times_closed() > 1


@pytest.mark.parametrize("rows_locked", [True, False])
def test_with_the_lock_of_the_books_two_closes_take_turns(
    in_review: Pool, monkeypatch: pytest.MonkeyPatch, rows_locked: bool
) -> None:
    if not rows_locked:
        monkeypatch.setattr(QuerySet, "select_for_update", lambda rows, **_: rows)
    assert two_closes_meet(monkeypatch) == []
    assert CloseRun.objects.get().state == RunState.DONE
    assert times_closed() == 1
    assert Statement.objects.filter(state=StatementState.ISSUED).count() == 3
    assert findings() == []


def test_two_closes_at_once_and_facts_meanwhile_make_one_set_of_statements(in_review: Pool) -> None:
    run = start_close(OCTOBER, ANNA)

    def facts_arrive() -> None:
        for number in range(5):
            hold(in_review, f"late-{number}", "beta", 20 + number, 21 + number, 1_000)

    def beat() -> None:
        try:
            compute_month(OCTOBER, horizon=hour(31 * 24))
        except MonthClosed:
            return

    def close_october() -> None:
        run_close(run.pk, now=NOVEMBER_5)

    assert at_once(close_october, close_october, facts_arrive, beat) == []
    closing.run_close(run.pk, now=NOVEMBER_5)
    assert CloseRun.objects.get().state == RunState.DONE
    assert Statement.objects.filter(state=StatementState.ISSUED).count() == 3
    assert AuditEntry.objects.filter(action="close_month").count() == 1
    # What came too late for the close is adjusted; either way beta pays for all five GPU-hours.
    closing.adjust_closed_months(NOVEMBER_5)
    totals = Statement.objects.filter(tenant__holder__slug="beta").values_list("total_minor", flat=True)
    assert sum(totals) == 11_500 + 5 * 300
    assert findings() == []


@pytest.mark.parametrize(("at_hour", "matters"), [(20, True), (31 * 24 + 2, False)])
def test_bookings_go_on_while_files_are_made_and_what_matters_is_in_them(
    in_review: Pool, monkeypatch: pytest.MonkeyPatch, at_hour: int, matters: bool
) -> None:
    """A fact of the month is billed, and its files are made again; one of the next month leaves them as they are."""
    run = start_close(OCTOBER, ANNA)
    freeze, made = closing.freeze_annexes, []

    def booked() -> None:
        with transaction.atomic():
            acquire(Lock.BOOKING_SEQUENCE)  # as every booking does before it commits
            hold(in_review, "late", "beta", at_hour, at_hour + 1, 1_000)

    def frozen(statements: Sequence[Statement]) -> None:
        freeze(statements)
        made.append(len(statements))
        if len(made) == 1:
            # In another session: a lock that the close holds would have it wait for ever.
            assert at_once(booked) == []

    monkeypatch.setattr(closing, "freeze_annexes", frozen)
    assert run_close(run.pk, now=NOVEMBER_5).state == RunState.DONE
    assert made == [3, 3] if matters else made == [3]
    assert findings() == []
    hours = 41 if matters else 40
    # 3 a GPU-hour, less the credit.
    assert Statement.objects.get(number="2026-10-beta").total_minor == hours * 300 - 500
    annex = StatementAnnex.objects.get(statement__number="2026-10-beta", name="slots")
    assert sum(one.gpu_us for one in slices_of_file(annex_rows(annex))) == hours * GPU_US_PER_GPU_HOUR


@pytest.mark.parametrize(("is_locked", "asked"), [(False, 2), (True, 1)])
def test_two_who_ask_for_the_same_at_one_moment_ask_once_with_the_lock(
    monkeypatch: pytest.MonkeyPatch, is_locked: bool, asked: int
) -> None:
    """Each has asked and not committed, and waits a while for the other to have asked as well."""
    ensure_books()
    if not is_locked:
        monkeypatch.setattr(approvals, "acquire", lambda lock: None)
    both, record = threading.Barrier(2), approvals.record

    def together(*args: Any, **kwargs: Any) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(PATIENCE_S / 2)
        record(*args, **kwargs)

    monkeypatch.setattr(approvals, "record", together)
    given: list[Approval | None] = []

    def ask(by: Actor) -> None:
        row = {"valid_from": "2100-01-01T00:00:00Z", "unreserved_idle": "even"}
        given.append(propose("policy", row, "agreed", by)[0])

    assert at_once(partial(ask, ANNA), partial(ask, BO)) == []
    assert Approval.objects.count() == AuditEntry.objects.filter(action="request_approval").count() == asked
    assert {one.pk for one in given if one} == set(Approval.objects.values_list("pk", flat=True))
