"""Slots inside an hour, and requests that were pruned: a late fact changes nothing that it should not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from billing.models import Allocation, BillingFinding
from billing.services.configuration import apply_document
from billing.services.months import compute_month
from ingest.services import pruning
from ledger.core.periods import Month
from ledger.models import Period, PeriodState
from tests.billing.tampering import unguarded
from tests.ingest.feeding import deliver, event, forget_days, occupancy, request, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

OCTOBER, HORIZON = Month.parse("2026-10"), datetime(2026, 11, 1, tzinfo=UTC)
MUCH_LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def unguarded_periods() -> Iterator[None]:
    """Months are opened and closed by hand here; closing them for real is not what is tried."""
    with unguarded("ledger_period"):
        yield


def terms(instant: str) -> None:
    """A calibration is a cut for every pool it touches, whatever it says."""
    row = {
        "model": "qwen",
        "gpu_model": "H100",
        "valid_from": datetime.fromisoformat(instant),
        "input_gpu_us_per_1k": 1,
        "cached_input_gpu_us_per_1k": 1,
        "output_gpu_us_per_1k": 1,
    }
    apply_document({"calibration": [row]}, retroactive=True)


@pytest.fixture(autouse=True)
def world(db: None) -> None:
    """chat holds 4 GPUs; on three days it serves acme in the first half of an hour and beta in the second."""
    forget_days()
    small_world()
    deliver(
        event("capacity", "c", "2026-10-01T00:00:00Z", pool="bj-h100", gpus=8),
        occupancy("s", "2026-10-01T00:00:00Z", 4, workload="chat-0", service="chat"),
        *(
            request(
                f"{tenant}-{day}",
                f"2026-10-0{day}T02:{minute}:00Z",
                f"2026-10-0{day}T02:{minute}:00Z",
                service="chat",
                tenant=tenant,
                gpu_seconds=seconds,
            )
            for day in (1, 2, 5)
            for tenant, minute, seconds in (("acme", "10", 60), ("beta", "40", 180))
        ),
    )


def compute() -> None:
    compute_month(OCTOBER, horizon=HORIZON, everything=True)


def prune(archive: Path) -> list[date]:
    Period.objects.filter(month="2026-10").update(
        state=PeriodState.CLOSED, cut_sequence=1, closed_at=datetime(2026, 11, 5, tzinfo=UTC)
    )
    days, _ = pruning.prunable_days(MUCH_LATER)
    list(pruning.prune_requests(days, archive))
    Period.objects.filter(month="2026-10").update(state=PeriodState.OPEN, cut_sequence=None, closed_at=None)
    return days


def rows() -> list[tuple[object, ...]]:
    found = Allocation.objects.filter(holder__slug="chat").order_by("starts_at", "account_id", "service_idle")
    return list(
        found.values_list(
            "starts_at",
            "account__tenant__holder__slug",
            "service_idle",
            "on_demand_gpu_us",
            "measured_gpu_us",
        )
    )


def in_hour(day: int) -> dict[tuple[str, str], int]:
    """GPU-seconds by (slot start, tenant) in the hour from 02:00."""
    found = Allocation.objects.filter(
        holder__slug="chat",
        service_idle=False,
        starts_at__gte=datetime(2026, 10, day, 2, tzinfo=UTC),
        starts_at__lt=datetime(2026, 10, day, 3, tzinfo=UTC),
    ).values_list("starts_at", "account__tenant__holder__slug", "on_demand_gpu_us")
    return {(f"{at:%H:%M}", tenant): gpu_us // 10**6 for at, tenant, gpu_us in found}


def test_days_with_a_cut_inside_an_hour_are_kept_and_a_computation_after_pruning_is_the_same(
    tmp_path: Path, unguarded_periods: None
) -> None:
    terms("2026-10-02T02:30:00+00:00")
    compute()
    before = rows()
    # By hand: in the cut hour each half is one tenant's alone (1800 s x 4 GPUs); uncut, 1 to 3 of 14 400 s.
    assert in_hour(2) == {("02:00", "acme"): 7200, ("02:30", "beta"): 7200}
    assert in_hour(1) == {("02:00", "acme"): 3600, ("02:00", "beta"): 10_800}
    assert prune(tmp_path) == [date(2026, 10, 1), date(2026, 10, 5)]
    compute()
    assert rows() == before
    assert not BillingFinding.objects.filter(code="usage_pruned").exists()


def test_a_cut_that_comes_after_the_pruning_divides_by_time_and_says_so(
    tmp_path: Path, unguarded_periods: None
) -> None:
    compute()
    assert prune(tmp_path) == [date(2026, 10, 1), date(2026, 10, 2), date(2026, 10, 5)]
    terms("2026-10-02T02:15:00+00:00")
    compute()
    # By hand: nothing tells any more who was served when, so both parts are shared as the hour was, 1 to 3.
    assert in_hour(2) == {
        ("02:00", "acme"): 900,
        ("02:00", "beta"): 2700,
        ("02:15", "acme"): 2700,
        ("02:15", "beta"): 8100,
    }
    (finding,) = BillingFinding.objects.filter(code="usage_pruned")
    assert (finding.subject, finding.quantity, finding.unit, finding.blocks_close) == (
        "chat",
        240 * 10**6,
        "gpu_us",
        True,
    )
    assert finding.starts_at == datetime(2026, 10, 2, tzinfo=UTC)


def test_late_requests_of_a_day_that_was_left_are_still_taken(
    tmp_path: Path, unguarded_periods: None
) -> None:
    terms("2026-10-02T02:30:00+00:00")
    compute()
    prune(tmp_path)
    times = [f"2026-10-0{day}T05:00:00Z" for day in (1, 2, 5)]
    receipt = deliver(*(request(f"late-{at}", at, at, service="chat", gpu_seconds=1) for at in times))
    assert (receipt.booked, receipt.quarantined) == (1, 2)
