"""What the counter adapters of vLLM and SGLang share: from scrapes to one usage event per engine and hour.

Such an event names no tenant unless a label of the engine does: it is a control total, against which requests
are held, and never a bill (domain.md section 9, Reconciliation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ingest.core.adapters.base import (
    Event,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    decimal_of,
    event,
    identity,
    rfc3339,
)
from ingest.core.adapters.counters import CounterBook, Group, Hour, Reading
from ingest.core.adapters.prometheus import Sample, read_scrapes
from ingest.core.adapters.request_record import service_of

_COUNTED = "counted_hour"
_COUNTED_START = b'{"counted_hour":'

ReadSample = Callable[[Sample, SourceConfig], "Reading | Refused | None"]
HourEvents = Callable[[Hour, SourceConfig], Iterable[Event]]


def adapt_counters(
    lines: Iterable[bytes],
    source: SourceConfig,
    state: State | None,
    read_sample: ReadSample,
    hour_events: HourEvents,
) -> Iterator[Outcome]:
    """Events of the hours that are over, notices, and refused samples."""
    book = _book(source, state)
    counted: list[tuple[int, bytes]] = []
    for scrape in read_scrapes(_set_aside(lines, counted), source):
        if isinstance(scrape, Refused):
            yield scrape
            continue
        readings: list[Reading] = []
        for sample in scrape.in_order():
            reading = read_sample(sample, source)
            if isinstance(reading, Refused):
                yield reading
            elif reading is not None:
                readings.append(reading)
        yield from book.read(readings)
    for position, line in counted:
        yield from _retried(position, line, source, hour_events)
    yield from _events(book.settled(), source, hour_events)


def flush_counters(
    source: SourceConfig, state: State, before_ms: int | None, hour_events: HourEvents
) -> Iterator[Outcome]:
    yield from _events(_book(source, state).flush(before_ms), source, hour_events)


def _book(source: SourceConfig, state: State | None) -> CounterBook:
    return CounterBook(
        state,
        max_gap_ms=source.option("max_gap_seconds", 120) * 1000,
        from_zero=source.option("counters_start_at_zero", False),
    )


def _events(hours: Iterable[Hour], source: SourceConfig, hour_events: HourEvents) -> Iterator[Outcome]:
    for hour in hours:
        yield from _hour(hour, 0, source, hour_events)


def _hour(hour: Hour, position: int, source: SourceConfig, hour_events: HourEvents) -> Iterator[Outcome]:
    """The events of one hour. Where its pool is not mapped the hour itself is refused, in a form that can be tried
    again: the samples behind it are gone by then.
    """
    try:
        yield from list(hour_events(hour, source))
    except Refusal as refusal:
        yield refusal.at(position, msgspec.json.encode({_COUNTED: hour}))


def _set_aside(lines: Iterable[bytes], counted: list[tuple[int, bytes]]) -> Iterator[bytes]:
    """`lines`, with refused hours that are tried again put into `counted` and a blank line in their place."""
    for position, line in enumerate(lines, start=1):
        if line.startswith(_COUNTED_START):
            counted.append((position, line))
            yield b""
        else:
            yield line


def _retried(position: int, line: bytes, source: SourceConfig, hour_events: HourEvents) -> Iterator[Outcome]:
    try:
        hour = msgspec.json.decode(line, type=dict[str, Hour])[_COUNTED]
    except msgspec.DecodeError as error:
        yield Refused(position, line, "bad_record", f"not a counted hour: {error}")
        return
    yield from _hour(hour, position, source, hour_events)


def instance_of(sample: Sample, source: SourceConfig) -> str:
    """Which process a sample is from: options.instance_label, else `pod`, else `instance`."""
    chosen = source.option("instance_label", "")
    names = (chosen,) if chosen else ("pod", "instance")
    return next((sample.labels[name] for name in names if sample.labels.get(name)), "")


def gpus_milli(source: SourceConfig, *native_names: str) -> int | None:
    """GPUs that step together with one engine, in milli-GPU; `None` if options.gpus does not say.

    options.gpus is one number, or a table from model or instance to number: engines do not export their size.
    Raises `ValueError` for anything else (a configuration error).
    """
    gpus = source.options.get("gpus")
    if isinstance(gpus, Mapping):
        gpus = next((gpus[name] for name in native_names if name in gpus), None)
    if gpus is None:
        return None
    try:
        return int(decimal_of(gpus) * 1000)
    except Refusal as refusal:
        raise ValueError(f"source {source.name!r}: option 'gpus': {refusal.detail}") from refusal


def gpu_seconds_json(gpu_us: int) -> str:
    """gpu_us as the contract's decimal of at most 6 places (a GPU-second is 10^6 gpu_us)."""
    whole_seconds, rest = divmod(gpu_us, 1_000_000)
    return f"{whole_seconds}.{rest:06d}"


def usage_event(
    hour: Hour,
    source: SourceConfig,
    *,
    instance: str,
    model: str,
    belongs_to: Mapping[str, Any] | None = None,
    **counted: Any,
) -> Event:
    """One `ledger.usage.v1`; counts that are `None` are absent."""
    return event(
        source,
        hour.id,
        "usage",
        hour.ends_ms,
        {
            "usage": hour.id,
            **(belongs_to or {}),
            "pool": source.pool_for(instance, model),
            "service": service_of(source, instance, model),
            "model": model,
            "starts_at": rfc3339(hour.starts_ms),
            "ends_at": rfc3339(hour.ends_ms),
            **counted,
        },
    )


def whose_engine(source: SourceConfig, model: str) -> dict[str, Any]:
    """Who an engine's anonymous refusals belong to: options.tenant, else the identity `label:model`."""
    tenant = source.option("tenant", "")
    return {"tenant": tenant} if tenant else {"identity": identity("label:model", model)}


def sum_of(counts: Mapping[str, int], *fields: str) -> int | None:
    """The sum of those `fields` that were counted; `None` if none was."""
    known = [counts[field] for field in fields if field in counts]
    return sum(known) if known else None


def first_of(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def group_of(*parts: str) -> Group:
    return parts
