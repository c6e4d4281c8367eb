"""Synthetic Pods and Events of the Kubernetes core, Volcano and Koordinator."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

VICTIM, PREEMPTOR = "d0000000-0000-4000-8000-000000000005", "d0000000-0000-4000-8000-0000000000aa"
CREATED, BOUND, EVICTED, ENDED = (
    f"2026-09-01T{t}Z" for t in ("07:59:00", "08:00:00", "12:00:00", "12:00:30")
)


def condition(kind: str, status: str, at: str, reason: str = "", message: str = "") -> Obj:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": at, "message": message}


def pod(
    uid: str = VICTIM,
    *,
    name: str = "infer-5",
    namespace: str = "team-b",
    resources: Obj | None = None,
    node: str = "gpu-17",
    bound: str | None = BOUND,
    created: str = CREATED,
    ended: str | None = None,
    conditions: list[Obj] | None = None,
    labels: Obj | None = None,
    annotations: Obj | None = None,
    owner: str | None = None,
    spec: Obj | None = None,
    **status: Any,
) -> Obj:
    scheduled = [condition("PodScheduled", "True", bound)] if bound else []
    metadata: Obj = {"uid": uid, "name": name, "namespace": namespace, "creationTimestamp": created}
    if owner:
        metadata["ownerReferences"] = [{"kind": "ReplicaSet", "uid": owner, "controller": True}]
    if ended:
        status["phase"] = "Failed"
        status["containerStatuses"] = [{"name": "main", "state": {"terminated": {"finishedAt": ended}}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": resources or {"nvidia.com/gpu": "8"}}}],
            "priority": 0,
            **({"nodeName": node} if bound else {}),
            **(spec or {}),
        },
        "status": {
            "phase": "Running" if bound else "Pending",
            "conditions": scheduled + (conditions or []),
            **status,
        },
    }


def preempted_event(
    note: str, *, uid: str = "e3", victim: str = VICTIM, related: str | None = PREEMPTOR
) -> Obj:
    """kube-scheduler's, by the new recorder."""
    by = {"kind": "Pod", "namespace": "team-a", "name": "serve-0", "uid": related}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "team-b", "name": f"infer-5.{uid}", "uid": uid},
        "eventTime": "2026-09-01T12:00:00.000321Z",
        "reportingController": "default-scheduler",
        "type": "Normal",
        "reason": "Preempted",
        "action": "Preempting",
        "regarding": {"kind": "Pod", "namespace": "team-b", "name": "infer-5", "uid": victim},
        **({"related": by} if related else {}),
        "note": note,
    }


def evict_event(action: str, *, uid: str = "v1", victim: str = VICTIM, **fields: Any) -> Obj:
    """Volcano's, by the old recorder."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "ml", "name": f"train-0.{uid}", "uid": uid},
        "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "train-0", "uid": victim},
        "type": "Warning",
        "reason": "Evict",
        "message": f"Pod is evicted, because of {action}",
        "source": {"component": "volcano"},
        "firstTimestamp": EVICTED,
        "lastTimestamp": EVICTED,
        "count": 1,
        "eventTime": None,
        **fields,
    }


def volcano_pod(uid: str, queue: str, *, group: str = "", priority: int = 0, **fields: Any) -> Obj:
    annotations = {
        "scheduling.volcano.sh/queue-name": queue,
        "scheduling.k8s.io/group-name": group or f"pg-{uid[-2:]}",
    }
    spec = {"schedulerName": "volcano", "priority": priority}
    return pod(uid, namespace="ml", annotations=annotations, spec=spec, **fields)
