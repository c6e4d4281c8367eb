"""`litellm-payload`: LiteLLM's StandardLoggingPayload -> requests and refusals, one per attempt (inference.md 4.1).

Here times are unix seconds and `cache_hit` is a boolean, unlike in the table. `trace_id` ties the retries and
fallbacks of one logical request together; each attempt keeps its own model, and so its own rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from ingest.core.adapters.base import Event, Outcome, Refusal, SourceConfig, State
from ingest.core.adapters.json_records import JsonRecord
from ingest.core.adapters.litellm import (
    Call,
    Models,
    failure_outcome,
    preemption,
    rejection,
    spend_notice,
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
    request_event,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt(Call):
    payload: Obj
    parent: str | None
    started_ms: int
    finished_ms: int


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Payloads as the webhook and object-store callbacks write them, one per line or in an array."""
    return read_each(lines, lambda record: _record(record, source))


def _record(record: JsonRecord, source: SourceConfig) -> Iterator[Outcome]:
    if not isinstance(record.value, list):
        yield from _outcomes(record, _attempt(as_object(record.value, "the payload"), source), source)
        return
    for payload in record.value:
        try:
            yield from list(_outcomes(record, _attempt(as_object(payload, "the payload"), source), source))
        except Refusal as refusal:
            yield refusal.at(record.position, msgspec.json.encode(payload))


def _outcomes(record: JsonRecord, attempt: _Attempt, source: SourceConfig) -> Iterator[Outcome]:
    verdict = verdict_of(attempt.error) if attempt.failed else None
    if isinstance(verdict, TurnedAway):
        yield rejection(attempt, verdict, attempt.finished_ms, source)
        return
    yield _request(attempt, verdict, source)
    if isinstance(verdict, ThrownOut):
        yield preemption(attempt, verdict, attempt.finished_ms, source)
    payload = attempt.payload
    notice = spend_notice(record, attempt.id, payload.get("response_cost"), child(payload, "cost_breakdown"))
    if notice is not None:
        yield notice


def _attempt(payload: Obj, source: SourceConfig) -> _Attempt:
    call_id = needed(first_text(payload.get("litellm_call_id"), payload.get("id")), "litellm_call_id or id")
    failed = payload.get("status") == "failure"
    models, metadata = Models.of(payload), child(payload, "metadata")
    started_ms = native_ms(payload.get("startTime"), source)
    logical = _logical_request(payload, call_id)
    # Attempts may share one call id. The one that succeeded is the call; those that failed are told apart.
    own_id = f"{call_id}/{models.deployment_id or models.answered or ''}/{started_ms}" if failed else call_id
    return _Attempt(
        payload=payload,
        error={"error_str": payload.get("error_str"), **child(payload, "error_information")},
        failed=failed,
        id=own_id,
        parent=None if logical == own_id else logical,
        models=models,
        belongs_to=who_asked(
            source,
            metadata.get("user_api_key_team_id"),
            metadata.get("user_api_key_hash"),
            metadata.get("user_api_key_user_id"),
        ),
        started_ms=started_ms,
        finished_ms=native_ms(payload.get("endTime"), source),
    )


def _logical_request(payload: Obj, call_id: str) -> str:
    """The trace, unless it is a whole session, which says nothing about one request."""
    trace = text_of(payload.get("trace_id"))
    return call_id if trace is None or trace == text_of(payload.get("session_id")) else trace


def _request(attempt: _Attempt, verdict: Verdict | None, source: SourceConfig) -> Event:
    payload = attempt.payload
    cache_hit = payload.get("cache_hit") is True
    usage = child(child(payload, "metadata"), "usage_object") or child(
        child(payload, "hidden_params"), "usage_object"
    )
    failure = "preempted" if isinstance(verdict, ThrownOut) else failure_outcome(attempt.error)
    return request_event(
        source,
        request=attempt.id,
        parent_request=attempt.parent,
        model=model_of(source, *attempt.models.rated(source)),
        pool_names=attempt.models.for_pool(),
        started_ms=attempt.started_ms,
        finished_ms=attempt.finished_ms,
        belongs_to=attempt.belongs_to,
        outcome=failure if attempt.failed else "ok",
        # An answer out of the gateway's cache moved no token through a GPU.
        tokens=Tokens(input=0, output=0) if cache_hit else tokens_of(payload, usage, attempt.failed),
        gpu_seconds=0 if cache_hit else None,
        user=text_of(payload.get("end_user")),
        labels={"cache_hit": "true"} if cache_hit else None,
    )
