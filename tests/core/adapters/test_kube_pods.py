"""Occupancy, pending and preemption from Pods (cluster.md 3.2, 3.3, 4.2)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.core.adapters.pod_records import BOUND, CREATED, ENDED, EVICTED, VICTIM, condition, pod
from tests.core.adapters.running import events_of, levels_of, refused_of, run


def test_held_from_binding_to_the_last_container() -> None:
    """Not from the kubelet's startTime, and not to the deletion timestamp, which is request plus grace."""
    ended = pod(startTime="2026-09-01T08:00:09Z", ended=ENDED)
    ended["metadata"]["deletionTimestamp"] = "2026-09-01T12:05:00Z"
    outcomes = run("kube-pods", [pod(bound=None), pod(), {"type": "DELETED", "object": ended}])
    assert levels_of(outcomes) == [(BOUND, "p1", 8), (ENDED, "p1", 0)]
    waits = [(e["time"], e["data"]["gpus"]) for e in events_of(outcomes, "pending")]
    assert waits == [(CREATED, 8), (BOUND, 0)]


def test_order_of_looks_does_not_matter() -> None:
    looks = [pod(bound=None), pod(), pod(ended=ENDED)]
    wanted = sorted(e["id"] for e in events_of(run("kube-pods", looks)))
    for order in itertools.permutations(looks):
        assert sorted(e["id"] for e in events_of(run("kube-pods", order))) == wanted


def test_vanished_pod_ends_when_seen_gone_else_by_its_deletion_time_else_is_refused() -> None:
    seen = {"type": "DELETED", "object": pod(), "observed_at": "2026-09-01T11:00:00.5Z"}
    assert levels_of(run("kube-pods", [pod(), seen]))[-1] == ("2026-09-01T11:00:00.500Z", "p1", 0)
    unseen = {"type": "DELETED", "object": pod()}
    unseen["object"]["metadata"]["deletionTimestamp"] = "2026-09-01T11:00:30Z"
    assert levels_of(run("kube-pods", [pod(), unseen]))[-1] == ("2026-09-01T11:00:30Z", "p1", 0)
    blind = run("kube-pods", [pod(), {"type": "DELETED", "object": pod()}])
    assert [r.reason for r in refused_of(blind)] == ["no_instant"]


@pytest.mark.parametrize(
    ("resources", "options", "gpus"),
    [
        ({"nvidia.com/gpu": "8"}, {}, 8),
        ({"nvidia.com/mig-2g.20gb": "1"}, {}, "0.285"),
        ({"nvidia.com/mig-1g.10gb": "7"}, {}, 1),
        ({"nvidia.com/mig-1g.10gb.me": "1"}, {}, "0.142"),
        ({"nvidia.com/mig-1g.20gb": "1"}, {"gpu_resources": {"nvidia.com/mig-1g.20gb": 250}}, "0.25"),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpucores": "30"}, {}, "0.6"),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50", "nvidia.com/gpucores": "30"},
            {},
            "0.5",
        ),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20480"}, {"gpu_memory_mib": 81920}, "0.25"),
        ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-cores": "25"}, {}, "0.25"),
        ({"huawei.com/Ascend910": "4"}, {}, 4),
        ({"huawei.com/Ascend910B3": "2"}, {}, 2),
        ({"huawei.com/Ascend910-16c": "1"}, {}, "0.5"),
        ({"huawei.com/Ascend310P-2c": "1"}, {}, "0.25"),
        (
            {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "16384"},
            {"gpu_memory_mib": 65536},
            "0.25",
        ),
        ({"koordinator.sh/gpu": "50"}, {}, "0.5"),
        ({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}, {}, "0.5"),
        ({"aliyun.com/gpu-core.percentage": "20", "aliyun.com/gpu-mem": "8"}, {}, "0.2"),
        ({"nvidia.com/gpu.shared": "1"}, {"gpu_resources": {"nvidia.com/gpu.shared": 250}}, "0.25"),
    ],
)
def test_gpu_resource_names(resources: dict[str, str], options: dict[str, Any], gpus: Any) -> None:
    (start,) = events_of(run("kube-pods", [pod(resources=resources)], options=options), "occupancy")
    assert start["data"]["gpus"] == gpus


