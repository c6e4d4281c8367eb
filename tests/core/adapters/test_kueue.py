"""The traps of cluster.md section 1, one test each."""

from __future__ import annotations

import copy
import itertools
import json
import random
from typing import Any

import pytest

from ingest.core.adapters import load
from ingest.core.adapters.base import Refused
from ingest.core.adapters.kueue_messages import read_preempted
from ingest.core.adapters.kueue_totals import WorkloadTotals, totals
from tests.core.adapters.kueue_records import (
    DECIDED,
    MESSAGE,
    MESSAGES,
    PREEMPTOR,
    PREEMPTOR_JOB,
    RELEASED,
    VICTIM,
    VICTIM_JOB,
    condition,
    evicting,
    new_event,
    old_event,
    preemptor,
    released,
    resumed,
    reverse_event,
    running,
    workload,
)
from tests.core.adapters.running import as_lines, events_of, levels_of, plain, refused_of, run, source_of

ID = f"{VICTIM}/{DECIDED}"


def test_occupancy_from_admission_to_release_to_resume() -> None:
    outcomes = run("kueue", [preemptor(), running(), evicting(), released(), resumed()])
    assert levels_of(outcomes) == [
        ("2026-09-01T09:00:00Z", "p1", 8),
        ("2026-09-01T10:31:07Z", "p1", 0),
        ("2026-09-01T11:40:00Z", "p1", 8),
    ]
    attempts = [(e["data"]["gpus"], e["data"]["attempt"]) for e in events_of(outcomes, "occupancy")]
    assert sorted(attempts) == [(0, 1), (8, 1), (8, 2)]


def test_grace_period_stays_with_the_victim() -> None:
    """Between decision and release the quota is the victim's: the level ends at t1, not at t0."""
    decided, last = events_of(run("kueue", [preemptor(), running(), evicting(), released()]), "preemption")
    assert decided["time"] == last["time"] == DECIDED
    assert last["data"]["released_at"] == RELEASED
    assert decided["data"]["admitted_at"] == "2026-09-01T09:00:00Z"


@pytest.mark.parametrize("version", MESSAGES)
def test_message_of_every_version(version: str) -> None:
    outcomes = run("kueue", [preemptor(), running(), evicting(MESSAGES[version])])
    (one,) = events_of(outcomes, "preemption")
    assert one["data"]["cause"] == "reclaim_own_reservation"
    if version == "0.5":  # names nobody
        assert one["data"]["preemptor_source"] == "none"
        assert "preemptor" not in one["data"]
    else:
        assert one["data"]["preemptor_source"] == "parsed"
        assert one["data"]["preemptor"] == {
            "workload": PREEMPTOR,
            "identity": {"kind": "k8s_namespace", "value": "team-a"},
        }


@pytest.mark.parametrize(
    ("reason", "text", "cause"),
    [
        ("InClusterQueue", "prioritization in the ClusterQueue", "priority"),
        ("InCohortReclamation", "reclamation within the cohort", "reclaim_own_reservation"),
        ("InCohortFairSharing", "Fair Sharing within the cohort", "fair_share"),
        ("InCohortReclaimWhileBorrowing", "reclamation within the cohort while borrowing", "priority"),
    ],
)
def test_the_four_reasons_in_condition_and_text(reason: str, text: str, cause: str) -> None:
    message = f"Preempted to accommodate a workload (UID: {PREEMPTOR}) due to {text}"
    by_condition = run("kueue", [preemptor(), running(), evicting(message, reason)])
    assert events_of(by_condition, "preemption")[0]["data"]["cause"] == cause
    no_condition = evicting(message)
    del no_condition["status"]["conditions"][-1]  # before 0.9 there is no Preempted condition
    by_text = run("kueue", [preemptor(), running(), no_condition])
    assert events_of(by_text, "preemption")[0]["data"]["cause"] == cause


