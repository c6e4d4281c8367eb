"""`GET demand/` (the funnel) and `GET rejections/`."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.allocations import WINDOW
from billing.api.questions import dimensions_of, filters_of, step_of, window_of
from billing.api.reservations import TENANT
from billing.selectors.demand import (
    REJECTION_DIMENSIONS,
    DemandRow,
    RejectionRow,
    demand,
    rejections,
    retries_known,
)
from billing.selectors.periods import ledger_and_now
from ledger.api.parameters import some_of
from ledger.api.views import ListView
from ledger.core.units import fixed_decimal, gpu_hours_text, micro_text, milli_gpus_text, seconds_text
from ledger.models import ServiceClass

_CLASSES = {str(choice.value): str(choice.label) for choice in ServiceClass}


class DemandRowSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    model = serializers.CharField(help_text="empty where refusals named none")
    asked = serializers.CharField(help_text="the sum of the next six; retries counted once")
    completed = serializers.CharField()
    rejected = serializers.CharField()
    preempted = serializers.CharField()
    timed_out = serializers.CharField()
    aborted = serializers.CharField()
    failed = serializers.CharField()
    explicit = serializers.CharField(help_text="refused with a 4xx and Retry-After")
    explicit_share = serializers.CharField(allow_null=True, help_text="of all failures; decimal, 0 to 1")
    declined_tokens = serializers.CharField(allow_null=True)
    declined_gpu_hours = serializers.CharField(allow_null=True)
    declined_amount = serializers.CharField(allow_null=True, help_text="revenue declined by refusing")
    declined_basis = serializers.CharField(help_text="token_price, gpu_time, or empty where unknown")
    killing_gpu_hours = serializers.CharField(
        allow_null=True, help_text="what preempting for it would have re-queued"
    )
    killing_amount = serializers.CharField(allow_null=True)
    currency = serializers.CharField()
    retries_known = serializers.BooleanField(
        help_text="false: raw requests of a part of the window are pruned, so that one tried again counts each time"
    )


class RejectionRowSerializer(serializers.Serializer[Any]):
    starts_at = serializers.DateTimeField(help_text="start of the step")
    tenant = serializers.CharField(required=False)
    pool = serializers.CharField(required=False)
    model = serializers.CharField(required=False)
    layer = serializers.CharField(required=False)
    reason = serializers.CharField(required=False)
    status = serializers.CharField(required=False)
    origin = serializers.CharField(required=False)
    service_class = serializers.CharField(required=False)
    rejections = serializers.CharField(help_text="as reported; a retried one counts each time")
    explicit = serializers.CharField(help_text="4xx with Retry-After")
    requested_tokens = serializers.CharField()
    requested_gpus = serializers.CharField()
    least_retry_after_seconds = serializers.CharField(allow_null=True)
    greatest_retry_after_seconds = serializers.CharField(allow_null=True)
    first_at = serializers.DateTimeField()
    last_at = serializers.DateTimeField()


class DemandView(ListView):
    """What was asked for and what became of it, per tenant and model; refusals priced beside preemption."""

    parameters = frozenset({"window", "tenant", "model"})

    @extend_schema(
        operation_id="demand_list",
        parameters=[WINDOW, TENANT, OpenApiParameter("model", str)],
        responses=DemandRowSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window = window_of(request, ledger, now_ms)
        filters = filters_of(request, ("tenant", "model"))
        rows = demand(window, self.access, tenants=filters.get("tenant"), models=filters.get("model"))
        known = retries_known(window)
        return self.page(
            lambda offset, limit: rows[offset : offset + limit],
            lambda row: _demand_row(row, ledger.currency) | {"retries_known": known},
        )


def _demand_row(row: DemandRow, currency: str) -> dict[str, Any]:
    funnel, lost, killing = row.funnel, row.declined, row.killing
    share = funnel.explicit_ppm
    return {
        "tenant": row.tenant,
        "model": row.model,
        "asked": str(funnel.asked),
        "completed": str(funnel.completed),
        "rejected": str(funnel.rejected),
        "preempted": str(funnel.preempted),
        "timed_out": str(funnel.timed_out),
        "aborted": str(funnel.aborted),
        "failed": str(funnel.failed),
        "explicit": str(funnel.explicit),
        "explicit_share": None if share is None else fixed_decimal(share, 6),
        "declined_tokens": None if lost.tokens is None else str(lost.tokens),
        "declined_gpu_hours": None if lost.gpu_us is None else gpu_hours_text(lost.gpu_us),
        "declined_amount": None if lost.amount_micro is None else micro_text(lost.amount_micro),
        "declined_basis": lost.basis,
        "killing_gpu_hours": None if killing is None else gpu_hours_text(killing.gpu_us),
        "killing_amount": None
        if killing is None or killing.amount_micro is None
        else micro_text(killing.amount_micro),
        "currency": currency,
    }


class RejectionsView(ListView):
    """Demand that was refused before it ran."""

    default_by = "tenant,layer,reason,status"
    parameters = frozenset({"window", "by", "step", *REJECTION_DIMENSIONS})

    @extend_schema(
        operation_id="rejections_list",
        parameters=[
            WINDOW,
            OpenApiParameter(
                "by",
                str,
                pattern=some_of(REJECTION_DIMENSIONS, may_be_empty=True),
                description=f"any of {','.join(REJECTION_DIMENSIONS)}",
            ),
            OpenApiParameter("step", str, enum=["hour", "day", "month", "all"]),
            *[
                OpenApiParameter(
                    name, str, pattern=some_of(_CLASSES.values()) if name == "service_class" else None
                )
                for name in REJECTION_DIMENSIONS
            ],
        ],
        responses=RejectionRowSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window = window_of(request, ledger, now_ms)
        by = dimensions_of(request, REJECTION_DIMENSIONS, default=self.default_by)
        step = step_of(request)
        filters = filters_of(request, REJECTION_DIMENSIONS)

        def fetch(offset: int, limit: int) -> list[RejectionRow]:
            return rejections(
                window,
                ledger.billing_time_zone,
                self.access,
                by=by,
                step=step,
                filters=filters,
                offset=offset,
                limit=limit,
            )

        return self.page(fetch, _rejection_row)


def _rejection_row(row: RejectionRow) -> dict[str, Any]:
    named = {
        name: _CLASSES[value] if name == "service_class" else value for name, value in row.dimensions.items()
    }
    least, greatest = row.least_retry_after_us, row.greatest_retry_after_us
    return {
        "starts_at": row.starts_at,
        **named,
        "rejections": str(row.count),
        "explicit": str(row.explicit),
        "requested_tokens": str(row.requested_tokens),
        "requested_gpus": milli_gpus_text(row.requested_milli_gpus),
        "least_retry_after_seconds": None if least is None else seconds_text(least),
        "greatest_retry_after_seconds": None if greatest is None else seconds_text(greatest),
        "first_at": row.first_at,
        "last_at": row.last_at,
    }
