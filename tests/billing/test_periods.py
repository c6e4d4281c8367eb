"""Months move in order, close with a clean checklist, and stay as they were closed (domain.md section 10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import IntegrityError, OperationalError, ProgrammingError, connection, transaction
from django.db.utils import InternalError
from django.utils import timezone

from billing.core.statement import GENESIS, seal
from billing.models import (
    Approval,
    ApprovalKind,
    BillingFinding,
    CloseRun,
    GpuPrice,
    PoolSlot,
    RunState,
    Statement,
    StatementLine,
    StatementState,
)
from billing.selectors import checklist
from billing.selectors.checklist import month_checklist
from billing.services import closing
from billing.services.approvals import ApprovalError, approve_statement
from billing.services.closing import run_close, start_close
from billing.services.credits import request_credit
from billing.services.months import MonthClosed, compute_month
from billing.services.periods import PeriodError, ensure_period, open_review
from ingest.models import Batch, BatchState, QuarantinedEvent
from ledger.checks import Finding
from ledger.core.sentences import Sentence
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import AuditEntry, FactFinding, Period, PeriodState, Pool, Source, Tenant, Transfer
from ledger.services.masters import mark_pools_dirty
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
from tests.billing.level_facts import hour, identity, make_tenants, occupancy

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

REFUSED = (IntegrityError, InternalError, OperationalError, ProgrammingError)


@pytest.fixture
def pool() -> Pool:
    return closable_ledger()


def test_a_month_closes_with_numbered_chained_statements(pool: Pool) -> None:
    run = close()
    assert (run.state, run.message) == (RunState.DONE, "2026-10 is closed")
    assert [step["state"] for step in run.steps] == ["done"] * 4
    period = Period.objects.get(month="2026-10")
    assert (period.state, period.cut_sequence, period.closed_at) == (PeriodState.CLOSED, 1, NOVEMBER_5)
    statements = list(Statement.objects.filter(period=period).order_by("tenant__holder__slug"))
    assert [(s.number, s.state, s.total_minor) for s in statements] == [
        # acme: 20 GPU-hours used at 2, 60 idle at 1. beta: 40 on demand at 3.
        ("2026-10-acme", StatementState.ISSUED, 10_000),
        ("2026-10-beta", StatementState.ISSUED, 12_000),
        ("2026-10-gamma", StatementState.ISSUED, 0),
    ]
    head = GENESIS
    for statement in statements:
        assert (statement.previous_of_tenant, statement.previous_of_ledger) == (GENESIS, head)
        head = seal(statement.content, GENESIS, head)
        assert statement.sha256 == head
    assert run.chain_head == head
    assert findings() == []


def test_the_next_months_draft_opens_by_itself_and_continues_the_chain(pool: Pool) -> None:
    close()
    assert Period.objects.get(month="2026-11").state == PeriodState.OPEN
    assert Statement.objects.filter(period="2026-11", state=StatementState.DRAFT).count() == 3
    october = Statement.objects.get(number="2026-10-gamma")
    close(NOVEMBER, DECEMBER_5)
    first = Statement.objects.get(number="2026-11-acme")
    assert first.previous_of_ledger == october.sha256
    assert first.previous_of_tenant == Statement.objects.get(number="2026-10-acme").sha256
    assert findings() == []


def test_steps_come_in_order(pool: Pool) -> None:
    with pytest.raises(PeriodError, match="has to be in review"):
        start_close(OCTOBER, ANNA)
    with pytest.raises(PeriodError, match="not over") as error:
        open_review(NOVEMBER, ANNA, now=NOVEMBER_5)
    assert error.value.code == "not_over"
    with pytest.raises(PeriodError) as error:
        open_review(NOVEMBER, ANNA, now=DECEMBER_5)
    assert error.value.code == "out_of_order"
    open_review(OCTOBER, ANNA, now=DECEMBER_5)
    open_review(NOVEMBER, ANNA, now=DECEMBER_5)
    run = run_close(start_close(NOVEMBER, ANNA).pk, now=DECEMBER_5)
    assert (run.state, run.message) == (RunState.BLOCKED, "Every earlier month is closed: 2026-10")
    close(OCTOBER, DECEMBER_5)
    with pytest.raises(PeriodError, match="is closed"):
        start_close(OCTOBER, ANNA)
    with pytest.raises(PeriodError, match="is closed"):
        open_review(OCTOBER, ANNA, now=DECEMBER_5)
    with pytest.raises(MonthClosed):
        compute_month(OCTOBER)


def test_facts_from_before_the_first_closed_month_hold_nothing_up(pool: Pool) -> None:
    close()
    occupancy(pool, "wl-0", identity("beta"), hour(-24), 1_000)
    occupancy(pool, "wl-0", identity("beta"), hour(-23), 0)
    assert close(NOVEMBER, DECEMBER_5).state == RunState.DONE


def blocking(pool: Pool) -> dict[str, Callable[[], object]]:
    """What makes each item of the checklist blocked."""
    batch = {
        "door": "api",
        "content_type": "application/json",
        "idempotency_key": "k",
        "body_sha256": "",
        "body_bytes": 0,
    }

    def quarantined() -> None:
        booked = Batch.objects.create(state=BatchState.BOOKED, **batch)
        QuarantinedEvent.objects.create(
            batch=booked, line=1, occurred_at=hour(1), reason="unknown_pool", raw=b"{}"
        )

    def unpriced() -> None:
        GpuPrice.objects.filter(category="on_demand").delete()
        mark_pools_dirty(None, hour(0))

    def stale() -> None:
        draft = Statement.objects.get(number="2026-10-beta")
        approve_statement(draft, draft.sha256, ANNA)
        hold(pool, "wl-9", "beta", 1, 2, 1_000)

    return {
        "batches": lambda: Batch.objects.create(**batch),
        "quarantine": quarantined,
        "attribution": lambda: occupancy(pool, "wl-9", identity("nobody", "user"), hour(20), 1_000),
        "exceptions": lambda: FactFinding.objects.create(
            code="merge_conflict", pool=pool, occurred_at=hour(1), subject="p1"
        ),
        "prices": unpriced,
        "complete": lambda: Source.objects.create(uri="/never-heard-of"),
        "silence": lambda: Source.objects.update(
            complete_until=None, watermark_at=hour(800), silence_after_s=3600
        ),
        "approvals": stale,
    }


@pytest.mark.parametrize(
    ("code", "evidence"),
    [
        ("batches", "batch "),
        ("quarantine", "unknown_pool: 1"),
        ("attribution", "bj-h100: 724"),
        ("exceptions", "merge_conflict bj-h100: 1"),
        ("prices", "tenant:beta on_demand"),
        ("complete", "/never-heard-of"),
        ("silence", "/tests"),
        ("approvals", "2026-10-beta"),
    ],
)
def test_each_item_blocks_with_its_evidence(pool: Pool, code: str, evidence: str) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    clean = month_checklist(Period.objects.get(month="2026-10"), NOVEMBER_5)
    assert [item.code for item in clean if item.blocks and item.evidence] == []
    blocking(pool)[code]()
    run = run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5)
    assert run.state == RunState.BLOCKED
    items = {item.code: item for item in month_checklist(Period.objects.get(month="2026-10"), NOVEMBER_5)}
    assert [item.code for item in items.values() if item.blocks and item.evidence] == [code]
    assert str(items[code].evidence[0]).startswith(evidence)
    assert str(items[code].title) in run.message
    assert Period.objects.get(month="2026-10").state == PeriodState.REVIEW
    assert not Statement.objects.filter(state=StatementState.ISSUED).exists()


def seen_open(month: str = "2026-10") -> dict[str, list[str]]:
    """What the checklist says without blocking."""
    items = month_checklist(Period.objects.get(month=month), NOVEMBER_5)
    return {
        item.code: [str(one) for one in item.evidence] for item in items if not item.blocks and item.evidence
    }


def test_drafts_that_nobody_approved_are_told_and_do_not_block(pool: Pool) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    assert seen_open() == {"drafts": ["3 of 3 are not approved"]}
    draft = Statement.objects.get(number="2026-10-beta")
    approve_statement(draft, draft.sha256, BO)
    assert seen_open() == {"drafts": ["2 of 3 are not approved"]}
    assert run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5).state == RunState.DONE
    # What was issued has another hash than its draft, since it is chained: it is still what was approved.
    closed = month_checklist(Period.objects.get(month="2026-10"), NOVEMBER_5)
    assert [item.code for item in closed if item.code == "approvals" and item.evidence] == []
    assert seen_open() == {"drafts": ["2 of 3 are not approved"]}


def test_what_waits_for_a_second_person_is_told_where_it_concerns_the_month(pool: Pool) -> None:
    ensure_period(NOVEMBER)
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    october, tenant = Period.objects.get(month="2026-10"), Tenant.objects.get(holder__slug="beta")
    request_credit(tenant, october, 12_500_000, "goodwill", ANNA)
    for number, (kind, payload) in enumerate(
        [
            (ApprovalKind.OVERRIDE, {"month": "2026-10", "items": []}),
            (ApprovalKind.OVERRIDE, {"month": "2026-11", "items": []}),
            (ApprovalKind.CREDIT, {"tenant": "acme", "concerns": "2026-11", "amount_micro": "5"}),
            (ApprovalKind.TERMS, {"table": "rate_card", "row": {"valid_from": "2026-10-15T00:00:00+08:00"}}),
            (ApprovalKind.TERMS, {"table": "policy", "row": {"valid_from": "2026-12-01t00:00:00z"}}),
            (ApprovalKind.TERMS, {"table": "contract", "row": {}}),
            (ApprovalKind.TERMS, {"table": "pool_cost", "ends": 1, "ended_at": "2026-10-31T00:00:00+08:00"}),
            (ApprovalKind.TERMS, {"table": "pool_cost", "ends": 1, "ended_at": "2026-11-30T00:00:00+08:00"}),
            (ApprovalKind.ACCESS, {"user": "bo"}),
        ]
    ):
        Approval.objects.create(kind=kind, payload=payload, reason="x", requested_by=f"u{number}")
    assert seen_open()["second_person"] == [
        "a credit of 12.5 for beta, asked for by anna",
        "an override of this checklist, asked for by u0",
        "a change (rate_card), asked for by u3",
        "a change (contract), asked for by u5",
        "a change (pool_cost), asked for by u6",
    ]
    assert run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5).state == RunState.DONE
    # What is granted for a closed month from now on is posted in the first open one: there it is told.
    assert "a credit of 12.5 for beta, asked for by anna" in seen_open("2026-11")["second_person"]
    Approval.objects.update(decision="rejected", decided_by="bo", decided_at=NOVEMBER_5)
    assert "second_person" not in seen_open("2026-11")


def test_unproved_conservation_blocks(pool: Pool) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE billing_allocation SET on_demand_gpu_us = on_demand_gpu_us + 1")
    run = run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5)
    assert run.state == RunState.BLOCKED
    assert "Conservation is proved" in run.message


def test_the_proofs_are_carried_out_once_of_what_is_sealed(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They read every slot of the month, so a close asks once; again only where what it seals has changed since."""
    seen: list[int] = []

    def counted(month: str | None) -> Iterator[Finding]:
        seen.append(sum(PoolSlot.objects.values_list("reserved_used_gpu_us", flat=True)))
        yield from ()

    monkeypatch.setattr(checklist, "PROOFS", (counted,))
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    run = start_close(OCTOBER, ANNA)
    for step in ("compute", "check"):
        closing._do_step(run.pk, step, NOVEMBER_5)
    real = closing._with_files

    def late_fact(period: Period) -> list[Statement]:
        """Booked while the files are made, when bookings still go on."""
        monkeypatch.setattr(closing, "_with_files", real)
        drafts = real(period)
        hold(pool, "wl-late", "acme", 0, 10, 1_000)
        mark_pools_dirty([pool.pk], hour(0))
        booked(99)
        return drafts

    with transaction.atomic():
        closing._do_step(run.pk, "issue", NOVEMBER_5)
        assert len(seen) == 1
        assert Period.objects.get(month="2026-10").state == PeriodState.CLOSED
        transaction.set_rollback(True)
    monkeypatch.setattr(closing, "_with_files", late_fact)
    closing._do_step(run.pk, "issue", NOVEMBER_5)
    assert Period.objects.get(month="2026-10").state == PeriodState.CLOSED
    assert seen[1:] == [seen[0], seen[0] + 10 * GPU_US_PER_GPU_HOUR]


