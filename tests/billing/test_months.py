"""A month from facts to draft statements, with hand-checked numbers (domain.md sections 4, 6, 8, 10)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.db.models import Sum

from billing.models import (
    Allocation,
    BillingFinding,
    GpuPrice,
    MonthLine,
    Policy,
    PreemptionRecord,
    PreemptionShare,
    PreemptionWait,
    RateCard,
    Statement,
    StatementLine,
)
from billing.services.months import ComputedMonth, compute_month
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR, MICRO_PER_UNIT
from ledger.models import Account, FactFinding, Pool, Transfer, Unit
from ledger.services.masters import ensure_pool_books
from tests.billing.level_facts import (
    MONTH,
    capacity,
    hour,
    identity,
    make_pool,
    make_tenants,
    occupancy,
    reservation,
)
from tests.billing.preemption_facts import preemption, resume

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

OCTOBER = Month.parse(MONTH)
PRICES = {"reserved_used": 2, "reserved_idle": 1, "on_demand": 3, "borrowed": 1, "unreserved_idle": 1}


def compute(hours: float = 10, **options: Any) -> ComputedMonth:
    return compute_month(OCTOBER, horizon=hour(hours), **options)


def rate_card(valid_from: datetime, prices: dict[str, int], pool: Pool) -> None:
    card = RateCard.objects.create(name=f"from {valid_from}", valid_from=valid_from)
    for category, price in prices.items():
        GpuPrice.objects.create(
            rate_card=card, pool=pool, category=category, price_micro=price * MICRO_PER_UNIT
        )


@pytest.fixture
def worked_example() -> Pool:
    """Section 4, with prices: 2 reserved, 1 idle, 3 on demand, 1 borrowed."""
    pool = make_pool()
    make_tenants("acme", "beta", "gamma")
    acme, beta, gamma = identity("acme"), identity("beta"), identity("gamma")
    capacity(pool, hour(-5), 16_000)
    reservation(pool, "acme", hour(0), 8_000)
    reservation(pool, "beta", hour(0), 4_000)
    occupancy(pool, "wl-1", acme, hour(0), 2_000)
    occupancy(pool, "wl-2", beta, hour(0), 4_000)
    occupancy(pool, "wl-3", gamma, hour(2), 8_000)
    occupancy(pool, "wl-4", acme, hour(4), 6_000)
    occupancy(pool, "wl-3", gamma, hour(4), 4_000)
    occupancy(pool, "wl-4", acme, hour(7), 2_000)
    occupancy(pool, "wl-3", gamma, hour(7), 8_000)
    rate_card(hour(-1000), PRICES, pool)
    Policy.objects.create(valid_from=hour(-1000))
    return pool


def gamma_loses_four(pool: Pool, **said: Any) -> None:
    preemption(
        pool,
        hour(4),
        "wl-3",
        identity("gamma"),
        4_000,
        preemptor_workload="wl-4",
        preemptor_identity=identity("acme"),
        **{"preemptor_source": "structured"} | said,
    )


def amounts() -> dict[tuple[str, str], float]:
    """(account's tenant or kind, category) -> amount of the month's lines."""
    found: dict[tuple[str, str], float] = {}
    for line in MonthLine.objects.select_related("account__tenant__holder"):
        who = line.account.tenant.slug if line.account.tenant else line.account.get_kind_display()
        found[who, line.category] = (line.amount_micro or 0) / MICRO_PER_UNIT
    return found


def net_by_account(unit: Unit) -> dict[str, int]:
    found: dict[str, int] = {}
    for account in Account.objects.all():
        out = account.transfers_out.filter(unit=unit).aggregate(sum=Sum("quantity"))["sum"] or 0
        into = account.transfers_in.filter(unit=unit).aggregate(sum=Sum("quantity"))["sum"] or 0
        if out != into:
            found[str(account)] = int(into - out)
    return found


def test_the_worked_example_is_rated_posted_and_drafted(worked_example: Pool) -> None:
    done = compute()
    assert amounts() == {
        ("acme", "reserved_used"): 88,
        ("acme", "reserved_idle"): 16,
        ("acme", "lent"): 40,
        ("acme", "lend_credit"): -20,
        ("beta", "reserved_used"): 80,
        ("gamma", "on_demand"): 96,
        ("gamma", "borrowed"): 20,
        ("platform", "unreserved_idle"): 8,
    }
    hours = {name: gpu_us / GPU_US_PER_GPU_HOUR for name, gpu_us in net_by_account(Unit.GPU_US).items()}
    assert hours == {
        "pool:bj-h100": -160,
        "tenant:acme": 60,
        "tenant:beta": 40,
        "tenant:gamma": 52,
        "platform": 8,
    }
    money = {name: micro / MICRO_PER_UNIT for name, micro in net_by_account(Unit.AMOUNT_MICRO).items()}
    assert money == {
        "pool:bj-h100": 328,
        "tenant:acme": -124,
        "tenant:beta": -80,
        "tenant:gamma": -116,
        "platform": -8,
    }
    assert {s.tenant.slug: s.total_minor for s in Statement.objects.all()} == {
        "acme": 12_400,
        "beta": 8_000,
        "gamma": 11_600,
    }
    assert done.statements == 3
    assert not BillingFinding.objects.exists()


def test_computing_twice_posts_nothing_and_changes_no_statement(worked_example: Pool) -> None:
    gamma_loses_four(worked_example)
    compute()
    before = list(Transfer.objects.order_by("id").values())
    lines = list(StatementLine.objects.order_by("id").values())
    again = compute(everything=True)
    assert (again.transfers, again.statements) == (0, 0)
    assert list(Transfer.objects.order_by("id").values()) == before
    assert list(StatementLine.objects.order_by("id").values()) == lines


def test_late_facts_post_exactly_the_change(worked_example: Pool) -> None:
    compute()
    count = Transfer.objects.count()
    occupancy(worked_example, "wl-9", identity("beta"), hour(0), 1_000)
    occupancy(worked_example, "wl-9", identity("beta"), hour(1), 0)
    done = compute()
    # One GPU-hour: beta's on demand in, the platform's idle out, each in both units.
    assert done.transfers == Transfer.objects.count() - count == 4
    assert amounts()["beta", "on_demand"] == 3
    assert amounts()["platform", "unreserved_idle"] == 7
    assert done.statements == 1


def test_gammas_preemption_in_the_worked_example(worked_example: Pool) -> None:
    gamma_loses_four(worked_example)
    compute()
    record = PreemptionRecord.objects.get()
    assert (record.victim.slug, record.preemptor and record.preemptor.slug) == ("gamma", "acme")
    assert (record.released_at, record.resumed_at, record.waits_until) == (hour(4), hour(7), hour(7))
    assert (record.lost_gpu_us, record.lost_evidence) == (8 * GPU_US_PER_GPU_HOUR, "from_occupancy")
    assert record.waiting_gpu_us == 12 * GPU_US_PER_GPU_HOUR
    assert (record.recompute_gpu_us, record.recompute_evidence) == (None, "unknown")
    assert record.entitled_milli_gpus == 0
    # Just before: 8 held beyond any reservation, 4 unreserved and 4 borrowed from acme.
    assert (record.on_demand_milli_gpus, record.borrowed_milli_gpus) == (4_000, 4_000)
    assert (record.charged_to, record.amount_micro) == ("victim", 0)
    assert (record.resumed_pool, record.resumed_state) == (worked_example, "full")
    assert PreemptionWait.objects.get().ends_at == hour(7)
    share = PreemptionShare.objects.get()
    assert (share.account.tenant.slug, share.lost_gpu_us) == ("gamma", record.lost_gpu_us)
    # It bears the loss itself: its bill is that of the month without the record.
    assert Statement.objects.get(tenant__holder__slug="gamma").total_minor == 11_600
    assert Statement.objects.get(tenant__holder__slug="gamma").totals["waiting_gpu_us"] == str(
        12 * GPU_US_PER_GPU_HOUR
    )


@pytest.mark.parametrize(
    ("policy", "payer", "amount"),
    [("entitlement", None, 0), ("victim", None, 0), ("preemptor", "acme", 16), ("platform", "platform", 16)],
)
def test_who_pays_for_gammas_loss(worked_example: Pool, policy: str, payer: str | None, amount: int) -> None:
    Policy.objects.update(preemption_charged_to=policy)
    gamma_loses_four(worked_example)
    compute()
    found = {key: value for key, value in amounts().items() if key[1] == "preemption_lost"}
    # 8 GPU-hours lost, half of them on demand at 3, half borrowed at 1.
    expected = {(payer, "preemption_lost"): amount, ("gamma", "preemption_lost"): -amount} if payer else {}
    assert found == expected
    assert PreemptionRecord.objects.get().amount_micro == amount * MICRO_PER_UNIT
    totals = {s.tenant.slug: s.total_minor for s in Statement.objects.all()}
    assert totals["gamma"] == 11_600 - 100 * amount
    assert totals["acme"] == 12_400 + (100 * amount if payer == "acme" else 0)
    # GPU time stays where it was spent.
    assert net_by_account(Unit.GPU_US)["tenant:gamma"] == 52 * GPU_US_PER_GPU_HOUR
    line = StatementLine.objects.filter(kind="transfer").first()
    assert (line is None) == (payer is None)
    assert line is None or line.preemptions == [str(PreemptionRecord.objects.get().pk)]


def test_waiting_in_an_idle_reservation_is_undelivered_and_the_platforms(worked_example: Pool) -> None:
    # acme loses 6 at hour 7 although its reservation is idle from then on; its work waits for 3 hours.
    preemption(worked_example, hour(7), "wl-4", identity("acme"), 6_000, cause="maintenance")
    compute()
    assert PreemptionRecord.objects.get().waits_until is None
    idle = Allocation.objects.filter(holder__slug="acme").aggregate(
        undelivered=Sum("undelivered_gpu_us"), waiting=Sum("lent_waiting_gpu_us")
    )
    # 4 GPUs of its reservation are lent from hour 7 on and none is idle: all of that is credited in full.
    assert idle == {"undelivered": 0, "waiting": 12 * GPU_US_PER_GPU_HOUR}
    # 8 GPU-hours at the borrower's 1, 12 at the full 2.
    assert amounts()["acme", "lend_credit"] == -32


def test_a_resume_that_comes_late_ends_the_waiting(worked_example: Pool) -> None:
    preemption(worked_example, hour(8), "wl-1", identity("acme"), 2_000, preemption="p1")
    occupancy(worked_example, "wl-1", identity("acme"), hour(8), 0)
    compute(9)
    assert PreemptionRecord.objects.get().waiting_gpu_us == 2 * GPU_US_PER_GPU_HOUR
    compute(10)
    assert PreemptionRecord.objects.get().waiting_gpu_us == 4 * GPU_US_PER_GPU_HOUR
    resume(worked_example, "p1", hour(8.5), recompute_gpu_us=GPU_US_PER_GPU_HOUR)
    compute(10)
    record = PreemptionRecord.objects.get()
    assert record.waiting_gpu_us == GPU_US_PER_GPU_HOUR
    assert (record.recompute_gpu_us, record.recompute_evidence) == (GPU_US_PER_GPU_HOUR, "reported")
    undelivered = Allocation.objects.aggregate(sum=Sum("undelivered_gpu_us"))["sum"]
    assert undelivered == 0 or undelivered <= GPU_US_PER_GPU_HOUR


def test_work_may_run_again_in_another_cluster(worked_example: Pool) -> None:
    preemption(worked_example, hour(8), "wl-1", identity("acme"), 2_000, preemption="p1")
    other = Pool.objects.create(slug="sh-h100", cluster="sh-1", gpu_model="H100")
    ensure_pool_books(other)
    capacity(other, hour(0), 8_000)
    resume(other, "p1", hour(9))
    compute()
    record = PreemptionRecord.objects.get()
    assert (record.resumed_pool, record.resumed_at, record.resumed_state) == (other, hour(9), "idle")
    assert record.waiting_gpu_us == 2 * GPU_US_PER_GPU_HOUR
    # It could have been spared: those GPUs were idle when it was decided.
    assert (record.idle_elsewhere_milli_gpus, record.idle_elsewhere) == (2_000, {"sh-h100": 2_000})


def test_a_resume_belongs_to_the_preemption_of_its_own_cluster(worked_example: Pool) -> None:
    other = Pool.objects.create(slug="sh-h100", cluster="sh-1", gpu_model="H100")
    ensure_pool_books(other)
    capacity(other, hour(0), 8_000)
    for pool in (worked_example, other):
        preemption(pool, hour(8), "wl-1", identity("acme"), 2_000, preemption="p1")
    resume(other, "p1", hour(9))
    compute()
    found = {record.cluster: record.resumed_at for record in PreemptionRecord.objects.all()}
    assert found == {"bj-1": None, "sh-1": hour(9)}


def test_an_entitled_victim_is_paid_by_the_preemptor(worked_example: Pool) -> None:
    # beta's 4 lie inside its reservation; gamma takes 2 of them at hour 3 and has none reserved.
    preemption(
        worked_example,
        hour(3),
        "wl-2",
        identity("beta"),
        2_000,
        preemptor_identity=identity("gamma"),
        preemptor_workload="wl-3",
        preemptor_source="structured",
        lost_gpu_us=5 * GPU_US_PER_GPU_HOUR,
        disposition="stopped",
    )
    compute()
    record = PreemptionRecord.objects.get()
    assert (record.entitled_milli_gpus, record.charged_to) == (2_000, "preemptor")
    assert (record.waiting_gpu_us, record.resumed_at) == (0, None)
    # All 5 GPU-hours at the reserved 2.
    assert amounts()["gamma", "preemption_lost"] == 10
    assert amounts()["beta", "preemption_lost"] == -10


def test_reports_that_disagree_are_a_finding(worked_example: Pool) -> None:
    gamma_loses_four(worked_example, preemption="p", event_id="a")
    gamma_loses_four(worked_example, preemption="p", event_id="b", cause="priority")
    compute()
    assert PreemptionRecord.objects.get().cause == "reclaim_own_reservation"
    finding = FactFinding.objects.get(code="merge_conflict")
    assert finding.detail == {"cause": ["/tests a: reclaim_own_reservation", "/tests b: priority"]}


def test_a_price_change_in_mid_month_makes_two_lines(worked_example: Pool) -> None:
    rate_card(hour(5), PRICES | {"on_demand": 5}, worked_example)
    compute()
    lines = MonthLine.objects.filter(category="on_demand").order_by("version_from")
    # gamma's on demand: 12 GPU-hours before hour 5 at 3, 20 after it at 5.
    assert [(line.version_from, int(line.quantity) // GPU_US_PER_GPU_HOUR) for line in lines] == [
        (hour(0), 12),
        (hour(5), 20),
    ]
    assert [line.amount_micro for line in lines] == [36 * MICRO_PER_UNIT, 100 * MICRO_PER_UNIT]


def test_a_missing_price_blocks_and_posts_no_money(worked_example: Pool) -> None:
    GpuPrice.objects.filter(category__in=["on_demand", "borrowed"]).delete()
    compute()
    findings = BillingFinding.objects.filter(code="price_missing").order_by("subject")
    assert [finding.subject for finding in findings] == ["tenant:gamma borrowed", "tenant:gamma on_demand"]
    assert all(finding.blocks_close for finding in findings)
    assert StatementLine.objects.get(category="on_demand").amount_minor is None
    assert "tenant:gamma" not in net_by_account(Unit.AMOUNT_MICRO)


def test_a_tenant_without_anything_gets_a_statement_of_nothing(worked_example: Pool) -> None:
    make_tenants("zeta")
    compute()
    empty = Statement.objects.get(tenant__holder__slug="zeta")
    assert (empty.total_minor, empty.lines.count(), empty.number) == (0, 0, f"{MONTH}-zeta")
