"""Quotas of queues from the gauges of Kueue, Volcano, KAI and Koordinator (cluster.md 1.6, 2.4, 4.2, 4.3).

Each scheduler names its own units: Volcano's scalar resources are in thousandths (4 GPUs read 4000), Koordinator's CPU
too; the others count whole devices. Gauges only: the counters of these schedulers are no evidence of anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from ingest.core.adapters.base import Event, Refusal, SourceConfig, State, identity
from ingest.core.adapters.gpu_resources import counts_devices, metered_milli
from ingest.core.adapters.ksm_totals import not_negative
from ingest.core.adapters.prometheus import Sample
from ingest.core.adapters.quota_objects import quota_event


@dataclass(frozen=True, slots=True)
class _Gauge:
    part: str
    """`limit`, `share` (a limit where there is no harder one) or `used`."""
    kind: str
    queue_label: str
    unit: Decimal = Decimal(1)


_VOLCANO_UNIT = Decimal("0.001")
_KOORDINATOR_KIND = "label:quota.scheduling.koordinator.sh/name"

GAUGES: dict[str, _Gauge] = {
    "kueue_cluster_queue_nominal_quota": _Gauge("limit", "kueue_cluster_queue", "cluster_queue"),
    "kueue_cluster_queue_resource_reservation": _Gauge("used", "kueue_cluster_queue", "cluster_queue"),
    "volcano_queue_capacity_scalar_resources": _Gauge("limit", "volcano_queue", "queue_name", _VOLCANO_UNIT),
    "volcano_queue_deserved_scalar_resources": _Gauge("share", "volcano_queue", "queue_name", _VOLCANO_UNIT),
    "volcano_queue_allocated_scalar_resources": _Gauge("used", "volcano_queue", "queue_name", _VOLCANO_UNIT),
    "kai_queue_deserved_gpus": _Gauge("limit", "kai_queue", "queue_name"),
    "kai_queue_allocated_gpus": _Gauge("used", "kai_queue", "queue_name"),
    "scheduler_elastic_quota_spec": _Gauge("limit", _KOORDINATOR_KIND, "name"),
    "scheduler_elastic_quota_status": _Gauge("used", _KOORDINATOR_KIND, "name"),
}
_FIELDS = {"scheduler_elastic_quota_spec": "max", "scheduler_elastic_quota_status": "used"}
_UNPREFIXED = {
    "queue_deserved_gpus": "kai_queue_deserved_gpus",
    "queue_allocated_gpus": "kai_queue_allocated_gpus",
}


def note_queue(sample: Sample, source: SourceConfig, state: State) -> bool:
    """Keeps a sample of a queue by its instant; `False` for a series that is none of a queue's GPUs."""
    name = _UNPREFIXED.get(sample.name, sample.name)
    gauge = GAUGES.get(name)
    labels = sample.labels
    if gauge is None:
        return False
    # Kueue's followers export what they last saw; Koordinator's parents repeat their children.
    follows = labels.get("replica_role") == "follower" or labels.get("is_parent") == "true"
    other_field = name in _FIELDS and labels.get("field") != _FIELDS[name]
    resource = labels.get("resource", "nvidia.com/gpu")
    if follows or other_field or not counts_devices(resource, source):
        return True
    value = not_negative(sample) * gauge.unit
    queue = labels.get(gauge.queue_label)
    if not queue:
        raise Refusal("bad_record", f"{sample.name} without the label {gauge.queue_label}")
    pool = source.pool_for(labels.get("flavor"), resource, queue)
    key = f"{gauge.kind} {queue} {pool}"
    at = state["queues"].setdefault(key, {}).setdefault(str(sample.at_ms), {})
    milli = metered_milli({resource: value}, source, pool)
    at[gauge.part] = at.get(gauge.part, 0) + milli
    return True


def queue_quota_events(state: State, source: SourceConfig) -> Iterator[Event]:
    """One fact per queue, pool and sample at which its limit or its use changed."""
    samples, state["queues"] = state["queues"], {}
    for key in sorted(samples):
        kind, _, rest = key.partition(" ")
        queue, _, pool = rest.rpartition(" ")
        for moment in sorted(map(int, samples[key])):
            at = samples[key][str(moment)]
            limit = at.get("limit", at.get("share"))
            if limit is None or "used" not in at or state["told"].get(f"queue {key}") == [limit, at["used"]]:
                continue
            state["told"][f"queue {key}"] = [limit, at["used"]]
            who = {"identity": identity(kind, queue)}
            yield quota_event(source, f"queue/{kind}/{queue}", moment, who, pool, limit, at["used"])
