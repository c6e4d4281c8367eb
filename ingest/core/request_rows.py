"""Requests as columns: the rows of a daily partition, and the same summed up by the hour (domain.md section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingest.core.binary_rows import Int64s, Rows
from ingest.core.events import MS_PER_HOUR, Request, Usage
from ingest.core.fields import MS_PER_DAY
from ingest.core.parse import ParsedEvent, Rejected
from ingest.core.request_content import (
    ABSENT,
    HASHED_NUMBERS,
    NUMBERS,
    TEXTS,
    USAGE_TYPE,
    number_values,
    text_values,
)

REQUEST_TYPES = frozenset({"ledger.request.v1", "ledger.usage.v1"})
OUTCOMES = {"ok": 1, "aborted": 2, "error": 3, "timeout": 4, "preempted": 5, "aggregated": 6}
SERVICE_CLASSES = {None: 0, "guaranteed": 1, "preemptible": 2}
# What GPU time is called in an event and in the tables; every other number has one name.
_COLUMNS = {
    "gpu_seconds": "gpu_us",
    "prefill_gpu_seconds": "prefill_gpu_us",
    "recompute_gpu_seconds": "recompute_gpu_us",
}
_FIELDS = {column: name for name, column in _COLUMNS.items()}
_ATTRIBUTES = ("user", "api_key", "labels", "parent_request")


@dataclass(slots=True)
class Ids:
    """What the names of some rows are in the database. `identity` and `service` may be ABSENT."""

    source: Int64s
    pool: Int64s
    identity: Int64s
    service: Int64s
    model: Int64s


@dataclass(slots=True)
class Requests:
    """Requests and usage events, a column for each thing they say, in the order of their lines.

    Instants are epoch milliseconds, GPU time is in gpu_us. `numbers` lacks the columns that nobody gave a value for.
    """

    line: Int64s
    raw: Sequence[bytes]
    sources: Sequence[str]
    event_ids: Sequence[str]
    type: Int64s
    ends_ms: Int64s
    starts_ms: Int64s
    queued_ms: Int64s
    attempt: Int64s
    requests: Int64s
    concurrency_us: Int64s
    numbers: dict[str, Int64s]
    texts: dict[str, Sequence[Any]]
    digests: Sequence[bytes]

    @classmethod
    def of_events(cls, events: Sequence[ParsedEvent]) -> Requests:
        """Columns of events that `parse_line` judged."""
        records = [(event.record, event.time_ms) for event in events]
        assert all(isinstance(record, Request | Usage) for record, _ in records)
        table = np.array([number_values(record, time_ms) for record, time_ms in records], np.int64)  # type: ignore[arg-type]
        number = dict(zip(HASHED_NUMBERS, table.T, strict=True))
        texts = zip(*(text_values(record) for record, _ in records), strict=True)  # type: ignore[arg-type]
        return cls(
            line=np.array([event.line for event in events], np.int64),
            raw=[event.raw for event in events],
            sources=[event.source for event in events],
            event_ids=[event.id for event in events],
            type=number["type"],
            ends_ms=number["ends_at"],
            starts_ms=number["starts_at"],
            queued_ms=number["queued_at"],
            attempt=number["attempt"],
            requests=number["requests"],
            concurrency_us=number["concurrency"],
            numbers={
                name: number[name] for name in ("deferrals", *NUMBERS) if (number[name] != ABSENT).any()
            },
            texts=dict(zip(TEXTS, texts, strict=True)),
            digests=[event.digest for event in events],
        )

    def __len__(self) -> int:
        return len(self.raw)

    def take(self, places: Sequence[int]) -> Requests:
        """The rows at these places, in their order."""
        index = np.array(places, np.int64)

        def of(column: Any) -> Any:
            if isinstance(column, dict):
                return {name: of(values) for name, values in column.items()}
            return column[index] if isinstance(column, np.ndarray) else [column[place] for place in places]

        return Requests(**{one.name: of(getattr(self, one.name)) for one in fields(self)})

    def joined(self, other: Requests) -> Requests:
        """The rows of both, in order of their lines."""

        def both(name: str) -> Any:
            mine, others = getattr(self, name), getattr(other, name)
            if isinstance(mine, np.ndarray):
                return np.concatenate([mine, others])
            return [*mine, *others]

        values = {one.name: both(one.name) for one in fields(self) if one.name not in ("numbers", "texts")}
        given = self.numbers.keys() | other.numbers.keys()
        values["numbers"] = {name: np.concatenate([self.number(name), other.number(name)]) for name in given}
        values["texts"] = {name: [*self.texts[name], *other.texts[name]] for name in TEXTS}
        whole = Requests(**values)
        return whole.take(np.argsort(whole.line, kind="stable").tolist())

    def number(self, name: str) -> Int64s:
        """A column of numbers, ABSENT where they were not given."""
        found = self.numbers.get(name)
        return np.full(len(self), ABSENT, np.int64) if found is None else found

    def hashed_number(self, name: str) -> Int64s:
        """A column of `HASHED_NUMBERS`."""
        own = {
            "type": self.type,
            "ends_at": self.ends_ms,
            "starts_at": self.starts_ms,
            "queued_at": self.queued_ms,
            "attempt": self.attempt,
            "requests": self.requests,
            "concurrency": self.concurrency_us,
        }
        return own[name] if name in own else self.number(name)

    def hashed_texts(self) -> Any:
        """The rows' texts, each in the order of `TEXTS`."""
        return zip(*(self.texts[name] for name in TEXTS), strict=True)

    @property
    def days(self) -> Int64s:
        """UTC day of each row, in days from 1970: its partition."""
        return self.ends_ms // MS_PER_DAY

    def keys(self) -> list[tuple[str, str, int]]:
        """(source, id, day) of each row."""
        return list(zip(self.sources, self.event_ids, self.days.tolist(), strict=True))

    def who(self) -> list[tuple[str, str] | None]:
        """(kind, value) of the identity each row names; None for usage of nobody in particular."""
        named = zip(
            self.texts["tenant"], self.texts["identity_kind"], self.texts["identity_value"], strict=True
        )
        return [
            ("tenant", tenant) if tenant is not None else None if kind is None else (kind, value)
            for tenant, kind, value in named
        ]

    def only_identity_kind(self) -> str | None:
        """The kind of identity that all rows name, if it is one and none names a tenant."""
        kinds = self.texts["identity_kind"]
        is_one = kinds[0] is not None and kinds.count(kinds[0]) == len(kinds)
        return kinds[0] if is_one else None

    def rejected(self, place: int, reason: str, detail: str) -> Rejected:
        """The row at a place, sound in itself and refused all the same."""
        return Rejected(
            int(self.line[place]),
            reason,
            detail,
            self.raw[place],
            id=self.event_ids[place],
            source=self.sources[place],
            time_ms=int(self.ends_ms[place]),
        )

    # --- the rows themselves --------------------------------------------------------------------------------

    def table_rows(self, ids: Ids, booking_id: int) -> Rows:
        """Rows of `ledger_request`."""
        rows = Rows()
        rows.number("day", "date", self.days)
        rows.number("source_id", "bigint", ids.source)
        rows.number("booking_id", "bigint", np.full(len(self), booking_id, np.int64))
        rows.number("line", "integer", self.line)
        rows.number("type", "smallint", self.type)
        rows.number("starts_at", "timestamptz", self.starts_ms)
        rows.number("ends_at", "timestamptz", self.ends_ms)
        rows.number("pool_id", "bigint", ids.pool)
        rows.number("model_id", "bigint", ids.model)
        rows.number("attempt", "integer", self.attempt)
        rows.number("outcome", "smallint", self._codes("outcome", OUTCOMES))
        rows.number("service_class", "smallint", self._codes("service_class", SERVICE_CLASSES))
        rows.number("requests", "integer", self.requests)
        rows.optional("identity_id", "bigint", ids.identity, ABSENT)
        rows.optional("service_id", "bigint", ids.service, ABSENT)
        rows.optional("queued_at", "timestamptz", self.queued_ms, ABSENT)
        rows.optional("concurrency_us", "bigint", self.concurrency_us, ABSENT)
        for name in NUMBERS:
            if name in self.numbers:
                kind = "integer" if name == "preemptions" else "bigint"
                rows.optional(_COLUMNS.get(name, name), kind, self.numbers[name], ABSENT)
        rows.text("content_hash", self.digests)
        rows.text("event_id", [text.encode() for text in self.event_ids])
        rows.text("request", [text.encode() for text in self.texts["request"]])
        if not self._is_empty("workload"):
            rows.text("workload", [text and text.encode() for text in self.texts["workload"]])
        rows.text("attributes", self._attributes(), prefix=b"\x01")
        return rows

    def _codes(self, name: str, codes: dict[Any, int]) -> Int64s:
        return np.fromiter(map(codes.__getitem__, self.texts[name]), np.int64, len(self))

    def _is_empty(self, name: str) -> bool:
        return self.texts[name].count(None) == len(self)

    def _attributes(self) -> Sequence[bytes | None]:
        """What only drill-downs ask for, as JSON; None where there is nothing."""
        given: dict[str, Sequence[Any]] = {
            name: self.texts[name] for name in _ATTRIBUTES if not self._is_empty(name)
        }
        if "deferrals" in self.numbers:
            given["deferrals"] = [None if n == ABSENT else n for n in self.numbers["deferrals"].tolist()]
        if not given:
            return [None]
        found = (
            {name: value for name, value in zip(given, row, strict=True) if value is not None}
            for row in zip(*given.values(), strict=True)
        )
        return [msgspec.json.encode(attributes) if attributes else None for attributes in found]

    # --- summed up by the hour ------------------------------------------------------------------------------

    def hours(self, ids: Ids) -> HourSums:
        """The rows' contribution to the hourly roll-up."""
        is_usage = self.type == USAGE_TYPE
        counted_ms = np.where(is_usage, self.starts_ms, self.ends_ms)
        hour = counted_ms // MS_PER_HOUR
        in_flight_us = np.where(
            is_usage,
            np.maximum(self.concurrency_us, 0),
            (self.ends_ms - np.maximum(self.starts_ms, hour * MS_PER_HOUR)) * 1000,
        )
        keys = np.stack(
            [
                ids.pool,
                hour,
                ids.identity,
                ids.service,
                ids.model,
                self._codes("service_class", SERVICE_CLASSES),
                self._codes("outcome", OUTCOMES),
            ],
            axis=1,
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
            known = self.numbers.get(_FIELDS.get(_MISSING[name], _MISSING[name]))
            count = np.maximum(self.requests, 1)
            return count if known is None else np.where(known == ABSENT, count, 0)
        values = self.numbers.get(_FIELDS.get(name, name))
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

    @classmethod
    def together(cls, several: Sequence[HourSums]) -> HourSums:
        """Sums of several sets of rows, those of one key added up."""
        return _grouped(
            np.concatenate([one.keys for one in several]), np.concatenate([one.sums for one in several])
        )

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
    codes = 1  # how many values `code` can have
    for column in keys.T:
        if (column == column[0]).all():
            continue
        values, place = np.unique(column, return_inverse=True)
        code, codes = code * len(values) + place, codes * len(values)
        if codes > 2**40:
            values, code = np.unique(code, return_inverse=True)
            codes = len(values)
    order = np.argsort(code, kind="stable")
    ordered = code[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return HourSums(keys[order[starts]], np.add.reduceat(sums[order], starts, axis=0))
