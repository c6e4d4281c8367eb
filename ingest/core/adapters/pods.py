"""One Pod as it is seen, and what every adapter that counts Pods remembers of them (cluster.md 3.2 and 3.3).

A device is held from binding until the last container has stopped, whatever the phase says meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ingest.core.adapters.base import (
    Event,
    Refusal,
    SourceConfig,
    State,
    event,
    gpus_json,
    instant_ms,
    rfc3339,
)
from ingest.core.adapters.gpu_resources import pod_milli
from ingest.core.adapters.kubernetes import (
    Obj,
    Watched,
    condition,
    holder,
    kept_labels,
    mapping,
    meta,
    objects,
    optional,
    required,
    service_class,
)

Entry = dict[str, Any]

QUEUE_KEYS = {
    "volcano_queue": ("volcano.sh/queue-name", "scheduling.volcano.sh/queue-name"),
    "kai_queue": ("kai.scheduler/queue",),
    "kueue_local_queue": ("kueue.x-k8s.io/local-queue-name", "kueue.x-k8s.io/queue-name"),
    "kueue_cluster_queue": ("kueue.x-k8s.io/cluster-queue-name",),
}
"""Queue kind -> labels or annotations in which its scheduler writes the queue of a pod."""

GROUP_KEYS = ("scheduling.k8s.io/group-name", "pod-group-name", "pod-group.scheduling.sigs.k8s.io")
ELASTIC_QUOTA_LABEL = "quota.scheduling.koordinator.sh/name"


@dataclass(frozen=True, slots=True)
class Pod:
    uid: str
    namespace: str
    name: str
    holder: dict[str, Any]
    queue: str
    group: str
    owner: str
    """UID of its controller; empty for a pod of its own."""
    node: str
    nominated: str
    scheduler: str
    priority: int
    priority_class: str | None
    labels: dict[str, str] | None
    pool: str
    milli: int
    created_ms: int | None
    bound_ms: int | None
    ended_ms: int | None
    gated: bool
    disruption: Obj | None
    evict_condition: Obj | None
    """Volcano's `Ready=False`, reason `Evict`."""


def read_pod(watched: Watched, source: SourceConfig, default_kind: str = "k8s_namespace") -> Pod | None:
    """`None` for a pod that asks for nothing the pool meters, or that options.exclude_labels leaves to another source.

    Raises `Refusal` for a pod that cannot be read or has no pool.
    """
    obj = watched.obj
    metadata, spec, status = meta(obj), mapping(obj, "spec"), mapping(obj, "status")
    labels, annotations = mapping(metadata, "labels"), mapping(metadata, "annotations")
    if any(label in labels for label in source.option("exclude_labels", [])):
        return None
    namespace = required(metadata, "namespace", "the Pod")
    queues = _queues(labels, annotations, namespace)
    node = str(spec.get("nodeName") or "")
    pool, milli = _measured(obj, source, queues, node, namespace)
    if not milli:
        return None
    ready = condition(obj, "Ready") or {}
    owner = next((o for o in objects(metadata, "ownerReferences") if o.get("controller")), {})
    created = metadata.get("creationTimestamp")
    return Pod(
        uid=required(metadata, "uid", "the Pod"),
        namespace=namespace,
        name=required(metadata, "name", "the Pod"),
        holder=holder(source, namespace, {**annotations, **labels}, queues, default_kind),
        queue=queues.get("volcano_queue")
        or queues.get("kai_queue")
        or str(labels.get(ELASTIC_QUOTA_LABEL) or ""),
        group=next(
            (str(annotations.get(k) or labels.get(k)) for k in GROUP_KEYS if k in annotations or k in labels),
            "",
        ),
        owner=str(owner.get("uid") or ""),
        node=node,
        nominated=str(status.get("nominatedNodeName") or ""),
        scheduler=str(spec.get("schedulerName") or "default-scheduler"),
        priority=int(spec.get("priority") or 0),
        priority_class=optional(spec, "priorityClassName"),
        labels=kept_labels(source, labels),
        pool=pool,
        milli=milli,
        created_ms=None if created is None else instant_ms(created),
        bound_ms=_bound_ms(obj) if node else None,
        ended_ms=_ended_ms(watched),
        gated=bool(spec.get("schedulingGates")),
        disruption=_true(condition(obj, "DisruptionTarget")),
        evict_condition=ready if ready.get("reason") == "Evict" else None,
    )


