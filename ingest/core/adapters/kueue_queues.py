"""ClusterQueue -> `ledger.quota.v1`: nominal quota and what is reserved of it, per pool."""

from __future__ import annotations

from collections.abc import Iterator

from ingest.core.adapters.base import Event, Refusal, SourceConfig, event, gpus_json, identity, rfc3339
from ingest.core.adapters.gpu_resources import counts_devices, metered_milli
from ingest.core.adapters.kubernetes import Obj, Watched, mapping, objects, required, written_ms


def cluster_queue_quota(watched: Watched, source: SourceConfig) -> Iterator[Event]:
    """One quota fact per pool. `used` is the reservation (v1beta1 and v1beta2 name it alike), which includes what is
    borrowed; so it may exceed the nominal `limit`.

    Raises `Refusal("no_instant")` if nothing says when: neither conditions nor quotas carry a time.
    """
    name = required(mapping(watched.obj, "metadata"), "name", "the ClusterQueue")
    limits = _by_pool(_nominal(mapping(watched.obj, "spec")), source)
    if not limits:
        return
    moment = written_ms(watched)
    if moment is None:
        raise Refusal(
            "no_instant", "a ClusterQueue says its quota but not since when; list it with managedFields"
        )
    used = _by_pool(objects(mapping(watched.obj, "status"), "flavorsReservation"), source, "total")
    for pool, limit in limits.items():
        data = {
            "identity": identity("kueue_cluster_queue", name),
            "layer": "cluster",
            "resource": "gpus",
            "limit": gpus_json(limit),
            "used": gpus_json(used.get(pool, 0)),
            "pool": pool,
        }
        yield event(source, f"clusterqueue/{name}/{pool}/{rfc3339(moment)}", "quota", moment, data)


def _nominal(spec: Obj) -> list[Obj]:
    return [flavor for group in objects(spec, "resourceGroups") for flavor in objects(group, "flavors")]


def _by_pool(flavors: list[Obj], source: SourceConfig, field: str = "nominalQuota") -> dict[str, int]:
    found: dict[str, int] = {}
    metered = set(source.meters.values())
    for flavor in flavors:
        resources = {
            str(r.get("name")): r.get(field, 0)
            for r in objects(flavor, "resources")
            if counts_devices(str(r.get("name")), source) or r.get("name") in metered
        }
        if resources:
            pool = source.pool_for(flavor.get("name"))
            found[pool] = found.get(pool, 0) + metered_milli(resources, source, pool)
    return found
