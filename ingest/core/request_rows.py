"""Requests as columns: the rows of a daily partition, and the same summed up by the hour (domain.md section 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingest.core.binary_rows import Int64s, Rows
from ingest.core.events import MS_PER_HOUR
from ingest.core.fields import MS_PER_DAY
from ingest.core.request_lines import ABSENT, RECORD_FIELDS, Row

OUTCOMES = {"ok": 1, "aborted": 2, "error": 3, "timeout": 4, "preempted": 5, "aggregated": 6}
SERVICE_CLASSES = {None: 0, "guaranteed": 1, "preemptible": 2}
USAGE = 8

# Field of the record -> column of the table.
NUMBERS = {
    "input_tokens": "input_tokens",
    "cached_input_tokens": "cached_input_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "output_tokens": "output_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "gpu_seconds": "gpu_us",
    "prefill_gpu_seconds": "prefill_gpu_us",
    "preemptions": "preemptions",
    "recomputed_tokens": "recomputed_tokens",
    "recompute_gpu_seconds": "recompute_gpu_us",
}
_INTEGERS = {"preemptions"}
_ATTRIBUTES = ("user", "api_key", "labels", "parent_request", "deferrals")


@dataclass(slots=True)
class Ids:
    """What the names of some rows are in the database. `identity` and `service` may be ABSENT."""

    source: Int64s
    pool: Int64s
    identity: Int64s
    service: Int64s
    model: Int64s


class Requests:
    """Rows of `request_lines` turned into columns. Iterating over them again costs nothing."""

    def __init__(self, rows: Sequence[Row]) -> None:
        lines, self.raw, self.sources, self.event_ids, times, self.digests, values, extents = zip(
            *rows, strict=True
        )
        self.line = np.array(lines, np.int64)
        self.ends_ms = np.array(times, np.int64)
        self.values: dict[str, tuple[Any, ...]] = dict(
            zip(RECORD_FIELDS, zip(*values, strict=True), strict=True)
        )
        self.starts_ms = np.array(self.values["started_at"], np.int64)
        self.type, self.requests, self.concurrency_us = (
            np.array(column, np.int64) for column in zip(*extents, strict=True)
        )
        self.outcome = self._codes("outcome", OUTCOMES.__getitem__)
        self.service_class = self._codes("service_class", SERVICE_CLASSES.__getitem__)
        self.numbers: dict[str, Int64s] = {
            column: self._numbers(name) for name, column in NUMBERS.items() if self._is_given(name)
        }

    def __len__(self) -> int:
        return len(self.raw)

    @staticmethod
    def field_position(name: str) -> int:
        """Where a field of the record stands in a row's values."""
        return RECORD_FIELDS.index(name)

    @property
    def days(self) -> Int64s:
        """UTC day of each row, in days from 1970: its partition."""
        return self.ends_ms // MS_PER_DAY

    def who(self) -> list[tuple[str, str] | None]:
        """(kind, value) of the identity each row names; None for usage of nobody in particular."""
        return [
            ("tenant", tenant) if tenant is not None else identity and (identity.kind, identity.value)
            for tenant, identity in zip(self.values["tenant"], self.values["identity"], strict=True)
        ]

    def _is_given(self, name: str) -> bool:
        column = self.values[name]
        return column.count(ABSENT) < len(column)

    def _is_empty(self, name: str) -> bool:
        column = self.values[name]
        return column.count(None) + column.count(ABSENT) == len(column)

    def _numbers(self, name: str) -> Int64s:
        return np.array(self.values[name], np.int64)

    def _codes(self, name: str, code: Callable[[Any], int]) -> Int64s:
        return np.fromiter(map(code, self.values[name]), np.int64, len(self))

    # --- the rows themselves --------------------------------------------------------------------------------

    def table_rows(self, ids: Ids, booking_id: int) -> Rows:
        """Rows of `ledger_request`."""
        rows = Rows()
        every = np.full(len(self), 1, np.int64)
        rows.number("day", "date", self.days)
        rows.number("source_id", "bigint", ids.source)
        rows.number("booking_id", "bigint", every * booking_id)
        rows.number("line", "integer", self.line)
        rows.number("type", "smallint", self.type)
        rows.number("starts_at", "timestamptz", self.starts_ms)
        rows.number("ends_at", "timestamptz", self.ends_ms)
        rows.number("pool_id", "bigint", ids.pool)
        rows.number("model_id", "bigint", ids.model)
        rows.number("attempt", "integer", self._numbers("attempt"))
        rows.number("outcome", "smallint", self.outcome)
        rows.number("service_class", "smallint", self.service_class)
        rows.number("requests", "integer", self.requests)
        rows.optional("identity_id", "bigint", ids.identity, ABSENT)
        rows.optional("service_id", "bigint", ids.service, ABSENT)
        rows.optional("concurrency_us", "bigint", self.concurrency_us, ABSENT)
        for column, numbers in self.numbers.items():
            rows.optional(column, "integer" if column in _INTEGERS else "bigint", numbers, ABSENT)
        if not self._is_empty("queued_at"):
            queued = [ABSENT if instant is None else instant for instant in self.values["queued_at"]]
            rows.optional("queued_at", "timestamptz", np.array(queued, np.int64), ABSENT)
        rows.text("content_hash", self.digests)
        rows.text("event_id", [text.encode() for text in self.event_ids])
        rows.text("request", [text.encode() for text in self.values["request"]])
        if not self._is_empty("workload"):
            rows.text("workload", [text and text.encode() for text in self.values["workload"]])
        rows.text("attributes", self._attributes(), prefix=b"\x01")
        return rows

    def _attributes(self) -> Sequence[bytes | None]:
        """What only drill-downs ask for, as JSON; None where there is nothing."""
        given = [name for name in _ATTRIBUTES if not self._is_empty(name)]
        if not given:
            return [None]
        found = (
            {name: value for name, value in zip(given, row, strict=True) if value not in (None, ABSENT)}
            for row in zip(*(self.values[name] for name in given), strict=True)
        )
        return [msgspec.json.encode(attributes) if attributes else None for attributes in found]

    # --- summed up by the hour ------------------------------------------------------------------------------

    def hours(self, ids: Ids) -> HourSums:
        """The rows' contribution to the hourly roll-up."""
        is_usage = self.type == USAGE
        counted_ms = np.where(is_usage, self.starts_ms, self.ends_ms)
        hour = counted_ms // MS_PER_HOUR
        in_flight_us = np.where(
            is_usage,
            np.maximum(self.concurrency_us, 0),
            (self.ends_ms - np.maximum(self.starts_ms, hour * MS_PER_HOUR)) * 1000,
        )
        keys = np.stack(
            [ids.pool, hour, ids.identity, ids.service, ids.model, self.service_class, self.outcome], axis=1
        )
        sums = np.stack([self._measure(name, in_flight_us) for name in HOUR_SUMS], axis=1)
        earlier_rows, earlier_hours, earlier_us = self._earlier_hours(hour, ~is_usage)
        if len(earlier_rows):
            more_keys = keys[earlier_rows]
            more_keys[:, 1] = earlier_hours
            more_sums = np.zeros((len(earlier_rows), len(HOUR_SUMS)), np.int64)
            more_sums[:, HOUR_SUMS.index("concurrency_us")] = earlier_us
            keys, sums = np.concatenate([keys, more_keys]), np.concatenate([sums, more_sums])
        return _grouped(keys, sums)

    def _measure(self, name: str, in_flight_us: Int64s) -> Int64s:
        if name == "requests":
            return self.requests
        if name == "concurrency_us":
            return in_flight_us
        if name.endswith("_missing"):
            known = self.numbers.get(_MISSING[name])
            count = np.maximum(self.requests, 1)
            return count if known is None else np.where(known == ABSENT, count, 0)
        values = self.numbers.get(name)
        return np.zeros(len(self), np.int64) if values is None else np.maximum(values, 0)

    def _earlier_hours(self, hour: Int64s, is_request: NDArray[np.bool_]) -> tuple[Int64s, Int64s, Int64s]:
        """(row, hour, microseconds in flight) of every hour that a request touched before the one it ended in."""
        first = self.starts_ms // MS_PER_HOUR
        long = np.flatnonzero((first < hour) & is_request)
        spans = (hour - first)[long]
        rows = np.repeat(long, spans)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(spans) - spans, spans)
        hours = first[rows] + within
        begins_ms = np.maximum(self.starts_ms[rows], hours * MS_PER_HOUR)
        return rows, hours, ((hours + 1) * MS_PER_HOUR - begins_ms) * 1000


