"""The fast way for what comes by the million: well-formed `ledger.request.v1` events.

Reads the same contract as `parse.parse_line` with a decoder that checks while it decodes. Whatever it does not
recognise as sound (an odd spelling, an old clock, a wrong value) it leaves to `parse_line`, whose verdict counts;
so the two can differ in speed only. Tests compare them.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from ingest.core import fields
from ingest.core.events import FUTURE_TOLERANCE_MS, LONGEST_REQUEST_MS, Request, Usage
from ingest.core.fields import IDENTITY_KINDS, Refusal
from ingest.core.parse import HASH_BYTES, ParsedEvent, canonical
from ingest.core.unpack import Limits

ABSENT = -1
"""Stands for a number that was not given: cheaper in arrays than None, and no field can hold it."""

# Characters, of which one takes at most four bytes: longer texts are measured by `parse_line`.
_Key = Annotated[str, msgspec.Meta(min_length=1, max_length=fields.KEY_BYTES // 4)]
_Slug = Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Label = Annotated[str, msgspec.Meta(max_length=fields.LONG_TEXT_BYTES // 4)]
_Id = Annotated[
    str, msgspec.Meta(min_length=5, max_length=fields.KEY_BYTES // 4)
]  # longer than None and null
_Count = Annotated[int, msgspec.Meta(ge=0, le=fields.MAX_COUNT)]
_SmallCount = Annotated[int, msgspec.Meta(ge=0, le=fields.INT32_MAX)]
_Attempt = Annotated[int, msgspec.Meta(ge=1, le=fields.INT32_MAX)]
_Class = Literal["guaranteed", "preemptible"]
_Outcome = Literal["ok", "aborted", "error", "timeout", "preempted"]


class _Identity(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    kind: str
    value: _Key


# Types of the fields whose fast form differs from "a non-empty text".
_FAST_TYPES: dict[str, tuple[Any, Any]] = {
    "identity": (_Identity | None, None),
    "started_at": (str, msgspec.NODEFAULT),
    "queued_at": (str | None, None),
    "outcome": (_Outcome, msgspec.NODEFAULT),
    "service_class": (_Class | None, None),
    "attempt": (_Attempt, 1),
    "labels": (dict[_Key, _Label] | None, None),
    "tenant": (_Slug | None, None),
    "service": (_Slug | None, None),
    "pool": (_Slug, msgspec.NODEFAULT),
    "model": (_Name, msgspec.NODEFAULT),
    "deferrals": (_SmallCount, ABSENT),
    "preemptions": (_SmallCount, ABSENT),
    "gpu_seconds": (Any, ABSENT),
    "prefill_gpu_seconds": (Any, ABSENT),
    "recompute_gpu_seconds": (Any, ABSENT),
    **{
        f"{name}_tokens": (_Count, ABSENT)
        for name in ("input", "cached_input", "cache_write", "output", "reasoning")
    },
    "recomputed_tokens": (_Count, ABSENT),
}


def _fast_field(name: str, needed: bool) -> tuple[str, Any, Any]:
    if name in _FAST_TYPES:
        kind, default = _FAST_TYPES[name]
        return (name, kind, default)
    return (name, _Key, msgspec.NODEFAULT) if needed else (name, _Key | None, None)


# Same fields in the same order as the canonical record, so that both encode to the same bytes and hash.
_FastRequest: type[Any] = msgspec.defstruct(
    "FastRequest",
    [_fast_field(one.name, one.default is msgspec.NODEFAULT) for one in msgspec.structs.fields(Request)],
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
)
_FastEvent: type[Any] = msgspec.defstruct(
    "FastEvent",
    [
        ("specversion", Literal["1.0"]),
        ("id", _Id),
        ("source", _Key),
        ("type", Literal["ledger.request.v1"]),
        ("time", str),
        ("data", _FastRequest),
        ("datacontenttype", Literal["application/json"] | None, None),
    ],
    kw_only=True,
    forbid_unknown_fields=True,
    gc=False,
)

RECORD_FIELDS = tuple(one.name for one in msgspec.structs.fields(Request))


_NUMBERS = frozenset(name for name, (_, default) in _FAST_TYPES.items() if default == ABSENT)

# One tuple per row, because a million of them are made: (line, raw, source, id, time_ms, digest, values, extent).
# `values` are the record's fields in the order of RECORD_FIELDS, an absent number being ABSENT.
Row = tuple[int, bytes, str, str, int, bytes, tuple[Any, ...], "Extent"]


class Extent(NamedTuple):
    """What a row stands for: one request, or the requests that a usage event sums up."""

    event_type: int
    requests: int
    concurrency_us: int


ONE_REQUEST = Extent(7, 1, ABSENT)


def row_of(event: ParsedEvent) -> Row:
    """A request or usage event that `parse_line` judged, in the form of the fast reader's rows."""
    record = event.record
    extent = ONE_REQUEST
    values: dict[str, Any] = {name: getattr(record, name, None) for name in RECORD_FIELDS}
    if isinstance(record, Usage):
        concurrency_us = ABSENT if record.concurrency_seconds is None else record.concurrency_seconds
        extent = Extent(8, record.requests or 0, concurrency_us)
        values |= {
            "request": record.usage,
            "started_at": record.starts_at,
            "outcome": "aggregated",
            "attempt": 1,
        }
    row = tuple(ABSENT if value is None and name in _NUMBERS else value for name, value in values.items())
    return (event.line, event.raw, event.source, event.id, event.time_ms, event.digest, row, extent)


