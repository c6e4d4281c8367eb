"""Synthetic Kueue records in the shapes of several versions."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

VICTIM, PREEMPTOR = "b7c1f0de-0000-4000-8000-0000000000b1", "a1b20000-0000-4000-8000-0000000000a1"
VICTIM_JOB, PREEMPTOR_JOB = "5d1e0000-0000-4000-8000-0000000000b0", "a1b20000-0000-4000-8000-0000000000a0"
ADMITTED, DECIDED, RELEASED, RESUMED = (
    f"2026-09-01T{t}Z" for t in ("09:00:00", "10:30:36", "10:31:07", "11:40:00")
)

MESSAGES = {
    "0.5": "Preempted to accommodate a higher priority Workload",
    "0.10": f"Preempted to accommodate a workload (UID: {PREEMPTOR}) due to reclamation within the cohort",
    "0.11": f"Preempted to accommodate a workload (UID: {PREEMPTOR}, JobUID: {PREEMPTOR_JOB}) "
    "due to reclamation within the cohort",
    "0.15": f"Preempted to accommodate a workload (UID: {PREEMPTOR}, JobUID: {PREEMPTOR_JOB}) "
    "due to reclamation within the cohort; preemptor path: /org/cq-a; preemptee path: /org/cq-b",
    "0.17": f"Preempted to accommodate a workload (UID: {PREEMPTOR}, JobUID: {PREEMPTOR_JOB}) "
    "due to reclamation within the cohort; preemptor path: /org/cq-a; preemptee path: /org/cq-b; "
    "preemptor effective priority: 1000 (base: 1000, boost: 0); "
    "preemptee effective priority: 100 (base: 100, boost: 0)",
}
MESSAGE = MESSAGES["0.15"]


def condition(kind: str, status: str, reason: str, at: str, message: str = "") -> Obj:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": at, "message": message}


def workload(
    uid: str,
    conditions: list[Obj],
    *,
    namespace: str = "team-b",
    queue: str = "lq-b",
    cluster_queue: str = "cq-b",
    job: str | None = None,
    gpus: int = 8,
    count: int = 4,
    flavor: str = "h200",
    admitted: bool = True,
    evictions: int = 0,
    version: str = "v1beta2",
    **status: Any,
) -> Obj:
    admission = {
        "clusterQueue": cluster_queue,
        "podSetAssignments": [
            {
                "name": "main",
                "count": count,
                "flavors": {"cpu": "default-cpu", "nvidia.com/gpu": flavor},
                "resourceUsage": {"cpu": "32", "nvidia.com/gpu": str(gpus)},
            }
        ],
    }
    stats = {
        "schedulingStats": {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": evictions}]}
    }
    per_pod = {"cpu": "8", "nvidia.com/gpu": str(gpus // count)}
    template = {"spec": {"containers": [{"name": "main", "resources": {"requests": per_pod}}]}}
    priority: Obj = {
        "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "low"}
    }
    if version == "v1beta1":
        priority = {"priorityClassName": "low", "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass"}
    return {
        "apiVersion": f"kueue.x-k8s.io/{version}",
        "kind": "Workload",
        "metadata": {
            "namespace": namespace,
            "name": f"job-{uid[:4]}",
            "uid": uid,
            "labels": {"kueue.x-k8s.io/job-uid": job} if job else {},
            "creationTimestamp": "2026-09-01T08:59:00Z",
        },
        "spec": {
            "queueName": queue,
            "priority": 100,
            **priority,
            "podSets": [{"name": "main", "count": count, "template": template}],
        },
        "status": {
            "admission": admission if admitted else None,
            "conditions": conditions,
            **(stats if evictions else {}),
            **status,
        },
    }


def running(at: str = ADMITTED, **fields: Any) -> Obj:
    """Admitted and never evicted."""
    return workload(
        VICTIM,
        [
            condition("QuotaReserved", "True", "QuotaReserved", at, "Quota reserved in ClusterQueue cq-b"),
            condition("Admitted", "True", "Admitted", at, "The workload is admitted"),
        ],
        **{"job": VICTIM_JOB, **fields},
    )


def evicting(
    message: str = MESSAGE, reason: str = "InCohortReclamation", at: str = DECIDED, **fields: Any
) -> Obj:
    """t0: evicted, still holding its quota."""
    return workload(
        VICTIM,
        [
            condition("QuotaReserved", "True", "QuotaReserved", ADMITTED),
            condition("Admitted", "True", "Admitted", ADMITTED),
            condition("Evicted", "True", "Preempted", at, message),
            condition("Preempted", "True", reason, at, message),
        ],
        **{"job": VICTIM_JOB, "evictions": 1, **fields},
    )


def released(message: str = MESSAGE, **fields: Any) -> Obj:
    """t1: quota given back, waiting in the queue. `Requeued` still shows an earlier preemption."""
    return workload(
        VICTIM,
        [
            condition("QuotaReserved", "False", "Pending", RELEASED, message),
            condition("Admitted", "False", "NoReservation", RELEASED, "The workload has no reservation"),
            condition("Evicted", "True", "Preempted", DECIDED, message),
            condition("Preempted", "True", "InCohortReclamation", DECIDED, message),
            condition("Requeued", "True", "Preempted", "2026-08-30T02:11:00Z", message),
        ],
        **{"job": VICTIM_JOB, "evictions": 1, "admitted": False, **fields},
    )


def resumed(message: str = MESSAGE, **fields: Any) -> Obj:
    """t2: admitted again; the eviction's own times are gone from the object."""
    return workload(
        VICTIM,
        [
            condition("QuotaReserved", "True", "QuotaReserved", RESUMED),
            condition("Admitted", "True", "Admitted", RESUMED),
            condition("Evicted", "False", "QuotaReserved", RESUMED, f"Previously: {message}"),
            condition("Preempted", "False", "QuotaReserved", RESUMED, f"Previously: {message}"),
            condition("Requeued", "True", "Preempted", "2026-08-30T02:11:00Z", message),
        ],
        **{"job": VICTIM_JOB, "evictions": 1, **fields},
    )


