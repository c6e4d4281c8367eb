"""`anthropic-usage`: answers of the Messages API, whole or streamed -> requests (inference.md section 0, rule 1).

The exception among all sources: here `input_tokens` leaves out what was read from and written to the cache, so the
total input is the sum of the three. In a stream `message_start` and each `message_delta` repeat cumulative counts:
for each count the last statement holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ingest.core.adapters.api_answers import answer_of, answer_outcomes
from ingest.core.adapters.base import Notice, Outcome, Refusal, SourceConfig, State
from ingest.core.adapters.json_records import JsonRecord
from ingest.core.adapters.native import (
    Obj,
    as_object,
    child,
    children,
    count_of,
    first_text,
    native_ms,
    needed,
    read_each,
)
from ingest.core.adapters.request_record import Tokens


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Messages wrapped as `api_answers` says, one JSON per line; `events` (or `chunks`) holds those of a stream."""
    return read_each(lines, lambda record: _record(record, source))


def _record(record: JsonRecord, source: SourceConfig) -> Iterator[Outcome]:
    wrapper = as_object(record.value, "the record")
    name = "events" if "events" in wrapper else "chunks"
    events = children(wrapper, name)
    message = stream_message(events) if name in wrapper else child(wrapper, "response")
    request = needed(
        first_text(wrapper.get("request_id"), message.get("request_id"), message.get("id")),
        "request_id or id",
    )
    cut = bool(events) and not any(event.get("type") in ("message_stop", "error") for event in events)
    found = answer_of(
        wrapper,
        message,
        source,
        request=request,
        span=_span(wrapper, source),
        tokens=tokens_of(child(message, "usage")),
        is_cut=cut,
    )
    yield from answer_outcomes(found, source)
    if cut:
        detail = f"{request}: the stream ended before message_stop"
        yield Notice(record.position, "incomplete_stream", detail, request)


def tokens_of(usage: Obj) -> Tokens:
    """Counts of one usage object, with the total input put together."""
    fresh = count_of(usage.get("input_tokens"))
    read = count_of(usage.get("cache_read_input_tokens"))
    written = count_of(usage.get("cache_creation_input_tokens"))
    if written is None and usage.get("cache_creation") is not None:
        written = sum(count_of(part) or 0 for part in child(usage, "cache_creation").values())
    return Tokens(
        input=None if fresh is None else fresh + (read or 0) + (written or 0),
        cached_input=read,
        cache_write=written,
        output=count_of(usage.get("output_tokens")),
    )


def stream_message(events: list[Obj]) -> Obj:
    """One message out of the events of a stream; for each count of usage the last statement holds."""
    message: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    for event in events:
        start = child(event, "message")
        message.update({name: start[name] for name in ("id", "model") if start.get(name) is not None})
        for said in (child(start, "usage"), child(event, "usage")):
            usage.update({name: value for name, value in said.items() if value is not None})
        if event.get("type") == "error":
            message["error"] = event.get("error")
    return {**message, "usage": usage}


def _span(wrapper: Obj, source: SourceConfig) -> tuple[int, int]:
    """The API states no times; the wrapper has to."""
    started, finished = wrapper.get("started_at"), wrapper.get("finished_at")
    if started is None and finished is None:
        raise Refusal("no_instant", "neither started_at nor finished_at beside the message")
    return (
        native_ms(finished if started is None else started, source),
        native_ms(started if finished is None else finished, source),
    )