def test_what_breaks_a_proof_between_the_checklist_and_the_issue_is_found(pool: Pool) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    run = start_close(OCTOBER, ANNA)
    for step in ("compute", "check"):
        assert closing._do_step(run.pk, step, NOVEMBER_5)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE billing_allocation SET on_demand_gpu_us = on_demand_gpu_us + 1")
    assert not closing._do_step(run.pk, "issue", NOVEMBER_5)
    run.refresh_from_db()
    assert run.state == RunState.BLOCKED and "Conservation is proved" in run.message
    assert not Statement.objects.filter(state=StatementState.ISSUED).exists()


def test_a_retired_source_and_one_signed_off_do_not_block(pool: Pool) -> None:
    Source.objects.create(uri="/retired", retired_at=hour(5))
    Source.objects.create(uri="/signed-off", complete_until=hour(31 * 24), silence_after_s=60)
    assert close().state == RunState.DONE


def test_an_approval_names_the_draft_and_a_changed_draft_is_refused(pool: Pool) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    draft = Statement.objects.get(number="2026-10-beta")
    with pytest.raises(ApprovalError, match="has changed"):
        approve_statement(draft, "0" * 64, ANNA)
    approve_statement(draft, draft.sha256, ANNA)
    hold(pool, "wl-9", "beta", 1, 2, 1_000)
    run = run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5)
    assert run.message == "Approved drafts are what was approved: 2026-10-beta"
    approve_statement(draft, Statement.objects.get(pk=draft.pk).sha256, BO)
    assert run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5).state == RunState.DONE
    with pytest.raises(ApprovalError, match="issued"):
        approve_statement(draft, draft.sha256, ANNA)


