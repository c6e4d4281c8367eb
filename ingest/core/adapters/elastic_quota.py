"""`elastic-quota`: ElasticQuota of scheduler-plugins, ElasticQuotaTree and kube-queue's QueueUnits of ACK.

ElasticQuota has `min` (guaranteed, may be lent) and `max` (cap) per namespace and its own `used`. The tree has
no `used`; there it is what the QueueUnits that left the queue ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ingest.core.adapters.base import (
    READING_ERRORS,
    Event,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    event,
    gpus_json,
    identity,
    instant_ms,
    refusal_of,
    rfc3339,
)
from ingest.core.adapters.kubernetes import (
    Obj,
    Watched,
    kube_event,
    mapping,
    meta,
    objects,
    read_objects,
    required,
    written_ms,
)
from ingest.core.adapters.quota_objects import gpus_by_pool, instant_of, quota_event, reservation_event

LEAF_KIND = "label:elastic-quota"
"""Identity of a leaf of the tree that serves several namespaces: its name."""

WAITING_PHASES = frozenset({"", "Enqueued", "Backoff", "TimeoutBackoff", "SchedFailed"})
RUNNING_PHASES = frozenset({"Dequeued", "SchedReady", "SchedSucceed", "Running"})
_REJECTED = ("is more than Max", "total ElasticQuota used is more than min")

REMEMBERS = True


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept: State = {} if state is None else state
    for name in ("units", "said"):
        kept.setdefault(name, {})
    for watched in read_objects(lines):
        if isinstance(watched, Refused):
            yield watched
            continue
        try:
            for one in _record(watched, source, kept):
                if one["id"] not in kept["said"]:
                    kept["said"][one["id"]] = 1
                    yield one
        except READING_ERRORS as error:
            yield watched.refused(refusal_of(error))


def _record(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    if watched.kind == "ElasticQuota":
        yield from _elastic_quota(watched, source)
    elif watched.kind == "ElasticQuotaTree":
        yield from _tree(watched, source, state)
    elif watched.kind == "QueueUnit":
        yield from _queue_unit(watched, source, state)
    elif watched.kind == "Event":
        yield from _rejection(watched, source)
    elif watched.kind != "Queue":
        raise Refusal("unknown_kind", f"{watched.kind or 'an object'} is not an object of elastic quotas")


def _elastic_quota(watched: Watched, source: SourceConfig) -> Iterator[Event]:
    namespace = required(meta(watched.obj), "namespace", "the ElasticQuota")
    name = required(meta(watched.obj), "name", "the ElasticQuota")
    spec = mapping(watched.obj, "spec")
    used = gpus_by_pool(mapping(mapping(watched.obj, "status"), "used"), source, namespace)
    who = {"identity": identity("k8s_namespace", namespace)}
    yield from _limits(watched, source, spec, f"{namespace}/{name}", who, used, (namespace, name))


def _limits(
    watched: Watched,
    source: SourceConfig,
    spec: Obj,
    key: str,
    who: Obj,
    used: dict[str, int],
    names: tuple[str, ...],
) -> Iterator[Event]:
    """A quota without `max` has no cap and gives no quota fact; its `min` may still be a reservation."""
    for pool, limit in gpus_by_pool(mapping(spec, "max"), source, *names).items():
        moment = instant_of(watched, "an elastic quota")
        yield quota_event(source, key, moment, who, pool, limit, used.get(pool, 0))
    if source.option("reservations", False):
        for pool, milli in gpus_by_pool(mapping(spec, "min"), source, *names).items():
            yield reservation_event(source, key, instant_of(watched, "an elastic quota"), who, pool, milli)


# --- ACK ----------------------------------------------------------------------------------------------------


def _tree(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    """Leaves only: an inner node's numbers contain its children's."""
    root = mapping(mapping(watched.obj, "spec"), "root")
    if not root:
        raise Refusal("bad_record", "the ElasticQuotaTree has no spec.root")
    for leaf in _leaves(root):
        name = required(leaf, "name", "a leaf of the ElasticQuotaTree")
        namespaces = [str(namespace) for namespace in leaf.get("namespaces") or []]
        who = {"identity": _leaf_identity(name, namespaces, source)}
        used = _used_of(namespaces, source, state)
        yield from _limits(watched, source, leaf, f"tree/{name}", who, used, (name, *namespaces))


def _leaves(node: Obj) -> Iterator[Obj]:
    children = objects(node, "children")
    if not children:
        yield node
    for child in children:
        yield from _leaves(child)


def _leaf_identity(name: str, namespaces: list[str], source: SourceConfig) -> dict[str, str]:
    if len(namespaces) == 1 and source.option("identity", "k8s_namespace") == "k8s_namespace":
        return identity("k8s_namespace", namespaces[0])
    return identity(LEAF_KIND, name)


def _used_of(namespaces: list[str], source: SourceConfig, state: State) -> dict[str, int]:
    total: dict[str, int] = {}
    for unit in state["units"].values():
        if unit["running"] and unit["namespace"] in namespaces:
            for pool, milli in unit["milli"].items():
                total[pool] = total.get(pool, 0) + milli
    return total


def _queue_unit(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    """A job in kube-queue: waits from its creation until it is dequeued."""
    metadata, spec, status = meta(watched.obj), mapping(watched.obj, "spec"), mapping(watched.obj, "status")
    uid = required(metadata, "uid", "the QueueUnit")
    namespace = required(metadata, "namespace", "the QueueUnit")
    queue = str(spec.get("queue") or "")
    milli = gpus_by_pool(mapping(spec, "resource"), source, queue, namespace)
    if not milli:
        return
    phase = str(status.get("phase") or "")
    running = phase in RUNNING_PHASES and watched.change != "DELETED"
    unit: dict[str, Any] = state["units"].setdefault(uid, {})
    unit.update(running=running, namespace=namespace, milli=milli)
    waits = phase in WAITING_PHASES and watched.change != "DELETED"
    since = instant_ms(metadata.get("creationTimestamp"))
    ended = None if waits else _left_queue_ms(watched, status)
    if watched.change == "DELETED":
        del state["units"][uid]
    for pool, wanted in milli.items():
        for moment, level in ((since, wanted), (ended, 0)):
            if moment is not None:
                yield _pending(source, uid, namespace, spec, pool, max(moment, since), level)


def _left_queue_ms(watched: Watched, status: Obj) -> int:
    """kube-queue keeps the time of its last change only; a later look may name a later one, and the first one holds."""
    updated = status.get("lastUpdateTime")
    moment = instant_ms(updated) if updated else written_ms(watched)
    if moment is None:
        raise Refusal("no_instant", "the QueueUnit left its queue at a time the record lacks")
    return moment


def _pending(
    source: SourceConfig, uid: str, namespace: str, spec: Obj, pool: str, moment: int, level: int
) -> Event:
    data = {
        "workload": f"queueunit/{uid}",
        "identity": identity("k8s_namespace", namespace),
        "pool": pool,
        "gpus": gpus_json(level),
        "priority_class": (spec.get("priorityClassName") or None) if level else None,
    }
    when = rfc3339(moment) if level else "left"
    return event(source, f"queueunit/{uid}/{pool}/{when}", "pending", moment, data)


def _rejection(watched: Watched, source: SourceConfig) -> Iterator[Event]:
    """`FailedScheduling` over a quota. The scheduler repeats it at every try: once per Event object."""
    seen = kube_event(watched.obj)
    reason = next((text for text in _REJECTED if text in seen.note), None)
    if seen.reason != "FailedScheduling" or reason is None:
        return
    namespace = required(seen.regarding, "namespace", "the Event's pod")
    data = {
        "identity": identity("k8s_namespace", namespace),
        "layer": "quota",
        "reason": "above max" if "Max" in reason else "total above min",
        "status": 403,
        "origin": "scheduler",
    }
    yield event(source, f"event/{seen.uid}", "rejection", seen.first_ms, data)
