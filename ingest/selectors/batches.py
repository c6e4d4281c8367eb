"""Reads of the inbox and of the register of events, for the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from ingest.models import Batch, QuarantinedEvent
from ledger.models import Correction, Event, Request, Source


def batches() -> QuerySet[Batch]:
    """Without their bodies, which can be tens of MiB each."""
    return Batch.objects.defer("body")


def quarantined(batch: Batch) -> QuerySet[QuarantinedEvent]:
    return QuarantinedEvent.objects.filter(batch=batch).defer("raw").order_by("line")


def booked_events(source_uri: str, event_id: str) -> Iterator[dict[str, Any]]:
    """What was booked under a key: one low-volume event, or the requests of that id of any day."""
    source = Source.objects.filter(uri=source_uri).first()
    if source is None:
        return
    registered = Event.objects.filter(source=source, event_id=event_id).select_related("booking").first()
    if registered is not None:
        yield _registered(registered, source)
    yield from _requests(source, event_id)


def _registered(event: Event, source: Source) -> dict[str, Any]:
    corrections = Correction.objects.filter(
        supersedes_source=source.uri, supersedes_event_id=event.event_id
    ).order_by("-corrected_at")
    return {
        "source": source.uri,
        "id": event.event_id,
        "type": f"ledger.{event.get_type_display()}.v1",
        "time": event.occurred_at,
        "batch": event.booking.batch,
        "line": event.line,
        "content_hash": bytes(event.content_hash).hex(),
        "event": event.body,
        "corrected_by": [
            {"source": one.event.source.uri, "id": one.event.event_id, "reason": one.reason}
            for one in corrections.select_related("event__source")
        ],
    }


# One probe of the primary key per partition: the day is not known.
_DAYS = """
SELECT to_date(right(child.relname, 8), 'YYYYMMDD') FROM pg_inherits
JOIN pg_class child ON child.oid = inhrelid WHERE inhparent = 'ledger_request'::regclass
"""
_REQUEST_FIELDS = (
    "starts_at",
    "queued_at",
    "attempt",
    "requests",
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "gpu_us",
    "prefill_gpu_us",
    "concurrency_us",
    "preemptions",
    "recomputed_tokens",
    "recompute_gpu_us",
    "workload",
    "request",
    "attributes",
)


def _requests(source: Source, event_id: str) -> Iterator[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(_DAYS)
        days = [day for (day,) in cursor.fetchall()]
    rows = Request.objects.filter(day__in=days, source=source, event_id=event_id)
    for row in rows.select_related("pool", "identity", "model", "booking", "service__holder").order_by("day"):
        facts = {name: getattr(row, name) for name in _REQUEST_FIELDS}
        facts |= {"pool": row.pool.slug, "model": row.model.name, "outcome": row.get_outcome_display()}
        facts["service"] = row.service.slug if row.service is not None else None
        facts["identity"] = (
            {"kind": row.identity.kind, "value": row.identity.value} if row.identity is not None else None
        )
        yield {
            "source": source.uri,
            "id": row.event_id,
            "type": f"ledger.{row.get_type_display()}.v1",
            "time": row.ends_at,
            "batch": row.booking.batch,
            "line": row.line,
            "content_hash": bytes(row.content_hash).hex(),
            "event": facts,
            "corrected_by": [],
        }
