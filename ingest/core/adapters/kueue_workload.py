"""Reads one Kueue Workload object, v1beta1 or v1beta2, into what it says at this instant (cluster.md 1.1 to 1.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingest.core.adapters.base import Refusal, SourceConfig, instant_ms, quantity, whole
from ingest.core.adapters.gpu_resources import counts_devices, is_gpu_resource, metered_milli, pod_milli
from ingest.core.adapters.kubernetes import (
    Obj,
    Watched,
    condition,
    kept_labels,
    mapping,
    meta,
    objects,
    optional,
    required,
    written_ms,
)
from ingest.core.adapters.kueue_messages import CAUSE_OF_CONDITION, read_preempted

JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"

CAUSE_OF_EVICTION = {
    "NodeFailures": "capacity_lost",
    "ClusterQueueStopped": "maintenance",
    "LocalQueueStopped": "maintenance",
}
"""Evictions without a preemptor that still take running work away; the others are the workload's own doing."""


@dataclass(frozen=True, slots=True)
class Eviction:
    decided_ms: int
    cause: str | None
    """`None`: not a preemption (timeout, deactivation, failed check)."""
    message: str


@dataclass(frozen=True, slots=True)
class Workload:
    uid: str
    namespace: str
    name: str
    labels: Obj
    job_uid: str | None
    local_queue: str
    cluster_queue: str | None
    priority_class: str | None
    created_ms: int | None
    active: bool
    held_ms: int | None
    """Since when it holds its quota (or, by option, is admitted); `None` if it does not."""
    admitted_milli: dict[str, int]
    """Pool -> what was assigned at admission."""
    remaining_milli: dict[str, int]
    """Pool -> what is still charged after pods were given back."""
    requested_milli: dict[str, int]
    """Meter (`gpu`, and what other pools meter) -> what its pod templates ask for, wherever it may run."""
    unsized: Refusal | None
    """Why what they ask for cannot be told; `requested_milli` is empty then."""
    released_ms: int | None
    """Since when it holds nothing: quota given back, or finished."""
    finished: bool
    waiting_since_ms: int | None
    eviction: Eviction | None
    """The eviction in force; one that is over (`Previously:`) has lost its instant and is not one any more."""
    evictions: int
    """Evictions of its whole life, by its own count; 0 before 0.12."""
    written_ms: int | None

    @property
    def attempt(self) -> int:
        """Number of the run that `held_ms` began: one more than the evictions before it."""
        before = self.evictions - 1 if self.eviction is not None else self.evictions
        return 1 + max(before, 0)


def read_workload(watched: Watched, source: SourceConfig) -> Workload:
    """Raises `Refusal` if the object is not a readable Workload or its flavor has no pool."""
    obj = watched.obj
    metadata, spec, status = meta(obj), mapping(obj, "spec"), mapping(obj, "status")
    labels = mapping(metadata, "labels")
    reserved, finished = condition(obj, "QuotaReserved"), condition(obj, "Finished")
    is_reserved, is_finished = _is(reserved, "True"), _is(finished, "True")
    admission = mapping(status, "admission")
    if is_reserved and not admission:
        raise Refusal("bad_record", "QuotaReserved is True but status.admission is empty")
    admitted, remaining = _assigned(admission, status, source)
    requested, unsized = _requested(spec, source)
    created = metadata.get("creationTimestamp")
    return Workload(
        uid=required(metadata, "uid", "the Workload"),
        namespace=required(metadata, "namespace", "the Workload"),
        name=required(metadata, "name", "the Workload"),
        labels=kept_labels(source, labels) or {},
        job_uid=optional(labels, JOB_UID_LABEL),
        local_queue=str(spec.get("queueName") or ""),
        cluster_queue=optional(admission, "clusterQueue"),
        priority_class=_priority_class(spec),
        created_ms=None if created is None else instant_ms(created),
        active=spec.get("active") is not False,
        held_ms=_held_ms(obj, source) if is_reserved else None,
        admitted_milli=admitted,
        remaining_milli=remaining,
        requested_milli=requested,
        unsized=unsized,
        released_ms=_released_ms(reserved, finished),
        finished=is_finished,
        waiting_since_ms=_transition_ms(reserved) if _is(reserved, "False") else None,
        eviction=_eviction(obj),
        evictions=_evictions(status),
        written_ms=written_ms(watched, "status"),
    )


def _is(entry: Obj | None, status: str) -> bool:
    return entry is not None and entry.get("status") == status


