"""Preemption facts put straight into the record, as booking would leave them."""

from __future__ import annotations

from datetime import datetime
from itertools import count
from typing import Any

from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from ledger.models import (
    Booking,
    DirtySpan,
    Event,
    EventType,
    Identity,
    Pool,
    PreemptionReport,
    ResumeReport,
    Source,
)

_numbers = count(1)


def event(kind: EventType, occurred_at: datetime, event_id: str | None = None) -> Event:
    number = next(_numbers)
    source, _ = Source.objects.get_or_create(uri="/tests")
    booking, _ = Booking.objects.get_or_create(batch=1, defaults={"sequence": 1})
    return Event.objects.create(
        source=source,
        event_id=event_id or f"p{number}",
        type=kind,
        occurred_at=occurred_at,
        content_hash=number.to_bytes(16, "little"),
        booking=booking,
        line=number,
        body={},
    )


def preemption(
    pool: Pool, decided_at: datetime, workload: str, victim: Identity, milli: int, **said: Any
) -> PreemptionReport:
    """One report of a preemption called `workload/hour`, unless `preemption` says otherwise."""
    fact = event(EventType.PREEMPTION, decided_at, said.pop("event_id", None))
    base: dict[str, Any] = {
        "preemption": f"{workload}/{decided_at:%Y-%m-%dT%H:%M}",
        "victim_workload": workload,
        "preemptor_source": "none",
        "cause": "reclaim_own_reservation",
    }
    report = PreemptionReport.objects.create(
        event=fact,
        pool=pool,
        cluster=pool.cluster,
        decided_at=decided_at,
        victim_identity=victim,
        milli_gpus=milli,
        **base | said,
    )
    DirtySpan.objects.create(pool=pool, span=DateTimeTZRange(decided_at, None, "[)"))
    return report


def resume(pool: Pool, preemption_id: str, resumed_at: datetime, **said: Any) -> ResumeReport:
    fact = event(EventType.RESUME, resumed_at)
    DirtySpan.objects.create(pool=pool, span=DateTimeTZRange(resumed_at, None, "[)"))
    return ResumeReport.objects.create(
        event=fact, pool=pool, cluster=pool.cluster, preemption=preemption_id, resumed_at=resumed_at, **said
    )
