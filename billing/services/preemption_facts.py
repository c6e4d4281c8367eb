"""Reads of what preemptions are measured from: reports, occupancy, voided requests, and the pools' state."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from billing.core.preemption import Voided
from billing.core.preemption_merge import Key, Report, Resume
from billing.core.preemption_workload import Holding, OccupancyFact, holdings
from billing.services.allocation_facts import HolderIndex, holder_at, load_timeline
from billing.sql.preemptions import KEPT_VOIDED, OCCUPANCY, REPORTS, RESUMES, STALE, VOIDED
from ledger.core.levels import HolderTimeline
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import PrunedDay, Purpose, ServiceClass, WorkloadKind
from ledger.selectors.corrections import void_facts


def _ms(instant: datetime | None) -> int | None:
    return None if instant is None else to_ms(instant)


def stale_preemptions(span: Span, void: Sequence[int], *, everything: bool = False) -> list[Key]:
    """Preemptions decided before the span's end whose record is missing, still waits, or rests on dirty time.

    everything: also all that were decided in the span.
    """
    parameters: dict[str, Any] = {
        "from": to_datetime(span.start_ms),
        "to": to_datetime(span.end_ms),
        "void": list(void),
        "everything": everything,
    }
    with connection.cursor() as cursor:
        cursor.execute(STALE, parameters)
        return [(cluster, preemption) for cluster, preemption in cursor.fetchall()]


@dataclass(frozen=True)
class Reported:
    """Reports and resumes with holders resolved. identities: event -> the victim's identity as it was named."""

    reports: list[Report]
    resumes: list[Resume]
    identities: dict[tuple[str, str], int]


def reported(keys: Sequence[Key], void: Sequence[int], index: HolderIndex) -> Reported:
    """Everything said of these preemptions; identities belong to whom they belonged at the decision."""
    parameters: dict[str, Any] = {
        "clusters": [key[0] for key in keys],
        "preemptions": [key[1] for key in keys],
        "void": list(void),
    }
    with connection.cursor() as cursor:
        cursor.execute(REPORTS, parameters)
        rows = cursor.fetchall()
        cursor.execute(RESUMES, parameters)
        resumes = [_resume(row) for row in cursor.fetchall()]
    named = {row[place] for row in rows for place in (8, 12) if row[place] is not None}
    timeline = load_timeline(named, index)
    decided: dict[Key, int] = {}
    for row in rows:
        key = (row[2], row[3])
        decided[key] = min(decided.get(key, to_ms(row[4])), to_ms(row[4]))
    reports = [_report(row, decided[row[2], row[3]], timeline, index) for row in rows]
    return Reported(reports, resumes, {(row[0], row[1]): row[8] for row in rows})


def _report(
    row: tuple[Any, ...], decided_first_ms: int, timeline: HolderTimeline, index: HolderIndex
) -> Report:
    def holder(identity: int | None) -> str | None:
        if identity is None:
            return None
        return index.holders.slugs[holder_at(timeline, identity, decided_first_ms)]

    return Report(
        ref=(row[0], row[1]),
        key=(row[2], row[3]),
        decided_at_ms=to_ms(row[4]),
        pool=row[5],
        milli_gpus=row[6],
        cause=row[7],
        victim=holder(row[8]) or "",
        victim_workload=row[9],
        victim_request=row[10],
        victim_attempt=row[11],
        preemptor=holder(row[12]),
        preemptor_workload=row[13],
        preemptor_source=row[14],
        confidence_ppm=row[15],
        admitted_at_ms=_ms(row[16]),
        released_at_ms=_ms(row[17]),
        disposition=row[18],
        degrade_trigger=row[19],
        lost_gpu_us=row[20],
        requests_in_flight=row[21],
        requests_voided=row[22],
        output_tokens_lost=row[23],
        context_tokens=row[24],
        cached_prefix_tokens=row[25],
        queued_only=row[26],
    )


def _resume(row: tuple[Any, ...]) -> Resume:
    return Resume(
        ref=(row[0], row[1]),
        key=(row[2], row[3]),
        resumed_at_ms=to_ms(row[4]),
        pool=row[5],
        workload=row[6],
        attempt=row[7],
        recompute_gpu_us=row[8],
        recompute_prefill_tokens=row[9],
    )


Workload = tuple[str, str]
"""(cluster, workload id)"""