def test_the_database_keeps_what_is_closed(pool: Pool) -> None:
    close()
    statement = Statement.objects.get(number="2026-10-beta")
    attacks: list[Callable[[], object]] = [
        lambda: Statement.objects.filter(pk=statement.pk).update(total_minor=1),
        lambda: Statement.objects.filter(pk=statement.pk).update(state="draft"),
        lambda: StatementLine.objects.filter(statement=statement).update(amount_minor=1),
        lambda: StatementLine.objects.filter(statement=statement).delete(),
        lambda: StatementLine.objects.create(
            statement=statement,
            position=99,
            key="x",
            kind="usage",
            category="x",
            version_from=hour(0),
            quantity=1,
            unit="gpu_us",
        ),
        lambda: Period.objects.filter(month="2026-10").update(state=PeriodState.REVIEW),
        lambda: Period.objects.filter(month="2026-10").update(cut_sequence=2),
        lambda: Transfer.objects.update(quantity=1),
        lambda: AuditEntry.objects.update(actor="somebody else"),
        lambda: AuditEntry.objects.all().delete(),
    ]
    for number, attack in enumerate(attacks):
        with pytest.raises(REFUSED), transaction.atomic():
            attack()
            pytest.fail(f"attack {number} was not refused")
    assert findings() == []


