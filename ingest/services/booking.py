"""Booking a batch: parsed as a stream, booked in one transaction, once, whoever takes it and however often.

PostgreSQL takes in one block of requests while the next one is parsed (`raw_cursor.BookingCursor`). No second thread:
two that hold the interpreter's lock in turn cost more than they save. In memory are at most two blocks of events,
whatever the batch's size.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, cast

import numpy as np
from django.db import DatabaseError, OperationalError, connection, transaction
from django.db.models import Min
from django.utils import timezone
from psycopg import Cursor, errors

from ingest.core.events import Correction
from ingest.core.fact_rows import instant_text
from ingest.core.parse import ParsedEvent, Rejected, parse_line, parse_lines, rejected_rest
from ingest.core.request_lines import RequestReader
from ingest.core.request_rows import REQUEST_TYPES, Requests
from ingest.core.unpack import Broken, Limits, Lines, cut, unpack
from ingest.models import Batch, BatchState, QuarantinedEvent
from ingest.services.event_booking import EventBooking
from ingest.services.limits import RETRY, configured_limits, cutting_limits
from ingest.services.names import Names
from ingest.services.quarantine import keep_rejected
from ingest.services.raw_cursor import BookingCursor, booking_cursor
from ingest.services.request_booking import RequestBooking
from ingest.sql import batches as sql
from ingest.sql import events as event_sql
from ingest.sql import requests as request_sql
from ledger.core.corrections import CorrectionFact, void_keys
from ledger.core.periods import to_ms
from ledger.locks import NAMESPACE, Lock, acquire
from ledger.models import Booking, Source
from ledger.selectors.settings import ledger_settings

BLOCK_EVENTS = 4_000
BODY_PIECE_BYTES = 4 * 1024 * 1024
ATTEMPTS = 8
MAX_FAILURES = 5


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a batch; received = booked + duplicate + conflict + quarantined."""

    batch: int
    received: int
    booked: int
    duplicate: int
    conflict: int
    quarantined: int


@dataclass(slots=True)
class Block:
    """Some consecutive events of a batch, judged but not yet booked."""

    requests: Requests | None = None
    events: list[ParsedEvent] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    def __len__(self) -> int:
        requests = 0 if self.requests is None else len(self.requests)
        return requests + len(self.events) + len(self.rejected)

    def add_requests(self, requests: Requests) -> None:
        self.requests = requests if self.requests is None else self.requests.joined(requests)


Judged = Callable[[int], None]
"""Told of each block of events that was read and judged, how many they were."""


def book_batch(
    batch_id: int, *, wait: bool = False, limits: Limits | None = None, judged: Judged | None = None
) -> Receipt | None:
    """Book a batch unless it is booked already; None if there was nothing to do.

    `wait`: wait for another worker that has it in hand, instead of leaving it to that one. Bookings that share
    events can meet in a deadlock; the loser starts again and finds the winner's facts booked.
    """
    try:
        return _book_despite_races(batch_id, wait, limits or configured_limits(), judged)
    except (OperationalError, errors.OperationalError):
        raise  # the database was away: not the batch's fault
    except (DatabaseError, errors.Error) as error:
        _count_failure(batch_id, error)
        raise


def _book_despite_races(batch_id: int, wait: bool, limits: Limits, judged: Judged | None) -> Receipt | None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with transaction.atomic():
                return _book(batch_id, wait, limits, judged)
        except (OperationalError, errors.DeadlockDetected, errors.SerializationFailure) as error:
            if not _is_race(error) or attempt == ATTEMPTS or connection.in_atomic_block:
                raise
            time.sleep(random.uniform(0, 0.05 * 2**attempt))
    raise AssertionError("unreachable")


def _count_failure(batch_id: int, error: Exception) -> None:
    if not connection.in_atomic_block:
        with connection.cursor() as cursor:
            refusal = type(error).__name__[:40]
            cursor.execute(sql.COUNT_FAILURE, {"batch": batch_id, "refusal": refusal, "limit": MAX_FAILURES})


