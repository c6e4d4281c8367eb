"""Quotas of queues from the gauges of Kueue, Volcano, KAI and Koordinator (cluster.md 1.6, 2.4, 4.2, 4.3).

Each scheduler names its own units: Volcano's scalar resources are in thousandths (4 GPUs read 4000), Koordinator's CPU
too; the others count whole devices. Gauges only: the counters of these schedulers are no evidence of anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import msgspec

from ingest.core.adapters import set_aside
from ingest.core.adapters.base import (
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    decimal_of,
    identity,
)
from ingest.core.adapters.gpu_resources import counts_devices, metered_milli
from ingest.core.adapters.ksm_totals import not_negative
from ingest.core.adapters.native import in_calendar
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
KEPT_QUEUE = "queue_of_samples"


class QueueOfSamples(msgspec.Struct, tag=KEPT_QUEUE):
    """A queue in no pool at one instant, as a record that can be read again."""

    kind: str
    queue: str
    flavor: str
    resource: str
    at_ms: int
    amounts: dict[str, str]
    """`limit`, `share` and `used`, in whole units of the resource."""


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
    flavor = labels.get("flavor", "")
    try:
        _note(gauge.kind, queue, flavor, resource, sample.at_ms, {gauge.part: value}, source, state)
    except Refusal as refusal:
        # Both halves of the quota have to be seen before it can be refused, and tried again.
        key = msgspec.json.encode([gauge.kind, queue, flavor, resource]).decode()
        at = state.setdefault("unplaced_queues", {}).setdefault(key, {}).setdefault(str(sample.at_ms), {})
        at |= {gauge.part: str(value), "why": [refusal.reason, refusal.detail]}
    return True


def _note(
    kind: str,
    queue: str,
    flavor: str,
    resource: str,
    at_ms: int,
    amounts: Mapping[str, Decimal],
    source: SourceConfig,
    state: State,
) -> None:
    pool = source.pool_for(flavor or None, resource, queue)
    milli = {part: metered_milli({resource: value}, source, pool) for part, value in amounts.items()}
    at = state["queues"].setdefault(f"{kind} {queue} {pool}", {}).setdefault(str(at_ms), {})
    for part, level in milli.items():
        at[part] = at.get(part, 0) + level


def note_kept_queue(line: bytes, source: SourceConfig, state: State) -> None:
    """Takes up again what was refused. Raises `Refusal`."""
    one = set_aside.read_kept(line, QueueOfSamples)
    amounts = {part: decimal_of(value) for part, value in one.amounts.items()}
    in_calendar(one.at_ms)
    _note(one.kind, one.queue, one.flavor, one.resource, one.at_ms, amounts, source, state)


def _unplaced(state: State, source: SourceConfig) -> Iterator[Refused]:
    """Queues that no pool is mapped to, at each sample where their limit or their use changed."""
    samples = state.pop("unplaced_queues", {})
    for key in sorted(samples):
        kind, queue, flavor, resource = msgspec.json.decode(key)
        for moment in sorted(map(int, samples[key])):
            amounts = samples[key][str(moment)]
            reason, detail = amounts.pop("why")
            if state["told"].get(f"unplaced {key}") != amounts:
                state["told"][f"unplaced {key}"] = amounts
                fact = QueueOfSamples(kind, queue, flavor, resource, moment, amounts)
                yield set_aside.refused(fact, Refusal(reason, detail))


def queue_quota_events(state: State, source: SourceConfig) -> Iterator[Outcome]:
    """One fact per queue, pool and sample at which its limit or its use changed."""
    yield from _unplaced(state, source)
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
