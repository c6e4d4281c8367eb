"""The books of a month against section 4, section 5 and the record's rules, through the database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Sum
from django.utils import timezone

from billing.core.allocation import HOLDER_CATEGORIES
from billing.models import (
    Allocation,
    BillingFinding,
    Calibration,
    LendingDay,
    Policy,
    PoolSlot,
    PreemptionRecord,
    PreemptionWait,
    ServicePolicy,
    WorkloadDay,
)
from billing.services.allocation import MonthClosed, compute_allocation
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.management.base import BadInput
from ledger.models import (
    Correction,
    DirtySpan,
    Event,
    Holder,
    LevelKind,
    ModelName,
    Outcome,
    Period,
    PeriodState,
    Purpose,
    Request,
    ServiceClass,
    Source,
    Subject,
    UsageHour,
)
from ledger.services.masters import map_identity
from tests.billing.level_facts import (
    MONTH,
    book,
    capacity,
    hour,
    identity,
    make_pool,
    make_service,
    make_tenants,
    occupancy,
    reservation,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]
OCTOBER = Month.parse(MONTH)


def compute(hours: float = 10, **options):
    return compute_allocation(OCTOBER, horizon=hour(hours), **options)


def hours_of(*keys: str) -> dict:
    """{(slug, category) or (slug, *keys, category): GPU-hours} over the month, zeros left out."""
    sums = {name: Sum(f"{name}_gpu_us") for name in HOLDER_CATEGORIES}
    result = {}
    for row in Allocation.objects.values("holder__slug", *keys).annotate(**sums).order_by():
        for name in HOLDER_CATEGORIES:
            if row[name]:
                result[(row["holder__slug"], *(row[key] for key in keys), name)] = (
                    row[name] / GPU_US_PER_GPU_HOUR
                )
    return result


def table(model) -> list[tuple]:
    return sorted(model.objects.values_list(*(field.attname for field in model._meta.concrete_fields)))


def tables() -> list:
    return [table(model) for model in (PoolSlot, Allocation, LendingDay, WorkloadDay)]


@pytest.fixture
def worked_example():
    """Section 4: 16 GPUs, 10 hours, acme reserves 8 and beta 4; gamma's waiting is a preemption's."""
    pool = make_pool()
    make_tenants("acme", "beta", "gamma")
    acme, beta, gamma = identity("acme"), identity("beta"), identity("gamma")
    capacity(pool, hour(-5), 16_000)
    reservation(pool, "acme", hour(-2), 8_000)
    reservation(pool, "beta", hour(0), 4_000)
    occupancy(pool, "wl-1", acme, hour(0), 2_000)
    occupancy(pool, "wl-2", beta, hour(0), 4_000)
    occupancy(pool, "wl-3", gamma, hour(2), 8_000)
    occupancy(pool, "wl-4", acme, hour(4), 6_000)
    occupancy(pool, "wl-3", gamma, hour(4), 4_000)
    occupancy(pool, "wl-4", acme, hour(7), 2_000)
    occupancy(pool, "wl-3", gamma, hour(7), 8_000)
    return pool


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


def acme_holder() -> int:
    return Holder.objects.get(slug="acme").pk


def test_a_superseded_fact_is_out_of_force_and_the_latest_correction_wins(worked_example):
    wrong = occupancy(worked_example, "wl-8", identity("beta"), hour(1), 5_000, event_id="wrong")
    occupancy(worked_example, "wl-8", identity("beta"), hour(1), 4_000, event_id="better")
    occupancy(worked_example, "wl-8", identity("beta"), hour(2), 0, event_id="end")
    occupancy(worked_example, "wl-8", identity("beta"), hour(1), 1_000, event_id="best")
    for at, replacement in ((20, "better"), (21, "best")):
        event = Event.objects.create(
            source=wrong.event.source, event_id=f"fix-{at}", type=11, occurred_at=hour(at), content_hash=b"",
            booking=wrong.event.booking, line=at, body={},
        )  # fmt: skip
        Correction.objects.create(
            event=event, corrected_at=hour(at), supersedes_source="/tests", supersedes_event_id="wrong",
            reason="typo", replacement_source="/tests", replacement_event_id=replacement,
        )  # fmt: skip
    compute()
    assert hours_of()["beta", "on_demand"] == 1
    assert not BillingFinding.objects.filter(code="level_conflict").exists()


def test_conflicting_facts_are_found_and_the_greatest_id_holds(worked_example):
    occupancy(worked_example, "wl-8", identity("beta"), hour(1), 3_000, event_id="b")
    lost = occupancy(worked_example, "wl-8", identity("beta"), hour(1), 1_000, event_id="a")
    occupancy(worked_example, "wl-8", identity("beta"), hour(2), 0)
    compute()
    finding = BillingFinding.objects.get(code="level_conflict")
    assert finding.subject == f"event {lost.event_id}"
    assert finding.blocks_close
    assert hours_of()["beta", "on_demand"] == 3


def conflicts() -> list[tuple[str, str]]:
    found = BillingFinding.objects.filter(code="level_conflict").order_by("starts_at")
    return [(f"{one.starts_at:%m-%d}", one.month) for one in found]


def test_a_conflict_is_found_once_on_its_own_day_however_long_its_level_lasts(worked_example):
    """The month is computed as beat does, a stretch of days at a time; the level stays in force for two months."""
    for number, milli in enumerate((3_000, 1_000)):
        occupancy(worked_example, "wl-8", identity("beta"), hour(30), milli, event_id=f"c{number}")
    for hours in (40, 41, 24 * 9, 24 * 31):
        compute(hours)
        assert conflicts() == [("10-02", MONTH)]
    compute_allocation(OCTOBER.next(), horizon=hour(24 * 33))
    assert conflicts() == [("10-02", MONTH)]


def test_a_conflict_that_comes_after_the_close_is_an_exception_of_the_open_month(worked_example):
    """Told of in October, which is closed: nobody has seen it, so that it stands at November's start; not in December
    too, once November was closed over it."""
    occupancy(worked_example, "wl-8", identity("beta"), hour(30), 3_000, event_id="c0")
    compute(24 * 31)
    close_as_of(OCTOBER, 1)
    occupancy(worked_example, "wl-8", identity("beta"), hour(30), 1_000, event_id="c1", batch=2)
    november, december = OCTOBER.next(), OCTOBER.next().next()
    compute_allocation(november, horizon=hour(24 * 33))
    assert conflicts() == [("11-01", str(november))]
    compute_allocation(november, horizon=hour(24 * 61))
    assert conflicts() == [("11-01", str(november))]
    close_as_of(november, 2)
    compute_allocation(december, horizon=hour(24 * 63))
    assert conflicts() == [("11-01", str(november))]


def close_as_of(month: Month, cut: int) -> None:
    closed_at = timezone.now()
    Period.objects.filter(month=str(month)).update(
        state=PeriodState.CLOSED, cut_sequence=cut, closed_at=closed_at
    )


def test_an_attempt_that_a_higher_one_ended_before_the_day_is_not_opened_again(worked_example):
    who = identity("gamma")
    occupancy(worked_example, "wl-7", who, hour(11), 2_000, attempt=1)
    occupancy(worked_example, "wl-7", who, hour(12), 3_000, attempt=2)
    occupancy(worked_example, "wl-7", who, hour(13), 0, attempt=2)
    occupancy(worked_example, "wl-7", who, hour(40), 9_000, attempt=1)
    compute(100)
    whole = tables()
    DirtySpan.objects.create(pool=worked_example, span=DateTimeTZRange(hour(30), hour(31), "[)"))
    assert compute(100).slots == 24
    assert tables() == whole


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


@pytest.fixture
def chat():
    """A service of 4 GPUs on 8, serving two tenants by calibrated tokens in hour 0, nobody in hour 1."""
    pool = make_pool()
    make_tenants("acme", "beta")
    service = make_service("chat")
    capacity(pool, hour(0), 8_000)
    occupancy(pool, "replica", identity("chat", "service"), hour(0), 4_000)
    model = ModelName.objects.create(name="qwen")
    Calibration.objects.create(
        model=model, gpu_model="H100", valid_from=hour(-9), input_gpu_us_per_1k=100,
        cached_input_gpu_us_per_1k=10, output_gpu_us_per_1k=1_000,
    )  # fmt: skip
    ServicePolicy.objects.create(service=service, valid_from=hour(-9), key="tokens")
    for who, tokens, cached, output, gpu_us in (
        ("acme", 1_000, 500, 100, 6 * 10**9),
        ("beta", 3_500, 0, 205, 0),
    ):
        UsageHour.objects.create(
            pool=pool, hour=hour(0), identity=identity(who), service=service, model=model, outcome=Outcome.OK,
            requests=1, input_tokens=tokens, cached_input_tokens=cached, output_tokens=output, gpu_us=gpu_us,
        )  # fmt: skip
    return pool, service


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


def withdraw(level, at: float = 50) -> None:
    """A correction of a fact, as booking leaves it behind."""
    event = Event.objects.create(
        source=level.event.source, event_id=f"c-{level.pk}", type=11, occurred_at=hour(at), content_hash=b"c",
        booking=level.event.booking, line=1, body={},
    )  # fmt: skip
    Correction.objects.create(
        event=event, corrected_at=hour(at), supersedes_source="/tests", supersedes_event_id=level.event.event_id,
        reason="wrong",
    )  # fmt: skip
    Subject.objects.filter(subject=level.subject, attempt=level.attempt, last_milli_gpus=0).update(
        last_milli_gpus=1
    )


def test_a_withdrawn_release_leaves_the_work_running_also_on_days_after_it():
    pool = make_pool()
    make_tenants("acme")
    capacity(pool, hour(0), 8_000)
    occupancy(pool, "wl-1", identity("acme"), hour(0), 2_000)
    withdraw(occupancy(pool, "wl-1", identity("acme"), hour(5), 0))
    compute(48)
    assert hours_of() == {("acme", "on_demand"): 96}
    DirtySpan.objects.create(pool=pool, span=DateTimeTZRange(hour(24), hour(48)))
    compute(48)
    assert hours_of() == {("acme", "on_demand"): 96}


def test_a_withdrawn_attempt_does_not_end_the_one_before_it():
    """Its subject row stays, so a day that begins after it took the lower attempt for ended."""
    pool = make_pool()
    make_tenants("acme")
    capacity(pool, hour(0), 8_000)
    occupancy(pool, "wl-1", identity("acme"), hour(0), 2_000, attempt=1)
    withdraw(occupancy(pool, "wl-1", identity("acme"), hour(5), 4_000, attempt=2))
    compute(48)
    DirtySpan.objects.create(pool=pool, span=DateTimeTZRange(hour(24), hour(48)))
    compute(48)
    assert hours_of() == {("acme", "on_demand"): 96}


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
