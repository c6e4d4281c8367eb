"""`periods/{month}/as-of/`: the month's statements as the ledger would have drafted them at an instant."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.questions import as_of, requests_kept
from billing.api.statements import LINE_COLUMNS, StatementLineRow
from billing.exports.bill import line_row
from billing.models import Statement
from billing.selectors.periods import ledger_and_now
from billing.selectors.statements import statements_for
from billing.services.as_of import month_as_of
from ledger.api.parameters import ASKED_INSTANT
from ledger.api.problems import Problem
from ledger.api.views import ListView
from ledger.core.currency import minor_places
from ledger.core.periods import Month
from ledger.core.units import fixed_decimal, micro_text
from ledger.models import Period


class StatementAsOfRow(serializers.Serializer[Any]):
    number = serializers.CharField()
    tenant = serializers.CharField()
    computed_up_to = serializers.DateTimeField()
    currency = serializers.CharField()
    total = serializers.CharField(help_text="decimal, as it would have printed")
    total_exact = serializers.CharField(help_text="decimal, to the micro unit")
    totals = serializers.DictField()
    lines = StatementLineRow(many=True)


class PeriodAsOfView(ListView):
    """Drafts of a month from the facts, prices and mappings that the ledger knew at `as_of`; nothing is posted.

    Costs what computing the whole month costs.
    """

    parameters = frozenset({"as_of"})

    @extend_schema(
        operation_id="periods_as_of",
        parameters=[
            OpenApiParameter(
                "as_of",
                str,
                required=True,
                pattern=ASKED_INSTANT,
                description="an instant, RFC 3339 with offset",
            )
        ],
        responses=StatementAsOfRow(many=True),
    )
    def get(self, request: Request, month: str) -> Response:
        _, now_ms = ledger_and_now()
        instant = as_of(request, now_ms)
        if instant is None:
            raise Problem(400, "missing_parameter", "as_of is required.", parameter="as_of")
        try:
            asked = Month.parse(month)
        except ValueError:
            raise Http404 from None
        if not Period.objects.filter(month=str(asked)).exists():
            raise Http404
        with requests_kept(), month_as_of(asked, instant):
            rows = statements_for(self.access).defer(None).filter(period=str(asked))
            ordered = rows.order_by("tenant__holder__slug").prefetch_related("lines")
            return self.page(lambda offset, limit: list(ordered[offset : offset + limit]), _row)


def _row(statement: Statement) -> dict[str, Any]:
    lines = [
        line_row(statement, line) for line in sorted(statement.lines.all(), key=lambda line: line.position)
    ]
    return {
        "number": statement.number,
        "tenant": statement.tenant.slug,
        "computed_up_to": datetime.fromisoformat(statement.content["computed_up_to"]),
        "currency": statement.currency,
        "total": fixed_decimal(statement.total_minor, minor_places(statement.currency)),
        "total_exact": micro_text(statement.total_micro),
        "totals": statement.totals,
        "lines": [{name: line[name] for name in LINE_COLUMNS} for line in lines],
    }