def _queues(labels: Obj, annotations: Obj, namespace: str) -> dict[str, str]:
    found = {}
    for kind, keys in QUEUE_KEYS.items():
        value = next(
            (labels.get(k) or annotations.get(k) for k in keys if k in labels or k in annotations), None
        )
        if value:
            found[kind] = f"{namespace}/{value}" if kind == "kueue_local_queue" else str(value)
    return found


def _measured(
    obj: Obj, source: SourceConfig, queues: dict[str, str], node: str, namespace: str
) -> tuple[str, int]:
    """`(pool, milli)`. A pod without GPUs needs no pool; which pool it is decides what is metered."""
    spec = mapping(obj, "spec")
    selected = [str(value) for value in mapping(spec, "nodeSelector").values()]
    try:
        pool = source.pool_for(node, *selected, *queues.values(), namespace)
    except Refusal:
        if pod_milli(obj, source, ""):
            raise
        return "", 0
    return pool, pod_milli(obj, source, pool)


def _true(entry: Obj | None) -> Obj | None:
    return entry if entry is not None and entry.get("status") == "True" else None


def _bound_ms(obj: Obj) -> int:
    """Binding, to 1 s; without the condition (static pods) when the kubelet took it."""
    scheduled = _true(condition(obj, "PodScheduled"))
    moment = (
        (scheduled or {}).get("lastTransitionTime")
        or mapping(obj, "status").get("startTime")
        or meta(obj).get("creationTimestamp")
    )
    return instant_ms(moment)


def _ended_ms(watched: Watched) -> int | None:
    """When the last container stopped; for a pod that vanished before it said so, when it was seen gone."""
    status = mapping(watched.obj, "status")
    over = watched.change == "DELETED" or status.get("phase") in ("Succeeded", "Failed")
    if not over:
        return None
    containers = [*objects(status, "containerStatuses"), *objects(status, "initContainerStatuses")]
    stopped = [mapping(mapping(c, "state"), "terminated") for c in containers]
    finished = [instant_ms(s["finishedAt"]) for s in stopped if s.get("finishedAt")]
    running = any(mapping(mapping(c, "state"), "running") for c in containers)
    if finished and not running:
        return max(finished)
    fallback = [watched.observed_ms] if watched.change == "DELETED" else []
    for name in ("Ready", "DisruptionTarget"):
        entry = condition(watched.obj, name) or {}
        if watched.change != "DELETED" and entry.get("lastTransitionTime"):
            fallback.append(instant_ms(entry["lastTransitionTime"]))
    if meta(watched.obj).get("deletionTimestamp"):
        fallback.append(instant_ms(meta(watched.obj)["deletionTimestamp"]))
    moment = next((m for m in fallback if m is not None), None)
    if moment is None and mapping(watched.obj, "spec").get("nodeName"):
        raise Refusal("no_instant", "the Pod gave back its GPUs at a time that the record lacks")
    return moment


# --- memory -------------------------------------------------------------------------------------------------


def new_state() -> State:
    return {"pods": {}}


def note_pod(state: State, pod: Pod) -> Entry:
    """Adds one look at a pod. Earlier looks that say less or more, in whatever order, give the same memory."""
    entry: Entry = state["pods"].setdefault(pod.uid, {"said": {}, "sightings": {}})
    entry.update(
        name=f"{pod.namespace}/{pod.name}",
        holder=pod.holder,
        queue=pod.queue,
        group=pod.group,
        owner=pod.owner or entry.get("owner", ""),
        scheduler=pod.scheduler,
        priority=pod.priority,
        priority_class=pod.priority_class,
        labels=pod.labels,
        milli=pod.milli,
        last_ms=max(entry.get("last_ms", 0), *_moments(pod)),
    )
    # A look from before the binding knows no node, and so maybe another pool.
    if pod.node or "node" not in entry:
        entry.update(node=pod.node, pool=pod.pool)
    if pod.nominated:
        entry["nominated"] = pod.nominated
    for name, value in (("created", pod.created_ms), ("bound", pod.bound_ms), ("ended", pod.ended_ms)):
        if value is not None:
            entry.setdefault(name, value)
    if pod.gated:
        entry["gated"] = True
    return entry


def _moments(pod: Pod) -> list[int]:
    return [m for m in (pod.created_ms, pod.bound_ms, pod.ended_ms) if m is not None] or [0]


def new_only(entry: Entry, events: Iterator[Event]) -> Iterator[Event]:
    """Those that were not said yet; `said` holds the ids."""
    for one in events:
        if one["id"] not in entry["said"]:
            entry["said"][one["id"]] = 1
            yield one


