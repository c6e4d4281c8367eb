"""`litellm-payload`: LiteLLM's StandardLoggingPayload -> requests and refusals, one per attempt (inference.md 4.1).

Here times are unix seconds and `cache_hit` is a boolean, unlike in the table. `trace_id` ties the retries and
fallbacks of one logical request together; each attempt keeps its own model, and so its own rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.core.adapters.base import Outcome, SourceConfig, State
from ingest.core.adapters.json_records import JsonRecord
from ingest.core.adapters.litellm import (
    failure_outcome,
    spend_notice,
    status_of,
    tokens_of,
    verdict_of,
    who_asked,
)
from ingest.core.adapters.native import (
    Obj,
    as_object,
    child,
    first_text,
    native_ms,
    needed,
    read_each,
    text_of,
)
from ingest.core.adapters.refusal_reasons import ThrownOut, TurnedAway, Verdict
from ingest.core.adapters.request_record import (
    Tokens,
    model_of,
    optional_pool,
    rejection_event,
    request_event,
    request_preemption,
)


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Payloads as the webhook and object-store callbacks write them, one per line or in an array."""
    return read_each(lines, lambda record: _record(record, source))


def _record(record: JsonRecord, source: SourceConfig) -> Iterator[Outcome]:
    payloads = record.value if isinstance(record.value, list) else [record.value]
    for payload in payloads:
        yield from _payload(record, as_object(payload, "the payload"), source)


def _payload(record: JsonRecord, payload: Obj, source: SourceConfig) -> Iterator[Outcome]:
    failed = payload.get("status") == "failure"
    error = {"error_str": payload.get("error_str"), **child(payload, "error_information")}
    verdict = verdict_of(error) if failed else None
    if isinstance(verdict, TurnedAway):
        yield _rejection(payload, error, verdict, source)
        return
    yield _request(payload, error, failed, verdict, source)
    if isinstance(verdict, ThrownOut):
        yield request_preemption(
            source,
            preemption=f"{_request_id(payload)}/{verdict.reason}",
            request=_request_id(payload),
            decided_ms=native_ms(payload.get("endTime"), source),
            belongs_to=_who(payload, source),
            cause=verdict.cause,
            pool=source.pool_for(*_models(payload)),
            disposition="stopped",
            queued_only=True if verdict.queued_only else None,
        )
    notice = spend_notice(
        record, _request_id(payload), payload.get("response_cost"), child(payload, "cost_breakdown")
    )
    if notice is not None:
        yield notice


def _request(
    payload: Obj, error: Obj, failed: bool, verdict: Verdict | None, source: SourceConfig
) -> Outcome:
    cache_hit = payload.get("cache_hit") is True
    model_id, group, model = _models(payload)
    usage = child(child(payload, "metadata"), "usage_object") or child(
        child(payload, "hidden_params"), "usage_object"
    )
    return request_event(
        source,
        request=_request_id(payload),
        parent_request=_parent(payload),
        model=model_of(source, group, model)
        if source.option("model_from", "group") == "group"
        else model_of(source, model, group),
        pool_names=(model_id, group, model),
        started_ms=native_ms(payload.get("startTime"), source),
        finished_ms=native_ms(payload.get("endTime"), source),
        belongs_to=_who(payload, source),
        outcome="preempted" if isinstance(verdict, ThrownOut) else failure_outcome(error) if failed else "ok",
        tokens=Tokens(input=0, output=0) if cache_hit else tokens_of(payload, usage, failed),
        gpu_seconds=0 if cache_hit else None,
        user=text_of(payload.get("end_user")),
        labels={"cache_hit": "true"} if cache_hit else None,
    )


def _rejection(payload: Obj, error: Obj, verdict: TurnedAway, source: SourceConfig) -> Outcome:
    model_id, group, model = _models(payload)
    return rejection_event(
        source,
        event_id=f"{_request_id(payload)}/rejected",
        time_ms=native_ms(payload.get("endTime") or payload.get("startTime"), source),
        belongs_to=_who(payload, source),
        layer=verdict.layer,
        reason=verdict.reason,
        status=status_of(error),
        origin=verdict.origin,
        request=_request_id(payload),
        model=group or model,
        pool=optional_pool(source, model_id, group, model),
    )


def _request_id(payload: Obj) -> str:
    return needed(first_text(payload.get("litellm_call_id"), payload.get("id")), "litellm_call_id or id")


def _parent(payload: Obj) -> str | None:
    """The logical request. A trace that is a whole session says nothing about one request."""
    trace = text_of(payload.get("trace_id"))
    if trace is None or trace in (text_of(payload.get("session_id")), _request_id(payload)):
        return None
    return trace


def _who(payload: Obj, source: SourceConfig) -> Obj:
    metadata = child(payload, "metadata")
    return who_asked(
        source,
        metadata.get("user_api_key_team_id"),
        metadata.get("user_api_key_hash"),
        metadata.get("user_api_key_user_id"),
    )


def _models(payload: Obj) -> tuple[str | None, str | None, str | None]:
    """(deployment id, group that was asked for, model that answered)."""
    return tuple(text_of(payload.get(name)) for name in ("model_id", "model_group", "model"))  # type: ignore[return-value]
