"""`GET reservations/`, `reservations/utilization/` and `lending/`."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.allocations import WINDOW
from billing.api.questions import filters_of, instant_of, window_of
from billing.api.shortages import AT, POOL
from billing.selectors.names import Names
from billing.selectors.periods import ledger_and_now
from billing.selectors.reservations import (
    UTILIZATION_STEPS,
    LendingRow,
    ReservationRow,
    Utilization,
    lending,
    reservations,
    utilization,
)
from ledger.api.views import ListView
from ledger.core.periods import to_datetime
from ledger.core.units import fixed_decimal, gpu_hours_text, micro_text, milli_gpus_text, round_half_even
from ledger.models import Holder

_SHARE_PLACES = 6
TENANT = OpenApiParameter("tenant", str, description="only these tenants, comma-separated")


class ReservationRowSerializer(serializers.Serializer[Any]):
    reservation = serializers.CharField()
    pool = serializers.CharField()
    tenant = serializers.CharField(help_text="who answers for it: a service's owner")
    service = serializers.CharField()
    gpus = serializers.CharField()
    lendable = serializers.BooleanField()
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(allow_null=True)
    state = serializers.ChoiceField(choices=["active", "planned"])


class UtilizationRowSerializer(serializers.Serializer[Any]):
    starts_at = serializers.DateTimeField(help_text="start of the step")
    pool = serializers.CharField()
    tenant = serializers.CharField()
    service = serializers.CharField()
    reservation = serializers.CharField(help_text="empty unless by=reservation")
    reserved_gpu_hours = serializers.CharField()
    used_gpu_hours = serializers.CharField()
    lent_gpu_hours = serializers.CharField()
    idle_gpu_hours = serializers.CharField()
    undelivered_gpu_hours = serializers.CharField()
    oversold_gpu_hours = serializers.CharField()
    undelivered_pending_gpu_hours = serializers.CharField(help_text="part of undelivered: not started yet")
    reserved_gpu_us = serializers.CharField()
    used_gpu_us = serializers.CharField()
    lent_gpu_us = serializers.CharField()
    idle_gpu_us = serializers.CharField()
    undelivered_gpu_us = serializers.CharField()
    oversold_gpu_us = serializers.CharField()
    undelivered_pending_gpu_us = serializers.CharField()
    used_share = serializers.CharField(help_text="decimal, 0 to 1")


class LendingRowSerializer(serializers.Serializer[Any]):
    pool = serializers.CharField()
    lender = serializers.CharField()
    borrower = serializers.CharField()
    gpu_hours = serializers.CharField()
    gpu_us = serializers.CharField()
    amount = serializers.CharField(allow_null=True, help_text="at the borrowed rate")
    credit = serializers.CharField(allow_null=True, help_text="what the lender is credited by the policy")
    currency = serializers.CharField()


class ReservationsView(ListView):
    """Reservations in force at an instant, and those planned after it. A tenant sees its own."""

    parameters = frozenset({"at", "pool", "tenant"})

    @extend_schema(
        operation_id="reservations_list",
        parameters=[AT, POOL, TENANT],
        responses=ReservationRowSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        _, now_ms = ledger_and_now()
        at = instant_of(request, to_datetime(now_ms))
        filters = filters_of(request, ("pool", "tenant"))
        tenant_ids = None if self.access.sees_all_tenants else self.access.tenant_ids
        slugs = dict(Holder.objects.values_list("pk", "slug"))

        def to_row(one: ReservationRow) -> dict[str, Any]:
            tenant, service = _tenant_and_service(one, slugs)
            return {
                "reservation": one.reservation,
                "pool": one.pool,
                "tenant": tenant,
                "service": service,
                "gpus": milli_gpus_text(one.milli_gpus),
                "lendable": one.lendable,
                "starts_at": one.starts_at,
                "ends_at": one.ends_at,
                "state": "planned" if one.starts_at > at else "active",
            }

        rows = [to_row(one) for one in reservations(at, pools=filters.get("pool"), tenant_ids=tenant_ids)]
        if "tenant" in filters:
            rows = [row for row in rows if row["tenant"] in filters["tenant"]]
        return self.page(lambda offset, limit: rows[offset : offset + limit], lambda row: row)


def _tenant_and_service(one: ReservationRow, slugs: dict[int, str]) -> tuple[str, str]:
    if one.holder_id is None:
        return "unattributed", ""
    holder = slugs[one.holder_id]
    if one.tenant_id == one.holder_id:
        return holder, ""
    return ("platform" if one.tenant_id is None else slugs[one.tenant_id]), holder


class UtilizationView(ListView):
    """Reserved, used, lent, idle and undelivered GPU time of reservations."""

    parameters = frozenset({"window", "step", "by", "pool", "tenant"})

    @extend_schema(
        operation_id="reservations_utilization_list",
        parameters=[
            WINDOW,
            OpenApiParameter("step", str, enum=list(UTILIZATION_STEPS)),
            OpenApiParameter("by", str, enum=["tenant", "reservation"]),
            POOL,
            TENANT,
        ],
        responses=UtilizationRowSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window = window_of(request, ledger, now_ms)
        step, by = request.query_params.get("step", "all"), request.query_params.get("by", "tenant")
        filters = filters_of(request, ("pool", "tenant"))
        rows = utilization(
            window,
            ledger.billing_time_zone,
            step=step,
            by_reservation=by == "reservation",
            pools=filters.get("pool"),
            tenant_ids=None if self.access.sees_all_tenants else self.access.tenant_ids,
        )
        if "tenant" in filters:
            rows = [row for row in rows if row.tenant in filters["tenant"]]
        return self.page(lambda offset, limit: rows[offset : offset + limit], _utilization_row)


def _utilization_row(row: Utilization) -> dict[str, Any]:
    use = row.use
    parts = {
        "reserved": use.reserved,
        "used": use.used,
        "lent": use.lent,
        "idle": use.idle,
        "undelivered": use.undelivered,
        "oversold": use.oversold,
        "undelivered_pending": use.undelivered_pending,
    }
    share = round_half_even(use.used * 10**_SHARE_PLACES, use.reserved) if use.reserved else 0
    return {
        "starts_at": row.starts_at,
        "pool": row.pool,
        "tenant": row.tenant,
        "service": row.service,
        "reservation": row.reservation,
        **{f"{name}_gpu_hours": gpu_hours_text(gpu_us) for name, gpu_us in parts.items()},
        **{f"{name}_gpu_us": str(gpu_us) for name, gpu_us in parts.items()},
        "used_share": fixed_decimal(share, _SHARE_PLACES),
    }


class LendingView(ListView):
    """Whose idle reservation ran whose burst, in GPU time and money. A tenant sees the pairs it is part of."""

    parameters = frozenset({"window", "pool"})

    @extend_schema(
        operation_id="lending_list", parameters=[WINDOW, POOL], responses=LendingRowSerializer(many=True)
    )
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window = window_of(request, ledger, now_ms)
        names = Names(self.access, at=to_datetime(window.start_ms))
        rows = lending(
            window,
            pools=filters_of(request, ("pool",)).get("pool"),
            tenant_ids=None if self.access.sees_all_tenants else self.access.tenant_ids,
        )

        def shown(row: LendingRow) -> tuple[str, str, str, int]:
            """The order: by names as they are shown, as that of aliases by real names would tell of these."""
            return row.pool, names.shown(row.lender_id), names.shown(row.borrower_id), row.gpu_us

        rows.sort(key=shown)

        def to_row(row: LendingRow) -> dict[str, Any]:
            return {
                "pool": row.pool,
                "lender": names.shown(row.lender_id),
                "borrower": names.shown(row.borrower_id),
                "gpu_hours": gpu_hours_text(row.gpu_us),
                "gpu_us": str(row.gpu_us),
                "amount": None if row.amount_micro is None else micro_text(row.amount_micro),
                "credit": None if row.credit_micro is None else micro_text(row.credit_micro),
                "currency": ledger.currency,
            }

        return self.page(lambda offset, limit: rows[offset : offset + limit], to_row)
