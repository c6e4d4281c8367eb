"""What both quota layers report of some tenants: GPUs held in the clusters, requests in flight at the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from ingest.core.demo.calendar import Calendar
from ingest.core.demo.cast import GPUS_PER_NODE, Company
from ingest.core.demo.journal import GATEWAY, Journal, Json, gpus, scheduler_of
from ingest.core.demo.record import Record, Stay
from ledger.core.units import MS_PER_HOUR

EVERY_MS = 2 * MS_PER_HOUR


@dataclass(frozen=True, slots=True)
class ServingQuota:
    """Concurrent requests a tenant may have in flight, and what it would like to have at its busiest.

    grows_on: from that day's first office day on it wants `grown`; raised_after: so many days later, before noon,
    somebody raises the limit to `raised`.
    """

    tenant: str
    service: str
    rhythm: str
    limit: int
    wanted: int
    grows_on: int = 0
    grown: int = 0
    raised_after: int = 0
    raised: int = 0


# code opens its assistant to more developers, and the gateway holds it back for three days while its GPUs in the
# cluster stand idle; ads-ranking's serving quota is far too large.
SERVING_QUOTAS = (
    ServingQuota("assistant", "qwen3-235b", "consumer", 400, 330),
    ServingQuota("code", "qwen3-235b", "office", 90, 80, grows_on=5, grown=190, raised_after=2, raised=240),
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
                _write_serving(journal, _at(quota, calendar, time_ms), calendar, time_ms, random)
            for plan in company.reservations:
                if plan.holder == quota.tenant and plan.gpus:
                    _write_cluster(journal, record, company, calendar, plan.holder, plan.pool)


def _at(quota: ServingQuota, calendar: Calendar, time_ms: int) -> ServingQuota:
    """The quota as it stands at an instant."""
    if not quota.grows_on:
        return quota
    day = calendar.weekday_on_or_after(quota.grows_on, 0)
    if time_ms >= calendar.at(day, 0):
        quota = replace(quota, wanted=quota.grown)
    if time_ms >= calendar.at(day + quota.raised_after, 11):
        quota = replace(quota, limit=quota.raised)
    return quota


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
    journal: Journal, record: Record, company: Company, calendar: Calendar, tenant: str, pool: str
) -> None:
    """A guardrail in whole nodes: a tenth above the most that the tenant ever holds, bursts and loans included."""
    stays = [stay for stay in record.stays if stay.holder == tenant and stay.pool == pool]
    limit = -(-_most_held(stays) * 11 // (10 * GPUS_PER_NODE * 1000)) * GPUS_PER_NODE
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


def _most_held(stays: Sequence[Stay]) -> int:
    """The greatest sum of milli-GPU at any instant."""
    changes = [(stay.start_ms, stay.milli_gpus) for stay in stays]
    changes += [(stay.end_ms, -stay.milli_gpus) for stay in stays]
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most
