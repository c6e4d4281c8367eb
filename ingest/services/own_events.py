"""Facts that follow from what the ledger itself was told, such as a contract (wired by the setting BOOK_EVENTS)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from django.utils import timezone

from ingest.core.unpack import NDJSON
from ingest.services.booking import book_batch
from ingest.services.inbox import Body, accept_batch
from ledger.models import Source


def book_own_events(source: str, events: Sequence[dict[str, Any]], door: str, by: str) -> int:
    """Keep and book canonical events as one batch; how many were booked. Part of the caller's transaction."""
    # Retired from the start: nobody waits for its next word, and no month for its sign-off.
    Source.objects.get_or_create(uri=source, defaults={"retired_at": timezone.now()})
    content = "\n".join(json.dumps(event, ensure_ascii=False) for event in events).encode()
    batch, _ = accept_batch(
        Body(content, NDJSON), door=door, submitted_by=by[:150], idempotency_key=f"{door}:{uuid4().hex}"
    )
    receipt = book_batch(batch.pk, wait=True)
    return 0 if receipt is None else receipt.booked
