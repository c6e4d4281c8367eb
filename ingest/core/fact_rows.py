"""A low-volume event as the row of its table: which column takes which canonical value.

Names become ids through `Lookup`, whose methods raise `Refusal` for masters that do not exist. Instants become text
that PostgreSQL reads; absent values stay out and are null.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from ingest.core import events
from ingest.core.events import Holder
from ingest.core.parse import ParsedEvent

TYPE_CODES = {name: code for code, name in enumerate(events.TYPES, 1)}
"""`ledger.<type>.v1` -> `EventType` of the record."""

SERVICE_CLASSES = {None: 0, "guaranteed": 1, "preemptible": 2}
PURPOSES = {None: 0, "warmup": 1, "load_test": 2, "drill": 3}
WORKLOAD_KINDS = {"batch": 1, "serving": 2}
CAPACITY, RESERVATION, OCCUPANCY, PENDING = 1, 2, 3, 4

Row = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Lookup(Protocol):
    """Names -> ids."""

    def pool(self, slug: str) -> tuple[int, str]:
        """(id, cluster)"""

    def identity(self, who: tuple[str, str]) -> int: ...

    def service(self, slug: str) -> int: ...

    def model(self, name: str) -> int: ...


def instant_text(instant_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=instant_ms)).isoformat()


def fact_row(event: ParsedEvent, ids: Lookup) -> Row:
    """Columns and values of the event's typed row.

    Raises:
        Refusal: `unknown_pool`, `unknown_tenant` or `unknown_service`.
    """
    row = _ROWS[event.type](event, event.record, ids)
    return {column: value for column, value in row.items() if value is not None}


def _instant(instant_ms: int | None) -> str | None:
    return None if instant_ms is None else instant_text(instant_ms)


def _holder(holder: Holder, ids: Lookup) -> int:
    who = holder.who()
    assert who is not None, "settle() refuses facts without a holder"
    return ids.identity(who)


def _given(**values: Any) -> Row | None:
    kept = {name: value for name, value in values.items() if value is not None}
    return kept or None


def _level(event: ParsedEvent, kind: int, pool_id: int, milli_gpus: int, subject: str = "") -> Row:
    return {
        "kind": kind,
        "pool_id": pool_id,
        "subject": subject,
        "attempt": 0,
        "starts_at": instant_text(event.time_ms),
        "milli_gpus": milli_gpus,
        "lendable": True,
        "service_class": 0,
        "purpose": 0,
        "workload_kind": 0,
    }


def _capacity(event: ParsedEvent, fact: events.Capacity, ids: Lookup) -> Row:
    level = _level(event, CAPACITY, ids.pool(fact.pool)[0], fact.gpus)
    return level | {"attributes": _given(reason=fact.reason)}


def _reservation(event: ParsedEvent, fact: events.Reservation, ids: Lookup) -> Row:
    level = _level(event, RESERVATION, ids.pool(fact.pool)[0], fact.gpus, fact.reservation)
    return level | {
        "identity_id": _holder(fact, ids),
        "lendable": fact.lendable,
        "ends_at": _instant(fact.ends_at),
    }


def _occupancy(event: ParsedEvent, fact: events.Occupancy, ids: Lookup) -> Row:
    level = _level(event, OCCUPANCY, ids.pool(fact.pool)[0], fact.gpus, fact.workload)
    return level | {
        "identity_id": _holder(fact, ids),
        "attempt": fact.attempt,
        "service_class": SERVICE_CLASSES[fact.service_class],
        "purpose": PURPOSES[fact.purpose],
        "workload_kind": WORKLOAD_KINDS[fact.kind],
        "last_checkpoint_at": _instant(fact.last_checkpoint_at),
        "attributes": _given(
            name=fact.name,
            user=fact.user,
            labels=fact.labels,
            nodes=fact.nodes,
            priority_class=fact.priority_class,
        ),
    }


def _pending(event: ParsedEvent, fact: events.Pending, ids: Lookup) -> Row:
    subject = fact.workload if fact.workload is not None else fact.queue
    level = _level(event, PENDING, ids.pool(fact.pool)[0], fact.gpus or 0, subject or "")
    return level | {
        "identity_id": _holder(fact, ids),
        "requests": fact.requests,
        "service_class": SERVICE_CLASSES[fact.service_class],
        "attributes": _given(priority_class=fact.priority_class, queue=fact.queue),
    }


def _preemption(event: ParsedEvent, fact: events.Preemption, ids: Lookup) -> Row:
    pool_id, cluster = ids.pool(fact.pool)
    preemptor = fact.preemptor
    return {
        "pool_id": pool_id,
        "cluster": cluster,
        "preemption": fact.preemption,
        "decided_at": instant_text(event.time_ms),
        "victim_workload": fact.victim.workload,
        "victim_request": fact.victim.request,
        "victim_identity_id": _holder(fact.victim, ids),
        "victim_attempt": fact.victim.attempt,
        "preemptor_workload": preemptor.workload if preemptor else None,
        "preemptor_identity_id": _holder(preemptor, ids) if preemptor else None,
        "preemptor_source": fact.preemptor_source,
        "confidence_ppm": fact.confidence,
        "milli_gpus": fact.gpus,
        "cause": fact.cause,
        "admitted_at": _instant(fact.admitted_at),
        "released_at": _instant(fact.released_at),
        "disposition": fact.disposition,
        "degrade_trigger": fact.degrade_trigger,
        "lost_gpu_us": fact.lost_gpu_seconds,
        "requests_in_flight": fact.requests_in_flight,
        "requests_voided": fact.requests_voided,
        "output_tokens_lost": fact.output_tokens_lost,
        "context_tokens": fact.context_tokens,
        "cached_prefix_tokens": fact.cached_prefix_tokens,
        "queued_only": fact.queued_only,
    }


def _resume(event: ParsedEvent, fact: events.Resume, ids: Lookup) -> Row:
    pool_id, cluster = ids.pool(fact.pool)
    return {
        "pool_id": pool_id,
        "cluster": cluster,
        "preemption": fact.preemption,
        "resumed_at": instant_text(event.time_ms),
        "workload": fact.workload,
        "attempt": fact.attempt,
        "recompute_gpu_us": fact.recompute_gpu_seconds,
        "recompute_prefill_tokens": fact.recompute_prefill_tokens,
    }


def _rejection(event: ParsedEvent, fact: events.Rejection, ids: Lookup) -> Row:
    return {
        "occurred_at": instant_text(event.time_ms),
        "identity_id": _holder(fact, ids),
        "layer": fact.layer,
        "reason": fact.reason,
        "status": fact.status,
        "count": fact.count,
        "requested_tokens": fact.requested_tokens,
        "requested_milli_gpus": fact.requested_gpus,
        "pool_id": None if fact.pool is None else ids.pool(fact.pool)[0],
        "model_id": None if fact.model is None else ids.model(fact.model),
        "request": fact.request,
        "retry_after_us": fact.retry_after_seconds,
        "service_class": SERVICE_CLASSES[fact.service_class],
        "origin": fact.origin,
    }


def _quota(event: ParsedEvent, fact: events.Quota, ids: Lookup) -> Row:
    return {
        "starts_at": instant_text(event.time_ms),
        "identity_id": _holder(fact, ids),
        "layer": fact.layer,
        "resource": fact.resource,
        "limit_milli": fact.limit,
        "used_milli": fact.used,
        "pool_id": None if fact.pool is None else ids.pool(fact.pool)[0],
        "service_id": None if fact.service is None else ids.service(fact.service),
    }


def _correction(event: ParsedEvent, fact: events.Correction, ids: Lookup) -> Row:
    replacement = event.replacement
    return {
        "corrected_at": instant_text(event.time_ms),
        "supersedes_source": fact.supersedes.source,
        "supersedes_event_id": fact.supersedes.id,
        "reason": fact.reason,
        "replacement_source": replacement.source if replacement else None,
        "replacement_event_id": replacement.id if replacement else None,
    }


_ROWS: dict[str, Callable[[ParsedEvent, Any, Lookup], Row]] = {
    "ledger.capacity.v1": _capacity,
    "ledger.reservation.v1": _reservation,
    "ledger.occupancy.v1": _occupancy,
    "ledger.pending.v1": _pending,
    "ledger.preemption.v1": _preemption,
    "ledger.resume.v1": _resume,
    "ledger.rejection.v1": _rejection,
    "ledger.quota.v1": _quota,
    "ledger.correction.v1": _correction,
}


def names_of(event: ParsedEvent) -> tuple[list[tuple[str, str]], str | None]:
    """(identities, model) an event names, to intern them for many events at once."""
    record = event.record
    holders = [
        part for part in (record, getattr(record, "victim", None), getattr(record, "preemptor", None)) if part
    ]
    found = [who for part in holders if isinstance(part, Holder) and (who := part.who()) is not None]
    return found, getattr(record, "model", None)
