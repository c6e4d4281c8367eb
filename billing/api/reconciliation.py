"""`GET periods/{month}/reconciliation/`, explaining a difference, quotas sold, and `GET usage/residuals/`."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.actors import actor_of
from billing.api.allocations import WINDOW
from billing.api.periods import refusals
from billing.api.questions import filters_of, window_of
from billing.core.reconciliation import Quantity, Sold, as_ratio
from billing.selectors.periods import ledger_and_now
from billing.selectors.reconciliation import Line, month_lines, sold_of_month
from billing.selectors.residuals import ResidualRow, residuals
from billing.services.explanations import explain_difference
from ledger.access import Access
from ledger.api.bodies import body_of
from ledger.api.views import LedgerView, ListView
from ledger.core.units import gpu_hours_text
from ledger.models import Period

KINDS = ["source_total", "engine", "tokens", "quota"]


def _sees_books(access: Access) -> bool:
    return access.sees_all_tenants


def _may_explain(access: Access) -> bool:
    return access.is_finance or access.is_platform


def _period(month: str) -> Period:
    period = Period.objects.filter(month=month).first()
    if period is None:
        raise Http404
    return period


class ReconciliationRow(serializers.Serializer[Any]):
    key = serializers.CharField(help_text="names the comparison within its month")
    kind = serializers.ChoiceField(choices=KINDS)
    measure = serializers.CharField()
    source = serializers.CharField(allow_blank=True)  # type: ignore[assignment]
    pool = serializers.CharField(allow_blank=True)
    tenant = serializers.CharField(allow_blank=True)
    subject = serializers.CharField(allow_blank=True)
    stated = serializers.CharField(help_text="what the other side counted, exact")
    booked = serializers.CharField(help_text="what the ledger booked, exact")
    difference = serializers.CharField(help_text="stated - booked")
    unit = serializers.CharField(help_text="of the three before: gpu_hours, tokens or count")
    cause = serializers.CharField(help_text="a known cause, explained, unexplained, or empty")
    reason = serializers.CharField(help_text="what a person said about exactly this difference")
    explained_by = serializers.CharField()
    reconciled_at = serializers.DateTimeField()


class ExplainBody(serializers.Serializer[Any]):
    key = serializers.CharField()
    reason = serializers.CharField()


class ExplanationRow(serializers.Serializer[Any]):
    key = serializers.CharField()
    difference = serializers.CharField()
    unit = serializers.CharField()
    reason = serializers.CharField()
    explained_by = serializers.CharField()
    recorded_at = serializers.DateTimeField()


class SoldRow(serializers.Serializer[Any]):
    pool = serializers.CharField()
    capacity_gpu_hours = serializers.CharField()
    reserved_gpu_hours = serializers.CharField()
    quota_gpu_hours = serializers.CharField(help_text="cluster quotas, integrated over the month")
    guardrail_gpu_hours = serializers.CharField(help_text="how much may be sold")
    oversold_ratio = serializers.CharField(allow_null=True, help_text="sold / capacity")


class ResidualRowSerializer(serializers.Serializer[Any]):
    day = serializers.DateField(help_text="UTC")
    pool = serializers.CharField()
    model = serializers.CharField()
    kind = serializers.ChoiceField(choices=["input_tokens", "cached_input_tokens", "output_tokens", "gpu_us"])
    unit = serializers.ChoiceField(choices=["tokens", "gpu_hours"])
    engine = serializers.CharField()
    explained = serializers.CharField()
    unattributed = serializers.CharField(help_text="engine - explained; may be negative")
    silent_requests = serializers.CharField(help_text="requests that stated no such count")
    incomplete = serializers.BooleanField(help_text="the engine's own count has holes on that day")


_EXAMPLE = {
    "key": "source_total|preemptions|kueue-bj|||b7c1",
    "kind": "source_total",
    "measure": "preemptions",
    "source": "kueue-bj",
    "pool": "",
    "tenant": "",
    "subject": "b7c1",
    "stated": "3",
    "booked": "2",
    "difference": "1",
    "unit": "count",
    "cause": "unexplained",
    "reason": "",
    "explained_by": "",
    "reconciled_at": "2026-11-02T00:00:00Z",
}


class ReconciliationView(ListView):
    """The books against what sources, engines and gateways counted themselves."""

    allows = staticmethod(_sees_books)
    parameters = frozenset({"kind", "cause"})

    @extend_schema(
        operation_id="periods_reconciliation",
        parameters=[
            OpenApiParameter("kind", str, enum=KINDS, description="only of this kind"),
            OpenApiParameter("cause", str, description="only with this cause"),
        ],
        responses=ReconciliationRow(many=True),
        examples=[OpenApiExample("a preemption that was never booked", _EXAMPLE, response_only=True)],
    )
    def get(self, request: Request, month: str) -> Response:
        wanted = {name: request.query_params[name] for name in self.parameters & request.query_params.keys()}
        lines = [
            line
            for line in month_lines(_period(month))
            if wanted.get("kind") in (None, line.row.kind) and wanted.get("cause") in (None, line.cause)
        ]
        return self.page(lambda offset, limit: lines[offset : offset + limit], _line_row)


def _line_row(line: Line) -> dict[str, Any]:
    row, said = line.row, line.explanation
    names = ("key", "kind", "measure", "source", "pool", "tenant", "subject")
    return {
        **{name: getattr(row, name) for name in names},
        "stated": Quantity(int(row.stated), row.unit).text,
        "booked": Quantity(int(row.booked), row.unit).text,
        "difference": Quantity(line.difference, row.unit).text,
        "unit": Quantity(0, row.unit).shown_unit,
        "cause": line.cause,
        "reason": said.reason if said else "",
        "explained_by": said.explained_by if said else "",
        "reconciled_at": row.reconciled_at,
    }


class ExplainView(LedgerView):
    """Say why a difference is as it is; it holds for exactly that amount and is on the audit trail."""

    examples = {
        "post": {"key": "source_total|preemptions|kueue-bj|||b7c1", "reason": "the drill of 3 October"}
    }

    allows = staticmethod(_may_explain)

    @extend_schema(operation_id="periods_explain", request=ExplainBody, responses={201: ExplanationRow})
    def post(self, request: Request, month: str) -> Response:
        period, body = _period(month), body_of(request, ExplainBody)
        with refusals():
            said = explain_difference(period, body["key"], body["reason"], actor_of(request))
        row = {
            "key": said.key,
            "difference": Quantity(int(said.difference), said.unit).text,
            "unit": Quantity(0, said.unit).shown_unit,
            "reason": said.reason,
            "explained_by": said.explained_by,
            "recorded_at": said.recorded_at,
        }
        return Response(row, status=201)


class QuotasSoldView(ListView):
    """Per pool: reservations and cluster quotas sold against guardrail and capacity."""

    allows = staticmethod(_sees_books)

    @extend_schema(operation_id="periods_quotas_sold", responses=SoldRow(many=True))
    def get(self, request: Request, month: str) -> Response:
        rows = sold_of_month(_period(month))
        return self.page(lambda offset, limit: rows[offset : offset + limit], _sold_row)


def _sold_row(sold: Sold) -> dict[str, Any]:
    return {
        "pool": sold.pool,
        "capacity_gpu_hours": gpu_hours_text(sold.capacity_gpu_us),
        "reserved_gpu_hours": gpu_hours_text(sold.reserved_gpu_us),
        "quota_gpu_hours": gpu_hours_text(sold.quota_gpu_us),
        "guardrail_gpu_hours": gpu_hours_text(sold.guardrail_gpu_us),
        "oversold_ratio": as_ratio(sold.oversold_ppm),
    }


class ResidualsView(ListView):
    """What engines counted and no request explains, per UTC day, pool and model; never spread over anybody."""

    allows = staticmethod(_sees_books)
    parameters = frozenset({"window", "pool", "model"})

    @extend_schema(
        operation_id="usage_residuals_list",
        parameters=[WINDOW, OpenApiParameter("pool", str), OpenApiParameter("model", str)],
        responses=ResidualRowSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window, filters = window_of(request, ledger, now_ms), filters_of(request, ("pool", "model"))
        rows = residuals(window, pools=filters.get("pool"), models=filters.get("model"))
        return self.page(lambda offset, limit: rows[offset : offset + limit], _residual_row)


def _residual_row(row: ResidualRow) -> dict[str, Any]:
    return {
        "day": row.day.date().isoformat(),
        "pool": row.pool,
        "model": row.model,
        "kind": row.kind,
        "unit": Quantity(0, row.unit).shown_unit,
        "engine": Quantity(row.engine, row.unit).text,
        "explained": Quantity(row.explained, row.unit).text,
        "unattributed": Quantity(row.unattributed, row.unit).text,
        "silent_requests": str(row.silent_requests),
        "incomplete": row.incomplete,
    }
