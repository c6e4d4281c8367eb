"""The life of a month: `periods/{month}/review/`, `checklist/`, `close/`, and `approvals/` of a second person."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from kombu.exceptions import OperationalError
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.actors import actor_of, is_finance
from billing.core.checklist import Item, ItemState
from billing.core.sentences import sentence
from billing.models import Approval, ApprovalKind, CloseRun, Decision
from billing.selectors.checklist import month_checklist
from billing.selectors.statements import statements_for
from billing.services.approvals import ApprovalError, approve_statement
from billing.services.closing import STEPS, start_close
from billing.services.deeds import decide
from billing.services.overrides import request_override
from billing.services.periods import PeriodError, open_review
from billing.tasks import close_month, recompute_open_months
from ledger.access import Access
from ledger.api.bodies import body_of
from ledger.api.problems import Problem
from ledger.api.sentences import SentenceRow
from ledger.api.views import LedgerView, ListView
from ledger.core.periods import Month
from ledger.core.sentences import in_english, kept_sentences, spelled_out
from ledger.models import Period

OVERRIDE_WAITS = sentence("override_waits")


class PeriodStateRow(serializers.Serializer[Any]):
    month = serializers.CharField()
    state = serializers.CharField()
    horizon_at = serializers.DateTimeField(allow_null=True)


class ChecklistRow(serializers.Serializer[Any]):
    item = serializers.CharField()
    title = serializers.CharField()
    state = serializers.ChoiceField(
        choices=[state.value for state in ItemState], help_text="open: evidence that does not block the close"
    )
    blocks = serializers.BooleanField(help_text="whether its evidence keeps the month from being closed")
    evidence = serializers.ListField(child=serializers.CharField())
    evidence_codes = SentenceRow(many=True)
    can_be_waived = serializers.BooleanField()
    waived_because = serializers.CharField()


class CloseBody(serializers.Serializer[Any]):
    override = serializers.CharField(required=False, help_text="the reason to close over what blocks")


class CloseStepRow(serializers.Serializer[Any]):
    name = serializers.ChoiceField(choices=list(STEPS))
    state = serializers.ChoiceField(choices=["waiting", "running", "done", "blocked"])
    detail = serializers.CharField(required=False)
    detail_codes = SentenceRow(many=True, required=False)
    started_at = serializers.DateTimeField(required=False)
    ended_at = serializers.DateTimeField(required=False)
    attempts = serializers.IntegerField(required=False, help_text="how often a worker began it")


class CloseRow(serializers.Serializer[Any]):
    month = serializers.CharField()
    state = serializers.CharField(help_text="running, blocked, done, or waiting for an approval")
    steps = CloseStepRow(many=True)
    message = serializers.CharField()
    message_codes = SentenceRow(many=True)
    approval = serializers.UUIDField(allow_null=True)
    chain_head = serializers.CharField()


class ApproveBody(serializers.Serializer[Any]):
    sha256 = serializers.CharField(help_text="hash of the draft that was looked at")


class StatementApprovalRow(serializers.Serializer[Any]):
    statement = serializers.CharField()
    sha256 = serializers.CharField()
    approved_by = serializers.CharField()
    approved_at = serializers.DateTimeField()


class ApprovalRow(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    kind = serializers.ChoiceField(choices=ApprovalKind.choices)
    payload = serializers.DictField()
    reason = serializers.CharField()
    requested_by = serializers.CharField()
    requested_at = serializers.DateTimeField()
    decision = serializers.ChoiceField(choices=Decision.choices)
    decided_by = serializers.CharField()
    decided_at = serializers.DateTimeField(allow_null=True)
    note = serializers.CharField()


class DecisionBody(serializers.Serializer[Any]):
    decision = serializers.ChoiceField(choices=[Decision.APPROVED.value, Decision.REJECTED.value])
    note = serializers.CharField(required=False, default="", allow_blank=True)


_STATUS = {
    "no_reason": 422,
    "bad_amount": 422,
    "too_much": 422,
    "unknown_difference": 404,
    "unknown_version": 404,
}


@contextmanager
def refusals() -> Iterator[None]:
    """What a service refuses is a 409 with its code; a body that lacks something, a 422."""
    try:
        yield
    except (PeriodError, ApprovalError) as error:
        status = _STATUS.get(error.code, 409)
        raise Problem(status, error.code, str(error)) from None


def soon(publish: Callable[[], object]) -> None:
    """Have a worker do it now; without a broker, beat does it within the minute."""
    try:
        publish()
    except (OperationalError, OSError):
        return


def _month(text: str) -> Month:
    try:
        return Month.parse(text)
    except ValueError:
        raise Http404 from None


def _period(text: str) -> Period:
    period = Period.objects.filter(month=str(_month(text))).first()
    if period is None:
        raise Http404
    return period


def _sees_books(access: Access) -> bool:
    return access.sees_all_tenants


class ReviewView(LedgerView):
    """From open to review: compute the month to its end and show its drafts."""

    allows = staticmethod(is_finance)

    @extend_schema(operation_id="periods_review", request=None, responses=PeriodStateRow)
    def post(self, request: Request, month: str) -> Response:
        with refusals():
            period = open_review(_month(month), actor_of(request))
        return Response(
            {"month": period.month, "state": period.get_state_display(), "horizon_at": period.horizon_at}
        )


class ChecklistView(ListView):
    """What a close looks at, item by item, with what blocks it."""

    allows = staticmethod(_sees_books)

    @extend_schema(operation_id="periods_checklist", responses=ChecklistRow(many=True))
    def get(self, request: Request, month: str) -> Response:
        items = month_checklist(_period(month))
        return self.page(lambda offset, limit: items[offset : offset + limit], _item_row)


def _item_row(item: Item) -> dict[str, Any]:
    return {
        "item": item.code,
        "title": str(item.title),
        "state": item.state.value,
        "blocks": item.blocks,
        "evidence": [str(one) for one in item.evidence],
        "evidence_codes": [one.kept() for one in item.evidence],
        "can_be_waived": item.can_be_waived,
        "waived_because": item.waived_because,
    }


class CloseView(LedgerView):
    """Closing a month: `POST` starts it (or joins the one under way), `GET` shows the progress of the latest."""

    examples = {"post": {"override": "the quota of beta is settled by hand"}}

    allows = staticmethod(_sees_books)

    @extend_schema(operation_id="periods_close_progress", responses=CloseRow)
    def get(self, request: Request, month: str) -> Response:
        run = CloseRun.objects.filter(period=_period(month)).order_by("-pk").first()
        if run is None:
            raise Http404
        return Response(_close_row(run))

    @extend_schema(operation_id="periods_close", request=CloseBody, responses={202: CloseRow})
    def post(self, request: Request, month: str) -> Response:
        if not self.access.is_finance:
            raise Problem(403, "not_allowed", "Your role may not do this.")
        period, reason = _period(month), body_of(request, CloseBody).get("override")
        with refusals():
            if reason is not None:
                approval = request_override(period, reason, actor_of(request))
                if approval is not None:
                    return Response(_waiting_row(period, approval), status=202)
            run = start_close(_month(month), actor_of(request))
        soon(lambda: close_month.delay(run.pk))
        return Response(_close_row(run), status=202)


def _close_row(run: CloseRun) -> dict[str, Any]:
    return {
        "month": run.period_id,
        "state": run.state,
        "steps": [_step_row(step) for step in run.steps],
        "message": run.message,
        "message_codes": kept_sentences(run.outcome),
        "approval": None,
        "chain_head": run.chain_head,
    }


def _step_row(step: dict[str, Any]) -> dict[str, Any]:
    if "detail" not in step:
        return step
    told = step["detail"]
    return {**step, "detail": in_english(told), "detail_codes": kept_sentences(told)}


def _waiting_row(period: Period, approval: Approval) -> dict[str, Any]:
    return {
        "month": period.month,
        "state": "waiting",
        "steps": [],
        "message": str(OVERRIDE_WAITS),
        "message_codes": [OVERRIDE_WAITS.kept()],
        "approval": str(approval.pk),
        "chain_head": "",
    }


class StatementApproveView(LedgerView):
    """Agree to a draft, named by its hash."""

    examples = {"post": {"sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}}

    allows = staticmethod(is_finance)

    @extend_schema(
        operation_id="statements_approve", request=ApproveBody, responses={201: StatementApprovalRow}
    )
    def post(self, request: Request, statement_id: UUID) -> Response:
        statement = statements_for(self.access).filter(pk=statement_id).first()
        if statement is None:
            raise Http404
        with refusals():
            approval = approve_statement(
                statement, body_of(request, ApproveBody)["sha256"], actor_of(request)
            )
        row = {
            "statement": statement.number,
            "sha256": approval.sha256,
            "approved_by": approval.approved_by,
            "approved_at": approval.approved_at,
        }
        return Response(row, status=201)


class ApprovalsView(ListView):
    """What was asked of a second person, newest first."""

    allows = staticmethod(lambda access: access.is_finance or "auditor" in access.roles)
    parameters = frozenset({"decision"})

    @extend_schema(
        operation_id="approvals_list",
        parameters=[OpenApiParameter("decision", str, enum=Decision.values)],
        responses=ApprovalRow(many=True),
    )
    def get(self, request: Request) -> Response:
        rows = Approval.objects.order_by("-requested_at", "pk")
        if "decision" in request.query_params:
            rows = rows.filter(decision=request.query_params["decision"])
        return self.page_of(rows, approval_row, also=())


class ApprovalDecideView(LedgerView):
    """Approve or reject; whoever asked can only reject, which withdraws it."""

    examples = {"post": {"decision": "approved", "note": "checked against the contract"}}

    allows = staticmethod(is_finance)

    @extend_schema(operation_id="approvals_decide", request=DecisionBody, responses=ApprovalRow)
    def post(self, request: Request, approval_id: UUID) -> Response:
        body = body_of(request, DecisionBody)
        try:
            with refusals():
                approval = decide(approval_id, Decision(body["decision"]), actor_of(request), body["note"])
        except Approval.DoesNotExist:
            raise Http404 from None
        soon(recompute_open_months.delay)
        return Response(approval_row(approval))


def approval_row(approval: Approval) -> dict[str, Any]:
    names = ("kind", "payload", "reason", "requested_by", "requested_at", "decision", "decided_by")
    row = {name: getattr(approval, name) for name in (*names, "decided_at", "note")}
    return {"id": str(approval.pk), **row, "payload": spelled_out(approval.payload)}
