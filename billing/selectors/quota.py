"""Both quota layers, where they disagree, and what is left (domain.md section 9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any

from django.db import connection

from billing.core.quota import Standing, remaining
from billing.core.quota_drift import (
    CLUSTER,
    SERVING,
    Drift,
    QuotaFact,
    Thresholds,
    drift_episodes,
    full_layer,
    milli_gpus_per_milli,
    used_ppm,
)
from billing.models import Calibration
from billing.services.allocation_facts import void_events
from billing.sql.quota import QUOTA_STEPS, QUOTAS_AT, REMAINING
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import parse_scaled
from ledger.models import Service
from ledger.selectors.settings import ledger_settings


@dataclass(frozen=True)
class QuotaRow:
    """One layer's limit and use; thousandths of the resource's unit. source_id, event_id: the fact that says so."""

    tenant: str
    layer: str
    resource: str
    pool: str
    service: str
    limit_milli: int
    used_milli: int
    starts_at: datetime
    source_id: int | None = None
    event_id: str = ""


def quotas(
    at: datetime,
    *,
    tenants: Collection[str] | None = None,
    tenant_ids: frozenset[int] | None = None,
) -> list[QuotaRow]:
    """The newest fact of each tenant, layer, resource and scope at an instant. Two queries."""
    with connection.cursor() as cursor:
        cursor.execute(QUOTAS_AT, _parameters(at, tenants, tenant_ids))
        return [QuotaRow(*row) for row in cursor.fetchall()]


def _parameters(
    at: datetime, tenants: Collection[str] | None, tenant_ids: frozenset[int] | None
) -> dict[str, Any]:
    return {
        "at": at,
        "void": void_events(),
        "tenant": None if tenants is None else list(tenants),
        "tenant_ids": None if tenant_ids is None else sorted(tenant_ids),
    }


@dataclass(frozen=True)
class TenantDrift:
    tenant: str
    drift: Drift


def quota_drift(
    window: Span,
    *,
    tenants: Collection[str] | None = None,
    tenant_ids: frozenset[int] | None = None,
    thresholds: Thresholds | None = None,
) -> list[TenantDrift]:
    """Episodes in which one layer was full and the other was not, by start and tenant. Five queries."""
    parameters = _parameters(to_datetime(window.start_ms), tenants, tenant_ids)
    with connection.cursor() as cursor:
        cursor.execute(QUOTA_STEPS, {**parameters, "to": to_datetime(window.end_ms)})
        rows = [QuotaRow(*row) for row in cursor.fetchall()]
    conversions = _Conversions()
    facts: defaultdict[str, list[QuotaFact]] = defaultdict(list)
    for row in rows:
        facts[row.tenant].append(_fact(row, conversions))
    limits = thresholds or drift_thresholds()
    found = [
        TenantDrift(tenant, drift)
        for tenant, of in sorted(facts.items())
        for drift in drift_episodes(of, window, limits)
    ]
    return sorted(found, key=lambda one: (one.drift.starts_ms, one.tenant))


def _fact(row: QuotaRow, conversions: _Conversions) -> QuotaFact:
    return QuotaFact(
        to_ms(row.starts_at),
        row.layer,
        row.resource,
        row.service or row.pool,
        row.limit_milli,
        row.used_milli,
        conversions.of(row),
    )


@dataclass(frozen=True)
class LayersUsed:
    """How far a tenant's layers are used, in millionths, None without a limit. full_layer: the one that is full while
    the other is not, '' where they agree."""

    tenant: str
    cluster_ppm: int | None
    serving_ppm: int | None
    full_layer: str


def layers_used(rows: Iterable[QuotaRow], thresholds: Thresholds) -> list[LayersUsed]:
    """Of quotas as they stand at one instant, by tenant. Two queries."""
    conversions = _Conversions()
    facts: defaultdict[str, list[QuotaFact]] = defaultdict(list)
    for row in rows:
        facts[row.tenant].append(_fact(row, conversions))
    return [
        LayersUsed(
            tenant,
            used_ppm(fact for fact in of if fact.layer == CLUSTER),
            used_ppm(fact for fact in of if fact.layer == SERVING),
            full_layer(of, thresholds),
        )
        for tenant, of in sorted(facts.items())
    ]


def drift_thresholds() -> Thresholds:
    """From the ledger's option `quota_drift` = {full = "0.95", loose = "0.7"}."""
    options = ledger_settings().options
    said = options.get("quota_drift") or {}
    default = Thresholds()
    return Thresholds(
        parse_scaled(str(said["full"]), 6) if "full" in said else default.full_ppm,
        parse_scaled(str(said["loose"]), 6) if "loose" in said else default.loose_ppm,
    )


class _Conversions:
    """What a unit of a resource takes in GPUs: by the calibration of the service's model on its pool's GPUs in force.

    A service runs the model that it is called by, by slug or name.
    """

    def __init__(self) -> None:
        self._services = {
            service.slug: (
                {service.slug, service.name},
                service.pool.gpu_model if service.pool is not None else None,
            )
            for service in Service.objects.select_related("holder", "pool")
        }
        self._calibrations = list(Calibration.objects.select_related("model").order_by("-valid_from"))

    def of(self, row: QuotaRow) -> Fraction | None:
        if row.resource == "gpus":
            return Fraction(1)
        calibration = self._calibration(row)
        if calibration is None:
            return None
        return milli_gpus_per_milli(
            row.resource, calibration.input_gpu_us_per_1k, calibration.concurrency_per_gpu_milli
        )

    def _calibration(self, row: QuotaRow) -> Calibration | None:
        names, gpu_model = self._services.get(row.service, (set(), None))
        return next(
            (
                one
                for one in self._calibrations
                if one.model.name in names and one.gpu_model == gpu_model and one.valid_from <= row.starts_at
            ),
            None,
        )


@dataclass(frozen=True)
class Remaining:
    """What a tenant may still use, in thousandths of each resource's unit (None: no quota says), and by which rows."""

    left_milli: dict[str, int | None]
    standings: list[Standing]


def quota_remaining(
    tenant: str | None,
    now: datetime,
    *,
    tenant_ids: frozenset[int] | None,
    service: str | None = None,
    model: str | None = None,
    pool: str | None = None,
) -> Remaining | None:
    """One read. tenant: a slug, or None for the asker's only one. None: there is no such tenant, or not for the asker.

    Quotas of other services or pools than those named are left out; those without a scope always count.
    """
    own = next(iter(tenant_ids)) if tenant_ids and len(tenant_ids) == 1 else None
    parameters: dict[str, Any] = {
        "tenant": tenant,
        "own": own,
        "tenant_ids": None if tenant_ids is None else sorted(tenant_ids),
    }
    with connection.cursor() as cursor:
        cursor.execute(REMAINING, parameters)
        rows = cursor.fetchall()
    if not rows:
        return None
    standings = []
    for _, layer, resource, of_pool, of_service, limit, used, as_of, ends_at, name in rows:
        if layer is None:
            continue
        is_asked = (
            (not of_service or service in (None, of_service))
            and (not of_service or model in (None, of_service, name))
            and (not of_pool or pool in (None, of_pool))
        )
        if is_asked:
            ends_ms = None if ends_at is None else to_ms(ends_at)
            standings.append(
                Standing(layer, resource, of_pool, of_service, limit, used, to_ms(as_of), ends_ms)
            )
    return Remaining(remaining(standings, to_ms(now)), standings)
