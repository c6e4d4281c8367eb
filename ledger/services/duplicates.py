"""Requests that were probably delivered twice under different ids: flagged for a person, never dropped (C21)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction

from ledger.models import FactFinding
from ledger.selectors.corrections import void_facts
from ledger.sql import SUSPECTED_DUPLICATES

CODE = "suspected_duplicate"
WITHIN = timedelta(seconds=60)
"""A client that tries again does so soon; a provider that uses an id again does not."""


@transaction.atomic
def flag_suspected_duplicates(starts_at: datetime, ends_at: datetime) -> int:
    """Findings for the requests that finished in [starts_at, ends_at), replacing those of an earlier look: one that was
    withdrawn by a correction is none any more. Returns how many there are."""
    parameters: dict[str, Any] = {
        "first": (starts_at - WITHIN).astimezone(UTC).date(),
        "last": ends_at.astimezone(UTC).date(),
        "from": starts_at,
        "to": ends_at,
        "within": WITHIN,
        **void_facts().parameters(),
    }
    with connection.cursor() as cursor:
        cursor.execute(SUSPECTED_DUPLICATES, parameters)
        found = cursor.fetchall()
    FactFinding.objects.filter(code=CODE, occurred_at__gte=starts_at, occurred_at__lt=ends_at).delete()
    FactFinding.objects.bulk_create(
        [
            FactFinding(
                code=CODE,
                pool_id=pool,
                occurred_at=finished_at,
                subject=f"{uri} {event_id}",
                detail={
                    "request": request,
                    "source": uri,
                    "id": event_id,
                    "like": {"source": before_source, "id": before_id},
                },
                blocks_close=True,
            )
            for pool, finished_at, request, uri, event_id, before_source, before_id in found
        ],
        ignore_conflicts=True,
    )
    return len(found)
