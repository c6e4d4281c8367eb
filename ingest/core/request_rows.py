"""Requests as columns, and the rows of a daily partition made of them (domain.md section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import numpy as np

from ingest.core.binary_rows import Rows
from ingest.core.columns import masked_words
from ingest.core.events import Request, Usage
from ingest.core.fields import MS_PER_DAY
from ingest.core.parse import ParsedEvent, Rejected
from ingest.core.ragged import Ragged
from ingest.core.request_content import (
    ABSENT,
    HASHED_NUMBERS,
    NUMBERS,
    REQUEST_TYPE,
    TEXTS,
    earlier_hash,
    number_values,
    text_values,
)
from ingest.core.request_hashes import Digests, digests_of
from ingest.core.spans import Coded, Column, Int64s, Spans

REQUEST_TYPES = frozenset({"ledger.request.v1", "ledger.usage.v1"})
OUTCOMES = {"ok": 1, "aborted": 2, "error": 3, "timeout": 4, "preempted": 5, "aggregated": 6}
SERVICE_CLASSES = {None: 0, "guaranteed": 1, "preemptible": 2}
# What GPU time is called in an event and in the tables; every other number has one name.
COLUMNS = {
    "gpu_seconds": "gpu_us",
    "prefill_gpu_seconds": "prefill_gpu_us",
    "recompute_gpu_seconds": "recompute_gpu_us",
}
_ATTRIBUTES = ("user", "api_key", "labels", "parent_request")
# Texts that differ from row to row; of all others there are few.
OWN_TEXTS = frozenset({"request", "workload", "user", "api_key", "parent_request"})


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
    `texts`: those of OWN_TEXTS as Spans, all others as Coded; `labels` are dicts.
    """

    line: Int64s
    raw: Spans
    sources: Coded
    event_ids: Spans
    type: Int64s
    ends_ms: Int64s
    starts_ms: Int64s
    queued_ms: Int64s
    attempt: Int64s
    requests: Int64s
    concurrency_us: Int64s
    numbers: dict[str, Int64s]
    texts: dict[str, Column]
    digests: Digests

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
            raw=Spans.of([event.raw for event in events]),
            sources=Coded.of([event.source for event in events]),
            event_ids=Spans.of([event.id.encode() for event in events]),
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
            texts={name: _text_column(name, texts) for name, texts in zip(TEXTS, texts, strict=True)},
            digests=digests_of([event.digest for event in events]),
        )

    def __len__(self) -> int:
        return len(self.raw)

    def take(self, places: Int64s, *, digests: bool = True) -> Requests:
        """The rows at these places, in their order; without `digests` where there are none yet."""

        def of(column: Any) -> Any:
            if isinstance(column, dict):
                return {name: of(values) for name, values in column.items()}
            return column[places] if isinstance(column, np.ndarray) else column.take(places)

        names = [one.name for one in fields(self) if digests or one.name != "digests"]
        return Requests(**{"digests": self.digests} | {name: of(getattr(self, name)) for name in names})

    def joined(self, other: Requests) -> Requests:
        """The rows of both, in order of their lines."""

        def both(mine: Any, others: Any) -> Any:
            return np.concatenate([mine, others]) if isinstance(mine, np.ndarray) else mine.joined(others)

        values = {
            one.name: both(getattr(self, one.name), getattr(other, one.name))
            for one in fields(self)
            if one.name not in ("numbers", "texts")
        }
        given = self.numbers.keys() | other.numbers.keys()
        values["numbers"] = {name: both(self.number(name), other.number(name)) for name in given}
        values["texts"] = {name: both(self.texts[name], other.texts[name]) for name in TEXTS}
        whole = Requests(**values)
        if self.line[-1] < other.line[0]:
            return whole
        return whole.take(np.argsort(whole.line, kind="stable"))

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

    def earlier_digests(self, places: Sequence[int]) -> list[bytes]:
        """What the content hashes of these rows were before they became XXH3, as rows booked then still have them."""
        numbers = [self.hashed_number(name) for name in HASHED_NUMBERS] if places else []
        return [
            earlier_hash(
                [int(column[place]) for column in numbers], [self.texts[name].text(place) for name in TEXTS]
            )
            for place in places
        ]

    def coded(self, name: str) -> Coded:
        """A column of few different texts."""
        column = self.texts[name]
        assert isinstance(column, Coded)
        return column

    @property
    def days(self) -> Int64s:
        """UTC day of each row, in days from 1970: its partition."""
        return self.ends_ms // MS_PER_DAY

    def who(self) -> Coded:
        """(kind, value) of the identity each row names; None for usage of nobody in particular."""
        tenant, kind, value = (self.coded(name) for name in WHO)
        codes = (tenant.codes * len(kind.values) + kind.codes) * len(value.values) + value.codes
        distinct, codes = np.unique(codes, return_inverse=True)
        rest, values = np.divmod(distinct, len(value.values))
        tenants, kinds = np.divmod(rest, len(kind.values))
        named = zip(tenants.tolist(), kinds.tolist(), values.tolist(), strict=True)
        return Coded([_who(tenant.values[t], kind.values[k], value.values[v]) for t, k, v in named], codes)

    def rejected(self, place: int, reason: str, detail: str) -> Rejected:
        """The row at a place, sound in itself and refused all the same."""
        return Rejected(
            int(self.line[place]),
            reason,
            detail,
            self.raw[place],
            id=self.event_ids[place].decode(),
            source=self.sources.text(place),
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
        rows.unless_usual("type", "smallint", self.type, REQUEST_TYPE)
        rows.number("starts_at", "timestamptz", self.starts_ms)
        rows.number("ends_at", "timestamptz", self.ends_ms)
        rows.number("pool_id", "bigint", ids.pool)
        rows.number("model_id", "bigint", ids.model)
        rows.unless_usual("attempt", "integer", self.attempt, 1)
        rows.number("outcome", "smallint", self.codes("outcome", OUTCOMES))
        classes = self.codes("service_class", SERVICE_CLASSES)
        rows.unless_usual("service_class", "smallint", classes, SERVICE_CLASSES[None])
        rows.unless_usual("requests", "integer", self.requests, 1)
        rows.optional("identity_id", "bigint", ids.identity, ABSENT)
        rows.optional("service_id", "bigint", ids.service, ABSENT)
        rows.optional("queued_at", "timestamptz", self.queued_ms, ABSENT)
        rows.optional("concurrency_us", "bigint", self.concurrency_us, ABSENT)
        for name in NUMBERS:
            if name in self.numbers:
                kind = "integer" if name == "preemptions" else "bigint"
                rows.optional(COLUMNS.get(name, name), kind, self.numbers[name], ABSENT)
        rows.bytes_of_one_length("content_hash", self.digests)
        rows.text("event_id", self.event_ids)
        for name in ("request", "workload"):
            column = self.texts[name]
            assert isinstance(column, Spans)
            rows.text(name, column)
        rows.text("attributes", self._attributes(), prefix=b"\x01")
        return rows

    def key_order(self, groups: Int64s) -> Int64s:
        """The rows' places by group, and within one by event id, as PostgreSQL sorts bytes."""
        words = masked_words(self.event_ids, self.event_ids.lengths)
        return np.lexsort([*(word.byteswap() for word in reversed(words)), groups])

    def contents(self, places: Int64s) -> tuple[bytes, Int64s]:
        """(hash, length of the event id, event id) of rows at these places, behind one another; where each ends."""
        rows = self.take(places)
        lead = np.empty(len(rows), [("hash", self.digests.dtype), ("length", ">i4")])
        lead["hash"], lead["length"] = rows.digests, rows.event_ids.lengths
        content = Ragged(lead)
        content.spans(rows.event_ids)
        packed, _, ends = content.packed()
        return packed, ends

    def codes(self, name: str, codes: dict[Any, int]) -> Int64s:
        column = self.coded(name)
        return column.mapped([codes[value] for value in column.values])

    def _attributes(self) -> Sequence[bytes | None]:
        """What only drill-downs ask for, as JSON; None where there is nothing."""
        given: dict[str, Sequence[Any]] = {
            name: self.texts[name].texts() for name in _ATTRIBUTES if not self.texts[name].is_empty
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


WHO = ("tenant", "identity_kind", "identity_value")


def _who(tenant: str | None, kind: str | None, value: str | None) -> tuple[str, str] | None:
    if tenant is not None:
        return ("tenant", tenant)
    return None if kind is None or value is None else (kind, value)


def _text_column(name: str, texts: Sequence[Any]) -> Column:
    if name in OWN_TEXTS:
        return Spans.of([None if text is None else text.encode() for text in texts])
    if name == "labels":  # dicts are not hashable
        return Coded(texts, np.arange(len(texts)))
    return Coded.of(texts)
