"""`statements/{id}/changes/` and `/proofs/`: what became of a statement, and why it can be believed."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.http import Http404
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import Statement
from billing.selectors.changes import Changes, changes_since
from billing.selectors.proofs import Equation, statement_equations
from billing.selectors.statements import statements_for
from ledger.access import Access
from ledger.api.views import LedgerView, ListView
from ledger.core.units import gpu_hours_text, micro_text


class ChangedLineRow(serializers.Serializer[Any]):
    kind = serializers.CharField()
    pool = serializers.CharField()
    category = serializers.CharField()
    description = serializers.CharField()
    unit = serializers.CharField(help_text="gpu_us, tokens or amount_micro")
    quantity_before = serializers.CharField(help_text="exact integer in `unit`")
    quantity_after = serializers.CharField()
    gpu_hours_before = serializers.CharField(help_text="decimal; empty where the line is not of GPU time")
    gpu_hours_after = serializers.CharField()
    amount_before = serializers.CharField(allow_null=True, help_text="decimal; null: a price is missing")
    amount_after = serializers.CharField(allow_null=True)


class CauseRow(serializers.Serializer[Any]):
    origin = serializers.CharField(help_text="the event's source")
    id = serializers.CharField(help_text="see GET events/?source=&id=")
    type = serializers.CharField()
    occurred_at = serializers.DateTimeField()
    batch = serializers.IntegerField()
    booked_at = serializers.DateTimeField(allow_null=True)


class DeedRow(serializers.Serializer[Any]):
    action = serializers.CharField()
    object = serializers.CharField()
    by = serializers.CharField()
    recorded_at = serializers.DateTimeField()
    reason = serializers.CharField()


class ChangesRow(serializers.Serializer[Any]):
    statement = serializers.CharField()
    since = serializers.ChoiceField(
        choices=["issued", "approved", "nothing"], help_text="nothing: a draft that nobody approved"
    )
    since_at = serializers.DateTimeField(allow_null=True)
    lines = ChangedLineRow(many=True)
    events = CauseRow(many=True)
    more_events = serializers.IntegerField(help_text="events beyond those listed")
    events_of_others = serializers.IntegerField(help_text="events about other tenants")
    deeds = DeedRow(many=True)


_CHANGES_EXAMPLE: dict[str, Any] = {
    "statement": "2026-10-beta",
    "since": "issued",
    "since_at": "2026-11-05T00:00:00Z",
    "lines": [
        {
            "kind": "usage",
            "pool": "bj-h100",
            "category": "on_demand",
            "description": "GPU time beyond the reservation, on unreserved GPUs",
            "unit": "gpu_us",
            "quantity_before": "144000000000",
            "quantity_after": "151200000000",
            "gpu_hours_before": "40",
            "gpu_hours_after": "42",
            "amount_before": "120",
            "amount_after": "126",
        }
    ],
    "events": [],
    "more_events": 0,
    "events_of_others": 0,
    "deeds": [],
}


class EquationRow(serializers.Serializer[Any]):
    proof = serializers.CharField()
    subject = serializers.CharField(help_text="the category, pool, chain or file it is about")
    left_is = serializers.CharField()
    left = serializers.CharField()
    right_is = serializers.CharField()
    right = serializers.CharField()
    unit = serializers.CharField()
    holds = serializers.BooleanField()


def _one(access: Access, statement_id: UUID) -> Statement:
    statement = statements_for(access).defer(None).filter(pk=statement_id).first()
    if statement is None:
        raise Http404
    return statement


class StatementChangesView(LedgerView):
    """What changed since the statement was issued, or since its draft was approved: each line before and after, and
    the events, batches and deeds that became known meanwhile."""

    @extend_schema(
        operation_id="statements_changes",
        responses=ChangesRow,
        examples=[OpenApiExample("a late fact", _CHANGES_EXAMPLE, response_only=True)],
    )
    def get(self, request: Request, statement_id: UUID) -> Response:
        statement = _one(self.access, statement_id)
        return Response(_changes_row(statement, changes_since(statement, self.access)))


def _changes_row(statement: Statement, changes: Changes | None) -> dict[str, Any]:
    if changes is None:
        changes = Changes("nothing", None, [], [], 0, 0, [])
    return {
        "statement": statement.number,
        "since": changes.since,
        "since_at": changes.at,
        "lines": [
            {
                "kind": line.kind,
                "pool": line.pool,
                "category": line.category,
                "description": line.description,
                "unit": line.unit,
                "quantity_before": str(line.quantity_before),
                "quantity_after": str(line.quantity_after),
                "gpu_hours_before": _hours(line.unit, line.quantity_before),
                "gpu_hours_after": _hours(line.unit, line.quantity_after),
                "amount_before": _amount(line.amount_micro_before),
                "amount_after": _amount(line.amount_micro_after),
            }
            for line in changes.lines
        ],
        "events": [
            {
                "origin": cause.source,
                "id": cause.event_id,
                "type": cause.type,
                "occurred_at": cause.occurred_at,
                "batch": cause.batch,
                "booked_at": cause.booked_at,
            }
            for cause in changes.events
        ],
        "more_events": changes.more_events,
        "events_of_others": changes.others,
        "deeds": [
            {
                "action": deed.action,
                "object": deed.object_id,
                "by": deed.by,
                "recorded_at": deed.recorded_at,
                "reason": deed.reason,
            }
            for deed in changes.deeds
        ],
    }


def _hours(unit: str, quantity: int) -> str:
    return gpu_hours_text(quantity) if unit == "gpu_us" else ""


def _amount(micro: int | None) -> str | None:
    return None if micro is None else micro_text(micro)


class StatementProofsView(ListView):
    """Sums, conservation, hashes and chains of a statement, each with both sides of its equation."""

    parameters: ClassVar[frozenset[str]] = frozenset()

    @extend_schema(operation_id="statements_proofs_list", responses=EquationRow(many=True))
    def get(self, request: Request, statement_id: UUID) -> Response:
        rows = statement_equations(_one(self.access, statement_id))
        return self.page(lambda offset, limit: rows[offset : offset + limit], _equation_row)


def _equation_row(one: Equation) -> dict[str, Any]:
    return {
        "proof": one.proof,
        "subject": one.subject,
        "left_is": one.left_is,
        "left": one.left,
        "right_is": one.right_is,
        "right": one.right,
        "unit": one.unit,
        "holds": one.holds,
    }
