"""`GET allocations/` and `GET requeued/`."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.questions import (
    allocation_question,
    as_of,
    label_parameters,
    month_of,
    requests_kept,
    window_of,
)
from billing.selectors.allocations import (
    DETAILS_OF,
    DIMENSIONS,
    FILTERS,
    STEPS,
    AllocationQuestion,
    AllocationRow,
    RequeuedRow,
    allocations,
    requeued,
)
from billing.selectors.allocations_minutes import allocations_by_minute
from billing.selectors.periods import horizon_of, ledger_and_now
from billing.selectors.prices import price_segments
from billing.services.as_of import month_as_of
from ledger.api import parameters as forms
from ledger.api.views import ListView
from ledger.core.units import fixed_decimal, gpu_hours_text, micro_text, round_half_even
from ledger.models import Ledger, ServiceClass

_CLASS_NAMES = {choice.value: str(choice.label) for choice in ServiceClass}
_SHARE_PLACES = 6
LABEL = r"label:[^,\u0000]+"


class AllocationRowSerializer(serializers.Serializer[Any]):
    starts_at = serializers.DateTimeField(help_text="start of the step")
    pool = serializers.CharField(required=False)
    cluster = serializers.CharField(required=False)
    gpu_model = serializers.CharField(required=False)
    tenant = serializers.CharField(required=False)
    service = serializers.CharField(required=False)
    category = serializers.CharField(required=False)
    service_class = serializers.CharField(required=False)
    model = serializers.CharField(required=False)
    workload = serializers.CharField(required=False)
    user = serializers.CharField(required=False)
    api_key = serializers.CharField(required=False)
    gpu_hours = serializers.CharField(
        help_text="decimal; `lent` is the same time as the borrowers' `borrowed`: a row of both counts it twice"
    )
    gpu_us = serializers.CharField(help_text="exact integer, GPU-microseconds")
    share_of_capacity = serializers.CharField(
        allow_null=True,
        help_text="decimal: gpu_hours / capacity; above 1 where a row holds both lent and borrowed, or more is held "
        "than there is",
    )
    amount = serializers.CharField(
        allow_null=True,
        help_text="decimal, at the rate card; null where a price is missing, 0 for what is undelivered or oversold: no "
        "tenant owes it. Unreserved idle time has its price here, whoever the policy lets pay it",
    )
    currency = serializers.CharField()


class RequeuedRowSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    preemptions = serializers.IntegerField()
    deferrals = serializers.IntegerField()
    stopped = serializers.IntegerField()
    requeued_gpu_hours = serializers.CharField()
    requeued_gpu_us = serializers.CharField()
    lost_gpu_us = serializers.CharField()
    recompute_gpu_us = serializers.CharField()
    waiting_gpu_us = serializers.CharField()
    waiting_gpu_hours = serializers.CharField()
    partial = serializers.BooleanField(  # type: ignore[assignment]  # the row's, not DRF's
        help_text="a part is unknown, so the truth is at least this"
    )


WINDOW = OpenApiParameter(
    "window",
    str,
    required=True,
    pattern=forms.WINDOW,
    description="2026-10, today, yesterday, last7d, or start,end (RFC 3339)",
)
AS_OF = OpenApiParameter(
    "as_of",
    str,
    pattern=forms.ASKED_INSTANT,
    description="what the ledger knew at this instant (RFC 3339); for a window within one month",
)
FILTER_PARAMETERS = [
    OpenApiParameter(
        name,
        str,
        pattern=forms.some_of(_CLASS_NAMES.values()) if name == "service_class" else None,
        description=f"only these values of `{name}`, comma-separated",
    )
    for name in FILTERS
]


class AllocationsView(ListView):
    """Whose GPU time it was."""

    parameters = frozenset({"window", "by", "step", "include", "as_of", *FILTERS})
    default_by = "tenant"
    more_columns = LABEL

    def known_parameters(self) -> frozenset[str]:
        return super().known_parameters() | frozenset(label_parameters(self.request))

    @extend_schema(
        operation_id="allocations_list",
        parameters=[
            WINDOW,
            OpenApiParameter(
                "by",
                str,
                pattern=forms.some_of(
                    (name for name in (*DIMENSIONS, *DETAILS_OF) if name != "label"), LABEL, may_be_empty=True
                ),
                description="any of pool,cluster,gpu_model,tenant,service,category,service_class, and below the holder "
                "model,api_key (requests of shared services) and workload,user,label:<name> (own workloads, by whole "
                "UTC days)",
            ),
            OpenApiParameter("step", str, enum=list(STEPS), description="minute: a window of a day at most"),
            OpenApiParameter(
                "include", str, enum=["idle"], description="also the pools' unreserved idle time"
            ),
            AS_OF,
            *FILTER_PARAMETERS,
        ],
        responses=AllocationRowSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        question = allocation_question(request, self.access, ledger, now_ms)
        instant = as_of(request, now_ms)
        if instant is None:
            return self._answer(question, ledger)
        with requests_kept(), month_as_of(month_of(question.window, ledger.billing_time_zone), instant):
            return self._answer(question, ledger)

    def _answer(self, question: AllocationQuestion, ledger: Ledger) -> Response:
        prices = price_segments(question.window)

        def to_row(row: AllocationRow) -> dict[str, Any]:
            return _allocation_row(row, ledger.currency, question.label)

        read = allocations_by_minute if question.step == "minute" else allocations
        return self.page(lambda offset, limit: read(question, prices, offset=offset, limit=limit), to_row)


def _allocation_row(row: AllocationRow, currency: str, label: str) -> dict[str, Any]:
    dimensions = {
        f"label:{label}" if name == "label" else name: _CLASS_NAMES[value]
        if name == "service_class"
        else value
        for name, value in row.dimensions.items()
    }
    share = None
    if row.capacity_gpu_us:
        share = fixed_decimal(
            round_half_even(row.gpu_us * 10**_SHARE_PLACES, row.capacity_gpu_us), _SHARE_PLACES
        )
    return {
        "starts_at": row.starts_at,
        **dimensions,
        "gpu_hours": gpu_hours_text(row.gpu_us),
        "gpu_us": str(row.gpu_us),
        "share_of_capacity": share,
        "amount": None if row.amount_micro is None else micro_text(row.amount_micro),
        "currency": currency,
    }


class RequeuedView(ListView):
    """Re-queued GPU time per tenant: lost + recomputed; waiting beside it."""

    parameters = frozenset({"window"})

    @extend_schema(
        operation_id="requeued_list", parameters=[WINDOW], responses=RequeuedRowSerializer(many=True)
    )
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window = window_of(request, ledger, now_ms)
        horizon = horizon_of(window, now_ms)
        tenant_ids = None if self.access.sees_all_tenants else self.access.tenant_ids
        return self.page(
            lambda offset, limit: requeued(
                window, horizon, tenant_ids=tenant_ids, offset=offset, limit=limit
            ),
            _requeued_row,
        )


def _requeued_row(row: RequeuedRow) -> dict[str, Any]:
    return {
        "tenant": row.tenant,
        "preemptions": row.preemptions,
        "deferrals": row.deferrals,
        "stopped": row.stopped,
        "requeued_gpu_hours": gpu_hours_text(row.requeued_gpu_us),
        "requeued_gpu_us": str(row.requeued_gpu_us),
        "lost_gpu_us": str(row.lost_gpu_us),
        "recompute_gpu_us": str(row.recompute_gpu_us),
        "waiting_gpu_us": str(row.waiting_gpu_us),
        "waiting_gpu_hours": gpu_hours_text(row.waiting_gpu_us),
        "partial": row.partial,
    }
