"""What the quota adapters share: limits and use of GPUs, by pool, as `ledger.quota.v1`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingest.core.adapters.base import Event, Refusal, SourceConfig, event, gpus_json, rfc3339
from ingest.core.adapters.gpu_resources import counts_devices, metered_milli
from ingest.core.adapters.kubernetes import Obj, Watched, written_ms


def gpus_by_pool(resources: Mapping[str, Any], source: SourceConfig, *names: str | None) -> dict[str, int]:
    """Pool -> milli of a resource list; pools are mapped by resource name, then by `names`.

    Resources that only modify a share (HAMi cores, memory) are no number of GPUs and are left out.
    """
    grouped: dict[str, dict[str, Any]] = {}
    metered = set(source.meters.values())
    for resource, value in resources.items():
        if counts_devices(resource, source) or resource in metered:
            grouped.setdefault(source.pool_for(resource, *names), {})[resource] = value
    return {pool: metered_milli(of_pool, source, pool) for pool, of_pool in grouped.items()}


def instant_of(watched: Watched, what: str) -> int:
    """When a quota object came to say what it says. Raises `Refusal("no_instant")`: such objects carry no time."""
    moment = written_ms(watched)
    if moment is None:
        raise Refusal("no_instant", f"{what} says how much but not since when; list it with managedFields")
    return moment


def quota_event(
    source: SourceConfig, key: str, moment_ms: int, who: Obj, pool: str, limit: int, used: int
) -> Event:
    data = {
        **who,
        "layer": "cluster",
        "resource": "gpus",
        "limit": gpus_json(limit),
        "used": gpus_json(used),
        "pool": pool,
    }
    return event(source, f"{key}/{pool}/{rfc3339(moment_ms)}", "quota", moment_ms, data)


def reservation_event(
    source: SourceConfig, key: str, moment_ms: int, who: Obj, pool: str, milli: int, lendable: bool = True
) -> Event:
    """A guaranteed minimum as a reservation; only where options.reservations asks for it."""
    data = {
        "reservation": f"{key}/{pool}",
        **who,
        "pool": pool,
        "gpus": gpus_json(milli),
        "lendable": lendable,
    }
    return event(source, f"{key}/{pool}/guaranteed/{rfc3339(moment_ms)}", "reservation", moment_ms, data)
