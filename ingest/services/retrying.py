"""Quarantine again, after its cause was mended: the original bytes as a new batch, each line once.

A record that its source's adapter refused is native: the adapter reads it again, one after another with the other
records of its batch and source that are tried again. Where a record can mean something else after others, the adapter
reads it with what it remembered of those (`services.memories`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from ingest.core.adapters import load
from ingest.core.adapters.base import ConfigError, Notice, Outcome, Refused, SourceConfig
from ingest.core.parse import Rejected, refused_line
from ingest.core.unpack import NDJSON
from ingest.models import Batch, QuarantinedEvent
from ingest.services.booking import Receipt, book_batch
from ingest.services.inbox import Body, accept_batch
from ingest.services.limits import RETRY
from ingest.services.memories import recall
from ingest.services.native_records import keep_notices, refused_record
from ingest.services.source_config import UnreadableSource, source_config
from ledger.models import Source
from ledger.services.audit import SYSTEM, Actor, record

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
        "too_large",
        "conflict",
    }
)


class QuarantineProblem(ValueError):
    """What was asked for cannot be done; `code` for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Sent:
    """Lines that left quarantine, and the batch they are in now."""

    batch: Batch
    lines: int


def open_quarantine(
    *,
    reasons: Sequence[str] = (),
    batch_id: int | None = None,
    source_uri: str | None = None,
    ids: Sequence[int] | None = None,
) -> QuerySet[QuarantinedEvent]:
    """Lines that wait for somebody and can be tried again."""
    return narrowed(reasons=reasons, batch_id=batch_id, source_uri=source_uri, ids=ids).exclude(
        reason__in=HOPELESS
    )


def narrowed(
    *,
    reasons: Sequence[str] = (),
    batch_id: int | None = None,
    source_uri: str | None = None,
    ids: Sequence[int] | None = None,
) -> QuerySet[QuarantinedEvent]:
    """Lines that wait for somebody; each filter narrows."""
    waiting = QuarantinedEvent.objects.filter(resolved_at=None)
    if reasons:
        waiting = waiting.filter(reason__in=reasons)
    if batch_id is not None:
        waiting = waiting.filter(batch_id=batch_id)
    if source_uri is not None:
        waiting = waiting.filter(source_uri=source_uri)
    return waiting if ids is None else waiting.filter(pk__in=ids)


def retry_quarantine(
    *, reasons: Sequence[str] = (), batch_id: int | None = None, by: str = ""
) -> Iterator[Receipt]:
    """Send waiting lines through the inbox again and book them here and now; what is still wrong comes back to
    quarantine, in its new batch."""
    lines, batches = 0, []
    for sent in _send(open_quarantine(reasons=reasons, batch_id=batch_id), by):
        lines += sent.lines
        batches.append(sent.batch.pk)
        receipt = book_batch(sent.batch.pk, wait=True)
        if receipt is not None:
            yield receipt
    if batches:
        _tell(Actor(by or SYSTEM), {"reasons": list(reasons), "batch": batch_id}, lines, batches)


def send_again(
    by: Actor,
    *,
    reasons: Sequence[str] = (),
    batch_id: int | None = None,
    source_uri: str | None = None,
    ids: Sequence[int] | None = None,
) -> list[Sent]:
    """The same for somebody who does not want to wait: the new batches are kept, and whoever books them comes later.

    Raises:
        QuarantineProblem: `nothing_to_retry`.
    """
    waiting = open_quarantine(reasons=reasons, batch_id=batch_id, source_uri=source_uri, ids=ids)
    sent = list(_send(waiting, by.name))
    if not sent:
        raise QuarantineProblem("nothing_to_retry", "nothing in quarantine fits that and can be tried again")
    asked = {"reasons": list(reasons), "batch": batch_id, "source": source_uri, "ids": ids and list(ids)}
    _tell(by, asked, sum(one.lines for one in sent), [one.batch.pk for one in sent])
    return sent


def _tell(by: Actor, asked: dict[str, Any], lines: int, batches: list[int]) -> None:
    """The entry on the audit trail: what was asked for, and what became of it."""
    record(
        by,
        "retry_quarantine",
        "quarantine",
        ", ".join(asked["reasons"])[:200] or "all",
        before={name: value for name, value in asked.items() if value},
        after={"lines": lines, "batches": batches},
    )


@transaction.atomic
def dismiss_quarantine(
    by: Actor,
    reason: str,
    ids: Sequence[int] | None = None,
    *,
    reasons: Sequence[str] = (),
    batch_id: int | None = None,
    source_uri: str | None = None,
) -> int:
    """Settle lines that shall never be booked, such as conflicts; their bytes stay. Returns how many.

    Raises:
        QuarantineProblem: `no_reason`; `nothing_chosen`, as nobody means all of them; `nothing_to_dismiss`.
    """
    said = reason.strip()
    if not said:
        raise QuarantineProblem("no_reason", "give a reason")
    asked = {"reasons": list(reasons), "batch": batch_id, "source": source_uri}
    if ids is None and not reasons and batch_id is None and source_uri is None:
        raise QuarantineProblem("nothing_chosen", "say which lines: by reasons, batch, source or ids")
    waiting = narrowed(reasons=reasons, batch_id=batch_id, source_uri=source_uri, ids=ids)
    rows = list(waiting.select_for_update().order_by("pk").values_list("pk", "batch_id", "line", "reason"))
    if not rows:
        raise QuarantineProblem("nothing_to_dismiss", "none of these lines waits in quarantine")
    for start in range(0, len(rows), BATCH_EVENTS):
        QuarantinedEvent.objects.filter(pk__in=[row[0] for row in rows[start : start + BATCH_EVENTS]]).update(
            resolved_at=timezone.now(), resolution="dismissed", resolved_by=by.name[:150]
        )
    lines = [f"batch {batch} line {line}: {why}" for _, batch, line, why in rows]
    record(
        by,
        "dismiss_quarantine",
        "quarantine",
        lines[0][:200],
        before={name: value for name, value in asked.items() if value} | {"lines": lines[:1000]},
        reason=said,
    )
    return len(rows)


