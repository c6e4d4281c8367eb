"""`dynamo-trace`: Dynamo's request trace -> requests with the workers they ran on (inference.md 3.2).

A record is written when the stream ends or is dropped. A request that was migrated to another worker is still
one record and one request. Prefill and decode times are wall time in a shared batch, and no GPU time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.core.adapters.base import Outcome, Refusal, SourceConfig, State, rfc3339, whole
from ingest.core.adapters.json_records import JsonRecord
from ingest.core.adapters.native import (
    Obj,
    as_object,
    child,
    count_of,
    first_text,
    millis_of,
    needed,
    read_each,
    text_of,
)
from ingest.core.adapters.request_record import Tokens, model_of, request_event, who

SCHEMA = "dynamo.request.trace.v1"
_OTHER_EVENTS = frozenset({"tool_start", "tool_end", "tool_error", "request_payload"})
_ABORTED = ("cancel", "abort", "drop", "disconnect")


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """The JSON lines of the trace; tool and payload events state no usage and are passed over."""
    return read_each(lines, lambda record: _record(record, source))


def _record(record: JsonRecord, source: SourceConfig) -> Iterator[Outcome]:
    trace = as_object(record.value, "the trace record")
    if trace.get("schema") != SCHEMA:
        raise Refusal("unknown_version", f"schema {trace.get('schema')!r} is not {SCHEMA}")
    if trace.get("event_type") in _OTHER_EVENTS:
        return
    if trace.get("event_type") != "request_end":
        raise Refusal("unknown_kind", f"event_type {trace.get('event_type')!r} is not known")
    metrics = child(trace, "request")
    finished_ms = whole(trace.get("event_time_unix_ms"))
    received_ms = _received_ms(metrics, finished_ms)
    waited_ms = millis_of(metrics.get("prefill_wait_time_ms"), 1)
    waited = waited_ms is not None and received_ms + waited_ms <= finished_ms
    context = child(trace, "agent_context")
    yield request_event(
        source,
        request=needed(first_text(metrics.get("request_id")), "request.request_id"),
        model=model_of(source, text_of(metrics.get("model"))),
        queued_at=rfc3339(received_ms) if waited else None,
        started_ms=received_ms + (waited_ms or 0) if waited else received_ms,
        finished_ms=finished_ms,
        belongs_to=_who(context, source),
        outcome=_outcome(metrics),
        tokens=Tokens(
            input=count_of(metrics.get("input_tokens")),
            cached_input=count_of(metrics.get("cached_tokens")),
            output=count_of(metrics.get("output_tokens")),
        ),
        labels=_labels(metrics, context),
    )


def _who(context: Obj, source: SourceConfig) -> Obj:
    """The trace names a session at most; options.identity_context says which field of it is a tenant's."""
    name = source.option("identity_context", "")
    return who(source, source.option("identity", f"label:{name}"), context.get(name) if name else None)


def _received_ms(metrics: Obj, finished_ms: int) -> int:
    if metrics.get("request_received_ms") is not None:
        return whole(metrics["request_received_ms"])
    total_ms = millis_of(metrics.get("total_time_ms"), 1)
    if total_ms is None:
        raise Refusal("no_instant", "neither request_received_ms nor total_time_ms: the start is not known")
    return finished_ms - total_ms


def _outcome(metrics: Obj) -> str:
    finish = child(metrics, "finish_reason_metadata")
    said = " ".join(
        text for name in ("finish_reason", "backend_finish_reason") if (text := text_of(finish.get(name)))
    ).lower()
    if any(word in said for word in _ABORTED):
        return "aborted"
    return "error" if "error" in said else "ok"


def _labels(metrics: Obj, context: Obj) -> dict[str, str] | None:
    """What joins the request to its gateway (`x_request_id`) and to the steps of its workers."""
    worker = child(metrics, "worker")
    labels = {
        "x_request_id": text_of(metrics.get("x_request_id")),
        "session_id": text_of(context.get("session_id")),
        "prefill_worker": _worker(worker, "prefill"),
        "decode_worker": _worker(worker, "decode"),
    }
    return {name: value for name, value in labels.items() if value is not None} or None


def _worker(worker: Obj, phase: str) -> str | None:
    worker_id, rank = text_of(worker.get(f"{phase}_worker_id")), text_of(worker.get(f"{phase}_dp_rank"))
    return None if worker_id is None else f"{worker_id}/{rank or '0'}"
