"""`statements/{id}/disputes/`, `disputes/`, `disputes/{id}/resolve/` and `adjustments/`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.actors import actor_of, is_finance
from billing.api.periods import ApprovalRow, approval_row, refusals, soon
from billing.models import Dispute, DisputeEvent, Statement, StatementLine
from billing.selectors.disputes import disputes_for
from billing.selectors.statements import statements_for
from billing.services.credits import request_credit
from billing.services.disputes import (
    DisputeError,
    adjust_dispute,
    answer_dispute,
    dispute_numbered,
    reject_dispute,
)
from billing.tasks import recompute_open_months
from ledger.access import Access
from ledger.api.bodies import body_of
from ledger.api.problems import Problem
from ledger.api.views import LedgerView, ListView
from ledger.core.units import MICRO_PER_UNIT, micro_text
from ledger.models import Holder, Period, Tenant


class DisputeBody(serializers.Serializer[Any]):
    line = serializers.IntegerField(min_value=1, help_text="number of the line in the statement")
    sha256 = serializers.CharField(
        required=False,
        help_text="of the statement, as the line's row says it; needed of a draft, whose numbers change",
    )
    reason = serializers.CharField()


class DisputeEventRow(serializers.Serializer[Any]):
    kind = serializers.CharField()
    text = serializers.CharField()
    amount = serializers.CharField(allow_null=True)
    by = serializers.CharField()
    recorded_at = serializers.DateTimeField()


class DisputeRow(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    statement = serializers.CharField()
    month = serializers.CharField()
    tenant = serializers.CharField()
    line = serializers.IntegerField(
        allow_null=True, help_text="its number in the statement as that is now; null: no longer on it"
    )
    amount = serializers.CharField(allow_null=True)
    state = serializers.CharField()
    opened_by = serializers.CharField()
    opened_at = serializers.DateTimeField()
    events = DisputeEventRow(many=True)


class ResolveBody(serializers.Serializer[Any]):
    decision = serializers.ChoiceField(choices=["answer", "adjust", "reject"])
    text = serializers.CharField()
    amount = serializers.DecimalField(
        max_digits=18, decimal_places=6, required=False, help_text="to give back, where it is adjusted"
    )


class AdjustmentBody(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    month = serializers.CharField(help_text="the month it concerns")
    amount = serializers.DecimalField(max_digits=18, decimal_places=6)
    reason = serializers.CharField()


class AdjustmentRow(serializers.Serializer[Any]):
    granted = serializers.BooleanField(help_text="false: it waits for a second person")
    approval = ApprovalRow(allow_null=True)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        with refusals():
            yield
    except DisputeError as error:
        status = 422 if error.code in ("no_reason", "unknown_line", "sha256_needed") else 409
        raise Problem(status, error.code, str(error)) from None


def _micro(amount: Decimal) -> int:
    return int(amount * MICRO_PER_UNIT)


def _row(dispute: Dispute) -> dict[str, Any]:
    events = [
        {
            "kind": event.kind,
            "text": event.text,
            "amount": None if event.amount_micro is None else micro_text(event.amount_micro),
            "by": event.by,
            "recorded_at": event.recorded_at,
        }
        for event in dispute.events.all()
    ]
    return {
        "id": str(dispute.pk),
        "statement": dispute.statement.number,
        "month": dispute.statement.period_id,
        "tenant": dispute.statement.tenant.slug,
        "line": dispute.line_position,
        "amount": None if dispute.amount_micro is None else micro_text(dispute.amount_micro),
        "state": dispute.state,
        "opened_by": dispute.opened_by,
        "opened_at": dispute.opened_at,
        "events": events,
    }


_SHOWN = (DisputeEvent, Statement, StatementLine, Tenant, Holder)


def _statement(access: Access, statement_id: UUID) -> Statement:
    statement = statements_for(access).filter(pk=statement_id).first()
    if statement is None:
        raise Http404
    return statement


class DisputesView(ListView):
    """Disputes the asker may see, newest first."""

    @extend_schema(operation_id="disputes_list", responses=DisputeRow(many=True))
    def get(self, request: Request) -> Response:
        rows = disputes_for(self.access)
        return self.page_of(rows, _row, also=_SHOWN)


class StatementDisputesView(ListView):
    """Disputes of a statement; a tenant opens one on a line of its own statement."""

    examples = {
        "post": {
            "line": 3,
            "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "reason": "We held 4 GPUs, not 8, on 12 October.",
        }
    }

    @extend_schema(operation_id="statements_disputes_list", responses=DisputeRow(many=True))
    def get(self, request: Request, statement_id: UUID) -> Response:
        rows = disputes_for(self.access).filter(statement=_statement(self.access, statement_id))
        return self.page_of(rows, _row, also=_SHOWN)

    @extend_schema(operation_id="statements_dispute", request=DisputeBody, responses={201: DisputeRow})
    def post(self, request: Request, statement_id: UUID) -> Response:
        statement = _statement(self.access, statement_id)
        if statement.tenant_id not in self.access.tenant_ids:
            raise Problem(403, "not_allowed", "Only the tenant itself disputes its statement.")
        body = body_of(request, DisputeBody)
        with _refusals():
            dispute = dispute_numbered(
                statement, body["line"], body.get("sha256", ""), body["reason"], actor_of(request)
            )
        return Response(_row(disputes_for(self.access).get(pk=dispute.pk)), status=201)


class DisputeResolveView(LedgerView):
    """Finance answers, rejects, or adjusts; an adjustment is a credit that a second person approves."""

    examples = {"post": {"decision": "adjust", "text": "The source confirms it.", "amount": "12.50"}}

    allows = staticmethod(is_finance)

    @extend_schema(operation_id="disputes_resolve", request=ResolveBody, responses=DisputeRow)
    def post(self, request: Request, dispute_id: UUID) -> Response:
        dispute = disputes_for(self.access).filter(pk=dispute_id).first()
        if dispute is None:
            raise Http404
        body, by = body_of(request, ResolveBody), actor_of(request)
        with _refusals():
            if body["decision"] == "answer":
                answer_dispute(dispute, body["text"], by)
            elif body["decision"] == "reject":
                reject_dispute(dispute, body["text"], by)
            elif "amount" in body:
                adjust_dispute(dispute, _micro(body["amount"]), body["text"], by)
            else:
                raise Problem(422, "bad_amount", "An adjustment needs an amount.", parameter="amount")
        soon(recompute_open_months.delay)
        return Response(_row(disputes_for(self.access).get(pk=dispute_id)))


class AdjustmentsView(LedgerView):
    """Give a tenant money back with a reason; a second person approves."""

    examples = {
        "post": {"tenant": "acme", "month": "2026-10", "amount": "100", "reason": "goodwill, ticket 4711"}
    }

    allows = staticmethod(is_finance)

    @extend_schema(operation_id="adjustments_create", request=AdjustmentBody, responses={201: AdjustmentRow})
    def post(self, request: Request) -> Response:
        body = body_of(request, AdjustmentBody)
        tenant = Tenant.objects.select_related("holder").filter(holder__slug=body["tenant"]).first()
        period = Period.objects.filter(month=body["month"]).first()
        if tenant is None or period is None:
            raise Problem(422, "unknown_statement", "There is no such tenant or month.")
        with _refusals():
            approval = request_credit(
                tenant, period, _micro(body["amount"]), body["reason"], actor_of(request)
            )
        if approval is None:
            soon(recompute_open_months.delay)
        row = {"granted": approval is None, "approval": None if approval is None else approval_row(approval)}
        return Response(row, status=201)
