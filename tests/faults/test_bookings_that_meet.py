"""Two bookings at once whose facts bear on each other: whichever commits first, what both say gets computed.

What a booking leaves to be computed again follows from what it finds in the record. One that is not committed yet is
not found: so bookings of one cluster's work take turns at their end, and the later one finds what the earlier one told.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, connections

from billing.models import Allocation, PreemptionRecord, WorkloadDay
from billing.services.months import compute_month
from ingest.services import booking
from ledger.core.periods import Month
from ledger.locks import Lock, acquire
from tests.ingest.feeding import deliver, event, occupancy, small_world

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

OCTOBER = Month.parse("2026-10")
DAY_6 = datetime(2026, 10, 6, tzinfo=UTC)
PATIENCE_S = 60.0


def day(number: int, hour: int = 0) -> str:
    return f"2026-10-0{number}T{hour:02}:00:00Z"


CAPACITY = event("capacity", "c", day(1), pool="bj-h100", gpus=8)
# The first attempt holds on until the fifth, unless the second one, which is over by noon, has ended it.
FIRST_ATTEMPT = [
    occupancy("a1", day(1, 5), 4, attempt=1),
    occupancy("a1-ends", day(5), 0, attempt=1),
]
SECOND_ATTEMPT = [
    occupancy("a2", day(1, 10), 2, attempt=2),
    occupancy("a2-ends", day(1, 12), 0, attempt=2),
]
# What a record of the preemption is measured by, but for what the report and the resume say.
OTHER = [occupancy("other", day(1), 1, workload="wl-2")]
HELD = [occupancy("h", day(1), 4), occupancy("h-ends", day(1, 10), 0), occupancy("h-again", day(2), 4)]
REPORT = event(
    "preemption", "p", day(1, 10), preemption="p1", victim={"workload": "wl-1", "tenant": "acme"}, pool="bj-h100",
    gpus=4, cause="priority", preemptor_source="none",
)  # fmt: skip
RESUME = event("resume", "r", day(2), preemption="p1", pool="bj-h100", recompute_gpu_seconds="7")


def books() -> list[Any]:
    of_record = (
        "decided_at",
        "admitted_at",
        "released_at",
        "resumed_at",
        "recompute_gpu_us",
        "waiting_gpu_us",
    )
    of_record += ("lost_gpu_us", "requests_voided")
    return [
        sorted(
            Allocation.objects.filter(on_demand_gpu_us__gt=0).values_list("starts_at", "on_demand_gpu_us")
        ),
        sorted(WorkloadDay.objects.values_list("starts_at", "attempt", "on_demand_gpu_us")),
        sorted(PreemptionRecord.objects.values_list(*of_record)),
    ]


def somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0])


def of_another_source(events: list[Any]) -> list[Any]:
    """Bookings of one source wait for one another anyway, at its row."""
    return [one | {"source": "/clusters/bj-1/autoscaler"} for one in events]


@pytest.mark.parametrize(
    ("before", "slow", "quick"),
    [
        (OTHER, SECOND_ATTEMPT, FIRST_ATTEMPT),
        (OTHER, FIRST_ATTEMPT, SECOND_ATTEMPT),
        (HELD, [RESUME], [REPORT]),
        (HELD, [REPORT], [RESUME]),
    ],
    ids=["second attempt is slow", "first attempt is slow", "resume is slow", "report is slow"],
)
def test_what_two_bookings_at_once_say_together_is_computed(
    monkeypatch: pytest.MonkeyPatch, before: list[Any], slow: list[Any], quick: list[Any]
) -> None:
    small_world()
    deliver(CAPACITY, *before)
    deliver(*of_another_source([occupancy("known", day(1), 0, workload="wl-3")]))
    compute_month(OCTOBER, horizon=DAY_6)
    is_ready, may_go = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def book(events: list[Any]) -> None:
        try:
            assert deliver(*events).booked == len(events)
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    slow_one = threading.Thread(target=book, args=(slow,))
    quick_one = threading.Thread(target=book, args=(of_another_source(quick),))

    def held_up(lock: Lock) -> None:
        """All but the commit is done."""
        if threading.current_thread() is slow_one:
            is_ready.set()
            assert may_go.wait(PATIENCE_S)
        acquire(lock)

    monkeypatch.setattr(booking, "acquire", held_up)
    slow_one.start()
    assert is_ready.wait(PATIENCE_S)
    quick_one.start()
    while quick_one.is_alive() and not somebody_waits():
        quick_one.join(0.02)
    compute_month(OCTOBER, horizon=DAY_6)
    may_go.set()
    for thread in (slow_one, quick_one):
        thread.join(PATIENCE_S)
    assert not failures
    compute_month(OCTOBER, horizon=DAY_6)
    found = books()
    compute_month(OCTOBER, horizon=DAY_6, everything=True)
    assert found == books()
    assert found[0] and bool(found[2]) is (before is HELD)