def forget_old(state: State, before_ms: int | None) -> None:
    """Drops pods that ended a day before `before_ms`: an Event cannot name them any more (it lives an hour)."""
    if before_ms is None:
        return
    for uid, entry in list(state["pods"].items()):
        if "ended" in entry and entry["last_ms"] < before_ms - 24 * 3600 * 1000:
            del state["pods"][uid]
            state.get("replacements", {}).pop(uid, None)


# --- events -------------------------------------------------------------------------------------------------


def occupancy(entry: Entry, uid: str, source: SourceConfig) -> Iterator[Event]:
    """Held from binding to the last container's end."""
    if "bound" not in entry:
        return
    levels = [(entry["bound"], entry["milli"])]
    if "ended" in entry:
        levels.append((max(entry["ended"], entry["bound"]), 0))
    if len(levels) == 2 and levels[0][0] == levels[1][0]:
        return
    for moment, milli in levels:
        data: Entry = {"workload": uid, **entry["holder"], "pool": entry["pool"], "gpus": gpus_json(milli)}
        if milli:
            data |= {
                "name": entry["name"],
                "priority_class": entry["priority_class"],
                "service_class": service_class(source, entry["priority_class"]),
                "labels": entry["labels"],
                "nodes": [entry["node"]],
            }
        yield event(source, f"{uid}/{rfc3339(moment)}", "occupancy", moment, data)


def pending(entry: Entry, uid: str, source: SourceConfig) -> Iterator[Event]:
    """Waits for a node from its creation on. Gated pods wait in another scheduler's queue, which reports them."""
    if not source.option("pending", True) or entry.get("gated") or "created" not in entry:
        return
    ends = [entry[name] for name in ("bound", "ended") if name in entry]
    end = max(min(ends), entry["created"]) if ends else None
    if end == entry["created"]:
        return
    # Binding may show another pool than the one it was seen waiting for; the wait ends where it began.
    pool = entry.setdefault("pending_pool", entry["pool"])
    for moment, milli in ((entry["created"], entry["milli"]), (end, 0)):
        if moment is not None:
            data = {"workload": uid, **entry["holder"], "pool": pool, "gpus": gpus_json(milli)}
            if milli:
                data["priority_class"] = entry["priority_class"]
            yield event(source, f"{uid}/pending/{rfc3339(moment)}", "pending", moment, data)


def preemption_data(entry: Entry, uid: str, cause: str) -> Entry:
    """The fields every record of this pod's preemption shares. Its id is the pod's UID: a pod is evicted once."""
    return {
        "preemption": uid,
        "victim": {"workload": uid, **entry["holder"]},
        "preemptor_source": "none",
        "pool": entry["pool"],
        "gpus": gpus_json(entry["milli"]),
        "cause": cause,
        "admitted_at": rfc3339(entry["bound"]) if "bound" in entry else None,
    }


def released(
    entry: Entry, uid: str, source: SourceConfig, decided_ms: int, data: Entry, key: str = "released"
) -> Iterator[Event]:
    """The same preemption once the GPUs are free; `key` tells apart what different witnesses say of it."""
    if "ended" in entry:
        ended = max(entry["ended"], decided_ms)
        disposition = "requeued" if entry["owner"] else "stopped"
        whole = {**data, "released_at": rfc3339(ended), "disposition": disposition}
        yield event(source, f"{uid}/{key}", "preemption", decided_ms, whole)


def resumes(state: State, uid: str, source: SourceConfig, decided_ms: int) -> Iterator[Event]:
    """The replacement: the next pod of the same name, else the next of the same controller that no other victim took.

    Controllers do not say which pod replaces which; in time order is the only fair reading.
    """
    victim = state["pods"][uid]
    if "resumed_by" not in victim:
        taken = state.setdefault("replacements", {})
        found = [
            (other["bound"], other_uid)
            for other_uid, other in state["pods"].items()
            if "bound" in other
            and other.get("created", other["bound"]) >= decided_ms
            and (other["name"] == victim["name"] or (victim["owner"] and other["owner"] == victim["owner"]))
            and other_uid != uid
            and other_uid not in taken
        ]
        if not found:
            return
        victim["resumed_by"] = min(found)[1]
        taken[victim["resumed_by"]] = uid
    if victim["resumed_by"] not in state["pods"]:
        return
    other = state["pods"][victim["resumed_by"]]
    data = {"preemption": uid, "pool": other["pool"], "workload": victim["resumed_by"]}
    yield event(source, f"{uid}/resumed/{victim['resumed_by']}", "resume", other["bound"], data)
