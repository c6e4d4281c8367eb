"""KAI-Scheduler (cluster.md 4.3)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.core.adapters.pod_records import BOUND, ENDED, VICTIM, pod
from tests.core.adapters.running import events_of, levels_of, refused_of, run

Obj = dict[str, Any]
EVICTED = "2026-09-01T12:10:00Z"
SHARES = (
    "\nq-b uses <GPU: 12, CPU: 96 (cores), memory: 768 (GB)> with a quota of "
    "<GPU: 8, CPU: 64 (cores), memory: 512 (GB)>,"
    " fair-share of <GPU: 8, CPU: 64 (cores), memory: 512 (GB)> and queue priority of <100>."
    "\nq-a uses <GPU: {uses}, CPU: 32 (cores), memory: 256 (GB)> with a quota of "
    "<GPU: 8, CPU: 64 (cores), memory: 512 (GB)>,"
    " fair-share of <GPU: 8, CPU: 64 (cores), memory: 512 (GB)> and queue priority of <100>."
)
RECLAIM = "Pod team-b/train-0 was preempted by workload team-a/pg-serve." + SHARES.format(uses=4)
GROUP = {
    "apiVersion": "scheduling.run.ai/v2alpha2",
    "kind": "PodGroup",
    "metadata": {"namespace": "team-a", "name": "pg-serve", "uid": "pg-serve-uid"},
    "spec": {"queue": "q-a", "minMember": 2},
}


def kai_pod(**fields: Any) -> Obj:
    fields.setdefault("labels", {"kai.scheduler/queue": "q-b"})
    return pod(name="train-0", spec={"schedulerName": "kai-scheduler"}, **fields)


def evict(
    message: str, action: str | None = "reclaim", *, uid: str = "k1", evictor: bool = True, **fields: Any
) -> Obj:
    annotations: Obj = {"num-evicted-pods": "2"}
    if action:
        annotations["evictor-action-type"] = action
    if evictor:
        annotations |= {"evictor-pod-group-name": "pg-serve", "evictor-pod-group-namespace": "team-a"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "team-b", "name": f"pg.{uid}", "uid": uid, "annotations": annotations},
        "involvedObject": {
            "kind": "PodGroup",
            "namespace": "team-b",
            "name": "pg-train",
            "uid": "pg-train-uid",
        },
        "type": "Normal",
        "reason": "Evict",
        "source": {"component": "kai-scheduler"},
        "message": message,
        "firstTimestamp": EVICTED,
        "lastTimestamp": EVICTED,
        "count": 1,
        **fields,
    }


def test_preemptor_is_structured() -> None:
    (one,) = events_of(run("kai", [GROUP, kai_pod(), evict(RECLAIM)]), "preemption")
    assert (one["data"]["preemption"], one["time"], one["data"]["gpus"]) == (VICTIM, EVICTED, 8)
    assert one["data"]["preemptor_source"] == "structured"
    assert one["data"]["preemptor"] == {
        "workload": "pg-serve-uid",
        "identity": {"kind": "kai_queue", "value": "q-a"},
    }


@pytest.mark.parametrize(
    ("action", "message", "evictor", "cause"),
    [
        (
            "preempt",
            "Pod team-b/train-0 was preempted by higher priority workload team-a/pg-serve",
            True,
            "priority",
        ),
        ("reclaim", RECLAIM, True, "reclaim_own_reservation"),
        ("reclaim", RECLAIM.replace("<GPU: 4,", "<GPU: 8,"), True, "fair_share"),
        (
            "consolidation",
            "Pod team-b/train-0 was preempted and rescheduled due to bin packing (resource consolidation) procedure",
            True,  # names the workload it made room for, which took nothing away
            "other",
        ),
        (
            "stalegangeviction",
            "Workload doesn't meet the minimum required number of pods (2), evicting remaining pod: team-b/train-0",
            False,
            "other",
        ),
    ],
)
def test_every_action_and_message(action: str, message: str, evictor: bool, cause: str) -> None:
    (one,) = events_of(run("kai", [GROUP, kai_pod(), evict(message, action, evictor=evictor)]), "preemption")
    assert one["data"]["cause"] == cause
    assert one["data"]["preemptor_source"] == (
        "structured" if evictor and action != "consolidation" else "none"
    )


def test_batch_size_on_each_event_is_not_summed() -> None:
    second = kai_pod(uid="v2", annotations={})
    second["metadata"]["name"] = "train-1"
    events = [evict(RECLAIM), evict(RECLAIM.replace("train-0", "train-1"), uid="k2")]
    found = events_of(run("kai", [GROUP, kai_pod(), second, *events]), "preemption")
    assert sorted((e["data"]["preemption"], e["data"]["gpus"]) for e in found) == [(VICTIM, 8), ("v2", 8)]


def test_any_order() -> None:
    records = [GROUP, kai_pod(), evict(RECLAIM), kai_pod(ended="2026-09-01T12:10:30Z", owner="job")]
    for order in itertools.permutations(records):
        found = events_of(run("kai", order), "preemption")
        assert {(e["id"], e["data"]["preemption"]) for e in found} == {
            ("event/k1/1", VICTIM),
            (f"{VICTIM}/released", VICTIM),
        }
        assert {e["data"]["preemptor"]["workload"] for e in found} == {"pg-serve-uid"}


def test_a_name_that_came_back_is_the_pod_of_that_time() -> None:
    first = kai_pod(uid="old", ended=ENDED)  # ended ten minutes before the eviction
    again = kai_pod(bound="2026-09-01T12:05:00Z")
    (one,) = events_of(run("kai", [GROUP, first, again, evict(RECLAIM)]), "preemption")
    assert one["data"]["preemption"] == VICTIM


def test_unknown_evictor_group_falls_back_to_its_namespace_and_unknown_pod_is_refused() -> None:
    (one,) = events_of(run("kai", [kai_pod(), evict(RECLAIM)]), "preemption")
    assert one["data"]["preemptor"] == {
        "workload": "team-a/pg-serve",
        "identity": {"kind": "k8s_namespace", "value": "team-a"},
    }
    assert [r.reason for r in refused_of(run("kai", [evict(RECLAIM)]))] == ["unknown_workload"]


def test_fractions_by_annotation() -> None:
    half = kai_pod(resources={"cpu": "1"}, annotations={"gpu-fraction": "0.5"})
    two = kai_pod(
        resources={"cpu": "1"}, annotations={"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}
    )
    assert levels_of(run("kai", [half])) == levels_of(run("kai", [two])) == [(BOUND, "p1", "0.5")]
    unknown = kai_pod(resources={"cpu": "1"}, annotations={"gpu-memory": "4096"})
    assert [r.reason for r in refused_of(run("kai", [unknown]))] == ["unknown_resource"]


def test_queue_quota_leaves_only_and_minus_one_is_no_cap() -> None:
    def queue(limit: float, children: list[str]) -> Obj:
        return {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": "q-b", "managedFields": [{"time": "2026-09-01T00:00:00Z"}]},
            "spec": {
                "parentQueue": "org",
                "resources": {"gpu": {"quota": 8.5, "limit": limit, "overQuotaWeight": 1}},
            },
            "status": {"childQueues": children, "allocated": {"nvidia.com/gpu": "12"}},
        }

    (capped,) = events_of(run("kai", [queue(16, [])]), "quota")
    assert (capped["data"]["limit"], capped["data"]["used"]) == (16, 12)
    (uncapped,) = events_of(run("kai", [queue(-1, [])]), "quota")
    assert uncapped["data"]["limit"] == "8.5"
    assert run("kai", [queue(16, ["q-b-1"])]) == []