@pytest.mark.parametrize(
    "resources",
    [
        {"nvidia.com/gpu.shared": "1"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"},
        {"huawei.com/Ascend910B4-8c": "1"},
    ],
)
def test_a_share_nobody_states_is_refused_not_charged_whole(resources: dict[str, str]) -> None:
    outcomes = run("kube-pods", [pod(resources=resources), pod("other")])
    assert [(r.reason, r.position) for r in refused_of(outcomes)] == [("unknown_resource", 1)]
    assert levels_of(outcomes) == [(BOUND, "p1", 8)]


def test_init_containers_and_sidecars_count_as_the_scheduler_counts() -> None:
    one = pod(resources={"nvidia.com/gpu": "2"})
    gpu = {"requests": {"nvidia.com/gpu": "3"}}
    one["spec"]["initContainers"] = [{"name": "load", "resources": gpu}]
    assert levels_of(run("kube-pods", [one]))[0][2] == 3
    one["spec"]["initContainers"] = [{"name": "side", "restartPolicy": "Always", "resources": gpu}]
    assert levels_of(run("kube-pods", [one]))[0][2] == 5


def test_pods_without_gpus_need_no_pool_and_cpu_pools_meter_cpu() -> None:
    cpu = pod(resources={"cpu": "1500m"})
    assert run("kube-pods", [cpu], pools={"gpu-17": "p1"}) == []
    assert run("kube-pods", [cpu], pools={"elsewhere": "p1"}) == []
    outcomes = run("kube-pods", [cpu], pools={"gpu-17": "batch-cpu"}, meters={"batch-cpu": "cpu"})
    assert levels_of(outcomes) == [(BOUND, "batch-cpu", "1.5")]


def test_wait_ends_in_the_pool_where_it_began() -> None:
    pools = {"team-b": "wanted", "gpu-17": "got"}
    outcomes = run("kube-pods", [pod(bound=None), pod()], pools=pools)
    assert {e["data"]["pool"] for e in events_of(outcomes, "pending")} == {"wanted"}
    assert levels_of(outcomes) == [(BOUND, "got", 8)]


def test_gated_pods_wait_in_another_queue() -> None:
    gated = pod(bound=None, spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]})
    assert run("kube-pods", [gated]) == []


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("PreemptionByScheduler", "priority"),
        ("DeletionByTaintManager", "capacity_lost"),
        ("EvictionByEvictionAPI", "other"),
    ],
)
def test_disruption_target(reason: str, cause: str) -> None:
    target = condition(
        "DisruptionTarget", "True", EVICTED, reason, "default-scheduler: preempting to accommodate ..."
    )
    gone = pod(conditions=[target], ended=ENDED, owner="rs-1")
    first, last = events_of(run("kube-pods", [pod(conditions=[target]), gone]), "preemption")
    assert first["data"]["preemption"] == last["data"]["preemption"] == VICTIM
    assert (first["data"]["cause"], first["data"]["preemptor_source"]) == (cause, "none")
    assert (last["data"]["released_at"], last["data"]["disposition"]) == (ENDED, "requeued")
    assert first["data"]["admitted_at"] == BOUND


def test_koordinator_gang_preemptor_is_parsed_from_the_condition() -> None:
    text = (
        "koord-scheduler: preempting to accommodate higher priority pods, "
        "preemptor: team-a/gang-1, triggerPod: team-a/serve-0"
    )
    target = condition("DisruptionTarget", "True", EVICTED, "PreemptionByScheduler", text)
    (one,) = events_of(run("kube-pods", [pod(conditions=[target])]), "preemption")
    assert one["data"]["preemptor_source"] == "parsed"
    assert one["data"]["preemptor"]["identity"] == {"kind": "k8s_namespace", "value": "team-a"}


def test_kubelet_preemption_without_container_statuses_ends_by_its_condition() -> None:
    target = condition("DisruptionTarget", "True", EVICTED, "TerminationByKubelet")
    failed = pod(conditions=[target], phase="Failed", reason="Preempting")
    outcomes = run("kube-pods", [pod(), failed])
    assert levels_of(outcomes)[-1] == (EVICTED, "p1", 0)