def test_unknown_ids_in_the_message() -> None:
    """UID UNKNOWN falls back to the job's UID, then to the queue's path, then to nobody."""

    def preemptor_of(uid: str, job: str, path: str) -> Any:
        message = (
            f"Preempted to accommodate a workload (UID: {uid}, JobUID: {job}) due to UNKNOWN; "
            f"preemptor path: {path}; preemptee path: UNKNOWN"
        )
        outcomes = run("kueue", [preemptor(), running(), evicting(message)])
        return events_of(outcomes, "preemption")[0]["data"].get("preemptor")

    assert preemptor_of("UNKNOWN", PREEMPTOR_JOB, "UNKNOWN")["workload"] == PREEMPTOR
    by_path = preemptor_of("UNKNOWN", "UNKNOWN", "/org/research/vision-cq")
    assert by_path == {"identity": {"kind": "kueue_cluster_queue", "value": "vision-cq"}}
    assert preemptor_of("UNKNOWN", "UNKNOWN", "UNKNOWN") is None


@pytest.mark.parametrize(
    ("kept", "cause", "preemptor", "victim"),
    [
        ("; preemptor path: /org/cq-a; preemptee path: /org/c", "reclaim_own_reservation", "cq-a", None),
        ("; preemptor path: /org/c", "reclaim_own_reservation", None, None),
        (" due to recla", None, None, None),
    ],
)
def test_a_message_cut_at_its_limit_names_no_half_a_queue(
    kept: str, cause: str | None, preemptor: str | None, victim: str | None
) -> None:
    note = read_preempted(MESSAGE.partition(kept)[0] + kept + " ...")
    assert note is not None
    assert (note.preemptor_uid, note.cause) == (PREEMPTOR, cause)
    assert (note.preemptor_queue, note.victim_queue) == (preemptor, victim)


def test_an_event_merged_with_similar_ones_is_read() -> None:
    merged = old_event("Preempted", f"(combined from similar events): {MESSAGE}", count=12)
    outcomes = run("kueue", [preemptor(), running(), evicting(), merged])
    assert refused_of(outcomes) == []
    assert {e["data"]["preemption"] for e in events_of(outcomes, "preemption")} == {ID}


def test_preemptor_without_cohort_has_a_one_step_path() -> None:
    message = MESSAGE.replace("/org/cq-a", "/cq-a")
    outcomes = run("kueue", [running(), evicting(message)], options={"identity": "kueue_cluster_queue"})
    got = events_of(outcomes, "preemption")[0]["data"]["preemptor"]
    assert got == {"workload": PREEMPTOR, "identity": {"kind": "kueue_cluster_queue", "value": "cq-a"}}


def test_preemptor_known_by_uid_only_is_unattributed_not_lost() -> None:
    outcomes = run("kueue", [running(), evicting(MESSAGES["0.10"])])
    got = events_of(outcomes, "preemption")[0]["data"]
    assert got["preemptor"]["workload"] == PREEMPTOR
    assert got["preemptor"]["identity"] == {"kind": "label:kueue-workload-uid", "value": PREEMPTOR}


def test_previously_message_is_not_a_second_preemption() -> None:
    outcomes = run("kueue", [resumed()])
    assert events_of(outcomes, "preemption") == []
    assert levels_of(outcomes) == [("2026-09-01T11:40:00Z", "p1", 8)]


def test_stale_requeued_transition_is_never_used() -> None:
    outcomes = run("kueue", [preemptor(), running(), evicting(), released(), resumed()])
    assert not any("2026-08-30" in json.dumps(plain(o)) for o in outcomes)
    (again,) = events_of(outcomes, "resume")
    assert (again["time"], again["data"]["attempt"]) == ("2026-09-01T11:40:00Z", 2)
    assert again["data"]["preemption"] == ID


