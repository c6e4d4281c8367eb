"""What a Kueue Workload itself adds up over its life, to reconcile the ledger with (cluster.md 1.1 and 7.7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ingest.core.adapters.base import READING_ERRORS, Refused, refusal_of, whole
from ingest.core.adapters.kubernetes import mapping, meta, name_of, objects, read_objects, required

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
            status = mapping(watched.obj, "status")
            past = next((status[key] for key in _PAST_EXECUTION if key in status), None)
            stats = status.get("schedulingStats")
            counts = [
                whole(entry.get("count", 0))
                for entry in objects(mapping(status, "schedulingStats"), "evictions")
                if entry.get("reason") == "Preempted"
            ]
            yield WorkloadTotals(
                uid=required(meta(watched.obj), "uid", "the Workload"),
                name=name_of(watched.obj),
                preemptions=None if stats is None else sum(counts),
                past_execution_s=None if past is None else whole(past),
            )
        except READING_ERRORS as error:
            yield watched.refused(refusal_of(error))
