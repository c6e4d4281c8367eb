"""What a Kueue Workload itself adds up over its life, to reconcile the ledger with (cluster.md 1.1 and 7.7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ingest.core.adapters.base import (
    READING_ERRORS,
    Notice,
    Refused,
    Total,
    instant_ms,
    refusal_of,
    whole,
)
from ingest.core.adapters.kubernetes import (
    Obj,
    Watched,
    mapping,
    meta,
    name_of,
    objects,
    read_objects,
    required,
)
from ingest.core.adapters.kueue_books import Entry

_PAST_EXECUTION = ("accumulatedPastExecutionTimeSeconds", "accumulatedPastExexcutionTimeSeconds")
"""v1beta2, and v1beta1 with its misspelling."""


@dataclass(frozen=True, slots=True)
class WorkloadTotals:
    uid: str
    name: str
    preemptions: int | None
    """Evictions with reason Preempted; the four kinds cannot be told apart here. `None` before 0.12."""
    past_execution_s: int | None
    """Sum of its finished admitted spans; cleared by Kueue when the maximum execution time is exceeded."""


def totals(lines: Iterable[bytes]) -> Iterator[WorkloadTotals | Refused]:
    """One per Workload of the input; other objects are passed over."""
    for watched in read_objects(lines):
        if isinstance(watched, Refused):
            yield watched
            continue
        if watched.kind != "Workload":
            continue
        try:
            yield totals_of(watched.obj)
        except READING_ERRORS as error:
            yield watched.refused(refusal_of(error))


def totals_of(workload: Obj) -> WorkloadTotals:
    """Of one Workload object. Raises `Refusal` where its counts cannot be read."""
    status = mapping(workload, "status")
    past = next((status[key] for key in _PAST_EXECUTION if key in status), None)
    stats = status.get("schedulingStats")
    counts = [
        whole(entry.get("count", 0))
        for entry in objects(mapping(status, "schedulingStats"), "evictions")
        if entry.get("reason") == "Preempted"
    ]
    return WorkloadTotals(
        uid=required(meta(workload), "uid", "the Workload"),
        name=name_of(workload),
        preemptions=None if stats is None else sum(counts),
        past_execution_s=None if past is None else whole(past),
    )


def count_notice(watched: Watched, entry: Entry) -> Iterator[Notice]:
    """The Workload's own count of preemptions as a total, each time it has grown; it holds from its newest condition
    on. A count that a late or repeated record brings again says nothing new."""
    found = totals_of(watched.obj)
    if found.preemptions is None or found.preemptions <= entry.get("counted", 0):
        return
    instants = [
        instant_ms(condition["lastTransitionTime"])
        for condition in objects(mapping(watched.obj, "status"), "conditions")
        if condition.get("lastTransitionTime")
    ]
    if not instants:
        return
    entry["counted"] = found.preemptions
    yield Notice(
        watched.position,
        "source_total",
        f"Kueue counts {found.preemptions} preemptions of {found.name}",
        found.uid,
        ends_ms=max(instants) + 1000,  # conditions are in whole seconds
        total=Total("preemptions", "count", found.preemptions),
    )
