"""The books of a month against section 4 and the record's rules, through the database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Sum
from django.utils import timezone

from billing.models import (
    Allocation,
    BillingFinding,
    LendingDay,
    Policy,
    PoolSlot,
    PreemptionRecord,
    PreemptionWait,
    WorkloadDay,
)
from billing.services.allocation import MonthClosed, compute_allocation
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.management.base import BadInput
from ledger.models import (
    DirtySpan,
    Holder,
    LevelKind,
    Period,
    PeriodState,
    Purpose,
    ServiceClass,
)
from ledger.services.masters import map_identity
from tests.billing.allocation_books import OCTOBER, compute, hours_of, tables
from tests.billing.level_facts import (
    MONTH,
    book,
    capacity,
    hour,
    identity,
    make_pool,
    make_tenants,
    occupancy,
    reservation,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def acme_holder() -> int:
    return Holder.objects.get(slug="acme").pk


EXPECTED = {
    ("acme", "reserved_used"): 44,
    ("acme", "reserved_idle"): 16,
    ("acme", "lent"): 20,
    ("beta", "reserved_used"): 40,
    ("gamma", "on_demand"): 32,
    ("gamma", "borrowed"): 20,
}


def test_the_worked_example(worked_example):
    done = compute()
    assert done.slots == 10
    assert hours_of() == EXPECTED
    totals = PoolSlot.objects.aggregate(idle=Sum("unreserved_idle_gpu_us"), capacity=Sum("capacity_gpu_us"))
    assert totals["idle"] == 8 * GPU_US_PER_GPU_HOUR
    assert totals["capacity"] == 160 * GPU_US_PER_GPU_HOUR
    pair = LendingDay.objects.get()
    assert (pair.lender.slug, pair.borrower.slug) == ("acme", "gamma")
    assert pair.gpu_us == 20 * GPU_US_PER_GPU_HOUR
    assert Period.objects.get().horizon_at == hour(10)
    assert not BillingFinding.objects.exists()


def test_computing_twice_changes_nothing_and_costs_nothing(worked_example):
    compute()
    before = tables()
    again = compute()
    assert (again.slots, again.rows, again.spans) == (0, 0, {})
    assert tables() == before
    assert compute(everything=True).slots == 10
    assert tables() == before


def test_only_dirty_days_are_computed_again_and_the_result_is_that_of_computing_all(worked_example):
    compute(100)
    late = occupancy(worked_example, "wl-9", identity("beta"), hour(50), 3_000)
    occupancy(worked_example, "wl-9", identity("beta"), hour(51), 0)
    DirtySpan.objects.all().delete()
    DirtySpan.objects.create(pool=worked_example, span=DateTimeTZRange(late.starts_at, hour(51), "[)"))
    done = compute(100)
    assert done.slots == 24
    incremental = tables()
    compute(100, everything=True)
    assert tables() == incremental
    burst = Allocation.objects.filter(holder__slug="beta").aggregate(
        gpu_us=Sum("on_demand_gpu_us") + Sum("borrowed_gpu_us") + Sum("excess_gpu_us")
    )
    assert burst["gpu_us"] == 3 * GPU_US_PER_GPU_HOUR


def test_the_horizon_moves_on_and_never_back(worked_example):
    compute(3)
    assert PoolSlot.objects.count() == 3
    compute(10)
    assert hours_of() == EXPECTED
    assert compute(5).horizon == hour(10)
    assert hours_of() == EXPECTED


def test_dirty_time_of_other_months_and_pools_stays(worked_example):
    other = make_pool("bj-a100")
    DirtySpan.objects.all().delete()
    DirtySpan.objects.create(pool=worked_example, span=DateTimeTZRange(hour(-1), None, "[)"))
    DirtySpan.objects.create(pool=worked_example, span=DateTimeTZRange(hour(5), None, "[)"))
    DirtySpan.objects.create(pool=other, span=DateTimeTZRange(None, hour(1), "[)"))
    compute(pool=worked_example)
    left = {(span.pool.slug, span.span.lower, span.span.upper) for span in DirtySpan.objects.all()}
    november = hour(31 * 24)
    assert left == {
        ("bj-a100", None, hour(1)),
        ("bj-h100", hour(-1), hour(0)),
        ("bj-h100", november, None),
    }
    assert Period.objects.get().horizon_at is None


def test_a_closed_month_is_refused(worked_example):
    compute()
    Period.objects.update(state=PeriodState.CLOSED, cut_sequence=1, closed_at=timezone.now())
    with pytest.raises(MonthClosed):
        compute()


def test_classes_and_purposes_are_told_apart(worked_example):
    occupancy(
        worked_example, "wl-5", identity("beta"), hour(0), 1_000,
        service_class=ServiceClass.PREEMPTIBLE, purpose=Purpose.LOAD_TEST,
    )  # fmt: skip
    compute(1)
    assert hours_of("service_class", "purpose") == {
        ("acme", 0, 0, "reserved_used"): 2,
        ("acme", 0, 0, "reserved_idle"): 6,
        ("beta", 0, 0, "reserved_used"): 4,
        ("beta", 2, 2, "on_demand"): 1,
    }


def test_workloads_share_their_holders_time_by_the_day_and_keep_their_names(worked_example):
    told = {"name": "qwen-eval", "user": "lin", "labels": {"team": "nlp"}}
    beta = identity("beta")
    capacity(worked_example, hour(20), 32_000)
    occupancy(worked_example, "wl-5", beta, hour(23), 4_000, attributes=told, purpose=Purpose.WARMUP)
    occupancy(worked_example, "wl-5", beta, hour(25), 0)
    compute(48)
    days = {
        (row.workload, row.starts_at): (row.reserved_used_gpu_us, row.on_demand_gpu_us + row.borrowed_gpu_us)
        for row in WorkloadDay.objects.filter(holder__slug__in=["beta", "gamma"])
    }
    full = 24 * GPU_US_PER_GPU_HOUR
    assert days["wl-3", hour(0)] == (0, (2 * 8 + 3 * 4 + 17 * 8) * GPU_US_PER_GPU_HOUR)
    assert days["wl-3", hour(24)] == (0, 8 * full)
    # beta's 4 reserved GPUs are shared by its two workloads of 4 while both run.
    assert days["wl-5", hour(24)] == (2 * GPU_US_PER_GPU_HOUR, days["wl-5", hour(24)][1])
    assert days["wl-2", hour(24)][0] + days["wl-5", hour(24)][0] == 4 * full
    row = WorkloadDay.objects.get(workload="wl-5", starts_at=hour(24))
    assert (row.name, row.user, row.labels) == ("qwen-eval", "lin", {"team": "nlp"})
    assert (row.attempt, row.purpose) == (1, Purpose.WARMUP)
    for name in ("reserved_used", "on_demand", "borrowed", "excess"):
        whole = Allocation.objects.aggregate(gpu_us=Sum(f"{name}_gpu_us"))
        assert WorkloadDay.objects.aggregate(gpu_us=Sum(f"{name}_gpu_us")) == whole


def test_an_unmapped_identity_is_in_suspense_until_somebody_maps_it():
    pool = make_pool()
    (acme,) = make_tenants("acme")
    capacity(pool, hour(0), 8_000)
    occupancy(pool, "wl-1", identity("team-a", "k8s_namespace"), hour(0), 2_000)
    compute(4)
    assert hours_of("account__kind") == {("unattributed", 5, "on_demand"): 8}
    finding = BillingFinding.objects.get(code="unattributed")
    assert (finding.quantity, finding.unit, finding.blocks_close) == (8 * GPU_US_PER_GPU_HOUR, "gpu_us", True)
    map_identity("k8s_namespace", "team-a", acme, valid_from=hour(1.5))
    compute(4)
    assert hours_of("account__tenant__holder__slug") == {
        ("unattributed", None, "on_demand"): 3,
        ("acme", "acme", "on_demand"): 5,
    }
    assert hour(1.5) in PoolSlot.objects.values_list("starts_at", flat=True)


def test_waiting_preempted_work_makes_idle_reservations_undelivered(worked_example):
    acme = identity("acme")
    record = PreemptionRecord.objects.create(
        id="00000000-0000-5000-8000-000000000001", pool=worked_example, cluster="bj-1", preemption="p1",
        decided_at=hour(0), victim_identity=acme, victim_id=acme_holder(), preemptor_source="none",
        milli_gpus=5_000, cause="other", lost_evidence="unknown", recompute_evidence="unknown",
    )  # fmt: skip
    PreemptionWait.objects.create(
        record=record, pool=worked_example, holder_id=acme_holder(), milli_gpus=5_000,
        starts_at=hour(1), ends_at=hour(3),
    )  # fmt: skip
    compute()
    found = hours_of()
    # Hour 1: acme has 6 idle and 5 waiting. Hour 2: 4 of the 6 are lent to gamma, so only 1 is undelivered.
    assert found["acme", "undelivered"] == 6
    assert found["acme", "lent_waiting"] == 4
    assert found["acme", "reserved_idle"] == 10


def test_held_without_capacity_blocks_the_month():
    pool = make_pool()
    make_tenants("acme")
    occupancy(pool, "wl-1", identity("acme"), hour(0), 1_000)
    compute(2)
    finding = BillingFinding.objects.get()
    assert (finding.code, finding.blocks_close) == ("capacity_unknown", True)
    assert not PoolSlot.objects.exists()
    capacity(pool, hour(0.5), 4_000)
    compute(2)
    assert hours_of() == {("acme", "on_demand"): 1.5}


def pending(pool, workload: str, who: str, at: float, milli: int) -> None:
    book(pool, LevelKind.PENDING, workload, hour(at), milli, identity=identity(who))


def test_pending_work_is_undelivered_where_the_policy_counts_it():
    """acme reserves 8 and holds 2. From hour 1, 4 and 3 wait; counted from hour 2 to 4, when only the 4 fit whole."""
    pool = make_pool()
    make_tenants("acme")
    capacity(pool, hour(0), 16_000)
    reservation(pool, "acme", hour(0), 8_000)
    occupancy(pool, "wl-1", identity("acme"), hour(0), 2_000)
    pending(pool, "wl-2", "acme", 1, 4_000)
    pending(pool, "wl-3", "acme", 1, 3_000)
    pending(pool, "wl-2", "acme", 5, 0)
    Policy.objects.create(valid_from=hour(-9))
    Policy.objects.create(valid_from=hour(2), undelivered_counts_pending=True)
    Policy.objects.create(valid_from=hour(4))
    compute(6)
    found = hours_of()
    assert found["acme", "undelivered"] == found["acme", "undelivered_pending"] == 8
    assert found["acme", "reserved_idle"] == 6 * 6 - 8
    rows = Allocation.objects.exclude(undelivered_pending_gpu_us=0).order_by("starts_at")
    assert [row.starts_at for row in rows] == [hour(2), hour(3)]


def test_the_command_says_what_it_did_and_refuses_nonsense(worked_example, capsys):
    call_command("compute_allocation", MONTH, horizon="2026-10-01T10:00:00Z")
    assert "1 pool days computed, 10 slots" in capsys.readouterr().out
    for arguments in (["2026-13"], [MONTH, "--pool", "nowhere"], [MONTH, "--horizon", "soon"]):
        with pytest.raises(BadInput):
            call_command("compute_allocation", *arguments)


def test_the_default_horizon_is_the_last_whole_hour_within_the_month(worked_example):
    done = compute_allocation(OCTOBER)
    now = timezone.now()
    assert done.horizon <= max(now, hour(0))
    assert now - done.horizon < timedelta(hours=1) or done.horizon in (hour(0), hour(31 * 24))