def _send(waiting: QuerySet[QuarantinedEvent], by: str) -> Iterator[Sent]:
    """Batch after batch until none of the lines that wait now is left.

    A line is resolved in the same transaction that puts it into its new batch, so two retries at once take different
    lines and each is booked once.
    """
    last = waiting.order_by("-pk").values_list("pk", flat=True).first()
    while last is not None:
        sent = _take(waiting.filter(pk__lte=last), by)
        if sent is None:
            return
        yield sent


@transaction.atomic
def _take(waiting: QuerySet[QuarantinedEvent], by: str) -> Sent | None:
    """The next lines as one new batch, or None if there are none left. Keeps what a sender may speak for."""
    rows = list(
        waiting.order_by("batch_id", "adapter", "source_uri", "line").select_for_update(
            skip_locked=True, of=("self",)
        )[:BATCH_EVENTS]
    )
    if not rows:
        return None
    origin = Batch.objects.defer("body").get(pk=rows[0].batch_id)
    taken = _alike(rows)
    lines = _reread(taken, origin) if taken[0].adapter else [_one_line(bytes(row.raw)) for row in taken]
    sources = origin.allowed_sources
    batch, _ = accept_batch(
        Body(b"\n".join(lines), NDJSON),
        door=RETRY,
        submitted_by=origin.submitted_by,
        idempotency_key=f"retry:{taken[0].pk}-{taken[-1].pk}-{len(taken)}",
        origin=f"batch {origin.pk}",
        allowed_sources=None if sources is None else frozenset(sources),
    )
    if origin.memory_id is not None:
        Batch.objects.filter(pk=batch.pk).update(memory=origin.memory_id)
    QuarantinedEvent.objects.filter(pk__in=[row.pk for row in taken]).update(
        resolved_at=timezone.now(), resolution="retried", resolved_by=by[:150], retried_in=batch
    )
    return Sent(batch, len(taken))


def _alike(rows: Sequence[QuarantinedEvent]) -> list[QuarantinedEvent]:
    """The first rows that can be one batch: of one sender, whose rights go with them, and read by one adapter."""
    taken: list[QuarantinedEvent] = []
    first, size = rows[0], 0
    for row in rows:
        is_read_alike = row.adapter == first.adapter and (
            not row.adapter or row.source_uri == first.source_uri
        )
        if row.batch_id != first.batch_id or not is_read_alike or size > BATCH_BYTES:
            break
        taken.append(row)
        size += len(row.raw)
    return taken


def _reread(rows: Sequence[QuarantinedEvent], origin: Batch) -> list[bytes]:
    """Native records of one source through its adapter, as it is configured today. What it refuses again keeps the
    bytes that came, whatever part of them the adapter complains about."""
    records = [bytes(row.raw) for row in rows]
    try:
        config = _config_of(rows[0].source_uri)
        adapter = load(config.adapter)
        memory = recall(config, origin)
        lines: list[bytes] = []
        notices: list[Notice] = []
        for row, record in zip(rows, records, strict=True):
            lines += _kept(row, list(adapter.adapt(record.split(b"\n"), config, memory.state)), notices)
        for outcome in adapter.flush(config, memory.state, memory.settled_ms):
            if not isinstance(outcome, Refused):
                lines += _kept(rows[-1], [outcome], notices)
            elif not memory.is_shared or outcome.record in records:  # others wait in quarantine themselves
                lines.append(refused_record(config, outcome))
        memory.keep(records)
    except (UnreadableSource, ConfigError, ValueError) as error:
        return [_still_refused(row, "not_configured", str(error)) for row in rows]
    keep_notices(config, notices)
    return lines


def _kept(row: QuarantinedEvent, outcomes: Sequence[Outcome], notices: list[Notice]) -> list[bytes]:
    """The lines that one record has become."""
    notices += [outcome for outcome in outcomes if isinstance(outcome, Notice)]
    lines = [msgspec.json.encode(outcome) for outcome in outcomes if isinstance(outcome, dict)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    if refused:
        lines.append(_still_refused(row, refused[0].reason, refused[0].detail))
    return lines


def _config_of(uri: str) -> SourceConfig:
    """Raises `UnreadableSource`."""
    source = Source.objects.filter(uri=uri).first()
    if source is None:
        raise UnreadableSource(f"no source has the address {uri!r}")
    return source_config(source)


def _still_refused(row: QuarantinedEvent, reason: str, detail: str) -> bytes:
    raw, uri = bytes(row.raw), row.source_uri
    return refused_line(Rejected(row.line, reason, detail, raw, source=uri, adapter=row.adapter))


def _one_line(raw: bytes) -> bytes:
    """Line breaks inside of JSON are blanks; those inside of its texts are written otherwise."""
    return raw.replace(b"\r", b" ").replace(b"\n", b" ")