def _is_race(error: BaseException) -> bool:
    """Whether the database ended the booking because of another one; Django's errors carry psycopg's as cause."""
    races = errors.DeadlockDetected | errors.SerializationFailure
    return isinstance(error, races) or isinstance(error.__cause__, races)


def _book(batch_id: int, wait: bool, limits: Limits, judged: Judged | None) -> Receipt | None:
    batch = (
        Batch.objects.select_for_update(skip_locked=not wait)
        .filter(pk=batch_id, state=BatchState.RECEIVED)
        .defer("body")
        .first()
    )
    if batch is None:
        return None
    now = timezone.now()
    booking = Booking.objects.create(batch=batch.pk)
    with booking_cursor() as cursor:
        desk = BookingDesk(cursor, batch, booking.pk)
        with _without_cycle_search():
            for block in read_blocks(_body(cursor, batch), batch, to_ms(now), limits):
                desk.take(block)
                if judged is not None:
                    judged(len(block))
        return _finish(batch, booking, desk.finish(), now)


def _finish(batch: Batch, booking: Booking, receipt: Receipt, now: datetime) -> Receipt:
    counts = {
        "received": receipt.received,
        "booked": receipt.booked,
        "duplicate": receipt.duplicate,
        "conflict": receipt.conflict,
        "quarantined": receipt.quarantined,
    }
    for name, value in counts.items():
        setattr(batch, name, value)
    batch.state, batch.booked_at = BatchState.BOOKED, now
    batch.save(update_fields=["state", "booked_at", *counts])
    Booking.objects.filter(pk=booking.pk).update(**counts)
    acquire(Lock.BOOKING_SEQUENCE)
    with connection.cursor() as cursor:
        cursor.execute(sql.GIVE_SEQUENCE, {"booking": booking.pk})
    return receipt


# --- reading ------------------------------------------------------------------------------------------------


def _body(cursor: Cursor[Any], batch: Batch) -> list[bytes]:
    """The raw body in pieces: a whole one would be in memory several times on its way through the driver."""
    pieces = []
    for start in range(1, batch.body_bytes + 1, BODY_PIECE_BYTES):
        parameters = {"batch": batch.pk, "start": start, "length": BODY_PIECE_BYTES}
        row = cursor.execute(sql.BODY_PIECE, parameters, binary=True).fetchone()
        pieces.append(row[0] if row else b"")
    return pieces


def read_blocks(pieces: list[bytes], batch: Batch, now_ms: int, limits: Limits) -> Iterator[Block]:
    """The batch's events in blocks. Requests go the fast way, everything else to `parse_line`."""
    reader = RequestReader(now_ms)
    block, last = Block(), 0
    try:
        unpacked = unpack(_consumed(pieces), batch.content_encoding, limits.unpacked_bytes)
        for group in cut(unpacked, batch.content_type, cutting_limits(limits, batch.door)):
            last = group.first + len(group.raw) - 1
            _judge(replace(group, first=group.first + batch.first_line - 1), reader, block, now_ms, limits)
            if len(block) >= BLOCK_EVENTS:
                yield block
                block = Block()
    except Broken as broken:
        block.rejected.append(rejected_rest(batch.first_line + last, broken))
    if len(block):
        yield block


def _consumed(pieces: list[bytes]) -> Iterator[bytes]:
    """Gives each piece and lets go of it."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def _judge(group: Lines, reader: RequestReader, block: Block, now_ms: int, limits: Limits) -> None:
    if group.oversize_bytes:
        block.rejected += cast("list[Rejected]", list(parse_lines(group, now_ms, limits)))
        return
    requests, left = reader.read(group.first, group.raw, limits)
    others: list[ParsedEvent] = []
    for line, raw in left:
        verdict = parse_line(line, raw, now_ms, limits)
        if isinstance(verdict, Rejected):
            block.rejected.append(verdict)
        elif verdict.type in REQUEST_TYPES:
            others.append(verdict)
        else:
            block.events.append(verdict)
    # The first of two events with one key stays, so `joined` keeps the order of lines.
    if requests is not None:
        block.add_requests(requests)
    if others:
        block.add_requests(Requests.of_events(others))


@contextmanager
def _without_cycle_search() -> Iterator[None]:
    """Blocks of events hold no cycles, and looking for some takes as long as parsing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# --- booking ------------------------------------------------------------------------------------------------