def _transition_ms(entry: Obj | None) -> int | None:
    return None if entry is None else instant_ms(entry.get("lastTransitionTime"))


def _held_ms(obj: Obj, source: SourceConfig) -> int | None:
    wanted = "Admitted" if source.option("hold_from", "quota_reserved") == "admitted" else "QuotaReserved"
    entry = condition(obj, wanted)
    return _transition_ms(entry) if _is(entry, "True") else None


def _released_ms(reserved: Obj | None, finished: Obj | None) -> int | None:
    ends = [_transition_ms(reserved)] if _is(reserved, "False") else []
    ends += [_transition_ms(finished)] if _is(finished, "True") else []
    return min((end for end in ends if end is not None), default=None)


def _priority_class(spec: Obj) -> str | None:
    reference = mapping(spec, "priorityClassRef")
    return optional(reference, "name") or optional(spec, "priorityClassName")


def _evictions(status: Obj) -> int:
    stats = mapping(status, "schedulingStats")
    return sum(whole(entry.get("count", 0)) for entry in objects(stats, "evictions"))


def _eviction(obj: Obj) -> Eviction | None:
    evicted = condition(obj, "Evicted")
    if evicted is None or not _is(evicted, "True"):
        return None
    reason, message = str(evicted.get("reason") or ""), str(evicted.get("message") or "")
    cause = CAUSE_OF_EVICTION.get(reason)
    if reason == "Preempted":
        preempted = condition(obj, "Preempted") or {}
        note = read_preempted(message)
        cause = (
            CAUSE_OF_CONDITION.get(str(preempted.get("reason"))) or (note.cause if note else None) or "other"
        )
    return Eviction(instant_ms(evicted.get("lastTransitionTime")), cause, message)


def _assigned(admission: Obj, status: Obj, source: SourceConfig) -> tuple[dict[str, int], dict[str, int]]:
    """Pool -> milli at admission, and what is left after `reclaimablePods`."""
    given_back = {p.get("name"): whole(p.get("count", 0)) for p in objects(status, "reclaimablePods")}
    admitted: dict[str, int] = {}
    remaining: dict[str, int] = {}
    for pod_set in objects(admission, "podSetAssignments"):
        count = whole(pod_set.get("count", 1))
        left = max(count - given_back.get(pod_set.get("name"), 0), 0)
        for pool, resources in _by_pool(pod_set, admission, source).items():
            total = _total_milli(resources, count, source, pool)
            if total:
                admitted[pool] = admitted.get(pool, 0) + total
                remaining[pool] = remaining.get(pool, 0) + (total * left // count if count else 0)
    return admitted, remaining


def _by_pool(pod_set: Obj, admission: Obj, source: SourceConfig) -> dict[str, dict[str, Any]]:
    """A pod set's usage by the pool its flavors map to. Flavors of CPU and memory need no pool of their own."""
    flavors = mapping(pod_set, "flavors")
    usage = mapping(pod_set, "resourceUsage")
    found: dict[str, dict[str, Any]] = {}
    for resource, value in usage.items():
        flavor = flavors.get(resource)
        try:
            pool = source.pool_for(flavor, admission.get("clusterQueue"))
        except Refusal:
            if is_gpu_resource(resource, source):
                raise
            continue
        found.setdefault(pool, {})[resource] = value
    return found


def _total_milli(resources: dict[str, Any], count: int, source: SourceConfig, pool: str) -> int:
    """`resourceUsage` is the pod set's total; modifiers such as HAMi cores are summed too, so count per pod first."""
    modified = any(is_gpu_resource(name, source) and not counts_devices(name, source) for name in resources)
    if count <= 1 or not modified:
        return metered_milli(resources, source, pool)
    per_pod = {name: quantity(value) / count for name, value in resources.items()}
    return metered_milli(per_pod, source, pool) * count


def _requested(spec: Obj, source: SourceConfig) -> tuple[dict[str, int], Refusal | None]:
    """What the pod templates ask for; nothing, and why, if one asks for something this source cannot size."""
    pool_of_meter = {"gpu": "", **{meter: pool for pool, meter in source.meters.items()}}
    total: dict[str, int] = {}
    for pod_set in objects(spec, "podSets"):
        try:
            count, template = whole(pod_set.get("count", 1)), mapping(pod_set, "template")
            for meter, pool in pool_of_meter.items():
                if milli := count * pod_milli(template, source, pool):
                    total[meter] = total.get(meter, 0) + milli
        except Refusal as refusal:
            return {}, refusal
    return total, None