def test_all_records_of_one_preemption_share_its_id_in_any_order() -> None:
    records = [
        preemptor(),
        running(),
        evicting(),
        released(),
        new_event("EvictedDueToPreempted", MESSAGE, uid="e0"),
        new_event("Preempted", MESSAGES["0.17"], uid="e1"),
        reverse_event(),
        new_event(
            "Stopped", MESSAGE, uid="e4", regarding={"kind": "Job", "uid": VICTIM_JOB, "namespace": "team-b"}
        ),
    ]
    expected: set[str] | None = None
    orders = [records, records[::-1]]
    orders += [random.Random(seed).sample(records, len(records)) for seed in range(60)]
    for order in orders:
        found = events_of(run("kueue", order), "preemption")
        assert {e["data"]["preemption"] for e in found} == {ID}
        assert {e["data"]["cause"] for e in found} == {"reclaim_own_reservation"}
        assert {json.dumps(e["data"]["preemptor"]) for e in found} == {
            json.dumps({"workload": PREEMPTOR, "identity": {"kind": "k8s_namespace", "value": "team-a"}})
        }
        # The job's own copy can be tied to the workload only once that was seen; it is one more reference at most.
        ids = {e["id"] for e in found} - {"event/e4/1"}
        expected = expected or ids
        assert ids == expected


def test_all_orders_of_the_objects_give_the_same_levels() -> None:
    looks = [running(), evicting(), released(), resumed()]
    wanted = {
        ("2026-09-01T09:00:00Z", 8),
        ("2026-09-01T10:31:07Z", 0),
        ("2026-09-01T11:40:00Z", 8),
    }
    for order in itertools.permutations(looks):
        found = events_of(run("kueue", order), "occupancy")
        assert {(e["time"], e["data"]["gpus"]) for e in found} == wanted
        assert {e["data"]["attempt"] for e in found if e["time"].startswith("2026-09-01T11")} == {2}


def test_state_survives_json_between_any_two_records() -> None:
    records = [preemptor(), running(), reverse_event(), evicting(), released(), resumed()]
    state: dict[str, Any] = {}
    pieces: list[Any] = []
    for record in records:
        pieces += run("kueue", [record], state=state)
        state = json.loads(json.dumps(state))
    pieces += load("kueue").flush(source_of("kueue"), state, None)
    whole = run("kueue", records)

    def told(outcomes: list[Any]) -> list[str]:
        """Without lines, which count from each input's start."""
        return sorted(str({**plain(one), "line": None}) for one in outcomes)

    assert told(pieces) == told(whole)


def test_events_wait_for_the_condition_and_flush_lets_them_go() -> None:
    state: dict[str, Any] = {}
    assert events_of(run("kueue", [preemptor(), running(), reverse_event()], state=state), "preemption") == []
    adapter, source = load("kueue"), source_of("kueue")
    early = list(adapter.flush(source, copy.deepcopy(state), 1_000))
    assert events_of(early, "preemption") == []
    (late,) = events_of(adapter.flush(source, state, None), "preemption")
    assert late["data"]["preemption"] == f"{VICTIM}/2026-09-01T10:30:37Z"
    # The condition turning up after all joins the id that was given.
    after = events_of(run("kueue", [evicting()], state=state), "preemption")
    assert {e["data"]["preemption"] for e in after} == {late["data"]["preemption"]}


def test_historic_duplicate_events_are_one_preemption() -> None:
    twice = old_event("Preempted", MESSAGE, count=2, lastTimestamp="2026-09-01T10:30:38Z")
    outcomes = run("kueue", [preemptor(), running(), evicting(), old_event("Preempted", MESSAGE), twice])
    assert {e["data"]["preemption"] for e in events_of(outcomes, "preemption")} == {ID}


def test_second_preemption_by_the_same_preemptor_is_another_one() -> None:
    later = "2026-09-01T13:00:00Z"
    again = resumed()
    again["status"]["conditions"][2:4] = [
        condition("Evicted", "True", "Preempted", later, MESSAGE),
        condition("Preempted", "True", "InCohortReclamation", later, MESSAGE),
    ]
    again["status"]["schedulingStats"]["evictions"][0]["count"] = 2
    merged = old_event("Preempted", MESSAGE, count=2, lastTimestamp="2026-09-01T13:00:01Z")
    outcomes = run("kueue", [preemptor(), running(), evicting(), released(), resumed(), again, merged])
    found = events_of(outcomes, "preemption")
    assert {e["data"]["preemption"] for e in found} == {ID, f"{VICTIM}/{later}"}
    # The merged Event stands for both: its first and its last occurrence.
    by_event = {e["id"]: e["data"]["preemption"] for e in found if e["id"].startswith("event/")}
    assert by_event == {"event/e2/1": ID, "event/e2/2": f"{VICTIM}/{later}"}
    assert {e["data"]["victim"]["attempt"] for e in found if later in e["data"]["preemption"]} == {2}