# A finding: what a correction corrects is not among the facts.
CORRECTION_OF_NOTHING = "correction_of_nothing"


def _first_received_ms(batch: Batch) -> int:
    """When its lines came: of a retry, when they came at first, so that trying again moves nothing to another month."""
    if batch.door != RETRY:
        return to_ms(batch.received_at)
    before = QuarantinedEvent.objects.filter(retried_in=batch).aggregate(first=Min("attributed_at"))
    return to_ms(before["first"] or batch.received_at)


class BookingDesk:
    """Takes blocks and books them on one connection, which is its own until `finish`."""

    def __init__(self, cursor: BookingCursor, batch: Batch, booking_id: int) -> None:
        self._cursor = cursor
        self._batch_id = batch.pk
        self._received_ms = _first_received_ms(batch)
        self._allowed = _allowed_sources(batch)
        names = Names(cursor)
        kept_from = _requests_kept_from()
        self._has_pruned = kept_from is not None
        self._requests = RequestBooking(cursor, names, booking_id, kept_from)
        self._events = EventBooking(cursor, names, booking_id, self._requests)
        self._booking_id = booking_id
        self._rejected = 0
        self._conflicts = 0
        for stage in ("stage_request_key", "stage_hour", "stage_event", "stage_verdict"):
            cursor.execute(f"DELETE FROM {stage}")  # several bookings may share one transaction

    def take(self, block: Block) -> None:
        if self._allowed is not None:
            _refuse_foreign_sources(block, self._allowed)
        rejected = block.rejected
        if block.requests is not None and len(block.requests):
            rejected = rejected + self._requests.add(block.requests)
        if block.events:
            rejected = rejected + self._events.add(block.events)
        self._keep_rejected(rejected)

    def _keep_rejected(self, rejected: list[Rejected]) -> None:
        if rejected:
            keep_rejected(self._cursor, self._batch_id, rejected, self._received_ms)
            conflicts = sum(one.reason == "conflict" for one in rejected)
            self._conflicts += conflicts
            self._rejected += len(rejected) - conflicts

    def finish(self) -> Receipt:
        """The set-based end of a booking; everything here takes its locks in a fixed order."""
        self._keep_rejected(self._requests.settle())
        self._share_corrections()
        self._events.finish(self._batch_id)
        self._apply_corrections()
        self._requests.finish()
        latest = dict(self._requests.latest_ms)
        for source, instant_ms in self._events.latest_ms.items():
            latest[source] = max(instant_ms, latest.get(source, instant_ms))
        if latest:
            sources = sorted(latest)
            self._cursor.execute(
                sql.MOVE_WATERMARKS,
                {"sources": sources, "instants": [instant_text(latest[source]) for source in sources]},
            )
        booked = self._requests.booked + self._events.booked
        duplicate = self._requests.duplicate + self._events.duplicate
        conflict = self._conflicts + self._events.conflict
        received = booked + duplicate + conflict + self._rejected
        return Receipt(self._batch_id, received, booked, duplicate, conflict, self._rejected)

    def _share_corrections(self) -> None:
        """A correction and its request booked at the same time must not miss each other in the roll-up."""
        statement = (
            event_sql.HOLD_CORRECTIONS if self._events.has_corrections else event_sql.SHARE_CORRECTIONS
        )
        self._cursor.execute(statement, {"namespace": NAMESPACE, "lock": int(Lock.CORRECTIONS)})

    def _apply_corrections(self) -> None:
        """Take out of roll-ups and subjects what is void by now."""
        if not self._cursor.execute(event_sql.ANY_CORRECTION).fetchone():
            return
        booking = {"booking": self._booking_id}
        self._stage_void(booking)
        has_new = self._events.has_corrections
        days = self._requests.days
        if has_new:
            days = [day for (day,) in self._cursor.execute(request_sql.ALL_DAYS).fetchall()]
            self._cursor.execute(event_sql.DIRTY_VOID)
        if days:
            self._requests.withdraw(days, earlier=has_new)
        self._cursor.execute(event_sql.WATCH_VOID_SUBJECTS, booking)
        if self._has_pruned:
            self._note_corrections_of_nothing(booking)

    def _note_corrections_of_nothing(self, booking: dict[str, Any]) -> None:
        """A correction of a pruned request moves nothing, which somebody has to be told. One that came before what it
        corrects looks alike until that comes."""
        days = [day for (day,) in self._cursor.execute(request_sql.ALL_DAYS).fetchall()]
        parameters = {"code": CORRECTION_OF_NOTHING, "days": days}
        self._cursor.execute(event_sql.FORGET_CORRECTIONS_OF_NOTHING, parameters)
        if self._events.has_corrections:
            self._cursor.execute(event_sql.NOTE_CORRECTIONS_OF_NOTHING, parameters | booking)

    def _stage_void(self, booking: dict[str, Any]) -> None:
        """The keys that do not count, now and before this booking's corrections."""
        rows = self._cursor.execute(event_sql.CORRECTIONS, booking).fetchall()
        facts = [
            (
                CorrectionFact(
                    (uri, key), at_ms, (old_uri, old_id), None if new_id is None else (new_uri, new_id)
                ),
                is_new,
            )
            for uri, key, at_ms, old_uri, old_id, new_uri, new_id, is_new in rows
        ]
        void = void_keys(fact for fact, _ in facts)
        was = void_keys(fact for fact, is_new in facts if not is_new)
        keys = sorted(void | was)
        self._cursor.execute(event_sql.VOID_STAGE)
        self._cursor.execute(
            event_sql.FILL_VOID,
            {
                "uris": [uri for uri, _ in keys],
                "ids": [event_id for _, event_id in keys],
                "was": [key in was for key in keys],
                "is": [key in void for key in keys],
            },
        )