HOUR_KEYS = ("pool_id", "hour", "identity_id", "service_id", "model_id", "service_class", "outcome")
HOUR_SUMS = (
    "requests",
    "input_tokens",
    "input_missing",
    "cached_input_tokens",
    "cached_missing",
    "cache_write_tokens",
    "output_tokens",
    "output_missing",
    "reasoning_tokens",
    "gpu_us",
    "gpu_missing",
    "concurrency_us",
    "preemptions",
    "recomputed_tokens",
    "recompute_gpu_us",
)
_MISSING = {
    "input_missing": "input_tokens",
    "cached_missing": "cached_input_tokens",
    "output_missing": "output_tokens",
    "gpu_missing": "gpu_us",
}


@dataclass(slots=True)
class HourSums:
    """keys[i] in the order of HOUR_KEYS (hours counted from 1970), sums[i] in the order of HOUR_SUMS."""

    keys: Int64s
    sums: Int64s

    def table_rows(self) -> Rows:
        rows = Rows()
        columns = dict(zip(HOUR_KEYS, self.keys.T, strict=True))
        rows.number("pool_id", "bigint", columns["pool_id"])
        rows.number("hour", "timestamptz", columns["hour"] * MS_PER_HOUR)
        rows.number("model_id", "bigint", columns["model_id"])
        rows.number("service_class", "smallint", columns["service_class"])
        rows.number("outcome", "smallint", columns["outcome"])
        rows.optional("identity_id", "bigint", columns["identity_id"], ABSENT)
        rows.optional("service_id", "bigint", columns["service_id"], ABSENT)
        for name, sums in zip(HOUR_SUMS, self.sums.T, strict=True):
            rows.number(name, "bigint", sums)
        return rows


def _grouped(keys: Int64s, sums: Int64s) -> HourSums:
    """Rows with equal keys added up. Exact: everything stays int64, and `fields` bounds each value."""
    code = np.zeros(len(keys), np.int64)
    for column in keys.T:
        _, place = np.unique(column, return_inverse=True)
        code = code * (int(place.max()) + 1) + place
        # Numbered anew after each column, so that the code never grows past the number of rows.
        _, code = np.unique(code, return_inverse=True)
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return HourSums(keys[order[starts]], np.add.reduceat(sums[order], starts, axis=0))
