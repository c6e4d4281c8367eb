"""kube-state-metrics and dcgm-exporter series (cluster.md 4.4, 4.5)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ingest.core.adapters.base import Notice, Outcome
from tests.core.adapters.running import events_of, levels_of, refused_of, run

Obj = dict[str, Any]
T0 = 1788264000  # 2026-09-01T12:00:00Z
STEP = 60


def series(name: str, values: list[Any], /, *, start: int = T0, **labels: str) -> Obj:
    """One series of a range query; `None` leaves a sample out."""
    points = [[start + STEP * i, str(v)] for i, v in enumerate(values) if v is not None]
    return {"metric": {"__name__": name, **labels}, "values": points}


def pod_series(phases: list[str | None], *, pod: str = "train-0", uid: str = "u0", **more: Any) -> list[Obj]:
    labels = {"namespace": "team-b", "pod": pod, "uid": uid}
    known = sorted({phase for phase in phases if phase})
    found = [
        series(
            "kube_pod_container_resource_requests",
            [8 if phase else None for phase in phases],
            container="main",
            node="gpu-17",
            resource="nvidia_com_gpu",
            unit="integer",
            **labels,
        )
    ]
    for phase in known:
        values = [None if p is None else int(p == phase) for p in phases]
        found.append(series("kube_pod_status_phase", values, phase=phase, **labels))
    for name, value in more.items():
        found.append(series(name, [value if phase else None for phase in phases], **labels))
    return found


def notices(outcomes: list[Outcome]) -> list[str]:
    return [o.reason for o in outcomes if isinstance(o, Notice)]


def at(minutes: int) -> str:
    return f"2026-09-01T12:{minutes:02d}:00Z"


def test_exact_instants_come_from_the_series_that_hold_them() -> None:
    phases = ["Pending", "Running", "Running", "Succeeded"]
    records = pod_series(phases, kube_pod_status_scheduled_time=T0 + 7, kube_pod_completion_time=T0 + 150)
    assert levels_of(run("kube-state-metrics", records)) == [
        ("2026-09-01T12:00:07Z", "p1", 8),
        ("2026-09-01T12:02:30Z", "p1", 0),
    ]


def test_requests_of_waiting_and_finished_pods_are_no_occupancy() -> None:
    assert levels_of(run("kube-state-metrics", pod_series(["Pending", "Pending"]))) == []
    assert levels_of(run("kube-state-metrics", pod_series(["Succeeded", "Succeeded"]))) == []
    phases = ["Pending", "Running", "Running", "Succeeded", "Succeeded"]
    assert levels_of(run("kube-state-metrics", pod_series(phases))) == [(at(1), "p1", 8), (at(3), "p1", 0)]


def test_sanitised_resource_names() -> None:
    for shown, gpus in [
        ("nvidia_com_gpu", 8),
        ("nvidia_com_mig_1g_10gb", "1.142"),
        ("huawei_com_Ascend910", 8),
        ("huawei_com_Ascend910_16c", 4),
        ("amd_com_gpu", 8),
        ("koordinator_sh_gpu_core", "0.08"),
    ]:
        records = pod_series(["Running"])
        records[0]["metric"]["resource"] = shown
        assert [level[2] for level in levels_of(run("kube-state-metrics", records))] == [gpus], shown
    records[0]["metric"]["resource"] = "memory"
    assert run("kube-state-metrics", records) == []


def test_containers_add_up_and_init_containers_do_not() -> None:
    records = pod_series(["Running"])
    second = json.loads(json.dumps(records[0]))
    second["metric"]["container"] = "side"
    init = json.loads(json.dumps(records[0]))
    init["metric"]["__name__"] = "kube_pod_init_container_resource_requests"
    assert levels_of(run("kube-state-metrics", [*records, second, init]))[0][2] == 16


def test_pod_that_vanishes_while_others_are_sampled_is_gone() -> None:
    gone = pod_series(["Running"] * 3 + [None] * 7)
    stays = pod_series(["Running"] * 10, pod="train-1", uid="u1")
    outcomes = run("kube-state-metrics", [*gone, *stays])
    assert [(e["time"], e["data"]["gpus"]) for e in events_of(outcomes) if e["data"]["workload"] == "u0"] == [
        (at(0), 8),
        (at(2), 0),
    ]
    assert notices(outcomes) == []


def test_missed_scrapes_are_noticed_and_not_interpolated() -> None:
    phases = ["Running", "Running", *[None] * 8, "Running"]
    outcomes = run("kube-state-metrics", pod_series(phases))
    assert levels_of(outcomes) == [(at(0), "p1", 8)]
    (gap,) = [o for o in outcomes if isinstance(o, Notice)]
    assert (gap.reason, gap.starts_ms, gap.ends_ms) == ("missed_samples", (T0 + 60) * 1000, (T0 + 600) * 1000)


def test_honor_labels_false() -> None:
    records = pod_series(["Running"])
    for one in records:
        metric = one["metric"]
        for name in ("namespace", "pod", "uid", "container"):
            if name in metric:
                metric[f"exported_{name}"] = metric.pop(name)
        metric |= {
            "namespace": "monitoring",
            "pod": "kube-state-metrics-0",
            "container": "kube-state-metrics",
        }
    (start,) = events_of(run("kube-state-metrics", records))
    assert start["data"]["identity"]["value"] == "team-b"
    assert (start["data"]["workload"], start["data"]["name"]) == ("u0", "team-b/train-0")


@pytest.mark.parametrize("metric", ["kube_pod_status_reason", "kube_pod_status_disruption_reason"])
@pytest.mark.parametrize(
    "rows", [{"PreemptionByScheduler": 1}, {"Evicted": 0, "PreemptionByScheduler": 1, "Lost": 0}]
)
def test_status_reason_with_and_without_inactive_rows(metric: str, rows: dict[str, int]) -> None:
    labels = {"namespace": "team-b", "pod": "train-0", "uid": "u0"}
    reasons = [series(metric, [None, v], reason=r, **labels) for r, v in rows.items()]
    (one,) = events_of(
        run("kube-state-metrics", [*pod_series(["Running", "Running"]), *reasons]), "preemption"
    )
    assert (one["data"]["preemption"], one["data"]["cause"], one["time"]) == ("u0", "priority", at(1))


def test_resource_quota_names_are_not_sanitised() -> None:
    labels = {"namespace": "team-b", "resourcequota": "gpu", "resource": "requests.nvidia.com/gpu"}
    hard = series("kube_resourcequota", [16, 16, 16], type="hard", **labels)
    used = series("kube_resourcequota", [12, 12, 14], type="used", **labels)
    cpu = series("kube_resourcequota", [1, 1, 1], type="hard", **{**labels, "resource": "requests.cpu"})
    found = events_of(run("kube-state-metrics", [hard, used, cpu]), "quota")
    assert [(e["time"], e["data"]["limit"], e["data"]["used"]) for e in found] == [
        (at(0), 16, 12),
        (at(2), 16, 14),
    ]


def test_capacity_of_ready_nodes() -> None:
    nodes = [
        series(
            "kube_node_status_allocatable", [8, 8, 8, v], node=n, resource="nvidia_com_gpu", unit="integer"
        )
        for n, v in (("gpu-1", 8), ("gpu-2", None))
    ]
    ready = [
        series("kube_node_status_condition", [1, v, 1, 1], node=n, condition="Ready", status="true")
        for n, v in (("gpu-1", 1), ("gpu-2", 0))
    ]
    other = series("kube_node_status_allocatable", [4, 4, 4, 4], node="elsewhere", resource="nvidia_com_gpu")
    pools = {"gpu-1": "h200", "gpu-2": "h200"}
    found = events_of(run("kube-state-metrics", [*nodes, *ready, other], pools=pools), "capacity")
    assert [(e["time"], e["data"]["gpus"]) for e in found] == [
        (at(0), 16),
        (at(1), 8),
        (at(2), 16),
        (at(3), 8),
    ]
    assert events_of(run("kube-state-metrics", nodes, options={"capacity": False})) == []


def queue_facts(*records: Obj) -> list[tuple[str, str, Any, Any]]:
    found = events_of(run("kube-state-metrics", records), "quota")
    return [
        (e["data"]["identity"]["kind"], e["data"]["identity"]["value"], e["data"]["limit"], e["data"]["used"])
        for e in found
    ]


def test_volcano_scalar_gauges_are_in_thousandths() -> None:
    labels = {"queue_name": "vision", "resource": "nvidia.com/gpu"}
    used = series("volcano_queue_allocated_scalar_resources", [24000, 24000, 4000], **labels)
    share = series("volcano_queue_deserved_scalar_resources", [16000] * 3, **labels)
    cap = series("volcano_queue_capacity_scalar_resources", [None, None, 32000], **labels)
    pods = series("volcano_queue_allocated_scalar_resources", [7, 7, 7], queue_name="vision", resource="pods")
    assert queue_facts(used, share, cap, pods) == [
        ("volcano_queue", "vision", 16, 24),
        ("volcano_queue", "vision", 32, 4),
    ]


def test_kueue_gauges_of_the_leader_only() -> None:
    labels = {"cohort": "org", "cluster_queue": "cq-b", "flavor": "h200", "resource": "nvidia.com/gpu"}
    limit = series("kueue_cluster_queue_nominal_quota", [32], **labels)
    used = series("kueue_cluster_queue_resource_reservation", [40], replica_role="leader", **labels)
    stale = series("kueue_cluster_queue_resource_reservation", [99], replica_role="follower", **labels)
    assert queue_facts(limit, used, stale) == [("kueue_cluster_queue", "cq-b", 32, 40)]


def test_kai_and_koordinator_gauges() -> None:
    kai = [
        series(name, [value], queue_name="q-b")
        for name, value in (("kai_queue_deserved_gpus", 8.5), ("queue_allocated_gpus", 12))
    ]
    assert queue_facts(*kai) == [("kai_queue", "q-b", "8.5", 12)]
    labels = {"name": "vision", "resource": "nvidia.com/gpu", "tree": "t", "is_parent": "false"}
    koordinator = [
        series("scheduler_elastic_quota_spec", [32], field="max", **labels),
        series("scheduler_elastic_quota_spec", [8], field="min", **labels),
        series("scheduler_elastic_quota_status", [12], field="used", **labels),
        series("scheduler_elastic_quota_status", [99], field="used", **{**labels, "is_parent": "true"}),
        series("scheduler_elastic_quota_status", [14000], field="used", **{**labels, "resource": "cpu"}),
    ]
    assert queue_facts(*koordinator) == [("label:quota.scheduling.koordinator.sh/name", "vision", 32, 12)]


def test_batches_with_state_say_what_one_batch_says() -> None:
    phases = ["Pending", "Running", "Running", "Succeeded"]
    whole = run("kube-state-metrics", pod_series(phases))
    state: Obj = {}
    pieces: list[Outcome] = []
    for minute in range(4):
        cut = [
            {**s, "values": [p for p in s["values"] if p[0] == T0 + STEP * minute]}
            for s in pod_series(phases)
        ]
        pieces += run("kube-state-metrics", [s for s in cut if s["values"]], state=state)
        state = json.loads(json.dumps(state))
    assert pieces == whole


def test_a_bad_sample_is_refused_alone() -> None:
    records = pod_series(["Running", "Running"])
    records[0]["values"][0][1] = "NaN"
    outcomes = run("kube-state-metrics", records)
    assert [r.reason for r in refused_of(outcomes)] == ["bad_quantity"]
    assert levels_of(outcomes) == [(at(0), "p1", 8)]


def minute_by_minute(adapter: str, records: list[Obj], minutes: int, **fields: Any) -> list[Outcome]:
    """The samples as a collector brings them: one scrape after another, with the state as JSON in between."""
    state: Obj = {}
    pieces: list[Outcome] = []
    for minute in range(minutes):
        cut = [{**s, "values": [p for p in s["values"] if p[0] == T0 + STEP * minute]} for s in records]
        pieces += run(adapter, [s for s in cut if s["values"]], state=state, **fields)
        state = json.loads(json.dumps(state))
    return pieces


def test_what_has_no_pool_is_refused_when_it_changes_and_not_with_every_scrape() -> None:
    kueue = {"cluster_queue": "cq-b", "flavor": "h200", "resource": "nvidia.com/gpu"}
    quota = {"namespace": "team-b", "resourcequota": "gpu", "resource": "requests.nvidia.com/gpu"}
    records = [
        series("kueue_cluster_queue_nominal_quota", [32] * 8, **kueue),
        series("kueue_cluster_queue_resource_reservation", [40, 40, 40, 8, 8, 8, 40, 40], **kueue),
        series("kube_resourcequota", [16] * 8, type="hard", **quota),
        series("kube_resourcequota", [12] * 7 + [14], type="used", **quota),
        *pod_series(["Running"] * 2 + [None] * 6),
        *pod_series(["Pending"] + ["Running"] * 7, pod="train-1", uid="u1"),
    ]
    nowhere, mapped = {"pools": {"elsewhere": "p"}}, {"pools": {"h200": "h", "team-b": "b"}}
    refused = refused_of(minute_by_minute("kube-state-metrics", records, 8, **nowhere))
    assert {one.reason for one in refused} == {"unmapped_pool"}
    # The queue thrice, the quota twice, the pod that came and went twice, the other once.
    assert len(refused) == 3 + 2 + 2 + 1
    # Whether the pool was mapped before or after, and whichever of the lines are tried again first.
    wanted = events_of(minute_by_minute("kube-state-metrics", records, 8, **mapped))
    for order in (refused, refused[::-1]):
        again = run("kube-state-metrics", [one.record for one in order], {}, **mapped)
        assert refused_of(again) == []
        assert {e["id"]: e for e in events_of(again)} == {e["id"]: e for e in wanted}


def test_a_sample_that_stays_unreadable_says_one_thing() -> None:
    records = pod_series(["Running"] * 3)
    records[0]["values"] = [[at_s, "NaN"] for at_s, _ in records[0]["values"]]
    says = {one.says for one in refused_of(run("kube-state-metrics", records))}
    assert len(says) == 1 and says != {b""}


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"pod_of_samples"}',
        b'{"type":"queue_of_samples","x":',
        b'{"type":"quota_of_samples","name":"a b","at_ms":99999999999999999,"amounts":{}}',
    ],
)
def test_a_line_that_was_never_set_aside_is_refused(line: bytes) -> None:
    assert [one.reason for one in refused_of(run("kube-state-metrics", [line]))] in (
        ["bad_record"],
        ["bad_time"],
    )
    assert [one.reason for one in refused_of(run("dcgm", [line.replace(b"pod_of", b"host_of")]))] != []


# --- DCGM ---------------------------------------------------------------------------------------------------


def gpu(
    index: int, pods: list[str | None], metric: str = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", **labels: str
) -> list[Obj]:
    """One GPU of gpu-17; per sample the pod on it, or `None` for an idle one, which has no pod labels."""
    base = {
        "gpu": str(index),
        "UUID": f"GPU-{index}",
        "Hostname": "gpu-17",
        "modelName": "NVIDIA H200",
        **labels,
    }
    found = []
    for pod in sorted({p or "" for p in pods}):
        values = ["0.5" if (p or "") == pod else None for p in pods]
        on = {"pod": pod, "namespace": "team-b", "container": "main"} if pod else {}
        found.append(series(metric, values, **base, **on))
    return found


def test_gpus_held_by_a_pod_whatever_they_do() -> None:
    records = [*gpu(0, ["a", "a", None]), *gpu(1, ["a", "a", "b"]), *gpu(2, [None, None, None])]
    found = [(e["data"]["workload"], e["time"], e["data"]["gpus"]) for e in events_of(run("dcgm", records))]
    assert found == [
        ("team-b/a", at(0), 2),
        ("team-b/a", at(2), 0),
        ("team-b/b", at(2), 1),
    ]


def test_several_metrics_of_one_gpu_are_one_gpu() -> None:
    records = [
        *gpu(0, ["a"]),
        *gpu(0, ["a"], metric="DCGM_FI_DEV_GPU_UTIL"),
        *gpu(0, ["a"], metric="DCGM_FI_DEV_FB_USED"),
    ]
    assert levels_of(run("dcgm", records)) == [(at(0), "p1", 1)]


def test_copies_per_slurm_job_are_one_gpu_and_idle_gpus_count_as_capacity() -> None:
    copies = [*gpu(0, [None], hpc_job="11"), *gpu(0, [None], hpc_job="12"), *gpu(1, [None])]
    (one,) = events_of(run("dcgm", copies, options={"capacity": True}))
    assert (one["type"], one["data"]["gpus"]) == ("ledger.capacity.v1", 2)
    assert run("dcgm", copies) == []


@pytest.mark.parametrize(
    "renames",
    [
        {},
        {"Hostname": "hostname"},
        {"UUID": "uuid", "pod": "pod_name", "namespace": "pod_namespace", "container": "container_name"},
        {"pod": "exported_pod", "namespace": "exported_namespace", "container": "exported_container"},
    ],
)
def test_label_names_of_all_versions(renames: dict[str, str]) -> None:
    records = gpu(0, ["a"])
    for one in records:
        one["metric"] = {renames.get(name, name): value for name, value in one["metric"].items()}
        if "exported_pod" in one["metric"]:
            one["metric"] |= {"pod": "dcgm-exporter-x", "namespace": "gpu-operator", "container": "exporter"}
    (start,) = events_of(run("dcgm", records, pools={"gpu-17": "h200"}))
    assert (start["data"]["workload"], start["data"]["pool"]) == ("team-b/a", "h200")


def test_a_host_in_no_pool_is_refused_when_who_holds_its_gpus_changes() -> None:
    records = [*gpu(0, ["a", "a", "a", None, "b", "b"]), *gpu(1, ["c"] * 6)]
    refused = refused_of(minute_by_minute("dcgm", records, 6, pools={"elsewhere": "p"}))
    assert len(refused) == 3
    again = run("dcgm", [one.record for one in refused], {}, options={"capacity": True})
    assert levels_of(again) == [(at(0), "p1", 1), (at(0), "p1", 1), (at(3), "p1", 0), (at(4), "p1", 1)]
    assert events_of(again, "capacity") == [], "one host alone is not what the pool has"


def test_a_host_that_got_its_pool_tells_who_holds_it_now() -> None:
    state: Obj = {}
    records = [*gpu(0, ["a", "a", "a"]), *gpu(1, ["b", None, None])]
    first = [{**s, "values": [p for p in s["values"] if p[0] < T0 + STEP]} for s in records]
    (refused,) = refused_of(run("dcgm", [s for s in first if s["values"]], state, pools={"elsewhere": "p"}))
    found = events_of(run("dcgm", records, state))
    assert [(e["data"]["workload"], e["time"], e["data"]["gpus"]) for e in found] == [
        ("team-b/a", at(1), 1),
        ("team-b/b", at(1), 0),
    ]
    assert events_of(run("dcgm", [refused.record])) != []


def test_mig_instances_and_pod_uid() -> None:
    mig = [
        *gpu(0, ["a"], GPU_I_ID="1", GPU_I_PROFILE="3g.40gb", pod_uid="u9"),
        *gpu(0, ["a"], GPU_I_ID="2", GPU_I_PROFILE="3g.40gb", pod_uid="u9"),
    ]
    (start,) = events_of(run("dcgm", mig))
    assert (start["data"]["workload"], start["data"]["gpus"]) == ("u9", "0.856")


def test_missed_scrapes_of_a_host() -> None:
    records = gpu(0, ["a", None, None, None, None, None, "a"])
    for one in records:
        one["values"] = [p for p in one["values"] if p[0] in (T0, T0 + 6 * STEP)]
    outcomes = run("dcgm", records)
    assert levels_of(outcomes) == [(at(0), "p1", 1)]
    assert notices(outcomes) == ["missed_samples"]


def test_text_exposition_and_a_series_without_uuid() -> None:
    text = [
        "# scraped 2026-09-01T12:00:00Z",
        'DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-3",Hostname="gpu-17",namespace="team-b",pod="train-0"} 87',
        'DCGM_FI_DEV_GPU_UTIL{gpu="4",Hostname="gpu-17"} 1',
        'node_load1{instance="x"} 1',
    ]
    outcomes = run("dcgm", text)
    assert levels_of(outcomes) == [(at(0), "p1", 1)]
    assert [r.reason for r in refused_of(outcomes)] == ["bad_record"]
