"""Master data: `tenants/`, `pools/`, `services/`, `periods/`; what is dated is in `terms`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.actors import actor_of
from billing.api.proposals import ProposalBody, ProposalRow, changes_row, proposed, table_body, usable
from billing.api.term_bodies import SERVICE_BASES, SERVICE_KEYS
from billing.services.tenants import change_pool, change_tenant
from ledger.access import Access
from ledger.api.problems import Problem
from ledger.api.sentences import SentenceRow
from ledger.api.views import ListView
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


class TenantBody(serializers.Serializer[Any]):
    """What is left out stays as it is."""

    slug = serializers.CharField()
    name = serializers.CharField(required=False)
    display_alias = serializers.CharField(required=False, allow_blank=True)
    parent = serializers.CharField(required=False, allow_blank=True)  # type: ignore[assignment]
    cost_center = serializers.CharField(required=False, allow_blank=True)
    gl_code = serializers.CharField(required=False, allow_blank=True)
    contacts = serializers.ListField(child=serializers.EmailField(), required=False)
    tags = serializers.DictField(child=serializers.CharField(), required=False)
    showback = serializers.BooleanField(required=False, help_text="statements for information, not billed")
    reason = serializers.CharField(required=False, allow_blank=True)


class PoolBody(serializers.Serializer[Any]):
    """What is left out stays as it is."""

    slug = serializers.CharField()
    cluster = serializers.CharField(required=False)
    gpu_model = serializers.CharField(required=False)
    name = serializers.CharField(required=False, allow_blank=True)
    region = serializers.CharField(required=False, allow_blank=True)
    meter = serializers.CharField(required=False)
    reason = serializers.CharField(required=False, allow_blank=True)


class ServiceBody(ProposalBody):
    slug = serializers.CharField()
    name = serializers.CharField(required=False, allow_blank=True)
    pool = serializers.CharField(required=False, allow_blank=True)
    owner = serializers.CharField(required=False, help_text="a tenant, or platform")
    key = serializers.ChoiceField(choices=SERVICE_KEYS, required=False)
    service_basis = serializers.ChoiceField(choices=SERVICE_BASES, required=False)
    shares = serializers.DictField(child=serializers.IntegerField(min_value=0), required=False)
    valid_from = serializers.DateTimeField(help_text="RFC 3339 with an offset")


class ChangedRow(serializers.Serializer[Any]):
    changes = serializers.ListField(child=serializers.CharField(), help_text="empty: it was so already")
    changes_codes = SentenceRow(many=True)


def _refuse_all_but(may: bool) -> None:
    if not may:
        raise Problem(403, "not_allowed", "Your role may not do this.")


def _may_change_pools(access: Access) -> bool:
    return access.is_finance or access.is_platform


class RowsView(ListView, ABC):
    """A list of rows of one model, ordered by `default_ordering`, which must be unique."""

    @abstractmethod
    def rows(self) -> QuerySet[Any]:
        """What the asker may see."""

    def respond(self, to_row: Any) -> Response:
        queryset = self.rows()
        field, descending = self.ordering()
        if field:
            queryset = queryset.order_by(f"{'-' if descending else ''}{self.columns.get(field, field)}", "pk")
        return self.page_of(queryset, to_row)

    columns: ClassVar[dict[str, str]] = {}


class TenantsView(RowsView):
    """Tenants, those you may see."""

    examples = {
        "post": {
            "slug": "acme",
            "name": "ACME",
            "cost_center": "4711",
            "contacts": ["billing@acme.example"],
            "reason": "new customer",
        }
    }

    orderings = frozenset({"slug", "name"})
    default_ordering = "slug"
    columns: ClassVar[dict[str, str]] = {"slug": "holder__slug"}

    def rows(self) -> QuerySet[Tenant]:
        return visible_to(Tenant.objects.select_related("holder", "parent__holder"), self.access)

    @extend_schema(operation_id="tenants_list", responses=TenantRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(self._row)

    @extend_schema(operation_id="tenants_change", request=TenantBody, responses={201: ChangedRow})
    def post(self, request: Request) -> Response:
        """Add a tenant, or change one: finance only, audited."""
        _refuse_all_but(self.access.is_finance)
        row, reason = table_body(request, TenantBody)
        with usable():
            changes = change_tenant(row, reason, actor_of(request))
        return Response(changes_row(changes), status=201)

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


class PoolsView(RowsView):
    """Pools of GPUs."""

    examples = {"post": {"slug": "bj-h100", "cluster": "bj-1", "gpu_model": "H100", "reason": "new racks"}}

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

    @extend_schema(operation_id="pools_change", request=PoolBody, responses={201: ChangedRow})
    def post(self, request: Request) -> Response:
        """Add a pool, or change one: finance and platform, audited. Its prices are terms of their own."""
        _refuse_all_but(_may_change_pools(self.access))
        row, reason = table_body(request, PoolBody)
        with usable():
            changes = change_pool(row, reason, actor_of(request))
        return Response(changes_row(changes), status=201)


class ServicesView(RowsView):
    """Shared services. A tenant sees an owner only where it is itself or the platform."""

    examples = {
        "post": {
            "slug": "chat",
            "pool": "bj-h100",
            "owner": "platform",
            "key": "gpu_seconds",
            "valid_from": "2026-12-01T00:00:00+08:00",
            "reason": "shared from December",
        }
    }

    orderings = frozenset({"slug", "name"})
    default_ordering = "slug"
    columns: ClassVar[dict[str, str]] = {"slug": "holder__slug"}

    def rows(self) -> QuerySet[Service]:
        return Service.objects.select_related("holder", "pool", "owner__holder")

    @extend_schema(operation_id="services_list", responses=ServiceRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(self._row)

    @extend_schema(operation_id="services_propose", request=ServiceBody, responses={202: ProposalRow})
    def post(self, request: Request) -> Response:
        """Propose a service, or from when on its time is divided otherwise: it says who pays."""
        _refuse_all_but(self.access.is_finance)
        return proposed(request, "service", ServiceBody)

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


class PeriodsView(RowsView):
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
