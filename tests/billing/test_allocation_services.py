"""A shared service's time, divided over whom it served (domain.md section 5), through the database."""

from __future__ import annotations

import pytest
from django.db import connection

from billing.models import (
    Allocation,
    BillingFinding,
    Calibration,
    Policy,
    ServicePolicy,
)
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import (
    Correction,
    Event,
    ModelName,
    Outcome,
    Purpose,
    Request,
    Source,
    UsageHour,
)
from tests.billing.allocation_books import compute, hours_of
from tests.billing.level_facts import (
    hour,
    identity,
    make_tenants,
    occupancy,
    reservation,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_a_shared_service_is_divided_over_the_tenants_it_served(chat):
    compute(2)
    # Keys: acme 500 x 100 + 500 x 10 + 100 x 1000 = 155 000; beta 3500 x 100 + 205 x 1000 = 555 000.
    total = 4 * GPU_US_PER_GPU_HOUR
    acme = Allocation.objects.get(account__tenant__holder__slug="acme")
    beta = Allocation.objects.get(account__tenant__holder__slug="beta")
    idle = Allocation.objects.get(service_idle=True)
    assert acme.on_demand_gpu_us + beta.on_demand_gpu_us == total
    assert abs(acme.on_demand_gpu_us - total * 155 // 710) <= 1
    assert acme.measured_gpu_us == 6 * 10**9
    assert (idle.starts_at, idle.on_demand_gpu_us, idle.account.tenant) == (hour(1), total, None)


def test_measured_basis_leaves_the_rest_to_the_owner(chat):
    _, service = chat
    ServicePolicy.objects.create(service=service, valid_from=hour(0), key="gpu_seconds", basis="measured")
    compute(1)
    assert Allocation.objects.get(account__tenant__holder__slug="acme").on_demand_gpu_us == 6 * 10**9
    idle = Allocation.objects.get(service_idle=True)
    assert idle.on_demand_gpu_us == 4 * GPU_US_PER_GPU_HOUR - 6 * 10**9
    assert not Allocation.objects.filter(account__tenant__holder__slug="beta").exists()


def serve(pool, service, who: str, starts: float, ends: float, **measures) -> None:
    """One request on record, from and to hours after the month's start."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS ledger_request_20261001 PARTITION OF ledger_request "
            "FOR VALUES FROM ('2026-10-01') TO ('2026-10-02')"
        )
    Request.objects.create(
        day=hour(ends).date(), source=Source.objects.get(), event_id=f"{who}-{ends}", content_hash=b"",
        booking_id=1, line=1,
        starts_at=hour(starts), ends_at=hour(ends), pool=pool, service=service, identity=identity(who),
        model=ModelName.objects.get(), request=f"{who}-{ends}", outcome=Outcome.OK, **measures,
    )  # fmt: skip


def served(category: str = "on_demand") -> dict:
    """{(slot start, tenant): GPU-hours} of the service's divided time."""
    rows = Allocation.objects.filter(holder__slug="chat", service_idle=False)
    return {
        (row.starts_at, row.account.tenant.slug): getattr(row, f"{category}_gpu_us") / GPU_US_PER_GPU_HOUR
        for row in rows
        if getattr(row, f"{category}_gpu_us")
    }


def test_a_slot_inside_an_hour_leaves_out_corrected_requests(chat):
    """Whole hours come from a roll-up that corrections have moved already; parts of one from the requests."""
    pool, service = chat
    ServicePolicy.objects.create(service=service, valid_from=hour(0.5), key="gpu_seconds")
    serve(pool, service, "acme", 0.5, 0.6, gpu_us=10**9)
    serve(pool, service, "beta", 0.5, 0.7, gpu_us=10**9)
    booked = Event.objects.first()
    event = Event.objects.create(
        source=booked.source, event_id="c-1", type=11, occurred_at=hour(1), content_hash=b"c", booking=booked.booking,
        line=1, body={},
    )  # fmt: skip
    Correction.objects.create(
        event=event, corrected_at=hour(1), supersedes_source="/tests", supersedes_event_id=f"beta-{0.7}",
        reason="never served",
    )  # fmt: skip
    compute(1)
    assert served()[hour(0.5), "acme"] == 2.0
    assert (hour(0.5), "beta") not in served()


def test_an_engines_own_total_counts_requests_once_more_and_only_its_rest_is_nobodys(chat):
    """The engine counted 8 of 6 measured GPU time: 2 are unattributed, not 8 beside the 6."""
    pool, service = chat
    ServicePolicy.objects.create(service=service, valid_from=hour(0), key="gpu_seconds", basis="measured")
    UsageHour.objects.create(
        pool=pool, hour=hour(0), identity=None, service=service, model=ModelName.objects.get(),
        outcome=Outcome.OK, requests=0, gpu_us=8 * 10**9,
    )  # fmt: skip
    compute(1)
    rows = Allocation.objects.filter(holder__slug="chat", service_idle=False)
    assert {row.account.tenant and row.account.tenant.slug: row.on_demand_gpu_us for row in rows} == {
        "acme": 6 * 10**9,
        None: 2 * 10**9,
    }


def test_a_slot_inside_an_hour_counts_the_requests_that_finish_in_it(chat):
    pool, service = chat
    ServicePolicy.objects.create(service=service, valid_from=hour(0.5), key="gpu_seconds")
    tokens = {"input_tokens": 10, "output_tokens": 10, "cached_input_tokens": 0}
    serve(pool, service, "acme", 0.1, 0.25, gpu_us=7, **tokens)
    serve(pool, service, "beta", 0.1, 0.5, gpu_us=30, **tokens)
    serve(pool, service, "acme", 0.4, 0.75, gpu_us=10)
    compute(1)
    assert served() == {(hour(0), "acme"): 2, (hour(0.5), "acme"): 0.5, (hour(0.5), "beta"): 1.5}


def test_time_in_flight_is_cut_at_the_slots_of_an_hour(chat):
    pool, service = chat
    ServicePolicy.objects.update(key="concurrency")
    Policy.objects.create(valid_from=hour(0.5))
    serve(pool, service, "acme", 0.25, 0.75)
    serve(pool, service, "beta", 0, 0.25)
    compute(1)
    assert served() == {(hour(0), "acme"): 1, (hour(0), "beta"): 1, (hour(0.5), "acme"): 2}


def test_contract_shares_need_no_requests(chat):
    _, service = chat
    ServicePolicy.objects.create(
        service=service, valid_from=hour(1), key="shares", shares={"acme": 3, "beta": 1, "gone": 5}
    )
    compute(2)
    assert {k: v for k, v in served().items() if k[0] == hour(1)} == {
        (hour(1), "acme"): 3,
        (hour(1), "beta"): 1,
    }


def test_replicas_that_warm_up_keep_their_purpose(chat):
    pool, _ = chat
    occupancy(pool, "warm", identity("chat", "service"), hour(0), 2_000, purpose=Purpose.WARMUP)
    compute(1)
    by_purpose = {key[1]: value for key, value in hours_of("purpose").items()}
    assert by_purpose == {Purpose.NONE: 4, Purpose.WARMUP: 2}


def test_an_owners_idle_reservation_covers_its_service_and_a_missing_calibration_is_found(chat):
    pool, service = chat
    service.owner = make_tenants("gamma")[0]
    service.save()
    reservation(pool, "gamma", hour(0), 5_000)
    Calibration.objects.update(ended_at=hour(0))
    compute(1)
    assert hours_of("account__tenant__holder__slug", "service_idle") == {
        ("chat", "gamma", True, "reserved_used"): 4,
        ("gamma", "gamma", False, "reserved_idle"): 1,
    }
    assert BillingFinding.objects.get().code == "calibration_missing"
