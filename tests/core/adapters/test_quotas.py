"""ResourceQuota, ElasticQuota, ElasticQuotaTree with kube-queue, and Koordinator (cluster.md 3.5, 4.1, 4.2)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from ingest.core.adapters.base import Notice
from tests.core.adapters.pod_records import ENDED, EVICTED, PREEMPTOR, VICTIM, condition, pod, preempted_event
from tests.core.adapters.running import events_of, levels_of, refused_of, run

Obj = dict[str, Any]
AT = "2026-09-01T09:00:00Z"
WRITTEN = [{"manager": "controller", "subresource": "status", "time": AT}]


def obj(kind: str, api: str, name: str, namespace: str = "team-b", **parts: Any) -> Obj:
    metadata = {"name": name, "namespace": namespace, "managedFields": WRITTEN, **parts.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **parts}


def resource_quota(name: str = "gpu", hard: Any = "16", used: Any = "12", **spec: Any) -> Obj:
    key = "requests.nvidia.com/gpu"
    status = {"hard": {key: hard, "requests.cpu": "64"}, "used": {key: used, "requests.cpu": "8"}}
    return obj("ResourceQuota", "v1", name, spec={"hard": {key: hard}, **spec}, status=status)


def quota_facts(outcomes: list[Any]) -> list[tuple[str, Any, Any]]:
    return [
        (e["data"]["identity"]["value"], e["data"]["limit"], e["data"]["used"])
        for e in events_of(outcomes, "quota")
    ]


def test_resource_quota() -> None:
    (one,) = events_of(run("resource-quota", [resource_quota()]))
    assert (one["type"], one["time"]) == ("ledger.quota.v1", AT)
    assert one["data"] == {
        "identity": {"kind": "k8s_namespace", "value": "team-b"},
        "layer": "cluster",
        "resource": "gpus",
        "limit": 16,
        "used": 12,
        "pool": "p1",
    }


def test_quantities_of_a_quota_are_kubernetes_quantities() -> None:
    assert quota_facts(run("resource-quota", [resource_quota(hard="1k", used="500m")])) == [
        ("team-b", 1000, "0.5")
    ]
    bad = run("resource-quota", [resource_quota(hard="many"), resource_quota()])
    assert [(r.reason, r.position) for r in refused_of(bad)] == [("bad_quantity", 1)]
    assert len(events_of(bad)) == 1


def test_several_quotas_of_a_namespace_the_tightest_holds() -> None:
    outcomes = run("resource-quota", [resource_quota("a"), resource_quota("b", hard="8", used="8")])
    assert quota_facts(outcomes) == [("team-b", 16, 12), ("team-b", 8, 8)]
    outcomes = run("resource-quota", [resource_quota("b", hard="8"), resource_quota("a")])
    assert [limit for _, limit, _ in quota_facts(outcomes)] == [8, 8]


def test_scoped_quota_is_not_the_namespaces_quota() -> None:
    (notice,) = run("resource-quota", [resource_quota(scopes=["BestEffort"])])
    assert isinstance(notice, Notice) and notice.reason == "scoped_quota"


def test_quota_without_an_instant_is_refused() -> None:
    undated = resource_quota()
    del undated["metadata"]["managedFields"]
    assert [r.reason for r in refused_of(run("resource-quota", [undated]))] == ["no_instant"]
    watched = {"type": "ADDED", "object": undated, "observed_at": "2026-09-01T10:00:00Z"}
    assert events_of(run("resource-quota", [watched]))[0]["time"] == "2026-09-01T10:00:00Z"


def test_exceeded_quota_is_a_rejection() -> None:
    note = (
        'Error creating: pods "serve-1" is forbidden: exceeded quota: gpu, requested: requests.cpu=8,'
        "requests.nvidia.com/gpu=8, used: requests.cpu=1,requests.nvidia.com/gpu=12, limited: requests.cpu=64,"
        "requests.nvidia.com/gpu=16"
    )
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"uid": "q1", "name": "q1"},
        "reason": "FailedCreate",
        "message": note,
        "involvedObject": {"kind": "ReplicaSet", "namespace": "team-b", "name": "serve"},
        "firstTimestamp": "2026-09-01T10:00:00Z",
        "lastTimestamp": "2026-09-01T10:05:00Z",
        "count": 7,
    }
    found = events_of(run("resource-quota", [event]), "rejection")
    assert [(e["time"], e["data"]["requested_gpus"], e["data"]["status"]) for e in found] == [
        ("2026-09-01T10:00:00Z", 8, 403),
        ("2026-09-01T10:05:00Z", 8, 403),
    ]


def test_scheduler_plugins_elastic_quota() -> None:
    quota = obj(
        "ElasticQuota",
        "scheduling.x-k8s.io/v1alpha1",
        "eq",
        spec={"min": {"nvidia.com/gpu": "8"}, "max": {"nvidia.com/gpu": "16", "cpu": "100"}},
        status={"used": {"nvidia.com/gpu": "12"}},
    )
    outcomes = run("elastic-quota", [quota], options={"reservations": True})
    assert quota_facts(outcomes) == [("team-b", 16, 12)]
    (guaranteed,) = events_of(outcomes, "reservation")
    assert (guaranteed["data"]["gpus"], guaranteed["data"]["lendable"]) == (8, True)
    assert events_of(run("elastic-quota", [quota]), "reservation") == []


@pytest.mark.parametrize(
    "text", ["ElasticQuota team-b is more than Max", "total ElasticQuota used is more than min"]
)
def test_elastic_quota_rejection_is_told_once_per_event(text: str) -> None:
    base = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"uid": "r1", "name": "r1"},
        "eventTime": "2026-09-01T10:00:00.000001Z",
        "reason": "FailedScheduling",
        "note": f"0/3 nodes are available: pod team-b/x is rejected in PreFilter because {text}",
        "regarding": {"kind": "Pod", "namespace": "team-b", "name": "x", "uid": "x"},
    }
    again = {**base, "series": {"count": 40, "lastObservedTime": "2026-09-01T11:00:00Z"}}
    (one,) = events_of(run("elastic-quota", [base, again]), "rejection")
    assert (one["time"], one["data"]["layer"], one["data"]["origin"]) == (
        "2026-09-01T10:00:00Z",
        "quota",
        "scheduler",
    )


def tree(**leaf: Any) -> Obj:
    gpu = lambda n: {"nvidia.com/gpu": n}  # noqa: E731
    leaves = [
        {"name": "team-a", "namespaces": ["team-a"], "min": gpu(4), "max": gpu(8)},
        {"name": "shared", "namespaces": ["team-c", "team-d"], "min": gpu(2), "max": gpu(6), **leaf},
    ]
    middle = {"name": "root.org", "min": gpu(6), "max": gpu(16), "children": leaves}
    root = {"name": "root", "min": gpu(16), "max": gpu(16), "children": [middle]}
    return obj(
        "ElasticQuotaTree", "scheduling.sigs.k8s.io/v1beta1", "tree", "kube-system", spec={"root": root}
    )


def unit(phase: str, updated: str, namespace: str = "team-c", uid: str = "u1") -> Obj:
    return obj(
        "QueueUnit",
        "scheduling.x-k8s.io/v1alpha1",
        "job",
        namespace,
        metadata={"uid": uid, "creationTimestamp": "2026-09-01T08:00:00Z"},
        spec={"queue": "shared", "resource": {"nvidia.com/gpu": "4", "cpu": "8"}, "priorityClassName": "low"},
        status={"phase": phase, "lastUpdateTime": updated},
    )


def test_ack_tree_gives_its_leaves_and_what_left_the_queue_as_used() -> None:
    outcomes = run("elastic-quota", [unit("Dequeued", "2026-09-01T08:30:00Z"), tree()])
    assert quota_facts(outcomes) == [("team-a", 8, 0), ("shared", 6, 4)]
    kinds = [e["data"]["identity"]["kind"] for e in events_of(outcomes, "quota")]
    assert kinds == ["k8s_namespace", "label:elastic-quota"]
    done = run("elastic-quota", [unit("Dequeued", AT), unit("Succeed", AT), tree()])
    assert quota_facts(done) == [("team-a", 8, 0), ("shared", 6, 0)]


def test_ack_queue_units_wait_until_dequeued() -> None:
    steps = [
        unit("Enqueued", "2026-09-01T08:00:00Z"),
        unit("Dequeued", "2026-09-01T08:30:00Z"),
        unit("Running", "2026-09-01T08:31:00Z"),
    ]
    found = events_of(run("elastic-quota", steps), "pending")
    assert [(e["time"], e["data"]["gpus"]) for e in found] == [
        ("2026-09-01T08:00:00Z", 4),
        ("2026-09-01T08:30:00Z", 0),
    ]


# --- Koordinator --------------------------------------------------------------------------------------------

PREFIX = "quota.scheduling.koordinator.sh/"


def koord_quota(used: int, runtime: int, at: str = AT, **labels: str) -> Obj:
    return obj(
        "ElasticQuota",
        "scheduling.sigs.k8s.io/v1alpha1",
        "vision",
        "kube-system",
        metadata={
            "labels": {PREFIX + k.replace("_", "-"): v for k, v in labels.items()},
            "annotations": {
                PREFIX + "runtime": json.dumps({"nvidia.com/gpu": runtime, "cpu": "10"}),
                PREFIX + "namespaces": '["team-b"]',
            },
            "managedFields": [{"time": at}],
        },
        spec={"min": {"nvidia.com/gpu": 8}, "max": {"nvidia.com/gpu": 32}},
        status={"used": {"nvidia.com/gpu": used, "cpu": "500m"}},
    )


def koord_pod(**fields: Any) -> Obj:
    return pod(labels={PREFIX + "name": "vision"}, **fields)


def revoked(**fields: Any) -> Obj:
    message = "Eviction API: evicting"
    return koord_pod(
        conditions=[condition("DisruptionTarget", "True", EVICTED, "EvictionByEvictionAPI", message)],
        **fields,
    )


def test_koordinator_quota_limit_max_or_runtime() -> None:
    assert quota_facts(run("koordinator", [koord_quota(12, 10)])) == [("vision", 32, 12)]
    assert quota_facts(run("koordinator", [koord_quota(12, 10)], options={"limit": "runtime"})) == [
        ("vision", 10, 12)
    ]
    by_namespace = run("koordinator", [koord_quota(12, 10)], options={"identity": "k8s_namespace"})
    assert quota_facts(by_namespace) == [("team-b", 32, 12)]


def test_koordinator_parents_contain_their_children_and_are_left_out() -> None:
    assert run("koordinator", [koord_quota(12, 10, is_parent="true")]) == []
    assert run("koordinator", [koord_quota(12, 10, is_root="true")]) == []


def test_koordinator_protected_minimum_is_not_lendable() -> None:
    quota = koord_quota(12, 10, allow_lent_resource="false")
    (one,) = events_of(run("koordinator", [quota], options={"reservations": True}), "reservation")
    assert (one["data"]["gpus"], one["data"]["lendable"]) == (8, False)


def test_koordinator_annotation_that_is_no_json_is_refused() -> None:
    broken = koord_quota(1, 1)
    broken["metadata"]["annotations"][PREFIX + "runtime"] = "{nvidia.com/gpu: 1}"
    outcomes = run("koordinator", [broken, koord_quota(1, 1)])
    assert [(r.reason, r.position) for r in refused_of(outcomes)] == [("bad_record", 1)]
    assert len(events_of(outcomes, "quota")) == 1


@pytest.mark.parametrize(
    ("samples", "cause"),
    [
        ([koord_quota(12, 8, "2026-09-01T11:59:00Z")], "overuse"),
        ([koord_quota(8, 8, "2026-09-01T11:59:00Z")], "other"),
        ([koord_quota(12, 8, "2026-09-01T11:00:00Z")], "other"),
        ([koord_quota(12, 8, "2026-09-01T11:58:00Z"), koord_quota(8, 8, "2026-09-01T11:59:00Z")], "other"),
        ([], "other"),
    ],
)
def test_overuse_revocation_is_inferred_from_the_quotas_series(samples: list[Obj], cause: str) -> None:
    for order in itertools.permutations([revoked(), *samples]):
        (one,) = events_of(run("koordinator", order), "preemption")
        assert (one["data"]["cause"], one["data"]["preemptor_source"]) == (cause, "none")


def test_koordinator_preemption_in_a_quota_is_the_schedulers_event() -> None:
    serve = pod(PREEMPTOR, namespace="team-a", labels={PREFIX + "name": "search"})
    outcomes = run("koordinator", [koord_pod(), serve, preempted_event("Preempted by a pod on node gpu-17")])
    (one,) = events_of(outcomes, "preemption")
    assert one["data"]["preemptor"]["identity"] == {"kind": f"label:{PREFIX}name", "value": "search"}
    assert one["data"]["victim"]["identity"] == {"kind": f"label:{PREFIX}name", "value": "vision"}
    assert len(levels_of(outcomes)) == 2


def test_koordinator_gang_hint_and_event_are_one_preemption() -> None:
    text = "koord-scheduler: preempting to accommodate higher priority pods, preemptor: a/g, triggerPod: team-a/serve-0"
    gone = koord_pod(
        conditions=[condition("DisruptionTarget", "True", EVICTED, "PreemptionByScheduler", text)],
        ended=ENDED,
    )
    found = events_of(run("koordinator", [koord_pod(), gone, preempted_event("x")]), "preemption")
    assert {e["data"]["preemption"] for e in found} == {VICTIM}
    assert {e["data"]["preemptor_source"] for e in found} == {"parsed", "structured"}
