"""Changes of tenants and pools by hand: what is named changes, the rest stays; each is audited."""

from __future__ import annotations

from typing import Any

from billing.core.sentences import Sentence
from billing.services.configuration import apply_tables
from ledger.models import Pool, Tenant
from ledger.services.audit import Actor

_OF_TENANT = ("name", "display_alias", "cost_center", "gl_code", "contacts", "tags", "showback")
_OF_POOL = ("cluster", "gpu_model", "name", "region", "meter")


def change_tenant(row: dict[str, Any], reason: str, by: Actor) -> list[Sentence]:
    """Add or change a tenant; returns the diff.

    Raises:
        ConfigurationError: an unusable slug, an unknown parent.
    """
    tenant = Tenant.objects.select_related("parent__holder").filter(holder__slug=row["slug"]).first()
    stands: dict[str, Any] = {}
    if tenant is not None:
        stands = {name: getattr(tenant, name) for name in _OF_TENANT}
        stands["parent"] = tenant.parent.slug if tenant.parent else ""
    return apply_tables({"tenant": [{**stands, **row}]}, by=by, reason=reason)


def change_pool(row: dict[str, Any], reason: str, by: Actor) -> list[Sentence]:
    """Add or change a pool; returns the diff.

    Raises:
        ConfigurationError: an unusable slug, no cluster or GPU model.
    """
    pool = Pool.objects.filter(slug=row["slug"]).first()
    stands = {} if pool is None else {name: getattr(pool, name) for name in _OF_POOL}
    return apply_tables({"pool": [{**stands, **row}]}, by=by, reason=reason)
