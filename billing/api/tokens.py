"""`GET usage/tokens/`."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.allocations import WINDOW
from billing.api.questions import dimensions_of, filters_of, step_of, window_of
from billing.selectors.periods import ledger_and_now
from billing.selectors.tokens import TOKEN_DIMENSIONS, TokenRow, tokens
from ledger.api.parameters import some_of
from ledger.api.views import ListView
from ledger.core.units import gpu_hours_text


class TokenRowSerializer(serializers.Serializer[Any]):
    starts_at = serializers.DateTimeField(help_text="start of the step")
    tenant = serializers.CharField(required=False)
    pool = serializers.CharField(required=False)
    service = serializers.CharField(required=False)
    model = serializers.CharField(required=False)
    requests = serializers.CharField()
    input_tokens = serializers.CharField()
    cached_input_tokens = serializers.CharField(help_text="part of input_tokens")
    output_tokens = serializers.CharField()
    reasoning_tokens = serializers.CharField(help_text="part of output_tokens")
    measured_gpu_us = serializers.CharField()
    measured_gpu_hours = serializers.CharField()
    requests_without_tokens = serializers.CharField(help_text="missing counts are not zero")


class TokensView(ListView):
    """Tokens and measured GPU time, from hourly roll-ups."""

    parameters = frozenset({"window", "by", "step", *TOKEN_DIMENSIONS})
    default_by = "tenant,model"

    @extend_schema(
        operation_id="usage_tokens_list",
        parameters=[
            WINDOW,
            OpenApiParameter(
                "by",
                str,
                pattern=some_of(TOKEN_DIMENSIONS, may_be_empty=True),
                description=f"any of {','.join(TOKEN_DIMENSIONS)}",
            ),
            OpenApiParameter("step", str, enum=["hour", "day", "month", "all"]),
            *[OpenApiParameter(name, str) for name in TOKEN_DIMENSIONS],
        ],
        responses=TokenRowSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window = window_of(request, ledger, now_ms)
        by = dimensions_of(request, TOKEN_DIMENSIONS, default=self.default_by)
        step = step_of(request)
        filters = filters_of(request, TOKEN_DIMENSIONS)
        tenant_ids = None if self.access.sees_all_tenants else self.access.tenant_ids

        def fetch(offset: int, limit: int) -> list[TokenRow]:
            return tokens(
                window,
                ledger.billing_time_zone,
                by=by,
                step=step,
                filters=filters,
                tenant_ids=tenant_ids,
                offset=offset,
                limit=limit,
            )

        return self.page(fetch, _row)


def _row(row: TokenRow) -> dict[str, Any]:
    return {
        "starts_at": row.starts_at,
        **row.dimensions,
        "requests": str(row.requests),
        "input_tokens": str(row.input_tokens),
        "cached_input_tokens": str(row.cached_input_tokens),
        "output_tokens": str(row.output_tokens),
        "reasoning_tokens": str(row.reasoning_tokens),
        "measured_gpu_us": str(row.gpu_us),
        "measured_gpu_hours": gpu_hours_text(row.gpu_us),
        "requests_without_tokens": str(row.missing),
    }
