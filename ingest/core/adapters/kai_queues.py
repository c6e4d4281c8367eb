"""KAI's Queue -> quota. Leaves only: a parent's allocation contains its children's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ingest.core.adapters.base import Event, SourceConfig, decimal_of, identity
from ingest.core.adapters.kubernetes import Watched, mapping, meta, required
from ingest.core.adapters.quota_objects import gpus_by_pool, instant_of, quota_event, reservation_event


def queue_quota(watched: Watched, source: SourceConfig) -> Iterator[Event]:
    """`limit` caps the queue, -1 is none, and then the deserved `quota` stands in; both count GPUs with fractions."""
    name = required(meta(watched.obj), "name", "the Queue")
    spec, status = mapping(watched.obj, "spec"), mapping(watched.obj, "status")
    gpu = mapping(mapping(spec, "resources"), "gpu")
    if status.get("childQueues") or not gpu:
        return
    pool = source.pool_for(name, spec.get("parentQueue"))
    who = {"identity": identity("kai_queue", name)}
    deserved, cap = _milli(gpu.get("quota", 0)), _milli(gpu.get("limit", -1))
    limit = deserved if cap is None else cap
    used = gpus_by_pool(mapping(status, "allocated"), source, name, spec.get("parentQueue"))
    if limit is not None:
        moment = instant_of(watched, "a Queue")
        yield quota_event(source, f"queue/{name}", moment, who, pool, limit, used.get(pool, 0))
    if source.option("reservations", False) and deserved:
        yield reservation_event(source, f"queue/{name}", instant_of(watched, "a Queue"), who, pool, deserved)


def _milli(value: Any) -> int | None:
    number = decimal_of(value)
    return None if number < 0 else int(number * 1000)
