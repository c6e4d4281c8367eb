"""Volcano's Queue -> quota, and PodGroup -> pending demand (cluster.md 2.1 and 2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ingest.core.adapters.base import (
    Event,
    Refusal,
    SourceConfig,
    event,
    gpus_json,
    identity,
    instant_ms,
    rfc3339,
)
from ingest.core.adapters.gpu_resources import is_gpu_resource, metered_milli
from ingest.core.adapters.kubernetes import (
    Obj,
    Watched,
    holder,
    mapping,
    meta,
    name_of,
    objects,
    required,
    written_ms,
)
from ingest.core.adapters.pods import new_only

ROOT = "root"
"""The queue above all others: its allocation is theirs."""


def queue_quota(watched: Watched, source: SourceConfig) -> Iterator[Event]:
    """`limit` is the hard cap (`capability`), or the reclaimable share (`deserved`) where there is no cap.

    `status.allocated` is in whole units (only the metrics are in thousandths) and leaves out pods that are being
    evicted.
    """
    name = required(meta(watched.obj), "name", "the Queue")
    spec, status = mapping(watched.obj, "spec"), mapping(watched.obj, "status")
    cap = mapping(spec, "capability")
    limits = cap if _speaks_of_gpus(cap, source) else mapping(spec, "deserved")
    if not _speaks_of_gpus(limits, source) or name == ROOT:
        return
    pool = source.pool_for(name)
    moment = written_ms(watched)
    if moment is None:
        raise Refusal("no_instant", "a Queue says its quota but not since when; list it with managedFields")
    data = {
        "identity": identity("volcano_queue", name),
        "layer": "cluster",
        "resource": "gpus",
        "limit": gpus_json(metered_milli(limits, source, pool)),
        "used": gpus_json(metered_milli(mapping(status, "allocated"), source, pool)),
        "pool": pool,
    }
    yield event(source, f"queue/{name}/{rfc3339(moment)}", "quota", moment, data)


def _speaks_of_gpus(resources: Obj, source: SourceConfig) -> bool:
    return any(is_gpu_resource(name, source) or name in source.meters.values() for name in resources)


def pod_group_pending(watched: Watched, source: SourceConfig, groups: dict[str, Any]) -> Iterator[Event]:
    """A PodGroup waits from its creation until it is first `Running`, by its `Scheduled` condition."""
    obj = watched.obj
    spec, status = mapping(obj, "spec"), mapping(obj, "status")
    wants = mapping(spec, "minResources")
    created = meta(obj).get("creationTimestamp")
    if not source.option("pending", True) or not _speaks_of_gpus(wants, source) or created is None:
        return
    uid = required(meta(obj), "uid", "the PodGroup")
    namespace = required(meta(obj), "namespace", "the PodGroup")
    queue = str(spec.get("queue") or "default")
    pool = source.pool_for(queue, namespace)
    milli = metered_milli(wants, source, pool)
    data = {
        "workload": f"podgroup/{uid}",
        **holder(source, namespace, mapping(meta(obj), "labels"), {"volcano_queue": queue}, "volcano_queue"),
        "pool": pool,
    }
    entry = groups.setdefault(uid, {"said": {}, "name": name_of(obj)})
    started = instant_ms(created)
    levels = [(started, milli)]
    end = _started_ms(watched, status)
    if end is not None:
        levels.append((max(end, started), 0))
    yield from new_only(entry, _levels(uid, levels, data, spec, source))


def _levels(
    uid: str, levels: list[tuple[int, int]], data: Obj, spec: Obj, source: SourceConfig
) -> Iterator[Event]:
    for moment, milli in levels:
        level = {**data, "gpus": gpus_json(milli)}
        if milli:
            level["priority_class"] = spec.get("priorityClassName")
        yield event(source, f"podgroup/{uid}/pending/{'from' if milli else 'to'}", "pending", moment, level)


def _started_ms(watched: Watched, status: Obj) -> int | None:
    """When it stopped waiting, the first time; what waits after an eviction is that preemption's waiting."""
    if watched.change == "DELETED":
        return watched.observed_ms
    if status.get("phase") not in ("Running", "Completed", "Unknown"):
        return None
    for entry in objects(status, "conditions"):
        if entry.get("type") == "Scheduled" and entry.get("status") == "True":
            return instant_ms(entry.get("lastTransitionTime"))
    return written_ms(watched)
