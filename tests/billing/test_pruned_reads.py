"""Reads that need raw requests, once these are pruned: the answer is that of before, or says that they are gone."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from billing.models import PreemptionRecord, PreemptionShare
from billing.services.as_of import RequestsGone, month_as_of
from billing.services.months import compute_month
from ledger.core.periods import to_datetime, to_ms
from ledger.models import Booking
from tests.billing.test_periods_api import client, get
from tests.billing.test_pruned_usage import HORIZON, OCTOBER, prune, unguarded_periods, world  # noqa: F401
from tests.ingest.feeding import deliver, event, occupancy, request
from tests.ingest.test_corrections import correction

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def known(since: int = 0) -> tuple[datetime, int]:
    """Bookings after number `since` are known from now on, to the millisecond; and the last of them."""
    now = to_datetime(to_ms(timezone.now()))
    Booking.objects.filter(pk__gt=since).update(booked_at=now)
    return now, Booking.objects.latest("pk").pk


DAY_3 = "2026-10-03T04:{}:00Z"


def preempted_at(tenant: str, minute: int, seconds: int) -> dict[str, Any]:
    return request(
        f"void-{tenant}",
        DAY_3.format(minute),
        DAY_3.format(minute),
        service="chat",
        workload="chat-0",
        tenant=tenant,
        outcome="preempted",
        gpu_seconds=seconds,
    )


def chat_is_preempted() -> None:
    """chat-0 loses 4 GPUs at 04:10 and is drained until 04:12; 90 GPU-seconds of requests are lost, 2 : 1."""
    deliver(
        preempted_at("acme", 11, 60),
        preempted_at("beta", 12, 30),
        event(
            "preemption",
            "p",
            DAY_3.format(10),
            preemption="p-1",
            victim={"workload": "chat-0", "service": "chat"},
            pool="bj-h100",
            gpus=4,
            cause="maintenance",
            preemptor_source="none",
            released_at=DAY_3.format(12),
        ),
        occupancy("gone", DAY_3.format(12), 0, workload="chat-0", service="chat"),
    )


def shares() -> list[tuple[object, ...]]:
    rows = PreemptionShare.objects.order_by("account_id")
    return list(rows.values_list("account__tenant__holder__slug", "milli_gpus", "lost_gpu_us"))


def test_what_a_preemption_voided_stays_known(tmp_path: Path, unguarded_periods: None) -> None:  # noqa: F811
    chat_is_preempted()
    compute_month(OCTOBER, horizon=HORIZON)
    before, shared = PreemptionRecord.objects.values().get(), shares()
    assert (before["lost_gpu_us"], before["lost_evidence"]) == (90 * 10**6, "from_requests")
    assert shared == [("acme", 2667, 60 * 10**6), ("beta", 1333, 30 * 10**6)]
    assert date(2026, 10, 3) in prune(tmp_path)
    # Something late has the preemption measured again.
    deliver(event("capacity", "c2", "2026-10-03T01:00:00Z", pool="bj-h100", gpus=9))
    compute_month(OCTOBER, horizon=HORIZON)
    assert PreemptionRecord.objects.values().get() == before
    assert shares() == shared
    with month_as_of(OCTOBER, timezone.now()):
        assert PreemptionRecord.objects.values().get() == before


def test_usage_as_it_was_known_is_told_or_refused(tmp_path: Path, unguarded_periods: None) -> None:  # noqa: F811
    compute_month(OCTOBER, horizon=HORIZON)
    early, last = known()
    late = "2026-10-02T02:10:00Z"
    deliver(request("late", late, late, service="chat", tenant="beta", gpu_seconds=600))
    afterwards, _ = known(last)
    compute_month(OCTOBER, horizon=HORIZON)
    url = "periods/2026-10/as-of/?as_of={}"
    auditor = client("auditor")

    def told(instant: datetime, status: int = 200) -> Any:
        return get(auditor, url.format(instant.isoformat().replace("+00:00", "Z")), status)

    then, now = told(early), told(afterwards)
    assert then != now
    assert date(2026, 10, 2) in prune(tmp_path)
    # The hourly sums hold what was known last; without the requests nobody can take the late one out of them.
    refused = told(early, 409)
    assert (refused["code"], refused["parameter"]) == ("requests_pruned", "as_of")
    assert "2026-10-02" in refused["detail"]
    assert told(afterwards) == now
    # A correction of a level touches no request; one that may be of a request does.
    deliver(correction("k-1", "2026-10-09T00:00:00Z", "s"))
    assert told(afterwards) == now
    deliver(correction("k-2", "2026-10-09T00:00:00Z", "acme-1"))
    with pytest.raises(RequestsGone), month_as_of(OCTOBER, afterwards):
        pass


def test_demand_says_where_retries_cannot_be_told(tmp_path: Path, unguarded_periods: None) -> None:  # noqa: F811
    at = "2026-10-01T03:{}:00Z"
    tried = {"service": "chat", "request": "r-1"}
    deliver(
        request("try-1", at.format(10), at.format(10), outcome="error", **tried),
        request("try-2", at.format(20), at.format(20), attempt=2, **tried),
    )
    api = client("auditor")

    def asked(window: str) -> dict[str, tuple[str, str, bool]]:
        rows = get(api, f"demand/?window={window}")["results"]
        return {row["tenant"]: (row["asked"], row["failed"], row["retries_known"]) for row in rows}

    # Three on the days of the world, and one that was tried twice.
    assert asked("2026-10") == {"acme": ("4", "0", True), "beta": ("3", "0", True)}
    compute_month(OCTOBER, horizon=HORIZON)
    assert date(2026, 10, 1) in prune(tmp_path)
    assert asked("2026-10") == {"acme": ("5", "1", False), "beta": ("3", "0", False)}
    assert asked("2026-10-20T00:00:00Z,2026-10-21T00:00:00Z") == {}
