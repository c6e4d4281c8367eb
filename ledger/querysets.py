"""The one access filter. Every read of tenant-bound rows, page or API, goes through `visible_to`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from django.db.models import F, Model, Q, QuerySet

from ledger.access import Access
from ledger.models import Holder

M = TypeVar("M", bound=Model)

# How each model names the tenant whose business a row is, as look-ups of a tenant id (= holder id). A row is visible
# if any of them is one of the asker's tenants. A model that is listed nowhere is not for tenants at all.
TENANT_PATHS: dict[str, tuple[str, ...]] = {
    "ledger.Tenant": ("holder_id",),
    "ledger.Account": ("tenant_id",),
    "ledger.QuotaStanding": ("tenant_id",),
    "billing.Budget": ("tenant_id",),
    "billing.Statement": ("tenant_id",),
    "billing.StatementLine": ("statement__tenant_id",),
    "billing.MonthLine": ("account__tenant_id",),
    "billing.Allocation": ("account__tenant_id",),
    "billing.AllocationDay": ("account__tenant_id",),
    "billing.TenantMonth": ("tenant_id",),
    "billing.WorkloadDay": ("holder_id", "holder__service__owner_id"),
    "billing.PreemptionShare": ("account__tenant_id",),
    "billing.PreemptionRecord": (
        "shares__account__tenant_id",
        "preemptor_id",
        "preemptor__service__owner_id",
    ),
    "billing.LendingDay": ("lender_id", "borrower_id"),
    "billing.TokenDay": ("tenant_id",),
    "billing.Contract": ("tenant_id",),
    "billing.Dispute": ("statement__tenant_id",),
    "billing.Credit": ("tenant_id",),
}


def held_by(identity: str, at: str, tenant_ids: Collection[int]) -> Q:
    """Facts name identities, not tenants: theirs by slug, or by a mapping in force at the instant `at` of the fact."""
    slugs = Holder.objects.filter(pk__in=tenant_ids).values("slug")
    by_slug = Q(**{f"{identity}__kind": "tenant", f"{identity}__value__in": slugs})
    mapped = f"{identity}__mappings"
    by_mapping = Q(**{f"{mapped}__tenant__in": tenant_ids, f"{mapped}__validity__contains": F(at)})
    return by_slug | by_mapping


def _is_mine(identity: str, at: str) -> Callable[[Access], Q]:
    return lambda access: held_by(identity, at, access.tenant_ids)


# The evidence of a tenant's own holdings. What names two parties (a preemption's report) or none is not listed.
TENANT_CONDITIONS: dict[str, Callable[[Access], Q]] = {
    "ledger.Level": _is_mine("identity", "starts_at"),
    "ledger.Event": _is_mine("levels__identity", "levels__starts_at"),
    # Of one alert several tenants may be told: a shortage's are those who reserve in the pool.
    "billing.Alert": lambda access: Q(audience__in=access.tenant_ids),
}


def visible_to(queryset: QuerySet[M, Any], access: Access) -> QuerySet[M, Any]:
    """The rows of `queryset` that `access` may see; others are as if they did not exist."""
    if access.sees_all_tenants:
        return queryset
    label = queryset.model._meta.label
    if not access.tenant_ids:
        return queryset.none()
    if label in TENANT_CONDITIONS:
        return queryset.filter(TENANT_CONDITIONS[label](access)).distinct()
    paths = TENANT_PATHS.get(label, ())
    if not paths:
        return queryset.none()
    condition = Q()
    for path in paths:
        condition |= Q(**{f"{path}__in": access.tenant_ids})
    visible = queryset.filter(condition)
    return visible.distinct() if any("shares" in path for path in paths) else visible
