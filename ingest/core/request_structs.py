"""The second way to read requests, for lines of too many shapes to walk: a decoder that checks while it decodes.

An object for each line, then whole columns of them; slower than walking a shape that many lines share, much faster
than `parse.parse_line`. Whatever order the keys come in, whichever optional fields are there, and however instants and
decimals are spelled. What it does not recognise as sound it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import compress
from typing import Annotated, Any, Literal, cast

import msgspec
import numpy as np

from ingest.core import columns, fields
from ingest.core.fields import Refusal
from ingest.core.request_content import ABSENT, NUMBERS, REQUEST_TYPE, TEXTS
from ingest.core.request_hashes import NO_DIGESTS
from ingest.core.request_rows import OWN_TEXTS, Requests
from ingest.core.spans import PADDING, Bools, Coded, Column, Int64s, Spans

# Characters, of which one takes at most four bytes: longer texts are measured by `parse_line`.
_Key = Annotated[str, msgspec.Meta(min_length=1, max_length=fields.KEY_BYTES // 4)]
_Text = Annotated[str, msgspec.Meta(max_length=fields.LONG_TEXT_BYTES // 4)]
_Id = Annotated[
    str, msgspec.Meta(min_length=5, max_length=fields.KEY_BYTES // 4)
]  # longer than None and null
_Count = Annotated[int, msgspec.Meta(ge=0, le=fields.MAX_COUNT)]
_SmallCount = Annotated[int, msgspec.Meta(ge=0, le=fields.INT32_MAX)]
_Attempt = Annotated[int, msgspec.Meta(ge=1, le=fields.INT32_MAX)]


class _Identity(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    kind: str
    value: _Key


class _Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """`events.Request` for a decoder that checks. What has few different values is read once for each of them."""

    request: _Key
    tenant: str | None = None
    identity: _Identity | None = None
    pool: str
    service: str | None = None
    model: str
    workload: _Key | None = None
    started_at: str
    queued_at: str | None = None
    deferrals: _SmallCount = ABSENT
    input_tokens: _Count = ABSENT
    cached_input_tokens: _Count = ABSENT
    cache_write_tokens: _Count = ABSENT
    output_tokens: _Count = ABSENT
    reasoning_tokens: _Count = ABSENT
    gpu_seconds: Any = None
    prefill_gpu_seconds: Any = None
    attempt: _Attempt = 1
    parent_request: _Key | None = None
    preemptions: _SmallCount = ABSENT
    recomputed_tokens: _Count = ABSENT
    recompute_gpu_seconds: Any = None
    service_class: str | None = None
    user: _Text | None = None
    api_key: _Text | None = None
    labels: msgspec.Raw = msgspec.Raw()
    outcome: str


class _Event(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    specversion: Literal["1.0"]
    id: _Id
    source: _Key
    type: Literal["ledger.request.v1"]
    time: str
    data: _Request
    datacontenttype: Literal["application/json"] | None = None
    # Attributes that CloudEvents defines and requests do not keep.
    dataschema: str | None = None
    subject: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None


_FIELDS = _Request.__struct_fields__
_SECONDS = frozenset({"gpu_seconds", "prefill_gpu_seconds", "recompute_gpu_seconds"})
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError, ArithmeticError)
# Numbers with a point become Decimal, as everywhere: a float is not what the sender wrote.
_decode = msgspec.json.Decoder(_Event, float_hook=Decimal).decode


def read_structs(
    lines: Int64s, raw: Spans, coded_readers: Mapping[str, Callable[[bytes], Any]]
) -> tuple[Requests | None, Bools]:
    """(requests of the rows that are plainly sound, still without digests; which those are)

    `raw` holds valid UTF-8 without escapes. `coded_readers`: how to read a text of each column of few different ones.
    """
    events, is_sound = _decoded(raw)
    if not events:
        return None, is_sound
    reading = _Reading(events, coded_readers)
    decoded = np.flatnonzero(is_sound)
    requests = reading.requests(lines[decoded], raw.take(decoded))
    if reading.is_sound.all():
        return requests, is_sound
    is_sound[decoded] = reading.is_sound
    sound = np.flatnonzero(reading.is_sound)
    return (requests.take(sound, digests=False) if len(sound) else None), is_sound


def _decoded(raw: Spans) -> tuple[list[_Event], Bools]:
    texts = list(raw)
    try:
        return list(map(_decode, texts)), np.ones(len(texts), bool)
    except _UNREADABLE:
        events = list(map(_decoded_or_none, texts))
        is_sound = [event is not None for event in events]
        return list(compress(events, is_sound)), np.array(is_sound, bool)  # type: ignore[arg-type]


def _decoded_or_none(text: bytes) -> _Event | None:
    try:
        return _decode(text)
    except _UNREADABLE:
        return None


class _Reading:
    """Columns of some events; `is_sound` tells which events had nothing odd so far."""

    def __init__(self, events: list[_Event], coded_readers: Mapping[str, Callable[[bytes], Any]]) -> None:
        records = map(msgspec.structs.astuple, [event.data for event in events])
        self._events = events
        self._column: dict[str, Sequence[Any]] = dict(zip(_FIELDS, zip(*records, strict=True), strict=True))
        self._coded_readers = coded_readers
        self.is_sound = np.ones(len(events), bool)

    def requests(self, lines: Int64s, raw: Spans) -> Requests:
        column, count = self._column, len(self._events)
        self._column |= self._identities()
        numbers = {name: self._number(name) for name in ("deferrals", *NUMBERS)}
        return Requests(
            line=lines,
            raw=raw,
            sources=self._coded("source", [event.source for event in self._events]),
            event_ids=_spans([event.id for event in self._events]),
            type=np.full(count, REQUEST_TYPE, np.int64),
            ends_ms=self._instants([event.time for event in self._events]),
            starts_ms=self._instants(column["started_at"]),
            queued_ms=self._instants(column["queued_at"]),
            attempt=np.array(column["attempt"], np.int64),
            requests=np.full(count, 1, np.int64),
            concurrency_us=np.full(count, ABSENT, np.int64),
            numbers={name: values for name, values in numbers.items() if (values != ABSENT).any()},
            texts={name: self._text(name) for name in TEXTS},
            digests=NO_DIGESTS,
        )

    def _identities(self) -> dict[str, Sequence[str | None]]:
        """The identity as two texts; every event names exactly one of tenant and identity."""
        identities, tenants = self._column["identity"], self._column["tenant"]
        if _are_all(identities, None) and None not in tenants:
            return {"identity_kind": identities, "identity_value": identities}
        has_one = [
            (tenant is None) != (identity is None)
            for tenant, identity in zip(tenants, identities, strict=True)
        ]
        self.is_sound &= np.array(has_one, bool)
        return {
            "identity_kind": [identity and identity.kind for identity in identities],
            "identity_value": [identity and identity.value for identity in identities],
        }

    def _number(self, name: str) -> Int64s:
        values = self._column[name]
        if _are_all(values, ABSENT if name not in _SECONDS else None):
            return np.full(len(values), ABSENT, np.int64)
        if name not in _SECONDS:
            return np.array(values, np.int64)
        texts = [value if value is None else str(value) for value in values]
        return self._read(_spans(texts), values, columns.seconds_us, fields.seconds_us)

    def _instants(self, values: Sequence[str | None]) -> Int64s:
        if _are_all(values, None):
            return np.full(len(values), ABSENT, np.int64)
        return self._read(_spans(values), values, columns.instants_ms, fields.instant_ms)

    def _read(
        self,
        spans: Spans,
        values: Sequence[Any],
        read_column: Callable[[Spans], tuple[Int64s, Bools]],
        read: fields.Reader,
    ) -> Int64s:
        """All together, then one by one what is not of the plain form; ABSENT where there is none."""
        found = np.full(len(values), ABSENT, np.int64)
        numbers, is_plain = read_column(spans)
        is_given = spans.ends >= spans.starts
        found[is_given] = numbers[is_given]
        for row in np.flatnonzero(is_given & ~is_plain).tolist():
            try:
                found[row] = read(values[row])
            except Refusal:
                self.is_sound[row] = False
        return found

    def _text(self, name: str) -> Column:
        values = self._column[name]
        if name in OWN_TEXTS:
            return _spans(values)
        if name == "labels":
            return self._coded(name, [bytes(value) or None for value in values])
        return self._coded(name, values)

    def _coded(self, name: str, values: Sequence[str | bytes | None]) -> Coded:
        """A column of few different texts, each read once."""
        is_constant = _are_all(values, values[0])
        column = Coded.constant(values[0], len(values)) if is_constant else Coded.of(values)
        read = self._coded_readers[name]
        found: list[Any] = []
        are_sound: list[bool] = []
        for value in column.values:
            text = value.encode() if isinstance(value, str) else value
            try:
                found.append(None if text is None else read(text))
                are_sound.append(True)
            except Refusal:
                found.append(None)
                are_sound.append(False)
        if not all(are_sound):
            self.is_sound &= np.array(are_sound, bool)[column.codes]
        return Coded(found, column.codes)


def _are_all(values: Sequence[Any], value: Any) -> bool:
    return values.count(value) == len(values)


def _spans(texts: Sequence[str | None]) -> Spans:
    """As `Spans.of`, encoded all at once where all are ASCII."""
    nulls = texts.count(None)
    given = [text or "" for text in texts] if nulls else cast("Sequence[str]", texts)
    whole = "".join(given)
    if not whole.isascii():
        return Spans.of([None if text is None else text.encode() for text in texts])
    lengths = np.fromiter(map(len, given), np.int64, len(given))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    if nulls:
        ends[[text is None for text in texts]] = -1
    return Spans(whole.encode() + PADDING, starts, ends)
