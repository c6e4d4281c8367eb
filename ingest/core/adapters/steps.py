"""Numbered steps of engines -> GPU time per worker and UTC hour.

A step says how long the GPUs of one worker were busy, and carries a number. A gap in the numbers is GPU time that
nobody knows; it is told and not filled in. A number that was seen counts once.

State: `workers` {worker: [last number, last ended_ms]}, `hours` {worker: {hour: [first number, last number, from_ms,
to_ms, wall_us, model]}}; a worker's key is the JSON text of its names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from ingest.core.adapters.base import Event, Notice, Outcome, Refused, SourceConfig, State, event, rfc3339
from ingest.core.adapters.counters import MS_PER_HOUR
from ingest.core.adapters.engine_counters import gpu_seconds_json, gpus_milli
from ingest.core.adapters.request_record import service_of

ReadSteps = Callable[[Iterable[bytes], SourceConfig], Iterator["Step | Refused"]]


@dataclass(frozen=True, slots=True)
class Step:
    worker: tuple[str, ...]
    """What counts its steps by itself, such as (process, data-parallel rank)."""
    model: str
    number: int
    ended_ms: int
    wall_us: int
    position: int

    @property
    def key(self) -> str:
        return msgspec.json.encode(list(self.worker)).decode()


def adapt_steps(
    lines: Iterable[bytes], source: SourceConfig, state: State | None, read: ReadSteps
) -> Iterator[Outcome]:
    """One usage event without tenant per worker and hour that is over, notices of gaps, refused records."""
    kept: State = {} if state is None else state
    for step in read(lines, source):
        if isinstance(step, Refused):
            yield step
        else:
            yield from _book(step, kept)
    yield from _settled(source, kept, None, everything=state is None)


def flush_steps(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    yield from _settled(source, state, before_ms, everything=before_ms is None)


def _book(step: Step, state: State) -> Iterator[Notice]:
    workers: dict[str, list[int]] = state.setdefault("workers", {})
    last = workers.get(step.key)
    if last is not None and step.number <= last[0] and step.ended_ms <= last[1]:
        return  # delivered before
    if last is not None and step.number <= last[0]:
        yield _notice(step, "counter_reset", "the worker began to count again", last[1])
    elif last is not None and step.number > last[0] + 1:
        yield _notice(step, "missed_steps", f"{step.number - last[0] - 1} steps are missing", last[1])
    workers[step.key] = [step.number, step.ended_ms]
    # A step is reported when it is over, so one reported on the hour belongs to the hour it ends.
    hour_ms = (step.ended_ms - 1) // MS_PER_HOUR * MS_PER_HOUR
    began_ms = max(hour_ms, step.ended_ms - max(step.wall_us // 1000, 1))
    hours: dict[str, list[Any]] = state.setdefault("hours", {}).setdefault(step.key, {})
    fresh = [step.number, step.number, began_ms, step.ended_ms, 0, step.model]
    entry = hours.setdefault(str(hour_ms), fresh)
    entry[1], entry[2], entry[3] = step.number, min(entry[2], began_ms), max(entry[3], step.ended_ms)
    entry[4] += step.wall_us


def _notice(step: Step, reason: str, detail: str, since_ms: int) -> Notice:
    subject = "/".join(step.worker)
    return Notice(step.position, reason, f"{subject}: {detail}", subject, since_ms, step.ended_ms)


def _settled(
    source: SourceConfig, state: State, before_ms: int | None, *, everything: bool
) -> Iterator[Outcome]:
    by_worker: dict[str, dict[str, list[Any]]] = state.get("hours", {})
    for worker in sorted(by_worker):
        hours = by_worker[worker]
        limit_ms = state["workers"][worker][1] if before_ms is None else before_ms
        for hour in sorted(hours, key=int):
            if everything or int(hour) + MS_PER_HOUR <= limit_ms:
                yield _usage(source, worker, hours.pop(hour))


def _usage(source: SourceConfig, worker_key: str, entry: list[Any]) -> Event:
    first, last, from_ms, to_ms, wall_us, model = entry
    names = msgspec.json.decode(worker_key)
    milli = gpus_milli(source, *names, model)
    usage = "/".join(quote(name, safe="") for name in names) + f"/{from_ms}-{to_ms}/{first}-{last}"
    return event(
        source,
        usage,
        "usage",
        to_ms,
        {
            "usage": usage,
            "pool": source.pool_for(*names, model),
            "service": service_of(source, *names, model),
            "model": model,
            "starts_at": rfc3339(from_ms),
            "ends_at": rfc3339(to_ms),
            "gpu_seconds": None if milli is None else gpu_seconds_json(wall_us * milli // 1000),
        },
    )
