"""Quarantine again, after its cause was mended: the original bytes as a new batch, each line once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from ingest.core.unpack import NDJSON
from ingest.models import Batch, QuarantinedEvent
from ingest.services.booking import Receipt, book_batch
from ingest.services.inbox import Body, accept_batch

DOOR = "retry"
BATCH_EVENTS = 20_000
BATCH_BYTES = 24 * 1024 * 1024

# Nothing that a retry could change: only a part of the bytes is there, or the first of a key stays.
HOPELESS = frozenset(
    {
        "broken_compression",
        "unpacked_too_large",
        "too_many_events",
        "not_an_array",
        "event_too_large",
        "conflict",
    }
)


def open_quarantine(
    *, reasons: Sequence[str] = (), batch_id: int | None = None
) -> QuerySet[QuarantinedEvent]:
    """Lines that wait for somebody and can be tried again."""
    waiting = QuarantinedEvent.objects.filter(resolved_at=None).exclude(reason__in=HOPELESS)
    if reasons:
        waiting = waiting.filter(reason__in=reasons)
    return waiting if batch_id is None else waiting.filter(batch_id=batch_id)


def retry_quarantine(
    *, reasons: Sequence[str] = (), batch_id: int | None = None, by: str = ""
) -> Iterator[Receipt]:
    """Send waiting lines through the inbox again; what is still wrong comes back to quarantine, in its new batch.

    A line is resolved in the same transaction that puts it into its new batch, so two retries at once take different
    lines and each is booked once.
    """
    last = (
        open_quarantine(reasons=reasons, batch_id=batch_id)
        .order_by("-pk")
        .values_list("pk", flat=True)
        .first()
    )
    while last is not None:
        batch = _take(open_quarantine(reasons=reasons, batch_id=batch_id).filter(pk__lte=last), by)
        if batch is None:
            return
        receipt = book_batch(batch.pk, wait=True)
        if receipt is not None:
            yield receipt


@transaction.atomic
def _take(waiting: QuerySet[QuarantinedEvent], by: str) -> Batch | None:
    """The next lines as one new batch, or None if there are none left. Keeps what a sender may speak for."""
    rows = list(
        waiting.order_by("batch_id", "line").select_for_update(skip_locked=True, of=("self",))[:BATCH_EVENTS]
    )
    if not rows:
        return None
    origin = Batch.objects.defer("body").get(pk=rows[0].batch_id)
    taken: list[QuarantinedEvent] = []
    size = 0
    for row in rows:
        # One sender's lines at a time: its rights go with them.
        if row.batch_id != origin.pk or size > BATCH_BYTES:
            break
        taken.append(row)
        size += len(row.raw)
    content = b"\n".join(_one_line(bytes(row.raw)) for row in taken)
    sources = origin.allowed_sources
    batch, _ = accept_batch(
        Body(content, NDJSON),
        door=DOOR,
        submitted_by=origin.submitted_by,
        idempotency_key=f"retry:{taken[0].pk}-{taken[-1].pk}-{len(taken)}",
        origin=f"batch {origin.pk}",
        allowed_sources=None if sources is None else frozenset(sources),
    )
    QuarantinedEvent.objects.filter(pk__in=[row.pk for row in taken]).update(
        resolved_at=timezone.now(), resolution="retried", resolved_by=by[:150], retried_in=batch
    )
    return batch


def _one_line(raw: bytes) -> bytes:
    """Line breaks inside of JSON are blanks; those inside of its texts are written otherwise."""
    return raw.replace(b"\r", b" ").replace(b"\n", b" ")
