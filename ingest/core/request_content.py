"""What a request or usage event says, in an order that is fixed for ever: the input of its content hash.

Numbers come first, as little-endian 64-bit integers, then the texts as one MessagePack array. An optional field of a
later version goes behind them, and only where it is given, so that older events keep their hashes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash

from ingest.core.events import Request, Usage

ABSENT = -1
"""Stands for a number that was not given: cheaper in arrays than None, and no field can hold it."""

HASH_BYTES = 16
REQUEST_TYPE, USAGE_TYPE = 7, 8

# Fields that are counts or GPU time, as requests and usage share them.
NUMBERS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "output_tokens",
    "reasoning_tokens",
    "gpu_seconds",
    "prefill_gpu_seconds",
    "preemptions",
    "recomputed_tokens",
    "recompute_gpu_seconds",
)
# Every number, in the order in which it is hashed.
HASHED_NUMBERS = (
    "type",
    "ends_at",
    "starts_at",
    "queued_at",
    "attempt",
    "deferrals",
    "requests",
    "concurrency",
    *NUMBERS,
)
TEXTS = (
    "request",
    "tenant",
    "identity_kind",
    "identity_value",
    "pool",
    "service",
    "model",
    "workload",
    "outcome",
    "service_class",
    "user",
    "api_key",
    "parent_request",
    "labels",
)

# Sorted keys: {"a":1,"b":2} and {"b":2,"a":1} are one set of labels.
encode_texts = msgspec.msgpack.Encoder(order="deterministic").encode
_pack_numbers = struct.Struct(f"<{len(HASHED_NUMBERS)}q").pack


def number_values(record: Request | Usage, time_ms: int) -> tuple[int, ...]:
    """The record's numbers in the order of HASHED_NUMBERS."""
    own = tuple(_number(getattr(record, name)) for name in NUMBERS)
    if isinstance(record, Usage):
        of_usage = (record.requests or 0, _number(record.concurrency_seconds))
        return (USAGE_TYPE, time_ms, record.starts_at, ABSENT, 1, ABSENT, *of_usage, *own)
    queued, deferrals = _number(record.queued_at), _number(record.deferrals)
    return (REQUEST_TYPE, time_ms, record.started_at, queued, record.attempt, deferrals, 1, ABSENT, *own)


def _number(value: int | None) -> int:
    return ABSENT if value is None else value


def text_values(record: Request | Usage) -> tuple[Any, ...]:
    """The record's texts in the order of TEXTS."""
    kind, value = (record.identity.kind, record.identity.value) if record.identity else (None, None)
    who_and_where = (record.tenant, kind, value, record.pool, record.service, record.model)
    if isinstance(record, Usage):
        return (
            record.usage,
            *who_and_where,
            None,
            "aggregated",
            record.service_class,
            None,
            None,
            None,
            None,
        )
    return (
        record.request,
        *who_and_where,
        record.workload,
        record.outcome,
        record.service_class,
        record.user,
        record.api_key,
        record.parent_request,
        record.labels,
    )


def request_hash(record: Request | Usage, time_ms: int) -> bytes:
    """The content hash of one event; `request_hashes` makes the same of many at once.

    XXH3: it has to tell apart what one source says twice under one key, by the million, and no secret hangs on it.
    """
    return xxhash.xxh3_128_digest(_content(number_values(record, time_ms), text_values(record)))


def earlier_hash(numbers: Sequence[int], texts: Sequence[Any]) -> bytes:
    """BLAKE2b of the same content: what the content hash was at first, and still is of rows booked then."""
    return hashlib.blake2b(_content(numbers, texts), digest_size=HASH_BYTES).digest()


def _content(numbers: Sequence[int], texts: Sequence[Any]) -> bytes:
    return _pack_numbers(*numbers) + encode_texts(texts)
