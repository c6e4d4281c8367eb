"""What comes after a close: adjustments in the open month, credits, disputes, two people (domain.md section 10)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models import Sum
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from billing.exports.bill import bill_rows
from billing.models import (
    Approval,
    BillingFinding,
    ChecklistWaiver,
    Credit,
    Decision,
    Dispute,
    DisputeState,
    GpuPrice,
    RateCard,
    RunState,
    Statement,
    StatementLine,
)
from billing.services.adjustments import adjust_closed_months
from billing.services.approvals import ApprovalError
from billing.services.closing import run_close, start_close
from billing.services.credits import request_credit
from billing.services.deeds import decide
from billing.services.disputes import (
    DisputeError,
    adjust_dispute,
    answer_dispute,
    open_dispute,
    reject_dispute,
)
from billing.services.months import compute_month
from billing.services.overrides import request_override
from billing.services.periods import PeriodError, open_review
from billing.tasks import recompute_open_months
from ledger.core.units import GPU_US_PER_GPU_HOUR, MICRO_PER_UNIT
from ledger.models import AuditEntry, FactFinding, Ledger, Period, PeriodState, Pool, Tenant, Transfer, Unit
from ledger.services.masters import map_identity, mark_pools_dirty
from tests.billing.closed_months import (
    ANNA,
    BO,
    DECEMBER_5,
    NOVEMBER,
    NOVEMBER_5,
    OCTOBER,
    booked,
    closable_ledger,
    close,
    findings,
    hold,
)
from tests.billing.level_facts import hour, identity, occupancy

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture
def pool() -> Pool:
    return closable_ledger()


def frozen(month: str = "2026-10") -> list[Any]:
    """Everything a closed month prints, and the file made of it."""
    statements = list(Statement.objects.filter(period=month).order_by("number"))
    lines = list(StatementLine.objects.filter(statement__period=month).order_by("id").values())
    values = list(Statement.objects.filter(period=month).order_by("number").values())
    return [values, lines, [list(bill_rows(statement)) for statement in statements]]


def adjustments(tenant: str, month: str = "2026-11") -> list[tuple[str, str, float, float]]:
    """(month concerned, category, GPU-hours, amount)"""
    lines = StatementLine.objects.filter(statement__number=f"{month}-{tenant}", kind="adjustment")
    return [
        (
            line.concerns_month,
            line.category,
            int(line.quantity) / GPU_US_PER_GPU_HOUR if line.unit == "gpu_us" else 0,
            (line.amount_micro or 0) / MICRO_PER_UNIT,
        )
        for line in lines.order_by("position")
    ]


def total(tenant: str, month: str = "2026-11") -> float:
    return Statement.objects.get(number=f"{month}-{tenant}").total_micro / MICRO_PER_UNIT


def test_late_facts_are_an_adjustment_of_the_open_month(pool: Pool) -> None:
    close()
    before = frozen()
    booked(2)
    # beta held one more GPU for two hours: 2 GPU-hours on demand at 3, that the platform had as idle at 1.
    hold(pool, "wl-9", "beta", 1, 3, 1_000)
    assert adjust_closed_months(NOVEMBER_5) == 4
    assert adjustments("beta") == [("2026-10", "on_demand", 2.0, 6.0)]
    assert (total("beta"), total("acme"), total("gamma")) == (6, 0, 0)
    line = StatementLine.objects.get(kind="adjustment")
    assert line.description == "Adjustment of 2026-10: GPU time beyond the reservation, on unreserved GPUs"
    late = Transfer.objects.filter(posted_in="2026-11", concerns="2026-10")
    assert late.filter(unit=Unit.GPU_US).aggregate(sum=Sum("quantity"))["sum"] == 4 * GPU_US_PER_GPU_HOUR
    assert frozen() == before
    assert adjust_closed_months(NOVEMBER_5) == 0
    assert findings() == []


def test_a_second_adjustment_goes_on_from_the_first(pool: Pool) -> None:
    close()
    hold(pool, "wl-9", "beta", 1, 3, 1_000)
    close(NOVEMBER, DECEMBER_5)
    assert adjustments("beta") == [("2026-10", "on_demand", 2.0, 6.0)]
    november = frozen("2026-11")
    hold(pool, "wl-8", "beta", 5, 6, 1_000)
    adjust_closed_months(DECEMBER_5)
    assert adjustments("beta", "2026-12") == [("2026-10", "on_demand", 1.0, 3.0)]
    assert frozen("2026-11") == november
    assert findings() == []


def test_a_re_attribution_after_the_close_moves_the_amount(pool: Pool) -> None:
    occupancy(pool, "wl-7", identity("u-7", "user"), hour(2), 1_000)
    occupancy(pool, "wl-7", identity("u-7", "user"), hour(4), 0)
    map_identity("user", "u-7", Tenant.objects.get(holder__slug="beta"))
    close()
    before = frozen()
    gamma = Tenant.objects.get(holder__slug="gamma")
    map_identity("user", "u-7", gamma, valid_from=hour(3))
    adjust_closed_months(NOVEMBER_5)
    assert adjustments("beta") == [("2026-10", "on_demand", -1.0, -3.0)]
    assert adjustments("gamma") == [("2026-10", "on_demand", 1.0, 3.0)]
    assert frozen() == before
    assert findings() == []


def test_a_rate_with_an_earlier_validity_is_an_adjustment_in_money_alone(pool: Pool) -> None:
    close()
    old = RateCard.objects.get()
    card = RateCard.objects.create(name="corrected", valid_from=hour(-500))
    for price in old.gpu_prices.all():
        more = 1 if price.category == "on_demand" else 0
        GpuPrice.objects.create(
            rate_card=card,
            pool=pool,
            category=price.category,
            price_micro=price.price_micro + more * MICRO_PER_UNIT,
        )
    mark_pools_dirty(None, hour(-500))
    adjust_closed_months(NOVEMBER_5)
    # The version of the price starts within the month's first stretch either way: 40 GPU-hours at 1 more.
    assert adjustments("beta") == [("2026-10", "on_demand", 0, 40.0)]
    assert findings() == []


def test_a_price_that_an_adjustment_lacks_is_a_finding_and_blocks_the_next_close(pool: Pool) -> None:
    close()
    GpuPrice.objects.filter(category="on_demand").delete()
    mark_pools_dirty(None, hour(0))
    adjust_closed_months(NOVEMBER_5)
    found = BillingFinding.objects.get(code="price_missing")
    assert (found.month, found.subject) == ("2026-10", "tenant:beta on_demand")
    run = close(NOVEMBER, DECEMBER_5)
    assert run.state == RunState.BLOCKED
    assert "2026-10: tenant:beta on_demand" in run.message


def test_beat_adjusts_before_it_recomputes(pool: Pool) -> None:
    close()
    hold(pool, "wl-9", "beta", 1, 3, 1_000)
    recompute_open_months()
    assert StatementLine.objects.filter(kind="adjustment", concerns_month="2026-10").count() == 1
    assert findings() == []


@pytest.mark.slow
@hypothesis_settings(max_examples=8)
@given(
    early=st.lists(st.tuples(st.sampled_from("abg"), st.integers(0, 30), st.integers(1, 9)), max_size=4),
    late=st.lists(
        st.tuples(st.sampled_from("abg"), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=4
    ),
)
def test_closing_then_adding_facts_sums_to_closing_once_with_all(
    early: list[tuple[str, int, int]], late: list[tuple[str, int, int]]
) -> None:
    """Money and GPU time of every account over both months; and closed bytes never change."""
    from django.db import transaction

    names = {"a": "acme", "b": "beta", "g": "gamma"}

    def history(with_late_first: bool) -> dict[Any, Any]:
        with transaction.atomic():
            pool = closable_ledger()

            def add(facts: list[tuple[str, int, int]], kind: str) -> None:
                for number, (who, start, length) in enumerate(facts):
                    hold(pool, f"{kind}-{number}", names[who], start, start + length, 1_000 * (1 + number))

            add(early, "early")
            if with_late_first:
                add(late, "late")
            close()
            before = frozen()
            if not with_late_first:
                add(late, "late")
            close(NOVEMBER, DECEMBER_5)
            assert frozen() == before
            assert findings() == []
            sums: dict[Any, Any] = {}
            for side, sign in (("debit", -1), ("credit", 1)):
                rows = Transfer.objects.values("unit", f"{side}__tenant__holder__slug", f"{side}__kind")
                for row in rows.annotate(sum=Sum("quantity")).order_by():
                    name = (row["unit"], row[f"{side}__kind"], row[f"{side}__tenant__holder__slug"])
                    sums[name] = sums.get(name, 0) + sign * row["sum"]
            transaction.set_rollback(True)
        return {name: value for name, value in sums.items() if value}

    assert history(True) == history(False)


# Two people


def blocked_october(pool: Pool) -> Period:
    FactFinding.objects.create(code="merge_conflict", pool=pool, occurred_at=hour(1), subject="p1")
    return open_review(OCTOBER, ANNA, now=NOVEMBER_5)


def test_an_override_needs_a_second_person_and_holds_for_what_was_seen(pool: Pool) -> None:
    period = blocked_october(pool)
    with pytest.raises(ApprovalError, match="reason"):
        request_override(period, " ", ANNA, now=NOVEMBER_5)
    approval = request_override(period, "known and harmless", ANNA, now=NOVEMBER_5)
    assert approval is not None
    assert request_override(period, "known and harmless", ANNA, now=NOVEMBER_5) == approval
    with pytest.raises(ApprovalError, match="second person"):
        decide(approval.pk, Decision.APPROVED, ANNA)
    assert run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5).state == RunState.BLOCKED
    decide(approval.pk, Decision.APPROVED, BO, "agreed")
    FactFinding.objects.create(code="merge_conflict", pool=pool, occurred_at=hour(2), subject="p2")
    # One more conflict than was overridden.
    assert run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5).state == RunState.BLOCKED
    FactFinding.objects.filter(subject="p2").delete()
    assert run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5).state == RunState.DONE
    with pytest.raises(ApprovalError, match="approved by bo"):
        decide(approval.pk, Decision.REJECTED, BO)
    waiver = ChecklistWaiver.objects.get()
    assert (waiver.item, waiver.reason, waiver.requested_by) == ("exceptions", "known and harmless", "anna")
    trail = AuditEntry.objects.exclude(object_type="period").values_list("actor", "action")
    assert list(trail.order_by("id")) == [("anna", "request_approval"), ("bo", "decide_approval")]
    override = AuditEntry.objects.get(action="override_checklist")
    assert (override.actor, override.reason) == ("anna", "known and harmless")


def test_without_the_setting_one_person_is_enough(pool: Pool) -> None:
    Ledger.objects.update(options={"approvals": False})
    period = blocked_october(pool)
    assert request_override(period, "known and harmless", ANNA, now=NOVEMBER_5) is None
    assert run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5).state == RunState.DONE
    assert not Approval.objects.exists()


def test_the_order_of_months_cannot_be_overridden(pool: Pool) -> None:
    open_review(OCTOBER, ANNA, now=DECEMBER_5)
    november = open_review(NOVEMBER, ANNA, now=DECEMBER_5)
    with pytest.raises(PeriodError, match="Every earlier month is closed"):
        request_override(november, "in a hurry", ANNA, now=DECEMBER_5)


def credit(tenant: str, month: str, amount: int) -> Approval:
    row = Tenant.objects.get(holder__slug=tenant)
    period = Period.objects.get(month=month)
    approval = request_credit(row, period, amount * MICRO_PER_UNIT, "for the outage", ANNA)
    assert approval is not None
    return approval


def test_a_credit_of_an_open_month_is_a_line_of_it(pool: Pool) -> None:
    compute_month(OCTOBER, horizon=hour(20))
    approval = credit("beta", "2026-10", 5)
    assert not Credit.objects.exists()
    decide(approval.pk, Decision.APPROVED, BO)
    compute_month(OCTOBER, horizon=hour(20))
    line = StatementLine.objects.get(kind="credit")
    assert (line.category, line.amount_micro, line.description) == (
        "goodwill",
        -5 * MICRO_PER_UNIT,
        "for the outage",
    )
    assert total("beta", "2026-10") == 115
    assert Transfer.objects.get(reason="goodwill").quantity == 5 * MICRO_PER_UNIT
    assert findings() == []


def test_a_credit_of_a_closed_month_is_an_adjustment(pool: Pool) -> None:
    close()
    before = frozen()
    decide(credit("beta", "2026-10", 5).pk, Decision.APPROVED, BO)
    decide(credit("beta", "2026-10", 6).pk, Decision.APPROVED, BO)
    recompute_open_months()
    assert adjustments("beta") == [("2026-10", "goodwill", 0, -5.0), ("2026-10", "goodwill", 0, -6.0)]
    assert (total("beta"), frozen()) == (-11, before)
    assert adjust_closed_months(NOVEMBER_5) == 0
    assert findings() == []


def test_goodwill_gives_back_what_the_month_bills_and_no_more(pool: Pool) -> None:
    compute_month(OCTOBER, horizon=hour(20))
    for amount in (10**8, 121):
        with pytest.raises(ApprovalError, match="is 120; no more") as refused:
            credit("beta", "2026-10", amount)
        assert refused.value.code == "too_much"
    first, second = credit("beta", "2026-10", 100), credit("beta", "2026-10", 21)
    decide(first.pk, Decision.APPROVED, BO)
    # The second was asked for while there was enough for it; also before the draft shows the first.
    for compute in (False, True):
        if compute:
            compute_month(OCTOBER, horizon=hour(20))
        with pytest.raises(ApprovalError, match="is 20; no more"):
            decide(second.pk, Decision.APPROVED, BO)
    second.refresh_from_db()
    assert second.decision == Decision.PENDING
    decide(credit("beta", "2026-10", 20).pk, Decision.APPROVED, BO)
    compute_month(OCTOBER, horizon=hour(20))
    assert total("beta", "2026-10") == 0
    assert findings() == []


def test_a_rejected_credit_never_was(pool: Pool) -> None:
    compute_month(OCTOBER, horizon=hour(20))
    # Whoever asked may withdraw.
    decide(credit("beta", "2026-10", 5).pk, Decision.REJECTED, ANNA, "a mistake")
    assert not Credit.objects.exists()


# Disputes


def disputed(pool: Pool) -> Dispute:
    line = StatementLine.objects.filter(statement__number="2026-10-beta").get()
    return open_dispute(line, "we did not run this", BO)


def history(dispute: Dispute) -> list[tuple[str, str, str]]:
    return list(dispute.events.order_by("pk").values_list("kind", "text", "by"))


def test_a_dispute_is_answered_and_rejected_with_its_history(pool: Pool) -> None:
    close()
    dispute = disputed(pool)
    with pytest.raises(DisputeError, match="not settled"):
        disputed(pool)
    answer_dispute(dispute, "which workload?", ANNA)
    reject_dispute(dispute, "it is wl-2", ANNA)
    assert history(dispute) == [
        ("open", "we did not run this", "bo"),
        ("answered", "which workload?", "anna"),
        ("rejected", "it is wl-2", "anna"),
    ]
    for step in (answer_dispute, reject_dispute):
        with pytest.raises(DisputeError, match=r"^the dispute is rejected already$"):
            step(dispute, "again", ANNA)
    assert disputed(pool).pk != dispute.pk


def test_a_dispute_of_a_closed_month_is_adjusted_by_two_people(pool: Pool) -> None:
    close()
    before = frozen()
    dispute = adjust_dispute(disputed(pool), 7 * MICRO_PER_UNIT, "half of it was ours", ANNA)
    assert dispute.state == DisputeState.PROPOSED
    decide(Approval.objects.get().pk, Decision.APPROVED, BO)
    recompute_open_months()
    dispute.refresh_from_db()
    assert dispute.state == DisputeState.ADJUSTED
    assert [kind for kind, _, _ in history(dispute)] == ["open", "proposed", "adjusted"]
    assert adjustments("beta") == [("2026-10", "dispute_adjustment", 0, -7.0)]
    assert frozen() == before
    assert findings() == []


def test_an_adjustment_that_is_not_approved_leaves_the_dispute_open(pool: Pool) -> None:
    close()
    dispute = adjust_dispute(disputed(pool), 7 * MICRO_PER_UNIT, "half of it was ours", ANNA)
    decide(Approval.objects.get().pk, Decision.REJECTED, BO, "too much")
    dispute.refresh_from_db()
    assert (dispute.state, history(dispute)[-1]) == (DisputeState.OPEN, ("open", "too much", "bo"))
    assert not Credit.objects.exists()


def test_adjustments_of_a_line_give_back_its_amount_and_no_more(pool: Pool) -> None:
    close()
    dispute = disputed(pool)
    for amount in (99_999_999, 121):
        with pytest.raises(ApprovalError, match="is 120; no more") as refused:
            adjust_dispute(dispute, amount * MICRO_PER_UNIT, "all of it", ANNA)
        assert refused.value.code == "too_much"
    dispute.refresh_from_db()
    assert (dispute.state, Approval.objects.exists()) == (DisputeState.OPEN, False)
    adjust_dispute(dispute, 100 * MICRO_PER_UNIT, "most of it", ANNA)
    decide(Approval.objects.get().pk, Decision.APPROVED, BO)
    # What was given back stands: a second dispute of the line is about the rest.
    again = disputed(pool)
    with pytest.raises(ApprovalError, match="is 20; no more"):
        adjust_dispute(again, 21 * MICRO_PER_UNIT, "the rest and more", ANNA)
    adjust_dispute(again, 20 * MICRO_PER_UNIT, "the rest", ANNA)
    decide(Approval.objects.get(decision=Decision.PENDING).pk, Decision.APPROVED, BO)
    recompute_open_months()
    assert total("beta") == -120
    assert findings() == []


def test_what_a_draft_bills_when_it_is_granted_bounds_an_adjustment(pool: Pool) -> None:
    compute_month(OCTOBER, horizon=hour(20))
    adjust_dispute(disputed(pool), 100 * MICRO_PER_UNIT, "most of it", ANNA)
    StatementLine.objects.filter(statement__number="2026-10-beta").update(amount_micro=-99 * MICRO_PER_UNIT)
    with pytest.raises(ApprovalError, match="is 99; no more"):
        decide(Approval.objects.get().pk, Decision.APPROVED, BO)
    StatementLine.objects.filter(statement__number="2026-10-beta").delete()
    with pytest.raises(ApprovalError, match="is 0; no more"):
        decide(Approval.objects.get().pk, Decision.APPROVED, BO)


def test_an_adjustment_of_nothing_is_refused_whole(pool: Pool) -> None:
    close()
    dispute = disputed(pool)
    with pytest.raises(ApprovalError, match="more than 0"):
        adjust_dispute(dispute, 0, "nothing", ANNA)
    dispute.refresh_from_db()
    assert dispute.state == DisputeState.OPEN
    assert Period.objects.get(month="2026-10").state == PeriodState.CLOSED