def preemptor() -> Obj:
    return workload(
        PREEMPTOR,
        [
            condition(
                "QuotaReserved",
                "False",
                "Pending",
                "2026-09-01T10:30:00Z",
                "Pending the preemption of 1 workload",
            )
        ],
        namespace="team-a",
        queue="lq-a",
        cluster_queue="cq-a",
        job=PREEMPTOR_JOB,
        admitted=False,
    )


def new_event(reason: str, note: str, *, regarding: Obj | None = None, uid: str = "e1", **fields: Any) -> Obj:
    """events.k8s.io/v1, Kueue 0.18 and later."""
    victim = {"kind": "Workload", "namespace": "team-b", "name": f"job-{VICTIM[:4]}", "uid": VICTIM}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "team-b", "name": f"x.{uid}", "uid": uid},
        "eventTime": "2026-09-01T10:30:36.412345Z",
        "reportingController": "kueue-admission",
        "type": "Normal",
        "reason": reason,
        "action": reason,
        "regarding": regarding or victim,
        "note": note,
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": None,
        **fields,
    }


def old_event(reason: str, message: str, *, uid: str = "e2", **fields: Any) -> Obj:
    """core/v1, Kueue 0.17 and earlier."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "team-b", "name": f"x.{uid}", "uid": uid},
        "involvedObject": {"kind": "Workload", "namespace": "team-b", "name": "job", "uid": VICTIM},
        "type": "Normal",
        "reason": reason,
        "message": message,
        "source": {"component": "kueue-admission"},
        "firstTimestamp": "2026-09-01T10:30:36Z",
        "lastTimestamp": "2026-09-01T10:30:36Z",
        "count": 1,
        "eventTime": None,
        **fields,
    }


def reverse_event() -> Obj:
    note = (
        f"Preempted workload team-b/job-{VICTIM[:4]} (UID: {VICTIM}) in ClusterQueue cq-b; "
        "preemptor effective priority: 1000 (base: 1000, boost: 0); "
        "preemptee effective priority: 100 (base: 100, boost: 0)"
    )
    by = {"kind": "Workload", "namespace": "team-a", "name": "job-a1b2", "uid": PREEMPTOR}
    # Written a second boundary after the condition, as happens.
    return new_event(
        "PreemptedWorkload", note, regarding=by, uid="e3", eventTime="2026-09-01T10:30:37.001000Z"
    )
