"""Facts that arrive while a month is computed are neither missed nor taken for computed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection

from billing.models import PreemptionRecord
from billing.services import measuring
from billing.services.months import compute_month
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import DirtySpan, Pool
from tests.billing.level_facts import MONTH, capacity, hour, identity, make_pool, make_tenants, occupancy
from tests.billing.preemption_facts import preemption, resume

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]
OCTOBER = Month.parse(MONTH)


@pytest.fixture
def waiting() -> Pool:
    """wl-1 was preempted at hour 2 and waits."""
    pool = make_pool()
    make_tenants("acme")
    capacity(pool, hour(0), 4_000)
    occupancy(pool, "wl-1", identity("acme"), hour(0), 1_000)
    occupancy(pool, "wl-1", identity("acme"), hour(2), 0)
    preemption(pool, hour(2), "wl-1", identity("acme"), 1_000, preemption="p1")
    return pool


def elsewhere(work: Any) -> None:
    """Run `work` on another connection and commit it."""

    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_a_resume_that_is_booked_between_two_steps_is_computed_next_time(
    waiting: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = measuring.compute_allocation

    def with_an_arrival(*args: Any, **options: Any) -> Any:
        elsewhere(lambda: resume(waiting, "p1", hour(5)))
        return original(*args, **options)

    monkeypatch.setattr(measuring, "compute_allocation", with_an_arrival)
    compute_month(OCTOBER, horizon=hour(10))
    assert PreemptionRecord.objects.get().waits_until is None
    assert DirtySpan.objects.filter(span__startswith=hour(5)).exists()

    monkeypatch.setattr(measuring, "compute_allocation", original)
    compute_month(OCTOBER, horizon=hour(10))
    record = PreemptionRecord.objects.get()
    assert (record.waits_until, record.waiting_gpu_us) == (hour(5), 3 * GPU_US_PER_GPU_HOUR)
    assert not DirtySpan.objects.filter(span__overlap=(hour(0), hour(10))).exists()


def test_two_computations_at_once_give_one_set_of_books(waiting: Pool) -> None:
    problems: list[BaseException] = []

    def compute() -> None:
        try:
            compute_month(OCTOBER, horizon=hour(10))
        except BaseException as error:
            problems.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert problems == []
    again = compute_month(OCTOBER, horizon=hour(10), everything=True)
    assert (again.transfers, again.statements) == (0, 0)
