"""Demand that waits in Kueue's queues: told where its pool is known, refused for a person where it is not."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from ingest.core.adapters import load
from tests.core.adapters.kueue_records import ADMITTED, VICTIM, condition, running, workload
from tests.core.adapters.running import events_of, refused_of, run, source_of

CREATED = "2026-09-01T08:59:00Z"
FLAVORS = {"h200": "bj-h200"}
"""A map of flavors alone, as the page of the source shows it: no queue in it."""


def waiting(**fields: Any) -> dict[str, Any]:
    pending = condition("QuotaReserved", "False", "Pending", CREATED, "couldn't assign flavors")
    return workload(VICTIM, [pending], admitted=False, **fields)


def demand(outcomes: list[Any]) -> list[tuple[str, str, int]]:
    found = events_of(outcomes, "pending")
    return [(e["time"], e["data"]["pool"], e["data"]["gpus"]) for e in found]


def test_demand_of_a_queue_without_pool_is_refused_once_and_told_when_the_map_is_mended() -> None:
    state: dict[str, Any] = {}
    adapter, unmapped = load("kueue"), source_of("kueue", pools=FLAVORS)
    assert run("kueue", [waiting()], state=state, pools=FLAVORS) == []
    assert list(adapter.flush(unmapped, state, 1_000)) == []  # it may be admitted any moment
    (refused,) = list(adapter.flush(unmapped, state, None))
    assert (refused.reason, json.loads(refused.record)["metadata"]["uid"]) == ("unmapped_pool", VICTIM)
    assert "'team-b/lq-b'" in refused.detail and "8 GPUs" in refused.detail
    state = json.loads(json.dumps(state))
    touched = waiting() | {"status": {**waiting()["status"], "requeueState": {"count": 1}}}
    again = run("kueue", [touched], state=state, pools=FLAVORS)
    assert [*again, *adapter.flush(unmapped, state, None)] == []
    mended = FLAVORS | {"team-b/lq-b": "bj-h200"}
    assert demand(run("kueue", [touched], state=state, pools=mended)) == [(CREATED, "bj-h200", 8)]
    # A retry reads the record alone.
    assert demand(run("kueue", [refused.record], pools=mended)) == [(CREATED, "bj-h200", 8)]


def test_demand_that_got_its_flavor_waited_for_that_pool() -> None:
    outcomes = run("kueue", [waiting(), running()], pools=FLAVORS)
    assert demand(outcomes) == [(CREATED, "bj-h200", 8), (ADMITTED, "bj-h200", 0)]
    assert refused_of(outcomes) == []


def test_demand_over_several_flavors_is_told_in_each_pool() -> None:
    both = running()
    other = copy.deepcopy(both["status"]["admission"]["podSetAssignments"][0])
    other |= {
        "name": "other",
        "flavors": {"nvidia.com/gpu": "h100"},
        "resourceUsage": {"nvidia.com/gpu": "4"},
    }
    both["status"]["admission"]["podSetAssignments"].append(other)
    outcomes = run("kueue", [waiting(), both], pools=FLAVORS | {"h100": "bj-h100"})
    assert sorted(demand(outcomes)) == [
        (CREATED, "bj-h100", 4),
        (CREATED, "bj-h200", 8),
        (ADMITTED, "bj-h100", 0),
        (ADMITTED, "bj-h200", 0),
    ]
    ids = [e["id"] for e in events_of(outcomes, "pending")]
    assert len(set(ids)) == 4


def test_demand_in_a_resource_without_size_is_refused() -> None:
    odd = waiting()
    (pod_set,) = odd["spec"]["podSets"]
    pod_set["template"]["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu.shared": "1"}}
    outcomes = run("kueue", [odd])
    assert demand(outcomes) == []
    assert [(r.reason, r.position) for r in refused_of(outcomes)] == [("unknown_resource", 1)]


@pytest.mark.parametrize("mapped", [True, False])
def test_demand_that_is_withdrawn_ends_when_it_was_seen_gone(mapped: bool) -> None:
    gone = {"type": "DELETED", "object": waiting(), "observed_at": "2026-09-01T09:45:00Z"}
    outcomes = run(
        "kueue", [waiting(), gone], pools={"cq": "bj-h200"} | ({"lq-b": "bj-h200"} if mapped else {})
    )
    if mapped:
        assert demand(outcomes) == [(CREATED, "bj-h200", 8), ("2026-09-01T09:45:00Z", "bj-h200", 0)]
        assert refused_of(outcomes) == []
    else:
        assert [r.reason for r in refused_of(outcomes)] == ["unmapped_pool"]
    blind = run("kueue", [waiting(), {"type": "DELETED", "object": waiting()}])
    assert [r.reason for r in refused_of(blind)] == ["no_instant"]


def test_demand_that_is_switched_off_waits_no_more() -> None:
    off = waiting()
    off["spec"]["active"] = False
    off["status"]["conditions"].append(
        condition("Evicted", "True", "Deactivated", "2026-09-01T09:10:00Z", "The workload is deactivated")
    )
    outcomes = run("kueue", [waiting(), off])
    assert demand(outcomes) == [(CREATED, "p1", 8), ("2026-09-01T09:10:00Z", "p1", 0)]


def test_demand_is_not_asked_for() -> None:
    assert run("kueue", [waiting()], pools=FLAVORS, options={"pending": False}) == []


def test_demand_is_counted_in_what_its_pool_meters() -> None:
    outcomes = run("kueue", [waiting()], pools={"lq-b": "batch-cpu"}, meters={"batch-cpu": "cpu"})
    assert demand(outcomes) == [(CREATED, "batch-cpu", 32)]
    unmapped = run("kueue", [waiting()], pools={"x": "batch-cpu"}, meters={"batch-cpu": "cpu"})
    assert "8 GPUs and 32 cpu" in refused_of(unmapped)[0].detail
    other = run("kueue", [waiting()], pool="gpus", pools={"x": "batch-cpu"}, meters={"gpus": "licences"})
    assert other == []
