"""Low-volume events of a booking: staged by COPY, then registered and unfolded by set-based statements."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from psycopg import Cursor

from ingest.core.binary_rows import Rows
from ingest.core.fact_rows import TYPE_CODES, fact_row, names_of
from ingest.core.fields import Refusal
from ingest.core.parse import ParsedEvent, Rejected, event_body
from ingest.services.names import Names
from ingest.services.request_booking import CONFLICT, copy_rows
from ingest.sql import events as sql


class EventBooking:
    """Collects events block by block; `finish` books them all."""

    def __init__(self, cursor: Cursor[Any], names: Names, booking_id: int) -> None:
        self._cursor = cursor
        self._names = names
        self._booking_id = booking_id
        self._staged = 0
        self.booked = 0
        self.duplicate = 0
        self.conflict = 0
        self.latest_ms: dict[int, int] = {}
        cursor.execute(sql.STAGES)

    def add(self, events: list[ParsedEvent]) -> list[Rejected]:
        """Stage a block; returns what of it is refused for naming what does not exist."""
        names = self._names
        named = [names_of(event) for event in events]
        names.learn_sources({event.source for event in events})
        names.learn_identities({who for holders, _ in named for who in holders})
        names.learn_models({model for _, model in named if model is not None})
        staged: list[tuple[ParsedEvent, dict[str, Any]]] = []
        refused: list[Rejected] = []
        for event in events:
            try:
                staged.append((event, fact_row(event, names)))
            except Refusal as refusal:
                refused.append(event.rejected(refusal.reason, refusal.detail))
        if staged:
            self._stage(staged)
        return refused

    def _stage(self, staged: list[tuple[ParsedEvent, dict[str, Any]]]) -> None:
        events = [event for event, _ in staged]
        rows, count = Rows(), len(events)
        rows.number("n", "integer", np.arange(self._staged, self._staged + count))
        rows.number("line", "integer", np.array([event.line for event in events], np.int64))
        rows.number("part", "smallint", np.zeros(count, np.int64))
        rows.number(
            "source_id", "bigint", np.array([self._names.sources[event.source] for event in events], np.int64)
        )
        rows.number("type", "smallint", np.array([TYPE_CODES[event.type] for event in events], np.int64))
        rows.number("occurred_at", "timestamptz", np.array([event.time_ms for event in events], np.int64))
        rows.text("content_hash", [event.digest for event in events])
        rows.text("event_id", [event.id.encode() for event in events])
        rows.text("body", [event_body(event) for event in events], prefix=b"\x01")
        rows.text("fact", [msgspec.json.encode(fact) for _, fact in staged], prefix=b"\x01")
        rows.text("raw", [event.raw for event in events])
        copy_rows(self._cursor, "stage_event", rows)
        self._staged += count
        for event in events:
            source = self._names.sources[event.source]
            self.latest_ms[source] = max(event.time_ms, self.latest_ms.get(source, event.time_ms))

    def finish(self, batch_id: int) -> None:
        """Register what is new, unfold it, quarantine conflicts, mark as dirty what it changes."""
        if not self._staged:
            return
        cursor, parameters = self._cursor, {"booking": self._booking_id}
        cursor.execute("ANALYZE stage_event")
        cursor.execute(sql.REGISTER, parameters)
        cursor.execute(sql.JUDGE, parameters)
        cursor.execute("ANALYZE stage_verdict")
        for statement in sql.UNFOLD:
            cursor.execute(statement)
        counts = cursor.execute(sql.COUNT).fetchone()
        assert counts is not None
        self.booked, self.duplicate, self.conflict = counts
        if self.conflict:
            cursor.execute(sql.QUARANTINE_CONFLICTS, {"batch": batch_id, "detail": CONFLICT})
        cursor.execute(sql.DIRTY_LEVELS)
        cursor.execute(sql.DIRTY_PREEMPTIONS)
        cursor.execute(sql.MERGE_SUBJECTS)
