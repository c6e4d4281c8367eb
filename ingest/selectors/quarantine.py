"""Reads of quarantine."""

from __future__ import annotations

from django.db.models import QuerySet

from ingest.models import QuarantinedEvent

STATES = ("open", "settled", "all")


def quarantine(
    *, reason: str = "", source_uri: str | None = None, batch_id: int | None = None, state: str = "open"
) -> QuerySet[QuarantinedEvent]:
    """Lines, newest first, without their bytes; each filter narrows (partial index quarantine_open)."""
    rows = QuarantinedEvent.objects.defer("raw").order_by("-pk")
    if state != "all":
        rows = rows.filter(resolved_at__isnull=state == "open")
    if reason:
        rows = rows.filter(reason=reason)
    if source_uri is not None:
        rows = rows.filter(source_uri=source_uri)
    return rows if batch_id is None else rows.filter(batch_id=batch_id)
