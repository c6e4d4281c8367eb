"""`GET quota/`, `quota/drift/` and `quota/remaining/`."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.allocations import WINDOW
from billing.api.questions import filters_of, instant_of, window_of
from billing.api.reservations import TENANT
from billing.api.shortages import AT
from billing.core.quota import RESOURCES, Standing
from billing.selectors.periods import ledger_and_now
from billing.selectors.quota import QuotaRow, TenantDrift, quota_drift, quota_remaining, quotas
from ledger.api.problems import Problem
from ledger.api.views import LedgerView, ListView
from ledger.core.periods import to_datetime
from ledger.core.units import fixed_decimal, gpu_hours_text, milli_gpus_text, round_half_even, seconds_text


class QuotaRowSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    layer = serializers.ChoiceField(choices=["cluster", "serving"])
    resource = serializers.CharField()
    pool = serializers.CharField()
    service = serializers.CharField()
    limit = serializers.CharField()
    used = serializers.CharField()
    used_share = serializers.CharField(allow_null=True, help_text="decimal; null without a limit")
    since = serializers.DateTimeField()


class DriftRowSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(allow_null=True, help_text="null while it lasts")
    full_layer = serializers.ChoiceField(
        choices=["cluster", "serving"], help_text="what held the tenant back"
    )
    loose_layer = serializers.ChoiceField(choices=["cluster", "serving"])
    unused_gpu_hours = serializers.CharField(
        allow_null=True, help_text="what the loose layer left unused; null without a calibration"
    )
    reaction_seconds = serializers.CharField(
        allow_null=True, help_text="until a limit of either layer was changed; null if none was"
    )


class StandingSerializer(serializers.Serializer[Any]):
    layer = serializers.CharField()
    resource = serializers.CharField()
    pool = serializers.CharField()
    service = serializers.CharField()
    limit = serializers.CharField()
    used = serializers.CharField()
    as_of = serializers.DateTimeField()


class RemainingSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(allow_null=True, help_text="as asked")
    tokens_per_month = serializers.CharField(allow_null=True, help_text="null: no quota says")
    tokens_per_minute = serializers.CharField(allow_null=True)
    requests_per_minute = serializers.CharField(allow_null=True)
    concurrency = serializers.CharField(allow_null=True)
    gpus = serializers.CharField(allow_null=True)
    exhausted = serializers.ListField(child=serializers.CharField(), help_text="resources with nothing left")
    quotas = StandingSerializer(many=True)


class QuotasView(ListView):
    """Both quota layers, now or at an instant."""

    parameters = frozenset({"at", "tenant"})

    @extend_schema(
        operation_id="quota_list", parameters=[AT, TENANT], responses=QuotaRowSerializer(many=True)
    )
    def get(self, request: Request) -> Response:
        at = instant_of(request, timezone.now())
        rows = quotas(
            at,
            tenants=filters_of(request, ("tenant",)).get("tenant"),
            tenant_ids=None if self.access.sees_all_tenants else self.access.tenant_ids,
        )
        return self.page(lambda offset, limit: rows[offset : offset + limit], _quota_row)


def _quota_row(row: QuotaRow) -> dict[str, Any]:
    share = round_half_even(row.used_milli * 10**6, row.limit_milli) if row.limit_milli else None
    return {
        "tenant": row.tenant,
        "layer": row.layer,
        "resource": row.resource,
        "pool": row.pool,
        "service": row.service,
        "limit": milli_gpus_text(row.limit_milli),
        "used": milli_gpus_text(row.used_milli),
        "used_share": None if share is None else fixed_decimal(share, 6),
        "since": row.starts_at,
    }


class QuotaDriftView(ListView):
    """Episodes in which one layer was full (95 %) while the other was not (70 %): the quotas disagree."""

    parameters = frozenset({"window", "tenant"})

    @extend_schema(
        operation_id="quota_drift_list", parameters=[WINDOW, TENANT], responses=DriftRowSerializer(many=True)
    )
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window = window_of(request, ledger, now_ms)
        rows = quota_drift(
            window,
            tenants=filters_of(request, ("tenant",)).get("tenant"),
            tenant_ids=None if self.access.sees_all_tenants else self.access.tenant_ids,
        )
        return self.page(lambda offset, limit: rows[offset : offset + limit], _drift_row)


def _drift_row(row: TenantDrift) -> dict[str, Any]:
    drift = row.drift
    return {
        "tenant": row.tenant,
        "starts_at": to_datetime(drift.starts_ms),
        "ends_at": None if drift.ends_ms is None else to_datetime(drift.ends_ms),
        "full_layer": drift.full_layer,
        "loose_layer": drift.loose_layer,
        "unused_gpu_hours": None if drift.gpu_us is None else gpu_hours_text(drift.gpu_us),
        "reaction_seconds": None if drift.reaction_ms is None else seconds_text(drift.reaction_ms * 1000),
    }


class QuotaRemainingView(LedgerView):
    """What a gateway asks before it admits: what a tenant may still use. One indexed read.

    A tenant's token may leave `tenant` out. Quotas of other services, models or pools than those named do not count.
    """

    parameters = frozenset({"tenant", "service", "model", "pool"})

    @extend_schema(
        operation_id="quota_remaining",
        parameters=[
            OpenApiParameter("tenant", str),
            OpenApiParameter("service", str),
            OpenApiParameter("model", str),
            OpenApiParameter("pool", str),
        ],
        responses=RemainingSerializer,
        examples=[
            OpenApiExample(
                "half used",
                response_only=True,
                value={
                    "tenant": "acme",
                    "tokens_per_month": "500000000",
                    "tokens_per_minute": None,
                    "requests_per_minute": None,
                    "concurrency": "45",
                    "gpus": "12.5",
                    "exhausted": [],
                    "quotas": [],
                },
            )
        ],
    )
    def get(self, request: Request) -> Response:
        asked = {name: request.query_params.get(name) for name in ("tenant", "service", "model", "pool")}
        tenant_ids = None if self.access.sees_all_tenants else self.access.tenant_ids
        if asked["tenant"] is None and (tenant_ids is None or len(tenant_ids) != 1):
            raise Problem(422, "missing_parameter", "tenant is required.", parameter="tenant")
        found = quota_remaining(
            asked["tenant"],
            timezone.now(),
            tenant_ids=tenant_ids,
            service=asked["service"],
            model=asked["model"],
            pool=asked["pool"],
        )
        if found is None:
            raise Http404
        left = found.left_milli
        return Response(
            {
                "tenant": asked["tenant"],
                **{
                    name: None if left[name] is None else milli_gpus_text(left[name] or 0)
                    for name in RESOURCES
                },
                "exhausted": [name for name in RESOURCES if left[name] == 0],
                "quotas": [_standing_row(one) for one in found.standings],
            }
        )


def _standing_row(one: Standing) -> dict[str, Any]:
    return {
        "layer": one.layer,
        "resource": one.resource,
        "pool": one.pool,
        "service": one.service,
        "limit": milli_gpus_text(one.limit_milli),
        "used": milli_gpus_text(one.used_milli),
        "as_of": to_datetime(one.as_of_ms),
    }
