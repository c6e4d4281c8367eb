"""`dynamo-fpm`: forward-pass metrics of Dynamo and SGLang -> GPU time per worker and hour (inference.md 3.1).

The wire form is one msgpack array per step, without an instant. Whoever subscribes writes one JSON line per
message: `{"received_at": <instant or unix seconds>, "model": ..., "message": {...} or [...]}`. A gap in
`counter_id` is GPU time that nobody knows; it is told and not filled in.

State: `workers` {worker: [last counter_id, received_ms]}, `hours` {worker: {hour: [first step, last step, from_ms,
to_ms, wall_us, model]}}.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ingest.core.adapters.base import (
    Event,
    Notice,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    decimal_of,
    event,
    rfc3339,
    whole,
)
from ingest.core.adapters.counters import MS_PER_HOUR
from ingest.core.adapters.engine_counters import gpu_seconds_json, gpus_milli
from ingest.core.adapters.json_records import JsonRecord, read_json
from ingest.core.adapters.native import Obj, as_object, native_ms, needed, text_of
from ingest.core.adapters.request_record import model_of, service_of

VERSION = 1
_FIELDS = ("version", "worker_id", "dp_rank", "counter_id", "wall_time")
"""The head of the positional form, in order."""


@dataclass(frozen=True, slots=True)
class _Step:
    worker: str
    model: str
    number: int
    received_ms: int
    wall_us: int


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Steps -> one usage event without tenant per worker and hour that is over, and notices of gaps."""
    kept: State = {} if state is None else state
    for record in read_json(lines):
        if isinstance(record, Refused):
            yield record
            continue
        try:
            yield from list(_book(record, _step(record, source), kept))
        except Refusal as refusal:
            yield refusal.at(record.position, record.raw)
    yield from _settled(source, kept, None, everything=state is None)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    yield from _settled(source, state, before_ms, everything=before_ms is None)


def _step(record: JsonRecord, source: SourceConfig) -> _Step:
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
    model = model_of(source, text_of(envelope.get("model")))
    source.pool_for(worker, model)
    return _Step(
        worker=msgspec.json.encode([worker, str(whole(message.get("dp_rank", 0)))]).decode(),
        model=model,
        number=whole(message.get("counter_id")),
        received_ms=native_ms(envelope.get("received_at"), source),
        wall_us=int(wall * 1_000_000),
    )


def _message(value: Any) -> Obj:
    if isinstance(value, list):
        return dict(zip(_FIELDS, value, strict=False))
    return as_object(value, "message")


def _book(record: JsonRecord, step: _Step, state: State) -> Iterator[Notice]:
    workers: dict[str, list[int]] = state.setdefault("workers", {})
    last = workers.get(step.worker)
    if last is not None and step.number <= last[0] and step.received_ms <= last[1]:
        return  # delivered before
    if last is not None and step.number <= last[0]:
        yield _notice(record, step, "counter_reset", "the worker began to count again", last[1])
    elif last is not None and step.number > last[0] + 1:
        missing = step.number - last[0] - 1
        yield _notice(record, step, "missed_steps", f"{missing} steps are missing", last[1])
    workers[step.worker] = [step.number, step.received_ms]
    # A message comes when its step is over, so one that arrives on the hour belongs to the hour it ends.
    hour_ms = (step.received_ms - 1) // MS_PER_HOUR * MS_PER_HOUR
    began_ms = max(hour_ms, step.received_ms - max(step.wall_us // 1000, 1))
    hours: dict[str, list[Any]] = state.setdefault("hours", {}).setdefault(step.worker, {})
    entry = hours.setdefault(
        str(hour_ms), [step.number, step.number, began_ms, step.received_ms, 0, step.model]
    )
    entry[1], entry[3] = step.number, max(entry[3], step.received_ms)
    entry[4] += step.wall_us


def _notice(record: JsonRecord, step: _Step, reason: str, detail: str, since_ms: int) -> Notice:
    worker, rank = msgspec.json.decode(step.worker)
    return Notice(
        record.position, reason, f"{worker}/{rank}: {detail}", f"{worker}/{rank}", since_ms, step.received_ms
    )


def _settled(
    source: SourceConfig, state: State, before_ms: int | None, *, everything: bool
) -> Iterator[Outcome]:
    by_worker: dict[str, dict[str, list[Any]]] = state.get("hours", {})
    for worker in sorted(by_worker):
        hours = by_worker[worker]
        limit_ms = state["workers"][worker][1] if before_ms is None else before_ms
        for hour in sorted(hours, key=int):
            if everything or int(hour) + MS_PER_HOUR <= limit_ms:
                yield _usage(source, worker, int(hour), hours.pop(hour))


def _usage(source: SourceConfig, worker_key: str, hour_ms: int, entry: list[Any]) -> Event:
    first, last, from_ms, to_ms, wall_us, model = entry
    worker, rank = msgspec.json.decode(worker_key)
    milli = gpus_milli(source, worker, model)
    usage = f"{worker}/{rank}/{hour_ms}/{first}-{last}"
    return event(
        source,
        usage,
        "usage",
        to_ms,
        {
            "usage": usage,
            "pool": source.pool_for(worker, model),
            "service": service_of(source, worker, model),
            "model": model,
            "starts_at": rfc3339(from_ms),
            "ends_at": rfc3339(to_ms),
            "gpu_seconds": None if milli is None else gpu_seconds_json(wall_us * milli // 1000),
        },
    )