def workload_histories(
    workloads: Iterable[Workload], void: Sequence[int]
) -> Mapping[Workload, tuple[Holding, ...]]:
    """Everything that these workloads ever held, by pool and attempt. One query."""
    wanted = sorted(set(workloads))
    parameters: dict[str, Any] = {
        "clusters": [cluster for cluster, _ in wanted],
        "workloads": [workload for _, workload in wanted],
        "void": list(void),
    }
    facts: defaultdict[Workload, list[OccupancyFact]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(OCCUPANCY, parameters)
        for (
            cluster,
            workload,
            pool,
            attempt,
            starts_at,
            milli,
            kind,
            checkpoint,
            service_class,
            purpose,
            uri,
            event,
        ) in cursor.fetchall():
            facts[cluster, workload].append(
                OccupancyFact(
                    pool,
                    attempt,
                    to_ms(starts_at),
                    milli,
                    (uri, event),
                    kind == WorkloadKind.SERVING,
                    _ms(checkpoint),
                    str(ServiceClass(service_class).label),
                    str(Purpose(purpose).label),
                )
            )
    return {workload: holdings(of) for workload, of in facts.items()}


@dataclass(frozen=True)
class Victim:
    """Whose requests are asked for: those of a workload that finished while it was taken down."""

    cluster: str
    workload: str
    starts_ms: int
    ends_ms: int


@dataclass(frozen=True)
class VoidedRequests:
    """total: of the whole victim; gpu_us_of: per identity, of those known; model: one that they asked for."""

    total: Voided
    gpu_us_of: dict[int, int]
    model: str

    def as_json(self) -> dict[str, Any]:
        """As a record keeps it."""
        of = {str(identity): gpu_us for identity, gpu_us in sorted(self.gpu_us_of.items())}
        return {"requests": self.total.requests, "gpu_us": self.total.gpu_us, "of": of, "model": self.model}

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> VoidedRequests:
        of = {int(identity): int(gpu_us) for identity, gpu_us in said["of"].items()}
        return cls(Voided(said["requests"], said["gpu_us"]), of, said["model"])


def voided_requests(victims: Mapping[Key, Victim]) -> dict[Key, VoidedRequests]:
    """Requests that ended `preempted`, per victim. One query, reading only such requests."""
    keys = list(victims)
    chosen = [victims[key] for key in keys]
    parameters: dict[str, Any] = {
        "numbers": list(range(len(keys))),
        "clusters": [victim.cluster for victim in chosen],
        "workloads": [victim.workload for victim in chosen],
        "starts": [to_datetime(victim.starts_ms) for victim in chosen],
        "ends": [to_datetime(max(victim.ends_ms, victim.starts_ms)) for victim in chosen],
        **void_facts().parameters(),
    }
    rows: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(VOIDED, parameters)
        for number, *row in cursor.fetchall():
            rows[number].append(tuple(row))
    return {keys[number]: _voided(of) for number, of in rows.items()}


def kept_voided(victims: Mapping[Key, Victim], ids: Mapping[Key, UUID]) -> dict[Key, VoidedRequests | None]:
    """What records already say of victims that were taken down on a day whose requests are pruned; None: nothing.

    ids: of the records. Read from the books themselves, also where a month is computed as it was known.
    """
    pruned = set(PrunedDay.objects.values_list("day", flat=True))
    gone = {
        ids[key]: key for key, victim in victims.items() if pruned and not pruned.isdisjoint(_days(victim))
    }
    found: dict[Key, VoidedRequests | None] = dict.fromkeys(gone.values())
    if gone:
        with connection.cursor() as cursor:
            cursor.execute(KEPT_VOIDED, {"ids": list(gone)})
            for pk, said in cursor.fetchall():
                found[gone[pk]] = VoidedRequests.of_json(json.loads(said) if isinstance(said, str) else said)
    return found


def _days(victim: Victim) -> set[date]:
    first, last = to_datetime(victim.starts_ms).date(), to_datetime(victim.ends_ms).date()
    return {first + timedelta(days=number) for number in range(max((last - first).days, 0) + 1)}


def _voided(rows: Sequence[tuple[Any, ...]]) -> VoidedRequests:
    """rows: (identity, requests, gpu_us, whether one lacks it, model)."""
    lacks = any(row[3] for row in rows)
    known = {row[0]: int(row[2] or 0) for row in rows if row[0] is not None}
    total = sum(int(row[2] or 0) for row in rows)
    requests = sum(row[1] for row in rows)
    return VoidedRequests(Voided(requests, None if lacks else total), known, max(row[4] for row in rows))
