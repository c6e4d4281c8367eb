"""`sglang-log`: SGLang's per-request log -> requests, refusals, and preemptions in the engine (inference.md 2.2, 2.3).

`num_retractions` covers retraction under KV pressure, preemption by priority, and a pause; the log does not tell
them apart. Kept output is kept: what a retraction costs is prefill done again, and its amount is not in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ingest.core.adapters.base import Event, Outcome, Refusal, SourceConfig, State, rfc3339, unix_seconds_ms
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
from ingest.core.adapters.refusal_reasons import ThrownOut, TurnedAway, Verdict, verdict_of_text
from ingest.core.adapters.request_record import (
    Tokens,
    http_status,
    model_of,
    optional_pool,
    rejection_event,
    request_event,
    request_preemption,
    who,
)

MAX_RETRACTIONS = 1_000
"""More than this for one request is a broken record, not a busy engine."""

_OUTCOMES = {"stop": "ok", "length": "ok", "repetition": "ok", "abort": "aborted", "error": "error"}


@dataclass(frozen=True, slots=True)
class _Request:
    id: str
    parameters: Obj
    model: str
    belongs_to: Obj
    received_ms: int
    finished_ms: int


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """The JSON lines of `sglang-request-metrics-*.log`."""
    return read_each(lines, lambda record: _record(record, source))


def _record(record: JsonRecord, source: SourceConfig) -> Iterator[Outcome]:
    meta = as_object(record.value, "the record")
    reason = child(meta, "finish_reason")
    verdict = verdict_of_text(text_of(reason.get("message")))
    request = _request(meta, source)
    if isinstance(verdict, TurnedAway):
        yield _rejection(request, reason, verdict, source)
        return
    retractions = _retractions(meta)
    yield _event(request, meta, verdict, retractions, reason, source)
    if source.option("preemption_records", True):
        yield from _preemptions(request, retractions, verdict, source)


def _request(meta: Obj, source: SourceConfig) -> _Request:
    parameters = _parameters(meta)
    model = model_of(source, first_text(meta.get("model"), parameters.get("model")))
    path = source.option("identity_parameter", "")
    kind = source.option("identity", f"label:{path.rpartition('.')[2]}")
    received_ms, finished_ms = _span(meta)
    return _Request(
        id=needed(first_text(meta.get("id"), parameters.get("rid")), "id"),
        parameters=parameters,
        model=model,
        belongs_to=who(source, kind, _at(parameters, path) if path else None),
        received_ms=received_ms,
        finished_ms=finished_ms,
    )


def _event(
    request: _Request,
    meta: Obj,
    verdict: Verdict | None,
    retractions: int | None,
    reason: Obj,
    source: SourceConfig,
) -> Event:
    queue_ms = millis_of(meta.get("queue_time"), 1000)
    waited = queue_ms is not None and request.received_ms + queue_ms <= request.finished_ms
    return request_event(
        source,
        request=request.id,
        model=request.model,
        queued_at=rfc3339(request.received_ms) if waited else None,
        started_ms=request.received_ms + (queue_ms or 0) if waited else request.received_ms,
        finished_ms=request.finished_ms,
        belongs_to=request.belongs_to,
        outcome="preempted" if isinstance(verdict, ThrownOut) else _outcome(reason),
        tokens=Tokens(
            input=count_of(meta.get("prompt_tokens")),
            cached_input=count_of(meta.get("cached_tokens")),
            output=count_of(meta.get("completion_tokens")),
            reasoning=count_of(meta.get("reasoning_tokens")),
        ),
        preemptions=retractions,
        user=text_of(request.parameters.get("user")),
    )


def _preemptions(
    request: _Request, retractions: int | None, verdict: Verdict | None, source: SourceConfig
) -> Iterator[Event]:
    """One record per retraction. When each happened is not logged: the finish is the latest it can have been."""
    pool = source.pool_for(request.model)
    for number in range(1, (retractions or 0) + 1):
        yield request_preemption(
            source,
            preemption=f"{request.id}/retraction-{number}",
            request=request.id,
            decided_ms=request.finished_ms,
            belongs_to=request.belongs_to,
            cause=source.option("retraction_cause", "kv_cache_pressure"),
            pool=pool,
            disposition="requeued",
        )
    if isinstance(verdict, ThrownOut):
        yield request_preemption(
            source,
            preemption=f"{request.id}/{verdict.reason}",
            request=request.id,
            decided_ms=request.finished_ms,
            belongs_to=request.belongs_to,
            cause=verdict.cause,
            pool=pool,
            disposition="stopped",
            queued_only=True if verdict.queued_only else None,
        )


def _rejection(request: _Request, reason: Obj, verdict: TurnedAway, source: SourceConfig) -> Event:
    return rejection_event(
        source,
        event_id=f"{request.id}/rejected",
        time_ms=request.finished_ms,
        belongs_to=request.belongs_to,
        layer=verdict.layer,
        reason=verdict.reason,
        status=http_status(reason.get("status_code"), 503),
        origin=verdict.origin,
        request=request.id,
        model=request.model,
        pool=optional_pool(source, request.model),
    )


def _outcome(reason: Obj) -> str:
    kind = text_of(reason.get("type"))
    if kind not in _OUTCOMES:
        raise Refusal("bad_record", f"finish_reason {kind!r} is none of {', '.join(sorted(_OUTCOMES))}")
    return _OUTCOMES[kind]


def _retractions(meta: Obj) -> int | None:
    retractions = count_of(meta.get("num_retractions"))
    if retractions is not None and retractions > MAX_RETRACTIONS:
        raise Refusal("bad_quantity", f"{retractions} retractions of one request")
    return retractions


def _span(meta: Obj) -> tuple[int, int]:
    received = meta.get("request_received_ts")
    finished = meta.get("request_finished_ts")
    if finished is None:
        finished = meta.get("response_sent_to_client_ts")
    if received is None or (finished is None and meta.get("e2e_latency") is None):
        raise Refusal(
            "no_instant", "no request_received_ts and request_finished_ts: start SGLang with --enable-metrics"
        )
    received_ms = unix_seconds_ms(received)
    if finished is not None:
        return received_ms, unix_seconds_ms(finished)
    return received_ms, received_ms + (millis_of(meta["e2e_latency"], 1000) or 0)


def _parameters(meta: Obj) -> Obj:
    """The request, which SGLang writes as JSON text inside the JSON."""
    value: Any = meta.get("request_parameters")
    if value is None or isinstance(value, dict):
        return value or {}
    try:
        decoded = msgspec.json.decode(value) if isinstance(value, str) else None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal("bad_record", f"request_parameters is not JSON: {error}") from error
    return as_object(decoded, "request_parameters")


def _at(parameters: Obj, path: str) -> Any:
    """The value at a dotted path such as `custom_labels.team`; `None` if there is none."""
    value: Any = parameters
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