def test_priority_class_of_both_versions() -> None:
    (start,) = events_of(run("kueue", [running(version="v1beta1")]), "occupancy")
    assert start["data"]["priority_class"] == "low"
    assert events_of(run("kueue", [running()]), "occupancy") == [start]


def test_totals_with_the_misspelled_key_of_v1beta1() -> None:
    old = running(version="v1beta1", accumulatedPastExexcutionTimeSeconds=5412)
    new = running(accumulatedPastExecutionTimeSeconds=5412, evictions=2)
    other = {"kind": "LocalQueue", "metadata": {"name": "lq"}}
    bad = running(accumulatedPastExecutionTimeSeconds="long")
    one, two, three = totals(as_lines([old, other, new, bad]))
    assert isinstance(one, WorkloadTotals) and isinstance(two, WorkloadTotals) and isinstance(three, Refused)
    assert (one.past_execution_s, one.preemptions) == (5412, None)
    assert (two.past_execution_s, two.preemptions, two.uid) == (5412, 2, VICTIM)
    assert three.reason == "bad_quantity"


def test_dump_at_t1_without_history_still_tells_the_preemption() -> None:
    outcomes = run("kueue", [released()])
    found = events_of(outcomes, "preemption")
    assert {(e["data"]["preemption"], e["data"]["gpus"]) for e in found} == {(ID, 8)}
    assert [e["data"].get("released_at") for e in found] == [None, RELEASED]
    assert not any("admitted_at" in e["data"] for e in found)
    assert {(t, g) for t, _, g in levels_of(outcomes)} == {(RELEASED, 0)}


def test_dump_at_t1_finds_its_pool_by_queue_or_is_refused() -> None:
    by_path = run("kueue", [released()], pools={"cq-b": "bj-h200"})
    assert {e["data"]["pool"] for e in events_of(by_path, "preemption")} == {"bj-h200"}
    nowhere = run("kueue", [released(MESSAGES["0.11"]), preemptor()], pools={"h200": "bj-h200"})
    assert events_of(nowhere, "preemption") == []
    refused, waits = refused_of(nowhere)  # and the preemptor's demand, whose queue has no pool either
    assert (refused.reason, refused.position) == ("unmapped_pool", 1)
    assert json.loads(refused.record)["metadata"]["uid"] == VICTIM
    assert (waits.reason, waits.position) == ("unmapped_pool", 2)


def test_reclaimed_pods_shrink_the_level_when_they_were_written() -> None:
    written = [{"manager": "kueue", "subresource": "status", "time": "2026-09-01T09:30:00Z"}]
    shrunk = running(reclaimablePods=[{"name": "main", "count": 1}])
    shrunk["metadata"]["managedFields"] = written
    assert levels_of(run("kueue", [running(), shrunk])) == [
        ("2026-09-01T09:00:00Z", "p1", 8),
        ("2026-09-01T09:30:00Z", "p1", 6),
    ]
    del shrunk["metadata"]["managedFields"]
    outcomes = run("kueue", [shrunk])
    assert [r.reason for r in refused_of(outcomes)] == ["no_instant"]
    assert levels_of(outcomes) == [("2026-09-01T09:00:00Z", "p1", 8)]


def test_finished_workload_holds_nothing_more() -> None:
    done = running()
    done["status"]["conditions"].append(condition("Finished", "True", "Succeeded", "2026-09-01T12:00:00Z"))
    assert levels_of(run("kueue", [done])) == [
        ("2026-09-01T09:00:00Z", "p1", 8),
        ("2026-09-01T12:00:00Z", "p1", 0),
    ]


def test_deleted_while_holding_ends_when_it_was_seen_gone() -> None:
    gone = {"type": "DELETED", "object": running(), "observed_at": "2026-09-01T09:45:00Z"}
    assert levels_of(run("kueue", [{"type": "ADDED", "object": running()}, gone]))[-1] == (
        "2026-09-01T09:45:00Z",
        "p1",
        0,
    )
    blind = run("kueue", [{"type": "DELETED", "object": running()}])
    assert [r.reason for r in refused_of(blind)] == ["no_instant"]


