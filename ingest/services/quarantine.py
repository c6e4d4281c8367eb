"""Keeping what could not be booked, with the reason and the original bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from psycopg import Cursor

from ingest.core.binary_rows import Rows
from ingest.core.instants import newest_instant_ms
from ingest.core.parse import Rejected
from ingest.services.request_booking import copy_rows

# No instant: earlier than any that an event can have.
_NO_INSTANT_MS = 0


def keep_rejected(cursor: Cursor[Any], batch_id: int, rejected: Sequence[Rejected], received_ms: int) -> None:
    """Write them to quarantine, as part of their batch's booking. received_ms: when they first came."""
    rows, count = Rows(), len(rejected)
    rows.number("batch_id", "bigint", np.full(count, batch_id, np.int64))
    rows.number("line", "integer", np.array([one.line for one in rejected], np.int64))
    instants = [_NO_INSTANT_MS if one.time_ms is None else one.time_ms for one in rejected]
    rows.optional("occurred_at", "timestamptz", np.array(instants, np.int64), _NO_INSTANT_MS)
    attributed = [_attributed_ms(one, received_ms) for one in rejected]
    rows.number("attributed_at", "timestamptz", np.array(attributed, np.int64))
    rows.text("event_id", [one.id.encode() for one in rejected])
    rows.text("source_uri", [one.source.encode() for one in rejected])
    rows.text("reason", [one.reason.encode() for one in rejected])
    rows.text("detail", [_storable(one.detail) for one in rejected])
    rows.text("raw", [one.raw for one in rejected])
    rows.text("adapter", [one.adapter.encode() for one in rejected])
    rows.text("resolution", [b""] * count)
    rows.text("resolved_by", [b""] * count)
    copy_rows(cursor, "ingest_quarantinedevent", rows)


def _attributed_ms(one: Rejected, received_ms: int) -> int:
    """By which instant a line counts to a month: what it speaks of may have been long before it came."""
    if one.time_ms is not None:
        return one.time_ms
    newest_ms = newest_instant_ms(one.raw, received_ms)
    return received_ms if newest_ms is None else newest_ms


def _storable(detail: str) -> bytes:
    return detail.replace("\x00", "").encode("utf-8", "replace")[:2000].decode("utf-8", "ignore").encode()
