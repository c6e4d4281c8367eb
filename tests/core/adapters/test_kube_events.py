"""kube-scheduler and kubelet preemption Events of every era (cluster.md 3.1, 3.4)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from ingest.core.adapters import load
from tests.core.adapters.pod_records import BOUND, ENDED, EVICTED, PREEMPTOR, VICTIM, pod, preempted_event
from tests.core.adapters.running import events_of, refused_of, run, source_of

NOTES = {
    "1.19 to 1.26.0": "Preempted by team-a/serve-0 on node gpu-17",
    "January 2023": "Preempted by a pod on node gpu-17",
    "August 2023": f"Preempted by pod {PREEMPTOR} on node gpu-17",
}
SERVE = pod(PREEMPTOR, name="serve-0", namespace="team-a")


@pytest.mark.parametrize("era", NOTES)
def test_preemptor_from_related_in_every_era(era: str) -> None:
    (one,) = events_of(run("kube-events", [pod(), preempted_event(NOTES[era])]), "preemption")
    assert one["data"]["preemptor"] == {
        "workload": PREEMPTOR,
        "identity": {"kind": "k8s_namespace", "value": "team-a"},
    }
    assert one["data"]["preemptor_source"] == "structured"
    assert (one["time"], one["data"]["preemption"]) == ("2026-09-01T12:00:00Z", VICTIM)


def test_both_api_views_are_one_event() -> None:
    new = preempted_event(NOTES["August 2023"])
    old = {k: v for k, v in new.items() if k not in ("regarding", "note", "reportingController")}
    old |= {"apiVersion": "v1", "involvedObject": new["regarding"], "message": new["note"]}
    assert run("kube-events", [pod(), new]) == run("kube-events", [pod(), old])


def test_victim_only_in_the_schedulers_memory_is_a_deferral() -> None:
    note = f"{NOTES['August 2023']} (in kube-scheduler memory)."
    (one,) = events_of(run("kube-events", [pod(ended=ENDED), preempted_event(note)]), "preemption")
    assert one["data"]["queued_only"] is True


def test_series_and_counts_are_not_more_preemptions() -> None:
    first = preempted_event(NOTES["January 2023"])
    again = {**first, "series": {"count": 3, "lastObservedTime": "2026-09-01T12:03:00.000000Z"}}
    outcomes = run("kube-events", [pod(), first, again])
    assert [e["id"] for e in events_of(outcomes, "preemption")] == ["event/e3/1"]


def test_any_order_gives_the_same_events() -> None:
    records = [pod(), pod(ended=ENDED, owner="rs"), preempted_event(NOTES["August 2023"]), SERVE]
    wanted = {("event/e3/1", VICTIM), (f"{VICTIM}/released", VICTIM)}
    for order in itertools.permutations(records):
        found = events_of(run("kube-events", order), "preemption")
        assert {(e["id"], e["data"]["preemption"]) for e in found} == wanted
    assert found[-1]["data"]["released_at"] == ENDED


def test_identity_by_label_waits_for_the_preemptors_pod() -> None:
    options = {"identity": "label:team"}
    serve = pod(PREEMPTOR, namespace="team-a", labels={"team": "search"})
    state: dict[str, Any] = {}
    before = run("kube-events", [pod(), preempted_event("x")], state=state, options=options)
    assert events_of(before, "preemption") == []
    (one,) = events_of(
        run("kube-events", [serve], state=json.loads(json.dumps(state)), options=options), "preemption"
    )
    assert one["data"]["preemptor"]["identity"] == {"kind": "label:team", "value": "search"}
    (late,) = load("kube-events").flush(source_of("kube-events", options=options), state, None)
    assert late["data"]["preemptor"]["identity"] == {"kind": "k8s_namespace", "value": "team-a"}


def test_kubelet_preempting_names_nobody() -> None:
    note = "Preempted in order to admit critical pod"
    kubelet = {**preempted_event(note, related=None), "reason": "Preempting", "action": "", "type": "Warning"}
    (one,) = events_of(run("kube-events", [pod(), kubelet]), "preemption")
    assert (one["data"]["preemptor_source"], one["data"]["cause"]) == ("none", "priority")
    assert one["data"]["admitted_at"] == BOUND


def test_events_of_cpu_pods_and_of_unseen_pods() -> None:
    cpu = pod(resources={"cpu": "1"})
    assert run("kube-events", [cpu, preempted_event("x")]) == []
    assert run("kube-events", [preempted_event("x"), cpu]) == []
    (refused,) = refused_of(run("kube-events", [preempted_event("x")]))
    assert (refused.reason, refused.position) == ("unknown_workload", 1)


def test_event_without_any_time_is_refused_and_its_neighbour_goes_on() -> None:
    timeless = {k: v for k, v in preempted_event("x", uid="e4").items() if k != "eventTime"}
    outcomes = run("kube-events", [timeless, pod(), preempted_event("x")])
    assert [(r.reason, r.position) for r in refused_of(outcomes)] == [("bad_time", 1)]
    assert [e["id"] for e in events_of(outcomes)] == ["event/e3/1"]
    assert events_of(outcomes)[0]["time"] == EVICTED
