"""Volcano's evictions and the inferred preemptor (cluster.md section 2)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from ingest.core.adapters import load
from tests.core.adapters.pod_records import (
    ENDED,
    EVICTED,
    PREEMPTOR,
    VICTIM,
    condition,
    evict_event,
    volcano_pod,
)
from tests.core.adapters.running import events_of, refused_of, run, source_of

NOW = "2026-09-01T12:00:40Z"


def victim(**fields: Any) -> dict[str, Any]:
    return volcano_pod(VICTIM, "vision", group="train", name="train-0", **fields)


def taker(queue: str = "search", uid: str = PREEMPTOR, **fields: Any) -> dict[str, Any]:
    fields = {
        "bound": NOW,
        "created": "2026-09-01T11:59:00Z",
        "name": f"serve-{uid[-2:]}",
        "priority": 100,
        **fields,
    }
    return volcano_pod(uid, queue, **fields)


def guesses(*records: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    found = events_of(run("volcano", records, **config), "preemption")
    return [e for e in found if e["data"]["preemptor_source"] == "inferred"]


@pytest.mark.parametrize(
    ("action", "cause"),
    [
        ("preempt", "priority"),
        ("gangpreempt", "priority"),
        ("reclaim", "reclaim_own_reservation"),
        ("gangreclaim", "reclaim_own_reservation"),
        ("shuffle", "other"),
    ],
)
def test_every_action(action: str, cause: str) -> None:
    found = events_of(run("volcano", [victim(), evict_event(action)]), "preemption")
    assert [(e["data"]["cause"], e["data"]["preemptor_source"], e["time"]) for e in found] == [
        (cause, "none", EVICTED)
    ]


@pytest.mark.parametrize("place", ["annotations", "labels"])
def test_the_queue_under_both_names_of_its_annotation(place: str) -> None:
    shown = victim()
    queue = shown["metadata"]["annotations"].pop("scheduling.volcano.sh/queue-name")
    shown["metadata"].setdefault(place, {})["volcano.sh/queue-name"] = queue
    assert events_of(run("volcano", [shown])) == events_of(run("volcano", [victim()])) != []


def test_reclaim_is_inferred_from_another_queue_on_the_same_node() -> None:
    (one,) = guesses(victim(), evict_event("reclaim"), taker())
    assert one["id"] == f"{VICTIM}/inferred/bound-node-other-queue"
    assert one["data"]["confidence"] == "0.70"
    assert one["data"]["preemptor"] == {
        "workload": PREEMPTOR,
        "identity": {"kind": "volcano_queue", "value": "search"},
    }


def test_nominated_node_is_better_evidence() -> None:
    nominated = taker(bound=None, nominatedNodeName="gpu-17")
    (one,) = guesses(victim(), evict_event("reclaim"), nominated, taker(uid="bound-only", bound=NOW))
    assert (one["id"].rsplit("/")[-1], one["data"]["confidence"]) == ("nominated-node-other-queue", "0.90")
    assert one["data"]["preemptor"]["workload"] == PREEMPTOR


def test_preempt_needs_the_same_queue_and_a_higher_priority() -> None:
    assert guesses(victim(), evict_event("preempt"), taker("search")) == []
    assert guesses(victim(), evict_event("preempt"), taker("vision", priority=0)) == []
    assert len(guesses(victim(), evict_event("preempt"), taker("vision"))) == 1


def test_two_groups_that_fit_share_the_confidence() -> None:
    (one,) = guesses(
        victim(), evict_event("reclaim"), taker(), taker(uid="p-02", bound="2026-09-01T12:01:00Z")
    )
    assert (one["data"]["preemptor"]["workload"], one["data"]["confidence"]) == (PREEMPTOR, "0.35")


def test_no_beneficiary_is_a_legitimate_outcome() -> None:
    elsewhere = taker(node="gpu-18")
    late = taker(uid="late", bound="2026-09-01T12:30:00Z")
    own_gang = taker("vision", uid="own", group="train")
    for action in ("reclaim", "preempt", "shuffle"):
        records = [victim(), evict_event(action), elsewhere, late, own_gang]
        assert guesses(*records) == []
        assert len(events_of(run("volcano", records), "preemption")) == 1


def test_window_option() -> None:
    late = taker(bound="2026-09-01T12:30:00Z")
    assert len(guesses(victim(), evict_event("reclaim"), late, options={"window_seconds": 3600})) == 1


def test_pod_conditions_tell_an_eviction_whose_event_was_lost() -> None:
    """The recorder drops events after a burst of 25; Ready=False keeps the action, DisruptionTarget a fixed text."""
    message = "Pod is evicted, because of reclaim"
    conditions = [
        condition("Ready", "False", EVICTED, "Evict", message),
        condition(
            "DisruptionTarget", "True", EVICTED, "PreemptionByScheduler", "volcano: preempting to accommodate"
        ),
    ]
    (one,) = events_of(run("volcano", [victim(conditions=conditions)]), "preemption")
    assert one["data"]["cause"] == "reclaim_own_reservation"
    # The generic Pod source leaves such pods to this one: there the cause would read `priority`.
    assert events_of(run("kube-pods", [victim(conditions=conditions)]), "preemption") == []


def test_pod_group_events_collapse_and_are_not_counted() -> None:
    gang = evict_event("reclaim", uid="pg", count=12)
    gang["involvedObject"] = {"kind": "PodGroup", "namespace": "ml", "name": "train", "uid": "pg-1"}
    gang["message"] = "reclaim"
    assert run("volcano", [gang]) == []


def test_any_order_of_all_records() -> None:
    records = [victim(), victim(ended=ENDED, owner="job"), evict_event("reclaim"), taker()]
    wanted = {"event/v1/1", f"{VICTIM}/released", f"{VICTIM}/inferred/bound-node-other-queue"}
    for order in itertools.permutations(records):
        found = events_of(run("volcano", order), "preemption")
        assert {e["id"] for e in found} == wanted
        assert {e["data"]["preemption"] for e in found} == {VICTIM}


def test_inference_waits_for_the_window_and_survives_json() -> None:
    state: dict[str, Any] = {}
    run("volcano", [victim(), evict_event("reclaim")], state=state)
    adapter, source = load("volcano"), source_of("volcano")
    evicted_ms = 1788264000000
    assert list(adapter.flush(source, state, evicted_ms + 60_000)) == []
    state = json.loads(json.dumps(state))
    run("volcano", [taker()], state=state)
    (one,) = adapter.flush(source, state, evicted_ms + 301_000)
    assert one["data"]["preemptor"]["workload"] == PREEMPTOR
    assert list(adapter.flush(source, state, evicted_ms + 302_000)) == []


def test_same_name_again_is_the_resumption() -> None:
    again = volcano_pod(
        "new", "vision", group="train", name="train-0", bound="2026-09-01T13:00:00Z", created=NOW
    )
    (one,) = events_of(run("volcano", [victim(), evict_event("reclaim"), again]), "resume")
    assert (one["data"]["preemption"], one["data"]["workload"], one["time"]) == (
        VICTIM,
        "new",
        "2026-09-01T13:00:00Z",
    )


def test_queue_quota_is_in_whole_units() -> None:
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "vision", "managedFields": [{"time": "2026-09-01T09:00:00Z"}]},
        "spec": {"deserved": {"nvidia.com/gpu": "16"}, "capability": {"nvidia.com/gpu": "32", "cpu": "64"}},
        "status": {"state": "Open", "allocated": {"cpu": "192", "memory": "2Ti", "nvidia.com/gpu": "24"}},
    }
    (quota,) = events_of(run("volcano", [queue]), "quota")
    assert (quota["data"]["limit"], quota["data"]["used"]) == (32, 24)
    del queue["spec"]["capability"]["nvidia.com/gpu"]
    (quota,) = events_of(run("volcano", [queue]), "quota")
    assert quota["data"]["limit"] == 16
    assert run("volcano", [{**queue, "metadata": {**queue["metadata"], "name": "root"}}]) == []
    del queue["metadata"]["managedFields"]
    assert [r.reason for r in refused_of(run("volcano", [queue]))] == ["no_instant"]


def test_pod_group_waits_until_it_is_scheduled() -> None:
    def group(phase: str, *conditions: dict[str, Any]) -> dict[str, Any]:
        return {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {
                "namespace": "ml",
                "name": "train",
                "uid": "g1",
                "creationTimestamp": "2026-09-01T07:00:00Z",
            },
            "spec": {"queue": "vision", "minResources": {"nvidia.com/gpu": "16"}, "priorityClassName": "low"},
            "status": {"phase": phase, "conditions": list(conditions)},
        }

    not_ready = condition("Unschedulable", "True", "2026-09-01T07:00:05Z", "NotEnoughResources")
    ready = condition("Scheduled", "True", "2026-09-01T08:00:00Z", "tasks in gang are ready to be scheduled")
    outcomes = run(
        "volcano", [group("Pending", not_ready), group("Inqueue", not_ready), group("Running", ready)]
    )
    assert [(e["time"], e["data"]["gpus"]) for e in events_of(outcomes, "pending")] == [
        ("2026-09-01T07:00:00Z", 16),
        ("2026-09-01T08:00:00Z", 0),
    ]


def test_unreadable_message_is_refused_and_neighbours_go_on() -> None:
    odd = evict_event("reclaim", uid="odd")
    odd["message"] = "something else"
    outcomes = run("volcano", [odd, victim(), evict_event("reclaim")])
    assert [(r.reason, r.position) for r in refused_of(outcomes)] == [("bad_record", 1)]
    assert len(events_of(outcomes, "preemption")) == 1
