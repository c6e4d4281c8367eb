"""The fast way for what comes by the million: well-formed `ledger.request.v1` events, column by column.

Reads the same contract as `parse.parse_line`, with a decoder that checks while it decodes and with arithmetic on whole
columns. What it does not recognise as sound (an odd spelling, an old clock, a wrong value) it leaves to `parse_line`,
whose verdict counts; so the two can differ in speed only. Tests compare them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal
from itertools import compress
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingest.core import columns, fields
from ingest.core.body import Limits
from ingest.core.events import FUTURE_TOLERANCE_MS, LONGEST_REQUEST_MS
from ingest.core.fields import IDENTITY_KINDS, Refusal
from ingest.core.request_content import (
    ABSENT,
    HASH_BYTES,
    HASHED_NUMBERS,
    NUMBERS,
    REQUEST_TYPE,
    TEXTS,
    encode_texts,
)
from ingest.core.request_rows import Requests

Int64s = NDArray[np.int64]

# Characters, of which one takes at most four bytes: longer texts are measured by `parse_line`.
_Key = Annotated[str, msgspec.Meta(min_length=1, max_length=fields.KEY_BYTES // 4)]
_Slug = Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
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
    """`events.Request` for a decoder that checks. Numbers of seconds are read afterwards, all together."""

    request: _Key
    tenant: _Slug | None = None
    identity: _Identity | None = None
    pool: _Slug
    service: _Slug | None = None
    model: _Name
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
    service_class: Literal["guaranteed", "preemptible"] | None = None
    user: _Text | None = None
    api_key: _Text | None = None
    labels: dict[_Key, _Text] | None = None
    outcome: Literal["ok", "aborted", "error", "timeout", "preempted"]


class _Event(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    specversion: Literal["1.0"]
    id: _Id
    source: _Key
    type: Literal["ledger.request.v1"]
    time: str
    data: _Request
    datacontenttype: Literal["application/json"] | None = None


_FIELDS = _Request.__struct_fields__
_SECONDS = frozenset({"gpu_seconds", "prefill_gpu_seconds", "recompute_gpu_seconds"})
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError, ArithmeticError)

Left = list[tuple[int, bytes]]
"""Lines that `parse_line` has to judge, with their numbers."""


class RequestReader:
    """Reads lines that are probably requests."""

    def __init__(self, now_ms: int) -> None:
        self._latest_ms = now_ms + FUTURE_TOLERANCE_MS
        # Numbers with a point become Decimal, as everywhere: a float is not what the sender wrote.
        self._decode = msgspec.json.Decoder(_Event, float_hook=Decimal).decode

    def read(self, first: int, raw: list[bytes], limits: Limits) -> tuple[Requests | None, Left]:
        """(requests, the lines left to `parse_line`), both in order. Blank lines are in neither."""
        decode = self._decode
        left: Left = []
        try:
            decoded = [decode(text) for text in raw]
            lines: Sequence[int] = range(first, first + len(raw))
        except _UNREADABLE:
            decoded, lines, left = self._decode_apart(first, raw)
        if not decoded:
            return None, left
        kept = raw if len(decoded) == len(raw) else [raw[line - first] for line in lines]
        requests, doubtful = self._judge(np.array(lines, np.int64), kept, decoded, limits)
        return requests, sorted(left + doubtful) if doubtful else left

    def _decode_apart(self, first: int, raw: list[bytes]) -> tuple[list[Any], Sequence[int], Left]:
        """(events, their lines, lines that are no plain requests)"""
        lines: list[int] = []
        decoded: list[Any] = []
        left: Left = []
        decode = self._decode
        for line, text in enumerate(raw, first):
            try:
                event = decode(text)
            except _UNREADABLE:
                if text:
                    left.append((line, text))
            else:
                decoded.append(event)
                lines.append(line)
        return decoded, lines, left

    def _judge(
        self, lines: Int64s, raw: list[bytes], events: list[Any], limits: Limits
    ) -> tuple[Requests | None, Left]:
        """Leave out what is not plainly sound, a few times at most, until the columns can be read."""
        sound = self._is_plain(raw, events, limits)
        left: Left = []
        while True:
            if not all(sound):
                left += [
                    (int(line), text) for line, text, ok in zip(lines, raw, sound, strict=True) if not ok
                ]
                lines = lines[np.array(sound, bool)]
                raw, events = list(compress(raw, sound)), list(compress(events, sound))
            if not events:
                return None, left
            try:
                requests = _columns(lines, raw, events)
            except _Doubtful as doubt:
                sound = doubt.sound
                continue
            in_time = self._is_possible(requests)
            if in_time.all():
                return requests, left
            sound = in_time.tolist()

    def _is_plain(self, raw: list[bytes], events: list[Any], limits: Limits) -> list[bool]:
        """What can be told event by event, of columns where nearly always all are alike."""
        sound = [True] * len(events)
        if b"\\" in b"".join(raw):  # an escape may hide a NUL
            sound = [b"\\" not in text for text in raw]
        if max(map(len, raw)) > limits.event_bytes:
            sound = [ok and len(text) <= limits.event_bytes for ok, text in zip(sound, raw, strict=True)]
        sources = {source: _is_source(source) for source in {event.source for event in events}}
        if not all(sources.values()):
            sound = [ok and sources[event.source] for ok, event in zip(sound, events, strict=True)]
        return sound

    def _is_possible(self, requests: Requests) -> NDArray[np.bool_]:
        """What `events.check` and `events.check_instant` ask, for all at once."""
        took_ms = requests.ends_ms - requests.starts_ms
        possible = (took_ms >= 0) & (took_ms <= LONGEST_REQUEST_MS) & (requests.ends_ms <= self._latest_ms)
        possible &= requests.queued_ms <= requests.ends_ms
        given = {name: requests.number(name) for name in NUMBERS[:5]}
        cached = np.maximum(given["cached_input_tokens"], 0) + np.maximum(given["cache_write_tokens"], 0)
        possible &= (cached <= given["input_tokens"]) | (given["input_tokens"] == ABSENT)
        possible &= (given["reasoning_tokens"] <= given["output_tokens"]) | (given["output_tokens"] == ABSENT)
        return possible


def _is_source(uri: str) -> bool:
    try:
        fields.source_uri(uri)
    except Refusal:
        return False
    return True


class _Doubtful(Exception):
    """Some events of a column are not plainly sound."""

    def __init__(self, sound: list[bool]) -> None:
        super().__init__()
        self.sound = sound


def _columns(lines: Int64s, raw: list[bytes], events: list[Any]) -> Requests:
    """Decoded events as columns, hashed. Raises `_Doubtful`."""
    records = [event.data for event in events]
    column = dict(zip(_FIELDS, zip(*map(msgspec.structs.astuple, records), strict=True), strict=True))
    kinds, values = _identities(column["identity"], column["tenant"])
    count = len(events)
    absent = np.full(count, ABSENT, np.int64)
    numbers = {name: _number_column(name, column[name], absent) for name in ("deferrals", *NUMBERS)}
    requests = Requests(
        line=lines,
        raw=raw,
        sources=[event.source for event in events],
        event_ids=[event.id for event in events],
        type=np.full(count, REQUEST_TYPE, np.int64),
        ends_ms=_instants([event.time for event in events]),
        starts_ms=_instants(column["started_at"]),
        queued_ms=absent
        if _is_all(column["queued_at"], None)
        else _one_by_one(column["queued_at"], fields.instant_ms),
        attempt=np.array(column["attempt"], np.int64),
        requests=np.full(count, 1, np.int64),
        concurrency_us=absent,
        numbers={name: values for name, values in numbers.items() if values is not absent},
        texts={
            **{name: column[name] for name in _TEXT_FIELDS},
            "identity_kind": kinds,
            "identity_value": values,
        },
        digests=[],
    )
    requests.digests = hashes(requests)
    return requests


# The identity is two texts of one field.
_TEXT_FIELDS = tuple(name for name in TEXTS if name not in ("identity_kind", "identity_value"))


def _is_all(column: Sequence[Any], value: Any) -> bool:
    return column.count(value) == len(column)


def _identities(
    identities: Sequence[Any], tenants: Sequence[str | None]
) -> tuple[Sequence[str | None], Sequence[str | None]]:
    """(kinds, values); every event names exactly one of tenant and identity, of a known kind."""
    if _is_all(identities, None) and None not in tenants:
        return identities, identities
    sound = [
        tenant is not None if identity is None else tenant is None and identity.kind in IDENTITY_KINDS
        for identity, tenant in zip(identities, tenants, strict=True)
    ]
    if not all(sound):
        raise _Doubtful(sound)
    kinds = [identity and identity.kind for identity in identities]
    return kinds, [identity and identity.value for identity in identities]


def _number_column(name: str, column: Sequence[Any], absent: Int64s) -> Int64s:
    if name in _SECONDS:
        return absent if _is_all(column, None) else _seconds(column)
    return absent if _is_all(column, ABSENT) else np.array(column, np.int64)


def _seconds(column: Sequence[Any]) -> Int64s:
    if set(map(type, column)) == {str} and (found := columns.seconds_us(column)) is not None:
        return found
    return _one_by_one(column, fields.seconds_us)


def _instants(column: Sequence[str]) -> Int64s:
    found = columns.instants_ms(column)
    return _one_by_one(column, fields.instant_ms) if found is None else found


def _one_by_one(column: Sequence[Any], read: fields.Reader) -> Int64s:
    """Value by value, as `parse_line` would; None is absent."""
    found: list[int] = []
    sound: list[bool] = []
    for value in column:
        try:
            found.append(ABSENT if value is None else read(value))
            sound.append(True)
        except Refusal:
            sound.append(False)
    if not all(sound):
        raise _Doubtful(sound)
    return np.array(found, np.int64)


def hashes(requests: Requests) -> list[bytes]:
    """Content hashes, as `request_content.request_hash` makes them one by one."""
    table = np.stack([requests.hashed_number(name) for name in HASHED_NUMBERS], axis=1).astype("<i8")
    content, width = table.tobytes(), table.shape[1] * 8
    blake2b, encode = hashlib.blake2b, encode_texts
    return [
        blake2b(content[start : start + width] + encode(texts), digest_size=HASH_BYTES).digest()
        for start, texts in zip(range(0, len(content), width), requests.hashed_texts(), strict=True)
    ]
