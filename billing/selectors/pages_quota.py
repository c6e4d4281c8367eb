"""Reads of quotas for people: what every visible tenant may still use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from billing.core.quota import Standing, remaining
from ledger.access import Access
from ledger.core.periods import to_ms
from ledger.models import QuotaStanding
from ledger.querysets import visible_to

LAYERS = ("cluster", "serving", "contract")


@dataclass(frozen=True)
class LeftRow:
    """What a tenant may still use of a resource, in thousandths of its unit. of_layer: what each layer leaves; the
    tightest one counts."""

    tenant: str
    resource: str
    left_milli: int
    of_layer: Mapping[str, int]


def left_of_tenants(now_ms: int, access: Access) -> list[LeftRow]:
    """By tenant and resource; only what some quota limits. One query."""
    rows = visible_to(
        QuotaStanding.objects.select_related("tenant__holder", "pool", "service__holder"), access
    ).order_by("tenant__holder__slug", "layer", "resource", "pk")
    of_tenant: defaultdict[str, list[Standing]] = defaultdict(list)
    for row in rows:
        of_tenant[row.tenant.slug].append(_standing(row))
    return [row for tenant, standings in of_tenant.items() for row in _left(tenant, standings, now_ms)]


def _standing(row: QuotaStanding) -> Standing:
    return Standing(
        row.layer,
        row.resource,
        row.pool.slug if row.pool else "",
        row.service.slug if row.service else "",
        row.limit_milli,
        row.used_milli,
        to_ms(row.as_of),
        None if row.ends_at is None else to_ms(row.ends_at),
    )


def _left(tenant: str, standings: list[Standing], now_ms: int) -> list[LeftRow]:
    of_layers = {
        layer: remaining((one for one in standings if one.layer == layer), now_ms) for layer in LAYERS
    }
    return [
        LeftRow(
            tenant,
            resource,
            left,
            {layer: value for layer in LAYERS if (value := of_layers[layer].get(resource)) is not None},
        )
        for resource, left in remaining(standings, now_ms).items()
        if left is not None
    ]
