"""What tenants of a shared service are entitled to in it: their serving quotas, in GPUs (domain.md section 6)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from django.db import connection

from billing.core.quota_drift import SERVING, milli_gpus_per_milli
from billing.models import Calibration
from billing.services.allocation_facts import void_events
from billing.sql.quota import QUOTA_STEPS
from ledger.core.periods import to_datetime, to_ms
from ledger.models import Pool, Service


@dataclass(frozen=True)
class AskedQuota:
    """A service in a pool, just before an instant."""

    service: str
    pool: Pool
    instant_ms: int


_Scope = tuple[str, str, str, str]
"""tenant, resource, pool, service; '' is all of them."""


def serving_quotas(asked: Sequence[AskedQuota]) -> list[dict[str, int | None]]:
    """Per question: tenant -> the quota that holds it back most, in milli-GPU, rounded down.

    Counted are quotas of layer `serving` for the service or for all services, in the pool or in all, by the
    calibration in force at the instant. None: the tenant has some, and none that a calibration converts. Three
    queries; reads the quotas between the first and the last instant.
    """
    if not asked:
        return []
    steps = _steps(asked)
    if not steps:
        return [{} for _ in asked]
    conversions = _Conversions()
    return [_standing(one, steps, conversions) for one in asked]


def _steps(asked: Sequence[AskedQuota]) -> dict[_Scope, list[tuple[int, int]]]:
    """Scope -> (from_ms, limit) in the order in which they hold."""
    instants = [one.instant_ms for one in asked]
    parameters: dict[str, Any] = {
        "at": to_datetime(min(instants) - 1),
        "to": to_datetime(max(instants)),
        "void": void_events(),
        "tenant": None,
        "tenant_ids": None,
    }
    found: defaultdict[_Scope, list[tuple[int, int]]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(QUOTA_STEPS, parameters)
        for tenant, layer, resource, pool, service, limit_milli, _, starts_at in cursor.fetchall():
            if layer == SERVING:
                found[tenant, resource, pool, service].append((to_ms(starts_at), limit_milli))
    return found


def _standing(
    asked: AskedQuota, steps: dict[_Scope, list[tuple[int, int]]], conversions: _Conversions
) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for (tenant, resource, pool, service), of_scope in steps.items():
        passed = bisect_left(of_scope, asked.instant_ms, key=lambda step: step[0])
        if not passed or service not in ("", asked.service) or pool not in ("", asked.pool.slug):
            continue
        factor = conversions.of(asked, resource)
        before = found.setdefault(tenant, None)
        if factor is not None:
            milli_gpus = int(of_scope[passed - 1][1] * factor)
            found[tenant] = milli_gpus if before is None else min(before, milli_gpus)
    return found


class _Conversions:
    """What a thousandth of a resource's unit takes: a service runs the model that it is called by, by slug or name."""

    def __init__(self) -> None:
        services = Service.objects.select_related("holder")
        self._models = {service.slug: {service.slug, service.name} for service in services}
        self._calibrations = list(Calibration.objects.select_related("model").order_by("-valid_from"))

    def of(self, asked: AskedQuota, resource: str) -> Fraction | None:
        names, gpu_model = self._models[asked.service], asked.pool.gpu_model
        calibration = next(
            (
                one
                for one in self._calibrations
                if one.model.name in names
                and one.gpu_model == gpu_model
                and to_ms(one.valid_from) <= asked.instant_ms
            ),
            None,
        )
        if calibration is not None and calibration.ended_at is not None:
            calibration = calibration if to_ms(calibration.ended_at) > asked.instant_ms else None
        if calibration is None:
            return milli_gpus_per_milli(resource, 0, None) if resource == "gpus" else None
        return milli_gpus_per_milli(
            resource, calibration.input_gpu_us_per_1k, calibration.concurrency_per_gpu_milli
        )