def test_pools_by_flavor_and_cpu_flavors_need_none() -> None:
    (start,) = events_of(run("kueue", [running()], pools={"h200": "bj-h200"}), "occupancy")
    assert start["data"]["pool"] == "bj-h200"
    outcomes = run("kueue", [running(flavor="b300"), preemptor()], pools={"h200": "bj-h200"})
    refused, waits = refused_of(outcomes)
    assert (refused.reason, refused.position) == ("unmapped_pool", 1)
    assert waits.position == 2 and "has not been admitted" in waits.detail


def test_pending_until_admitted_and_not_after_a_preemption() -> None:
    waiting = workload(
        VICTIM,
        [condition("QuotaReserved", "False", "Pending", "2026-09-01T08:59:30Z", "couldn't assign flavors")],
        admitted=False,
    )
    found = events_of(run("kueue", [waiting, running(), preemptor(), evicting(), released()]), "pending")
    mine = [(e["time"], e["data"]["gpus"]) for e in found if e["data"]["workload"] == VICTIM]
    assert mine == [("2026-09-01T08:59:00Z", 8), ("2026-09-01T09:00:00Z", 0)]


@pytest.mark.parametrize(
    ("reason", "cause"),
    [("NodeFailures", "capacity_lost"), ("ClusterQueueStopped", "maintenance"), ("PodsReadyTimeout", None)],
)
def test_other_evictions(reason: str, cause: str | None) -> None:
    evicted = evicting()
    evicted["status"]["conditions"][2:] = [condition("Evicted", "True", reason, DECIDED, "text")]
    found = events_of(run("kueue", [running(), evicted]), "preemption")
    assert [(e["data"]["cause"], e["data"]["preemptor_source"]) for e in found] == (
        [(cause, "none")] if cause else []
    )


def test_event_about_a_workload_nobody_saw_is_refused_and_neighbours_go_on() -> None:
    outcomes = run(
        "kueue", [new_event("Preempted", MESSAGE), b"{broken", preemptor(), '{"kind":"Pod","metadata":{}}']
    )
    assert sorted((r.reason, r.position) for r in refused_of(outcomes)) == [
        ("not_json", 2),
        ("unknown_kind", 4),
        ("unknown_workload", 1),
    ]
    assert events_of(outcomes, "pending")


def test_quota_of_a_cluster_queue_both_versions() -> None:
    flavor = {
        "name": "h200",
        "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "32", "borrowingLimit": "16"}],
    }
    reserved = {"name": "h200", "resources": [{"name": "nvidia.com/gpu", "total": "40", "borrowed": "8"}]}
    for version, cohort in (("v1beta1", "cohort"), ("v1beta2", "cohortName")):
        queue = {
            "apiVersion": f"kueue.x-k8s.io/{version}",
            "kind": "ClusterQueue",
            "metadata": {"name": "cq-b", "managedFields": [{"time": "2026-09-01T00:00:00Z"}]},
            "spec": {
                cohort: "org",
                "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}],
            },
            "status": {"flavorsReservation": [reserved]},
        }
        (quota,) = events_of(run("kueue", [queue]), "quota")
        assert (quota["data"]["limit"], quota["data"]["used"]) == (32, 40)
        assert quota["data"]["identity"] == {"kind": "kueue_cluster_queue", "value": "cq-b"}


def test_hami_modifiers_are_counted_per_pod() -> None:
    """Kueue sums `gpucores` over pods as it sums `gpu`: 4 pods of one 30 % vGPU are 1.2 GPUs, not 4 x 120 %."""
    shared = running()
    (assigned,) = shared["status"]["admission"]["podSetAssignments"]
    assigned["resourceUsage"] = {"nvidia.com/gpu": "4", "nvidia.com/gpucores": "120"}
    assigned["flavors"] = {"nvidia.com/gpu": "h200", "nvidia.com/gpucores": "h200"}
    assert levels_of(run("kueue", [shared])) == [("2026-09-01T09:00:00Z", "p1", "1.2")]
