"""The preemptions of a real month, from its events to GPU time, with the core alone: no database, no clock."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from billing.core.preemption import FROM_OCCUPANCY, Measures, measure, waiting_gpu_us
from billing.core.preemption_merge import Preemption, Report, Resume, merge
from billing.core.preemption_workload import Holding
from ledger.core.periods import Month, to_ms
from ledger.core.units import parse_milli_gpus

MAY = Month(2020, 5).span("UTC")


def instant_ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text))


@pytest.fixture(scope="module")
def real_month(shared_data: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(the events of May 2020 delivered once or more, the books computed independently)."""
    directory = shared_data / "real_month"
    lines = gzip.decompress((directory / "events.ndjson.gz").read_bytes()).splitlines()
    return [json.loads(line) for line in lines], json.loads((directory / "expected.json").read_text())


def report_of(event: dict[str, Any]) -> Report:
    data, victim = event["data"], event["data"]["victim"]
    return Report(
        ref=(event["source"], event["id"]),
        key=(data["pool"], data["preemption"]),
        decided_at_ms=instant_ms(event["time"]),
        pool=data["pool"],
        milli_gpus=parse_milli_gpus(data["gpus"]),
        cause=data["cause"],
        victim=victim["tenant"],
        victim_workload=victim["workload"],
        victim_attempt=victim.get("attempt"),
        preemptor_source=data["preemptor_source"],
        admitted_at_ms=instant_ms(data["admitted_at"]) if "admitted_at" in data else None,
        released_at_ms=instant_ms(data["released_at"]) if "released_at" in data else None,
        disposition=data.get("disposition"),
    )


def resume_of(event: dict[str, Any]) -> Resume:
    data = event["data"]
    return Resume(
        ref=(event["source"], event["id"]),
        key=(data["pool"], data["preemption"]),
        resumed_at_ms=instant_ms(event["time"]),
        pool=data["pool"],
        workload=data.get("workload"),
        attempt=data.get("attempt"),
    )


def holdings_of(events: list[dict[str, Any]]) -> dict[str, list[Holding]]:
    steps: dict[tuple[str, str, int], dict[int, int]] = defaultdict(dict)
    for event in events:
        data = event["data"]
        if event["type"] == "ledger.occupancy.v1":
            subject = (data["workload"], data["pool"], data.get("attempt", 1))
            steps[subject][instant_ms(event["time"])] = parse_milli_gpus(data["gpus"])
    found: dict[str, list[Holding]] = defaultdict(list)
    for (workload, pool, attempt), levels in steps.items():
        found[workload].append(Holding(pool, attempt, tuple(sorted(levels.items()))))
    return found


def measured(events: list[dict[str, Any]]) -> list[tuple[Preemption, Measures]]:
    of_type = {event_id(event): event for event in events}.values()
    reports = [report_of(event) for event in of_type if event["type"] == "ledger.preemption.v1"]
    resumes = [resume_of(event) for event in of_type if event["type"] == "ledger.resume.v1"]
    preemptions, conflicts = merge(reports, resumes)
    assert conflicts == []
    holdings = holdings_of(list(of_type))
    return [(one, measure(one, holdings[one.victim_workload or ""])) for one in preemptions]


def event_id(event: dict[str, Any]) -> tuple[str, str]:
    return (event["source"], event["id"])


def test_lost_and_waiting_per_tenant_are_exact(
    real_month: tuple[list[dict[str, Any]], dict[str, Any]],
) -> None:
    events, expected = real_month
    books: dict[str, dict[str, int]] = {}
    for preemption, measures in measured(events):
        row = books.setdefault(
            preemption.victim, {"preemptions": 0, "lost_gpu_us": 0, "waiting_gpu_us": 0, "stopped": 0}
        )
        assert measures.lost.evidence == FROM_OCCUPANCY
        assert measures.lost.gpu_us is not None
        row["preemptions"] += 1
        row["lost_gpu_us"] += measures.lost.gpu_us
        row["waiting_gpu_us"] += waiting_gpu_us([measures.wait], MAY)
        row["stopped"] += preemption.disposition == "stopped"
    assert books == expected["preemptions"]


def test_the_order_of_delivery_does_not_matter(
    real_month: tuple[list[dict[str, Any]], dict[str, Any]],
) -> None:
    events, _ = real_month
    assert measured(events) == measured(events[::-1])