class _Minutes(dict[str, int]):
    """`2026-10-03T04:00` -> epoch milliseconds. Raises `Refusal` for anything else."""

    def __missing__(self, text: str) -> int:
        if len(self) > 200_000:
            self.clear()
        value = self[text] = fields.instant_ms(text + ":00Z")
        return value


class _Seconds(dict[str, int]):
    """`:02.450Z` or `:02+08:00` -> milliseconds to add to the minute. Raises `Refusal` for anything else."""

    def __missing__(self, text: str) -> int:
        if len(self) > 200_000:
            self.clear()
        value = self[text] = fields.instant_ms("2001-01-01T00:00" + text) - _START_OF_TABLE_MS
        return value


_START_OF_TABLE_MS = fields.instant_ms("2001-01-01T00:00:00Z")
_POWER_OF_PLACES = {0: 1_000_000, 1: 100_000, 2: 10_000, 3: 1_000, 4: 100, 5: 10, 6: 1}


def plain_seconds_us(value: Any) -> int:
    """Microseconds of a number of seconds; raises `KeyError` or `ValueError` where `parse_line` has to look."""
    if type(value) is int:
        if 0 <= value <= 10**8:
            return value * 1_000_000
        raise ValueError(value)
    text = value if type(value) is str else str(value)
    if text[-7:-6] == ".":  # six places, as most write it
        digits, power = text[:-7] + text[-6:], 1
    else:
        whole, _, fraction = text.partition(".")
        digits, power = whole + fraction, _POWER_OF_PLACES[len(fraction)]
    if digits.isdecimal() and digits.isascii() and len(digits) < 15:
        return int(digits) * power
    raise ValueError(value)


REQUEST = "ledger.request.v1"
REQUEST_TYPES = frozenset({REQUEST, "ledger.usage.v1"})


class RequestReader:
    """Reads lines that are probably requests; keeps what it learned about times from line to line."""

    def __init__(self, now_ms: int) -> None:
        self.latest_ms = now_ms + FUTURE_TOLERANCE_MS
        self.minutes, self.seconds = _Minutes(), _Seconds()
        # Numbers with a point become Decimal, as everywhere: a float is not what the sender wrote.
        self.decode = msgspec.json.Decoder(_FastEvent, float_hook=Decimal).decode
        self.sources: set[str] = set()

    def read(self, first: int, raw: list[bytes], limits: Limits) -> tuple[list[Row], list[tuple[int, bytes]]]:
        """(rows, the lines left to `parse_line`), both in order. Blank lines are in neither."""
        rows: list[Row] = []
        left: list[tuple[int, bytes]] = []
        decode, minutes, seconds, encode = self.decode, self.minutes, self.seconds, canonical
        blake2b, as_tuple, latest_ms = hashlib.blake2b, msgspec.structs.astuple, self.latest_ms
        sources, longest = self.sources, limits.event_bytes
        is_plain = b"\\" not in b"".join(raw)  # an escape may hide a NUL
        for line, text in enumerate(raw, first):
            try:
                event = decode(text)
                data, time = event.data, event.time
                started, identity = data.started_at, data.identity
                time_ms = minutes[time[:16]] + seconds[time[16:]]
                data.started_at = started_ms = minutes[started[:16]] + seconds[started[16:]]
                if data.gpu_seconds != ABSENT:
                    data.gpu_seconds = plain_seconds_us(data.gpu_seconds)
                if (
                    (is_plain or b"\\" not in text)
                    and event.source in sources
                    and (
                        data.tenant is None
                        if identity is not None and identity.kind in IDENTITY_KINDS
                        else identity is None and data.tenant is not None
                    )
                    and time_ms <= latest_ms
                    and 0 <= time_ms - started_ms <= LONGEST_REQUEST_MS
                    and data.cached_input_tokens <= data.input_tokens
                    and data.cache_write_tokens <= 0
                    and data.reasoning_tokens <= data.output_tokens
                    and (data.queued_at is None or self._settle_queued(data, time_ms))
                    and (data.prefill_gpu_seconds == ABSENT or _settle(data, "prefill_gpu_seconds"))
                    and (data.recompute_gpu_seconds == ABSENT or _settle(data, "recompute_gpu_seconds"))
                    and len(text) <= longest
                ):
                    digest = blake2b(encode((REQUEST, time_ms, data)), digest_size=HASH_BYTES).digest()
                    values = as_tuple(data)
                    rows.append((line, text, event.source, event.id, time_ms, digest, values, ONE_REQUEST))
                    continue
                sources.add(fields.source_uri(event.source))
            except (msgspec.MsgspecError, Refusal, KeyError, ValueError, RecursionError):
                pass
            if text:
                left.append((line, text))
        return rows, left

    def _settle_queued(self, data: Any, time_ms: int) -> bool:
        text = data.queued_at
        data.queued_at = self.minutes[text[:16]] + self.seconds[text[16:]]
        return bool(data.queued_at <= time_ms)


def _settle(data: Any, name: str) -> bool:
    setattr(data, name, plain_seconds_us(getattr(data, name)))
    return True