def test_replacement_of_the_same_controller_resumes_each_victim_once() -> None:
    target = condition("DisruptionTarget", "True", EVICTED, "PreemptionByScheduler")
    victims = [pod(f"v{i}", name=f"a-{i}", conditions=[target], owner="rs-1") for i in range(2)]
    later = {"created": "2026-09-01T12:01:00Z", "owner": "rs-1"}
    new = [pod(f"n{i}", name=f"b-{i}", bound=f"2026-09-01T13:0{i}:00Z", **later) for i in range(2)]
    found = events_of(run("kube-pods", [*new, *victims]), "resume")
    assert [(e["data"]["preemption"], e["data"]["workload"]) for e in found] == [("v0", "n0"), ("v1", "n1")]


def test_service_and_label_identities() -> None:
    options = {"service_label": "app", "identity": "label:team", "labels": ["team"]}
    served = pod(labels={"app": "qwen3-32b"})
    own = pod("own", labels={"team": "vision"})
    bare = pod("bare")
    one, two, three = events_of(run("kube-pods", [served, own, bare], options=options), "occupancy")
    assert one["data"]["service"] == "qwen3-32b" and "identity" not in one["data"]
    assert two["data"]["identity"] == {"kind": "label:team", "value": "vision"}
    assert two["data"]["labels"] == {"team": "vision"}
    assert three["data"]["identity"] == {"kind": "k8s_namespace", "value": "team-b"}


def test_excluded_label_leaves_a_pod_to_another_source() -> None:
    mine = pod(labels={"kueue.x-k8s.io/queue-name": "lq"})
    assert run("kube-pods", [mine], options={"exclude_labels": ["kueue.x-k8s.io/queue-name"]}) == []


def node(
    name: str, gpus: int = 8, ready: str = "True", since: str = "2026-09-01T00:00:00Z", **labels: str
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "allocatable": {"cpu": "64", "nvidia.com/gpu": str(gpus)},
            "conditions": [condition("Ready", ready, since)],
        },
    }


def capacity_of(*records: dict[str, Any], **fields: Any) -> list[tuple[str, str, Any]]:
    found = events_of(run("kube-pods", records, **fields), "capacity")
    return [(e["time"], e["data"]["pool"], e["data"]["gpus"]) for e in found]


def test_first_sum_of_nodes_holds_from_the_latest_transition() -> None:
    """Their earlier history is not in the objects: a ramp of old transitions would be a story nobody told."""
    nodes = [
        node("a", since="2026-08-01T00:00:00Z"),
        node("b"),
        node("c", ready="Unknown"),
        node("d", gpus=0),
    ]
    assert capacity_of(*nodes) == [("2026-09-01T00:00:00Z", "p1", 16)]


def test_capacity_follows_nodes_that_fail_return_resize_and_leave() -> None:
    state: dict[str, Any] = {}
    steps = [
        [node("a"), node("b")],
        [node("b", ready="False", since="2026-09-01T05:00:00Z")],
        [node("b", since="2026-09-01T06:00:00Z"), node("a", ready="False", since="2026-09-01T05:30:00Z")],
        [{"type": "MODIFIED", "object": node("b", gpus=7), "observed_at": "2026-09-01T07:00:00Z"}],
        [{"type": "DELETED", "object": node("b", gpus=7), "observed_at": "2026-09-01T08:00:00Z"}],
    ]
    found = [level for records in steps for level in capacity_of(*records, state=state)]
    assert [(time[11:13], gpus) for time, _, gpus in found] == [
        ("00", 16),
        ("05", 8),
        ("05", 0),
        ("06", 8),
        ("07", 7),
        ("08", 0),
    ]
    assert capacity_of(node("a", ready="False", since="2026-09-01T05:30:00Z"), state=state) == []


def test_nodes_are_mapped_by_name_or_label_and_others_are_no_capacity() -> None:
    nodes = [node("a", product="H200"), node("gpu-9"), node("elsewhere")]
    assert capacity_of(*nodes, pools={"H200": "h200", "gpu-9": "h200"}) == [
        ("2026-09-01T00:00:00Z", "h200", 16)
    ]
    assert capacity_of(*nodes, pools={"H200": "h200"}, options={"capacity": False}) == []
