"""`dynamo-fpm`: forward-pass metrics of Dynamo and SGLang -> GPU time per worker and hour (inference.md 3.1).

The wire form is one msgpack array per step, without an instant. Whoever subscribes writes one JSON line per
message: `{"received_at": <instant or unix seconds>, "model": ..., "message": {...} or [...]}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ingest.core.adapters.base import Outcome, Refusal, Refused, SourceConfig, State, decimal_of, whole
from ingest.core.adapters.json_records import JsonRecord, read_json
from ingest.core.adapters.native import Obj, as_object, native_ms, needed, text_of
from ingest.core.adapters.request_record import model_of
from ingest.core.adapters.steps import Step, adapt_steps, flush_steps

VERSION = 1
_FIELDS = ("version", "worker_id", "dp_rank", "counter_id", "wall_time")
"""The head of the positional form, in order."""


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Messages in the order they were received; a heartbeat is a step of no length."""
    return adapt_steps(lines, source, state, _read)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    return flush_steps(source, state, before_ms)


def _read(lines: Iterable[bytes], source: SourceConfig) -> Iterator[Step | Refused]:
    for record in read_json(lines):
        if isinstance(record, Refused):
            yield record
            continue
        try:
            yield _step(record, source)
        except Refusal as refusal:
            yield refusal.at(record.position, record.raw)


def _step(record: JsonRecord, source: SourceConfig) -> Step:
    envelope = as_object(record.value, "the line")
    message = _message(envelope.get("message", envelope))
    if message.get("version") != VERSION:
        raise Refusal(
            "unknown_version",
            f"version {message.get('version')!r}: fields are positional, only {VERSION} is known",
        )
    wall = decimal_of(message.get("wall_time"))
    if wall < 0:
        raise Refusal("bad_quantity", f"wall_time is {wall}, below 0")
    worker = needed(text_of(message.get("worker_id")), "worker_id")
    rank = str(whole(message.get("dp_rank", 0)))
    model = model_of(source, text_of(envelope.get("model")))
    source.pool_for(worker, rank, model)
    return Step(
        worker=(worker, rank),
        model=model,
        number=whole(message.get("counter_id")),
        ended_ms=native_ms(envelope.get("received_at"), source),
        wall_us=int(wall * 1_000_000),
        position=record.position,
    )


def _message(value: Any) -> Obj:
    if isinstance(value, list):
        return dict(zip(_FIELDS, value, strict=False))
    return as_object(value, "message")
