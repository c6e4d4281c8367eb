"""Low-volume events of a booking: staged by COPY, then registered and unfolded by set-based statements."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from django.utils import timezone
from psycopg import Cursor

from ingest.core.binary_rows import Rows
from ingest.core.events import FUTURE_TOLERANCE_MS
from ingest.core.fact_rows import TYPE_CODES, fact_row, names_of
from ingest.core.fields import Refusal
from ingest.core.parse import ParsedEvent, Rejected, event_body
from ingest.core.request_rows import REQUEST_TYPES, Requests
from ingest.services.names import Names
from ingest.services.request_booking import CONFLICT, RequestBooking, copy_rows
from ingest.sql import events as sql
from ingest.sql import quotas as quota_sql
from ledger.core.periods import to_ms
from ledger.locks import CLUSTERS, NAMESPACE, Lock
from ledger.selectors.corrections import void_facts

CORRECTION = "ledger.correction.v1"
QUOTA = "ledger.quota.v1"
_Staged = tuple[
    ParsedEvent, dict[str, Any], int
]  # with its row, and 1 for a replacement behind its correction


class EventBooking:
    """Collects events block by block; `finish` books them all."""

    def __init__(self, cursor: Cursor[Any], names: Names, booking_id: int, requests: RequestBooking) -> None:
        self._cursor = cursor
        self._names = names
        self._booking_id = booking_id
        self._requests = requests
        self._replaced_requests: list[ParsedEvent] = []
        self._corrections = self._quotas = 0
        self._staged = 0
        self.booked = 0
        self.duplicate = 0
        self.conflict = 0
        self.latest_ms: dict[int, int] = {}
        self._now_ms = to_ms(timezone.now())
        cursor.execute(sql.STAGES)

    def add(self, events: list[ParsedEvent]) -> list[Rejected]:
        """Stage a block; returns what of it is refused for naming what does not exist."""
        replacements = [event.replacement for event in events if event.replacement is not None]
        self._learn(events + replacements)
        staged: list[_Staged] = []
        refused: list[Rejected] = []
        for event in events:
            try:
                staged += self._staged_rows(event)
            except Refusal as refusal:
                refused.append(event.rejected(refusal.reason, refusal.detail))
        if staged:
            self._stage(staged)
        return refused

    def _learn(self, events: list[ParsedEvent]) -> None:
        names = self._names
        named = [names_of(event) for event in events]
        names.learn_sources({event.source for event in events})
        names.learn_identities({who for holders, _ in named for who in holders})
        names.learn_models({model for _, model in named if model is not None})

    def _staged_rows(self, event: ParsedEvent) -> list[_Staged]:
        """The event, and behind a correction its replacement; raises `Refusal` for both together."""
        rows: list[_Staged] = [(event, fact_row(event, self._names), 0)]
        replacement = event.replacement
        if replacement is None:
            return rows
        parameters = {"uri": replacement.source, "id": replacement.id, "hash": replacement.digest}
        taken = self._cursor.execute(sql.OTHER_CONTENT, parameters).fetchone()
        if taken and taken[0]:
            raise Refusal("conflict", "the replacement's key was booked before with other content")
        if replacement.type in REQUEST_TYPES:
            if problem := self._requests.unbookable(Requests.of_events([replacement])):
                raise Refusal(*problem)
            self._replaced_requests.append(replacement)
        else:
            rows.append((replacement, fact_row(replacement, self._names), 1))
        return rows

    def _stage(self, staged: list[_Staged]) -> None:
        events = [event for event, _, _ in staged]
        rows, count = Rows(), len(events)
        rows.number("n", "integer", np.arange(self._staged, self._staged + count))
        rows.number("line", "integer", np.array([event.line for event in events], np.int64))
        rows.number("part", "smallint", np.array([part for _, _, part in staged], np.int64))
        rows.number(
            "source_id", "bigint", np.array([self._names.sources[event.source] for event in events], np.int64)
        )
        rows.number("type", "smallint", np.array([TYPE_CODES[event.type] for event in events], np.int64))
        rows.number("occurred_at", "timestamptz", np.array([event.time_ms for event in events], np.int64))
        rows.text("content_hash", [event.digest for event in events])
        rows.text("event_id", [event.id.encode() for event in events])
        rows.text("body", [event_body(event) for event in events], prefix=b"\x01")
        rows.text("fact", [msgspec.json.encode(fact) for _, fact, _ in staged], prefix=b"\x01")
        rows.text("raw", [event.raw for event in events])
        copy_rows(self._cursor, "stage_event", rows)
        self._staged += count
        self._corrections += sum(event.type == CORRECTION for event in events)
        self._quotas += sum(event.type == QUOTA for event in events)
        for event in events:
            if event.time_ms > self._now_ms + FUTURE_TOLERANCE_MS:
                continue  # planned: no word of how far its source has got
            source = self._names.sources[event.source]
            self.latest_ms[source] = max(event.time_ms, self.latest_ms.get(source, event.time_ms))

    def _add_replaced_requests(self) -> None:
        """Requests that corrections brought along; those of refused corrections stay out."""
        holding = {line for (line,) in self._cursor.execute(sql.HOLDING_CORRECTIONS).fetchall()}
        counted = [event for event in self._replaced_requests if event.line in holding]
        if counted:
            self._requests.add_replacements(Requests.of_events(counted))

    @property
    def has_corrections(self) -> bool:
        return bool(self._corrections)

    def finish(self, batch_id: int) -> None:
        """Register what is new, unfold it, quarantine conflicts, mark as dirty what it changes."""
        if not self._staged:
            return
        cursor = self._cursor
        cursor.execute("ANALYZE stage_event")
        cursor.execute(sql.HOLD_CLUSTERS, {"clusters": CLUSTERS})
        for part in (0, 1):
            cursor.execute(sql.REGISTER, {"booking": self._booking_id, "part": part})
            cursor.execute(sql.JUDGE, {"booking": self._booking_id, "part": part})
        cursor.execute("ANALYZE stage_verdict")
        for statement in sql.UNFOLD:
            cursor.execute(statement)
        self._add_replaced_requests()
        counts = cursor.execute(sql.COUNT).fetchone()
        assert counts is not None
        self.booked, self.duplicate, self.conflict = counts
        if self.conflict:
            cursor.execute(sql.QUARANTINE_CONFLICTS, {"batch": batch_id, "detail": CONFLICT})
        cursor.execute(sql.MERGE_SUBJECTS)
        cursor.execute(sql.DIRTY_LEVELS, {"booking": self._booking_id, "void": self._void_events()})
        cursor.execute(sql.DIRTY_PREEMPTIONS)
        if self._quotas:
            cursor.execute(quota_sql.HOLD_QUOTAS, {"namespace": NAMESPACE, "lock": int(Lock.QUOTAS)})
            cursor.execute(quota_sql.DIRTY_QUOTAS)
            cursor.execute(quota_sql.MOVE_QUOTAS)

    def _void_events(self) -> list[int]:
        """Events that do not count, by this booking's corrections too; one query where there are none."""
        return void_facts().events if self._cursor.execute(sql.ANY_CORRECTION).fetchone() else []
