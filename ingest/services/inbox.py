"""Taking raw batches in: committed before anyone is told so (events.md, Doors)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import timedelta

from ingest.models import Batch
from ingest.services.raw_cursor import raw_cursor
from ingest.sql import batches as sql


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of a batch as they came, and how to read them."""

    content: bytes
    content_type: str
    encoding: str = ""


def accept_batch(
    body: Body,
    *,
    door: str,
    submitted_by: str,
    idempotency_key: str = "",
    origin: str = "",
    first_line: int = 1,
    allowed_sources: frozenset[int] | None = None,
) -> tuple[Batch, bool]:
    """Keep a body in the inbox; returns the batch and whether it is new.

    The same key from the same sender gives the first batch. Without a key, the SHA-256 of the body is it.
    """
    digest = hashlib.sha256(body.content).hexdigest()
    key = idempotency_key or f"sha256:{digest}"
    same = Batch.objects.filter(submitted_by=submitted_by, idempotency_key=key).defer("body")
    earlier = same.first()
    if earlier is not None:
        return earlier, False
    parameters = {
        "door": door,
        "submitted_by": submitted_by,
        "content_type": body.content_type[:100],
        "encoding": body.encoding,
        "origin": origin[:500],
        "first_line": first_line,
        "allowed": None if allowed_sources is None else json.dumps(sorted(allowed_sources)),
        "key": key,
        "sha256": digest,
        "body": body.content,
        "body_bytes": len(body.content),
    }
    with raw_cursor() as cursor:
        kept = cursor.execute(sql.KEEP, parameters).fetchone()
    # None: of two deliveries of one body at once, the other one was faster.
    return same.get(), kept is not None


# A booking takes seconds; one that was asked for this long ago has been lost on the way.
PATIENCE = timedelta(seconds=45)
SWEEP_BATCHES = 200


def take_left_behind(patience: timedelta = PATIENCE) -> list[int]:
    """Ids of batches that wait although nobody has them in hand, the oldest first; each is given once per patience."""
    with raw_cursor() as cursor:
        found = cursor.execute(sql.LEFT_BEHIND, {"patience": patience, "limit": SWEEP_BATCHES}).fetchall()
    return sorted(pk for (pk,) in found)
