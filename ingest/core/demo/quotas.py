"""What both quota layers report of some tenants: GPUs held in the clusters, requests in flight at the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ingest.core.demo.calendar import Calendar
from ingest.core.demo.cast import Company
from ingest.core.demo.journal import GATEWAY, Journal, Json, gpus, scheduler_of
from ingest.core.demo.record import Record
from ledger.core.units import MS_PER_HOUR

EVERY_MS = 2 * MS_PER_HOUR


@dataclass(frozen=True, slots=True)
class ServingQuota:
    """Concurrent requests a tenant may have in flight, and what it would like to have at its busiest."""

    tenant: str
    service: str
    rhythm: str
    limit: int
    wanted: int


# code's serving quota is too small for what it may hold in the cluster; ads-ranking's is far too large.
SERVING_QUOTAS = (
    ServingQuota("assistant", "qwen3-235b", "consumer", 400, 330),
    ServingQuota("code", "qwen3-235b", "office", 90, 140),
    ServingQuota("search", "deepseek-v3", "consumer", 220, 190),
    ServingQuota("ads-ranking", "qwen3-235b", "office", 120, 20),
)


def write_quotas(
    journal: Journal, record: Record, company: Company, calendar: Calendar, random: Random
) -> None:
    """Both layers of each tenant, every other hour."""
    present = {tenant.slug for tenant in company.tenants}
    for quota in SERVING_QUOTAS:
        if quota.tenant in present:
            for time_ms in range(calendar.span.start_ms, calendar.span.end_ms, EVERY_MS):
                _write_serving(journal, quota, calendar, time_ms, random)
            for plan in company.reservations:
                if plan.holder == quota.tenant and plan.gpus:
                    _write_cluster(journal, record, company, calendar, plan.holder, plan.pool, plan.gpus)


def _write_serving(
    journal: Journal, quota: ServingQuota, calendar: Calendar, time_ms: int, random: Random
) -> None:
    wanted = quota.wanted * calendar.busyness(quota.rhythm, time_ms) * random.uniform(0.9, 1.1)
    data: Json = {
        "tenant": quota.tenant,
        "layer": "serving",
        "resource": "concurrency",
        "limit": quota.limit,
        "used": min(quota.limit, int(wanted)),
        "service": quota.service,
    }
    journal.write(GATEWAY, "quota", time_ms, data)


def _write_cluster(
    journal: Journal, record: Record, company: Company, calendar: Calendar, tenant: str, pool: str, limit: int
) -> None:
    stays = [stay for stay in record.stays if stay.holder == tenant and stay.pool == pool]
    cluster = next(plan.cluster for plan in company.pools if plan.slug == pool)
    for time_ms in range(calendar.span.start_ms, calendar.span.end_ms, EVERY_MS):
        held = sum(stay.milli_gpus for stay in stays if stay.start_ms <= time_ms < stay.end_ms)
        data: Json = {
            "tenant": tenant,
            "layer": "cluster",
            "resource": "gpus",
            "limit": limit,
            "used": gpus(held),
            "pool": pool,
        }
        journal.write(scheduler_of(cluster), "quota", time_ms, data)
