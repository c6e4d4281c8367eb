"""`GET headroom/` and `GET shortages/`: what pools could still give, who would give way, when they were short."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.allocations import WINDOW
from billing.api.questions import filters_of, instant_of, window_of
from billing.core.rating_prices import PriceBook
from billing.core.shortage import GivesWay
from billing.selectors.periods import ledger_and_now
from billing.selectors.prices import price_book
from billing.selectors.shortages import (
    PoolHeadroom,
    PoolShortage,
    gives_way,
    headrooms,
    pools_named,
    shortages_of,
)
from ledger.access import Access
from ledger.api.parameters import ASKED_INSTANT
from ledger.api.views import ListView
from ledger.core.periods import to_datetime
from ledger.core.units import gpu_hours_text, micro_text, milli_gpus_text, seconds_text
from ledger.models import Holder

POOL = OpenApiParameter("pool", str, description="only these pools, comma-separated")
AT = OpenApiParameter(
    "at", str, pattern=ASKED_INSTANT, description="an instant, RFC 3339 with offset; now by default"
)


class GivesWayRow(serializers.Serializer[Any]):
    workload = serializers.CharField()
    tenant = serializers.CharField(help_text="tenant or service that holds it")
    gpus = serializers.CharField()
    gpus_beyond_entitlement = serializers.CharField()
    service_class = serializers.CharField()
    price_per_gpu_hour = serializers.CharField(allow_null=True)
    estimated_loss_gpu_hours = serializers.CharField(allow_null=True, help_text="null: unknown")
    estimated_loss = serializers.CharField(allow_null=True)


class WaitingRow(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    gpus = serializers.CharField()


class HeadroomRow(serializers.Serializer[Any]):
    pool = serializers.CharField()
    at = serializers.DateTimeField()
    capacity_gpus = serializers.CharField()
    reserved_gpus = serializers.CharField()
    occupied_gpus = serializers.CharField()
    pending_gpus = serializers.CharField()
    unreserved_gpus = serializers.CharField()
    lendable_gpus = serializers.CharField()
    preemptible_gpus = serializers.CharField()
    headroom_gpus = serializers.CharField(help_text="unreserved + lendable + preemptible")
    deficit_gpus = serializers.CharField(help_text="pending beyond the headroom")
    short_since = serializers.DateTimeField(allow_null=True)
    currency = serializers.CharField()
    waiting = WaitingRow(many=True)
    gives_way = GivesWayRow(many=True, help_text="in the order in which they would; a tenant sees its own")


class ShortageRow(serializers.Serializer[Any]):
    pool = serializers.CharField()
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(allow_null=True, help_text="null while it lasts")
    deficit_gpus = serializers.CharField(help_text="the greatest")
    deficit_gpu_hours = serializers.CharField(help_text="inside the window")
    waiting = WaitingRow(many=True, help_text="who waited, and the most each waited for")
    preemptions = serializers.IntegerField(help_text="decided while it lasted")
    first_preemption = serializers.UUIDField(allow_null=True, help_text="null also where it is not yours")
    first_preemption_at = serializers.DateTimeField(allow_null=True)
    lead_time_seconds = serializers.CharField(
        allow_null=True, help_text="from the start of the shortage to its first preemption"
    )


class _Own:
    """A tenant sees of others neither names nor numbers: only what it holds itself, or a service that it owns."""

    def __init__(self, access: Access) -> None:
        self._all = access.sees_all_tenants
        tenants = Holder.objects.filter(pk__in=access.tenant_ids).values_list("slug", flat=True)
        services = Holder.objects.filter(service__owner__in=access.tenant_ids).values_list("slug", flat=True)
        self._own = {*tenants, *services}

    def sees(self, slug: str) -> bool:
        return self._all or slug in self._own

    def waiting(self, milli_of: Mapping[str, int]) -> list[dict[str, str]]:
        return [
            {"tenant": slug, "gpus": milli_gpus_text(milli)}
            for slug, milli in sorted(milli_of.items())
            if self.sees(slug)
        ]


class HeadroomView(ListView):
    """What each pool could still give, now or at an instant, and who would give way."""

    parameters = frozenset({"at", "pool"})

    @extend_schema(operation_id="headroom_list", parameters=[AT, POOL], responses=HeadroomRow(many=True))
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        at = instant_of(request, to_datetime(now_ms))
        own = _Own(self.access)
        pools = pools_named(filters_of(request, ("pool",)).get("pool"))

        def fetch(offset: int, limit: int) -> list[PoolHeadroom]:
            return headrooms(at, pools[offset : offset + limit])

        book = price_book()
        return self.page(fetch, lambda found: _headroom_row(found, own, ledger.currency, at, book))


def _headroom_row(
    found: PoolHeadroom, own: _Own, currency: str, at: datetime, book: PriceBook
) -> dict[str, Any]:
    room = found.headroom
    return {
        "pool": found.pool.slug,
        "at": at,
        "capacity_gpus": milli_gpus_text(room.capacity),
        "reserved_gpus": milli_gpus_text(room.reserved),
        "occupied_gpus": milli_gpus_text(room.occupied),
        "pending_gpus": milli_gpus_text(room.pending),
        "unreserved_gpus": milli_gpus_text(room.unreserved),
        "lendable_gpus": milli_gpus_text(room.lendable),
        "preemptible_gpus": milli_gpus_text(room.preemptible),
        "headroom_gpus": milli_gpus_text(room.total),
        "deficit_gpus": milli_gpus_text(room.deficit),
        "short_since": None if room.short_since_ms is None else to_datetime(room.short_since_ms),
        "currency": currency,
        "waiting": own.waiting(room.waiting),
        "gives_way": [
            _gives_way_row(one) for one in gives_way(at, found, book) if own.sees(one.running.holder)
        ],
    }


def _gives_way_row(one: GivesWay) -> dict[str, Any]:
    running = one.running
    return {
        "workload": running.workload,
        "tenant": running.holder,
        "gpus": milli_gpus_text(running.milli),
        "gpus_beyond_entitlement": milli_gpus_text(one.beyond_milli),
        "service_class": "preemptible" if running.preemptible else "guaranteed",
        "price_per_gpu_hour": None if one.price_micro is None else micro_text(one.price_micro),
        "estimated_loss_gpu_hours": None if one.loss_gpu_us is None else gpu_hours_text(one.loss_gpu_us),
        "estimated_loss": None if one.loss_micro is None else micro_text(one.loss_micro),
    }


class ShortagesView(ListView):
    """When pools were short of admission headroom, who waited, and the first preemption each shortage led to."""

    parameters = frozenset({"window", "pool"})

    @extend_schema(operation_id="shortages_list", parameters=[WINDOW, POOL], responses=ShortageRow(many=True))
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window = window_of(request, ledger, now_ms)
        pools = pools_named(filters_of(request, ("pool",)).get("pool"))
        rows = shortages_of(window, pools)
        own = _Own(self.access)
        return self.page(
            lambda offset, limit: rows[offset : offset + limit],
            lambda found: _shortage_row(found, own, self.access),
        )


def _shortage_row(found: PoolShortage, own: _Own, access: Access) -> dict[str, Any]:
    first, lead_ms = found.first, found.lead_time_ms
    is_theirs = access.sees_all_tenants or (
        first is not None and bool({first.victim_id, first.preemptor_id} & access.tenant_ids)
    )
    return {
        "pool": found.pool.slug,
        "starts_at": found.starts_at,
        "ends_at": found.ends_at,
        "deficit_gpus": milli_gpus_text(found.shortage.deficit),
        "deficit_gpu_hours": gpu_hours_text(found.shortage.deficit_gpu_us),
        "waiting": own.waiting(found.shortage.waiting),
        "preemptions": found.preemptions,
        "first_preemption": str(first.pk) if first is not None and is_theirs else None,
        "first_preemption_at": None if first is None else first.decided_at,
        "lead_time_seconds": None if lead_ms is None else seconds_text(lead_ms * 1000),
    }
