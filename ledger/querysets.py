"""The one access filter. Every read of tenant-bound rows, page or API, goes through `visible_to`."""

from __future__ import annotations

from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet

from ledger.access import Access

M = TypeVar("M", bound=Model)

# How each model names the tenant whose business a row is, as look-ups of a tenant id (= holder id). A row is visible
# if any of them is one of the asker's tenants. A model that is not listed is not for tenants at all.
TENANT_PATHS: dict[str, tuple[str, ...]] = {
    "ledger.Tenant": ("holder_id",),
    "ledger.Account": ("tenant_id",),
    "billing.Statement": ("tenant_id",),
    "billing.StatementLine": ("statement__tenant_id",),
    "billing.MonthLine": ("account__tenant_id",),
    "billing.Allocation": ("account__tenant_id",),
    "billing.WorkloadDay": ("holder_id",),
    "billing.PreemptionShare": ("account__tenant_id",),
    "billing.PreemptionRecord": ("shares__account__tenant_id", "preemptor_id"),
    "billing.LendingDay": ("lender_id", "borrower_id"),
    "billing.Contract": ("tenant_id",),
}


def visible_to(queryset: QuerySet[M, Any], access: Access) -> QuerySet[M, Any]:
    """The rows of `queryset` that `access` may see; others are as if they did not exist."""
    if access.sees_all_tenants:
        return queryset
    paths = TENANT_PATHS.get(queryset.model._meta.label, ())
    if not paths or not access.tenant_ids:
        return queryset.none()
    condition = Q()
    for path in paths:
        condition |= Q(**{f"{path}__in": access.tenant_ids})
    visible = queryset.filter(condition)
    return visible.distinct() if any("shares" in path for path in paths) else visible