def _allowed_sources(batch: Batch) -> frozenset[str] | None:
    """Addresses that the batch's sender may speak for; None: any."""
    if batch.allowed_sources is None:
        return None
    return frozenset(Source.objects.filter(pk__in=batch.allowed_sources).values_list("uri", flat=True))


def _refuse_foreign_sources(block: Block, allowed: frozenset[str]) -> None:
    detail = "the sender's token may not speak for this source"
    reason = "source_not_allowed"
    if block.requests is not None:
        sources = block.requests.sources
        is_own = np.array([uri in allowed for uri in sources.values], bool)[sources.codes]
        foreign = np.flatnonzero(~is_own).tolist()
        block.rejected += [block.requests.rejected(place, reason, detail) for place in foreign]
        block.requests = block.requests.take(np.flatnonzero(is_own))
    foreign_events = [event for event in block.events if not _sources_spoken_for(event) <= allowed]
    block.rejected += [event.rejected(reason, detail) for event in foreign_events]
    block.events = [event for event in block.events if _sources_spoken_for(event) <= allowed]


def _sources_spoken_for(event: ParsedEvent) -> set[str]:
    """Whose facts the event writes or takes away: a correction can do both to another source's."""
    sources = {event.source}
    if isinstance(event.record, Correction):
        sources.add(event.record.supersedes.source)
    if event.replacement is not None:
        sources.add(event.replacement.source)
    return sources


def _requests_kept_from() -> date | None:
    """The first UTC day whose requests were not pruned."""
    options = ledger_settings().options
    text = options.get("requests_kept_from")
    return date.fromisoformat(text) if text else None
