"""Master data: `tenants/`, `pools/`, `services/`, `periods/`, `rate-cards/`, `policies/`, `calibrations/`."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import Prefetch, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import Calibration, GpuPrice, Policy, RateCard, TokenPrice
from ledger.api.views import ListView
from ledger.core.units import micro_text
from ledger.models import Period, Pool, Service, Tenant
from ledger.querysets import visible_to


class TenantRow(serializers.Serializer[Any]):
    slug = serializers.CharField()
    name = serializers.CharField()
    parent = serializers.CharField(allow_null=True)  # type: ignore[assignment]  # the row's, not DRF's
    cost_center = serializers.CharField()
    gl_code = serializers.CharField()
    contacts = serializers.ListField(child=serializers.CharField())
    tags = serializers.DictField()
    showback = serializers.BooleanField()


class PoolRow(serializers.Serializer[Any]):
    slug = serializers.CharField()
    cluster = serializers.CharField()
    gpu_model = serializers.CharField()
    name = serializers.CharField()
    meter = serializers.CharField()


class ServiceRow(serializers.Serializer[Any]):
    slug = serializers.CharField()
    name = serializers.CharField()
    pool = serializers.CharField(allow_null=True)
    owner = serializers.CharField()


class PeriodRow(serializers.Serializer[Any]):
    month = serializers.CharField()
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField()
    state = serializers.CharField()
    horizon_at = serializers.DateTimeField(allow_null=True)
    closed_at = serializers.DateTimeField(allow_null=True)


class RateCardRow(serializers.Serializer[Any]):
    name = serializers.CharField()
    valid_from = serializers.DateTimeField()
    gpu_hour = serializers.ListField(child=serializers.DictField())
    token = serializers.ListField(child=serializers.DictField())


class PolicyRow(serializers.Serializer[Any]):
    valid_from = serializers.DateTimeField()
    preemption_charged_to = serializers.CharField()
    unreserved_idle = serializers.CharField()
    lend_credit = serializers.CharField()
    min_confidence = serializers.CharField()


class CalibrationRow(serializers.Serializer[Any]):
    model = serializers.CharField()
    gpu_model = serializers.CharField()
    valid_from = serializers.DateTimeField()
    load_test = serializers.CharField()
    input_gpu_us_per_1k = serializers.CharField()
    cached_input_gpu_us_per_1k = serializers.CharField()
    output_gpu_us_per_1k = serializers.CharField()


class _RowsView(ListView):
    """A list of rows of one model, ordered by `default_ordering`, which must be unique."""

    def rows(self) -> QuerySet[Any]:
        raise NotImplementedError("each list names its rows")

    def respond(self, to_row: Any) -> Response:
        queryset = self.rows()
        field, descending = self.ordering()
        if field:
            queryset = queryset.order_by(f"{'-' if descending else ''}{self.columns.get(field, field)}", "pk")
        return self.page(lambda offset, limit: list(queryset[offset : offset + limit]), to_row)

    columns: ClassVar[dict[str, str]] = {}


class TenantsView(_RowsView):
    """Tenants, those you may see."""

    orderings = frozenset({"slug", "name"})
    default_ordering = "slug"
    columns: ClassVar[dict[str, str]] = {"slug": "holder__slug"}

    def rows(self) -> QuerySet[Tenant]:
        return visible_to(Tenant.objects.select_related("holder", "parent__holder"), self.access)

    @extend_schema(operation_id="tenants_list", responses=TenantRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(self._row)

    def _row(self, tenant: Tenant) -> dict[str, Any]:
        parent = tenant.parent
        return {
            "slug": tenant.slug,
            "name": tenant.name,
            "parent": parent.slug if parent is not None and self.access.sees_tenant(parent.pk) else None,
            "cost_center": tenant.cost_center,
            "gl_code": tenant.gl_code,
            "contacts": tenant.contacts,
            "tags": tenant.tags,
            "showback": tenant.showback,
        }


class PoolsView(_RowsView):
    """Pools of GPUs."""

    orderings = frozenset({"slug", "cluster", "gpu_model"})
    default_ordering = "slug"

    def rows(self) -> QuerySet[Pool]:
        return Pool.objects.all()

    @extend_schema(operation_id="pools_list", responses=PoolRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(
            lambda pool: {
                name: getattr(pool, name) for name in ("slug", "cluster", "gpu_model", "name", "meter")
            }
        )


class ServicesView(_RowsView):
    """Shared services. A tenant sees an owner only where it is itself or the platform."""

    orderings = frozenset({"slug", "name"})
    default_ordering = "slug"
    columns: ClassVar[dict[str, str]] = {"slug": "holder__slug"}

    def rows(self) -> QuerySet[Service]:
        return Service.objects.select_related("holder", "pool", "owner__holder")

    @extend_schema(operation_id="services_list", responses=ServiceRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(self._row)

    def _row(self, service: Service) -> dict[str, Any]:
        owner = service.owner
        shown = (
            "platform"
            if owner is None
            else owner.slug
            if self.access.sees_tenant(owner.pk)
            else "another tenant"
        )
        return {
            "slug": service.slug,
            "name": service.name,
            "pool": service.pool.slug if service.pool else None,
            "owner": shown,
        }


class PeriodsView(_RowsView):
    """Billing months and their state."""

    orderings = frozenset({"month"})
    default_ordering = "-month"

    def rows(self) -> QuerySet[Period]:
        return Period.objects.all()

    @extend_schema(operation_id="periods_list", responses=PeriodRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(
            lambda period: {
                "month": period.month,
                "starts_at": period.starts_at,
                "ends_at": period.ends_at,
                "state": period.get_state_display(),
                "horizon_at": period.horizon_at,
                "closed_at": period.closed_at,
            }
        )


class RateCardsView(_RowsView):
    """Dated price lists."""

    orderings = frozenset({"valid_from"})
    default_ordering = "-valid_from"

    def rows(self) -> QuerySet[RateCard]:
        return RateCard.objects.prefetch_related(
            Prefetch("gpu_prices", GpuPrice.objects.select_related("pool").order_by("pk")),
            Prefetch("token_prices", TokenPrice.objects.select_related("model").order_by("pk")),
        )

    @extend_schema(operation_id="rate_cards_list", responses=RateCardRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(_rate_card_row)


def _rate_card_row(card: RateCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "valid_from": card.valid_from,
        "gpu_hour": [
            {
                "pool": price.pool.slug if price.pool else None,
                "gpu_model": price.gpu_model or None,
                "category": price.category,
                "service_class": price.get_service_class_display(),
                "price": micro_text(price.price_micro),
            }
            for price in card.gpu_prices.all()
        ],
        "token": [
            {
                "model": price.model.name,
                "kind": price.kind,
                "price_per_million": micro_text(price.price_micro),
            }
            for price in card.token_prices.all()
        ],
    }


class PoliciesView(_RowsView):
    """Dated policies: who bears what."""

    orderings = frozenset({"valid_from"})
    default_ordering = "-valid_from"

    def rows(self) -> QuerySet[Policy]:
        return Policy.objects.all()

    @extend_schema(operation_id="policies_list", responses=PolicyRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(
            lambda policy: {
                "valid_from": policy.valid_from,
                "preemption_charged_to": policy.preemption_charged_to,
                "unreserved_idle": policy.unreserved_idle,
                "lend_credit": policy.lend_credit,
                "min_confidence": micro_text(policy.min_confidence_ppm),
            }
        )


class CalibrationsView(_RowsView):
    """Dated calibrations: GPU time per 1000 tokens."""

    orderings = frozenset({"valid_from"})
    default_ordering = "-valid_from"

    def rows(self) -> QuerySet[Calibration]:
        return Calibration.objects.select_related("model")

    @extend_schema(operation_id="calibrations_list", responses=CalibrationRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(
            lambda calibration: {
                "model": calibration.model.name,
                "gpu_model": calibration.gpu_model,
                "valid_from": calibration.valid_from,
                "load_test": calibration.load_test,
                "input_gpu_us_per_1k": str(calibration.input_gpu_us_per_1k),
                "cached_input_gpu_us_per_1k": str(calibration.cached_input_gpu_us_per_1k),
                "output_gpu_us_per_1k": str(calibration.output_gpu_us_per_1k),
            }
        )
