"""Whatever the order of the records, a source says the same: the same keys with the same content."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.core.adapters import test_kai as kai
from tests.core.adapters import test_quotas as quotas
from tests.core.adapters import test_slurm as slurm
from tests.core.adapters import test_volcano as volcano
from tests.core.adapters.pod_records import (
    ENDED,
    EVICTED,
    PREEMPTOR,
    condition,
    evict_event,
    pod,
    preempted_event,
)
from tests.core.adapters.running import events_of, run

DISRUPTED = condition(
    "DisruptionTarget", "True", EVICTED, "PreemptionByScheduler", "default-scheduler: preempting"
)
GANG = condition(
    "DisruptionTarget",
    "True",
    EVICTED,
    "PreemptionByScheduler",
    "koord: x, preemptor: a/g, triggerPod: team-a/serve-0",
)
READY = condition("Ready", "False", EVICTED, "Evict", "Pod is evicted, because of reclaim")

CASES: dict[str, list[Any]] = {
    "kube-pods": [
        pod(bound=None, owner="rs"),
        pod(owner="rs"),
        pod(conditions=[DISRUPTED], owner="rs"),
        pod(conditions=[DISRUPTED], ended=ENDED, owner="rs"),
        pod("new", name="n", owner="rs", created="2026-09-01T12:01:00Z", bound="2026-09-01T13:00:00Z"),
    ],
    "kube-events": [
        pod(bound=None),
        pod(),
        pod(ended=ENDED),
        preempted_event("x"),
        pod(PREEMPTOR, namespace="team-a"),
    ],
    "volcano": [
        volcano.victim(bound=None, owner="job"),
        volcano.victim(conditions=[READY], owner="job"),
        volcano.victim(conditions=[READY], ended=ENDED, owner="job"),
        evict_event("reclaim"),
        volcano.taker(),
    ],
    "kai": [
        kai.GROUP,
        kai.kai_pod(bound=None, owner="job"),
        kai.kai_pod(owner="job"),
        kai.evict(kai.RECLAIM),
        kai.kai_pod(ended="2026-09-01T12:10:30Z", owner="job"),
    ],
    "koordinator": [
        quotas.koord_quota(12, 8, "2026-09-01T11:59:00Z"),
        quotas.koord_pod(bound=None),
        quotas.koord_pod(),
        quotas.revoked(),
        quotas.revoked(ended=ENDED),
    ],
    "koordinator, gang": [
        quotas.koord_pod(),
        quotas.koord_pod(conditions=[GANG], ended=ENDED),
        preempted_event("x"),
        pod(PREEMPTOR, namespace="team-a", labels={quotas.PREFIX + "name": "search"}),
    ],
    "slurmctld-log": [slurm.LOG, slurm.FIRST, slurm.SECOND, slurm.TAKER],
    "slurm-sacct": [slurm.FIRST, slurm.SECOND, slurm.TAKER],
}
HEADERS = {"slurmctld-log": [slurm.HEADER], "slurm-sacct": [slurm.HEADER]}


@pytest.mark.parametrize("case", CASES)
def test_order_changes_nothing(case: str) -> None:
    adapter = case.split(",")[0]
    records, header = CASES[case], HEADERS.get(adapter, [])
    wanted = {event["id"]: event for event in events_of(run(adapter, [*header, *records]))}
    assert wanted
    for seed in range(40):
        shuffled = random.Random(seed).sample(records, len(records))
        found = events_of(run(adapter, [*header, *shuffled]))
        assert {event["id"]: event for event in found} == wanted
        assert len(found) == len(wanted)


@pytest.mark.parametrize("case", CASES)
def test_repeats_change_nothing(case: str) -> None:
    adapter = case.split(",")[0]
    records, header = CASES[case], HEADERS.get(adapter, [])
    once = {event["id"]: event for event in events_of(run(adapter, [*header, *records]))}
    twice = events_of(run(adapter, [*header, *records, *records]))
    assert {event["id"]: event for event in twice} == once
