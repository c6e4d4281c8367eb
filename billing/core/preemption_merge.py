"""Several events describe one preemption: they merge into one record (domain.md section 6).

The order in which reports and resumes arrive never matters, and a resume may come before its preemption.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# Best first: a name from a structured field is worth more than one parsed out of a message.
PREEMPTOR_SOURCES = ("structured", "parsed", "inferred", "none")

Key = tuple[str, str]
"""(cluster, preemption id): ids are scoped by the pool's cluster."""

Ref = tuple[str, str]
"""(source, id) of an event; smaller in byte order holds where values differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one event says. Holders are slugs, resolved at the decision; instants ms; None = not stated."""

    ref: Ref
    key: Key
    decided_at_ms: int
    pool: str
    milli_gpus: int
    cause: str
    victim: str
    victim_workload: str | None = None
    victim_request: str | None = None
    victim_attempt: int | None = None
    preemptor: str | None = None
    preemptor_workload: str | None = None
    preemptor_source: str = "none"
    confidence_ppm: int | None = None
    admitted_at_ms: int | None = None
    released_at_ms: int | None = None
    disposition: str | None = None
    degrade_trigger: str | None = None
    lost_gpu_us: int | None = None
    requests_in_flight: int | None = None
    requests_voided: int | None = None
    output_tokens_lost: int | None = None
    context_tokens: int | None = None
    cached_prefix_tokens: int | None = None
    queued_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Running again, as one event says it."""

    ref: Ref
    key: Key
    resumed_at_ms: int
    pool: str
    workload: str | None = None
    attempt: int | None = None
    recompute_gpu_us: int | None = None
    recompute_prefill_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """One victim workload (or request) losing `milli_gpus` at one decision, from all that was reported of it."""

    key: Key
    refs: tuple[Ref, ...]
    decided_at_ms: int
    pool: str
    milli_gpus: int
    cause: str
    victim: str
    victim_workload: str | None = None
    victim_request: str | None = None
    victim_attempt: int | None = None
    preemptor: str | None = None
    preemptor_workload: str | None = None
    preemptor_source: str = "none"
    confidence_ppm: int | None = None
    admitted_at_ms: int | None = None
    released_at_ms: int | None = None
    disposition: str = "requeued"
    degrade_trigger: str | None = None
    lost_gpu_us: int | None = None
    requests_in_flight: int | None = None
    requests_voided: int | None = None
    output_tokens_lost: int | None = None
    context_tokens: int | None = None
    cached_prefix_tokens: int | None = None
    queued_only: bool = False
    resumed_at_ms: int | None = None
    resumed_pool: str | None = None
    recompute_gpu_us: int | None = None
    recompute_prefill_tokens: int | None = None

    @property
    def order(self) -> tuple[int, str, str]:
        """Preemptions are taken in order of decision, then id."""
        return (self.decided_at_ms, self.key[1], self.key[0])

    @property
    def waits(self) -> bool:
        """Whether its work waits to run again: stopped and drained work never does, queued work never ran."""
        return not self.queued_only and self.disposition not in ("stopped", "drained")


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """Reports of one preemption that differ in a field. Blocks the close; the smallest (source, id) held."""

    key: Key
    field: str
    values: tuple[tuple[Ref, Any], ...]


_OF_REPORTS = (
    "pool",
    "milli_gpus",
    "cause",
    "victim",
    "victim_workload",
    "victim_request",
    "victim_attempt",
    "admitted_at_ms",
    "released_at_ms",
    "disposition",
    "degrade_trigger",
    "lost_gpu_us",
    "requests_in_flight",
    "requests_voided",
    "output_tokens_lost",
    "context_tokens",
    "cached_prefix_tokens",
    "queued_only",
)
_OF_PREEMPTOR = ("preemptor", "preemptor_workload", "confidence_ppm")
_OF_RESUMES = ("recompute_gpu_us", "recompute_prefill_tokens")


def merge(
    reports: Iterable[Report], resumes: Iterable[Resume]
) -> tuple[list[Preemption], list[MergeConflict]]:
    """All preemptions in order of (decided_at, id), with the conflicts found. Resumes of unknown ones are left."""
    reports_of: dict[Key, list[Report]] = defaultdict(list)
    for report in sorted(reports, key=_ref):
        reports_of[report.key].append(report)
    resumes_of: dict[Key, list[Resume]] = defaultdict(list)
    for resume in sorted(resumes, key=_ref):
        resumes_of[resume.key].append(resume)
    conflicts: list[MergeConflict] = []
    merged = [_merge_one(key, reports_of[key], resumes_of[key], conflicts) for key in sorted(reports_of)]
    return sorted(merged, key=lambda preemption: preemption.order), conflicts


def _merge_one(
    key: Key, reports: Sequence[Report], resumes: Sequence[Resume], conflicts: list[MergeConflict]
) -> Preemption:
    """`reports` and `resumes` are in order of (source, id)."""
    stated: dict[str, Any] = {name: _stated(key, name, reports, conflicts) for name in _OF_REPORTS}
    best = _best_about_preemptor(reports)
    stated |= {name: _stated(key, name, best, conflicts) for name in _OF_PREEMPTOR}
    stated |= {name: _stated(key, name, resumes, conflicts) for name in _OF_RESUMES}
    first_resume = min(resumes, key=lambda resume: resume.resumed_at_ms, default=None)
    return Preemption(
        key=key,
        refs=(*map(_ref, reports), *map(_ref, resumes)),
        decided_at_ms=min(report.decided_at_ms for report in reports),
        preemptor_source=best[0].preemptor_source,
        resumed_at_ms=first_resume.resumed_at_ms if first_resume else None,
        resumed_pool=first_resume.pool if first_resume else None,
        **stated
        | {"disposition": stated["disposition"] or "requeued", "queued_only": bool(stated["queued_only"])},
    )


def _best_about_preemptor(reports: Sequence[Report]) -> list[Report]:
    """The reports of the best source; one that names somebody beats any that names nobody."""

    def rank(report: Report) -> tuple[bool, int]:
        names_nobody = report.preemptor is None and report.preemptor_workload is None
        return (names_nobody, PREEMPTOR_SOURCES.index(report.preemptor_source))

    best = min(rank(report) for report in reports)
    return [report for report in reports if rank(report) == best]


def _stated(
    key: Key, name: str, facts: Sequence[Report] | Sequence[Resume], conflicts: list[MergeConflict]
) -> Any:
    """A value beats none; of differing values the smallest (source, id) holds, and the difference is reported."""
    values: list[tuple[Ref, Any]] = []
    for fact in facts:
        if getattr(fact, name) is not None:
            values.append((fact.ref, getattr(fact, name)))
    if any(value != values[0][1] for _, value in values):
        conflicts.append(MergeConflict(key, name, tuple(values)))
    return values[0][1] if values else None


def _ref(fact: Report | Resume) -> Ref:
    return fact.ref