def test_every_step_is_on_the_audit_trail(pool: Pool) -> None:
    close()
    entries = AuditEntry.objects.filter(object_type="period").order_by("id")
    assert [(e.actor, e.action, e.object_id, e.request_id) for e in entries] == [
        ("anna", "open_review", "2026-10", "request-1"),
        ("anna", "close_month", "2026-10", "request-1"),
    ]
    assert entries[1].after["statements"] == 3


def test_a_close_that_is_asked_for_again_is_the_same_run(pool: Pool) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    assert start_close(OCTOBER, ANNA) == start_close(OCTOBER, BO)
    assert CloseRun.objects.get().requested_by == "anna"


@pytest.mark.parametrize("died", [SystemExit, KeyError])
def test_a_close_that_kills_its_workers_or_breaks_is_given_up_and_can_be_asked_for_again(
    pool: Pool, died: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else beat begins it every minute for ever, and whoever watches sees it run."""
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    run, begun = start_close(OCTOBER, ANNA), []

    def fails(*_args: object) -> Sentence:
        begun.append(1)
        raise died

    with monkeypatch.context() as broken:
        broken.setitem(closing.STEPS, "issue", fails)
        for _time in range(closing.ATTEMPTS):
            with pytest.raises(died):
                run_close(run.pk, now=NOVEMBER_5)
        run.refresh_from_db()
        assert run.state == RunState.RUNNING
        assert run_close(run.pk, now=NOVEMBER_5).state == RunState.BLOCKED
    assert len(begun) == closing.ATTEMPTS == 5
    run.refresh_from_db()
    assert [step["state"] for step in run.steps] == ["done", "done", "blocked", "waiting"]
    assert run.message == "it was begun 5 times and never ended; the worker's log says why"
    assert Period.objects.get(month="2026-10").state == PeriodState.REVIEW
    again = start_close(OCTOBER, ANNA)
    assert again.pk != run.pk and run_close(again.pk, now=NOVEMBER_5).state == RunState.DONE


@pytest.mark.parametrize("step", list(closing.STEPS))
@pytest.mark.parametrize("moment", ["before", "inside"])
def test_a_close_goes_on_wherever_it_died(
    pool: Pool, step: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step raises what nothing catches: before it does anything, or with its work done but not committed."""

    class Killed(BaseException):
        pass

    real = closing.STEPS[step]

    def dies(run: CloseRun, now: object) -> str:
        if moment == "inside":
            real(run, now)  # type: ignore[arg-type]
        raise Killed

    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    run = start_close(OCTOBER, ANNA)
    with monkeypatch.context() as patch:
        patch.setitem(closing.STEPS, step, dies)
        with pytest.raises(Killed):
            run_close(run.pk, now=NOVEMBER_5)
    assert closing.unfinished_closes() == [run.pk]
    done = run_close(run.pk, now=NOVEMBER_5)
    assert done.state == RunState.DONE
    assert Statement.objects.filter(state=StatementState.ISSUED).count() == 3
    assert AuditEntry.objects.filter(action="close_month").count() == 1
    assert findings() == []


def test_a_finished_run_is_left_alone(pool: Pool) -> None:
    run = close()
    before = list(Statement.objects.order_by("pk").values_list("sha256", "issued_at"))
    assert run_close(run.pk, now=DECEMBER_5).ended_at == run.ended_at
    assert list(Statement.objects.order_by("pk").values_list("sha256", "issued_at")) == before


def test_a_tenant_that_joins_after_the_review_gets_its_statement(pool: Pool) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    make_tenants("zeta")
    run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5)
    assert Statement.objects.get(number="2026-10-zeta").state == StatementState.ISSUED


def test_facts_that_come_between_the_steps_are_part_of_the_close(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = closing.STEPS["check"]

    def facts_arrive(run: CloseRun, now: object) -> str:
        hold(pool, "wl-9", "beta", 1, 2, 1_000)
        return real(run, now)  # type: ignore[arg-type]

    monkeypatch.setitem(closing.STEPS, "check", facts_arrive)
    assert close().state == RunState.DONE
    assert Statement.objects.get(number="2026-10-beta").total_minor == 12_300
    assert findings() == []


def test_a_blocked_run_says_so_and_a_new_one_can_follow(pool: Pool) -> None:
    finding = BillingFinding.objects.create(code="oversold", month="2026-10", pool=pool)
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    BillingFinding.objects.filter(pk=finding.pk).delete()
    blocks = FactFinding.objects.create(code="x", pool=pool, occurred_at=hour(1), subject="")
    run = run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5)
    assert [step["state"] for step in run.steps] == ["done", "blocked", "waiting", "waiting"]
    assert run.ended_at is not None and run.ended_at - timezone.now() < timedelta(minutes=1)
    blocks.delete()
    assert run_close(start_close(OCTOBER, ANNA).pk, now=NOVEMBER_5).state == RunState.DONE
