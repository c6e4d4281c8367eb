"""Access logs of Envoy-based gateways as JSON lines; the operator chooses the field names, options.fields maps them.

A line is a request, a refusal, a request that was thrown out while running, or a client that left. Token
fields of a stream that was cut are null, and stay absent: what it consumed is in the engine's counters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ingest.core.adapters.base import Event, Outcome, Refusal, SourceConfig
from ingest.core.adapters.native import (
    Obj,
    count_of,
    first_text,
    millis_of,
    native_ms,
    needed,
    text_of,
)
from ingest.core.adapters.refusal_reasons import (
    LLM_D_REASONS,
    ThrownOut,
    TurnedAway,
    Verdict,
    WalkedAway,
    verdict_of_text,
)
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

FIELDS: Mapping[str, tuple[str, ...]] = {
    "time": ("start_time", "ts", "timestamp"),
    "duration_ms": ("duration",),
    "status": ("response_code", "status"),
    "flags": ("response_flags",),
    "details": ("response_code_details",),
    "request": ("x-request-id", "request_id"),
    "model": ("gen_ai.response.model", "response_model", "gen_ai.request.model", "x-ai-eg-model", "model"),
    "backend": ("backend_name", "ai_service_backend_name"),
    "input": ("gen_ai.usage.input_tokens",),
    "cached_input": ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_input_tokens"),
    "cache_write": ("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens"),
    "output": ("gen_ai.usage.output_tokens",),
    "reasoning": ("gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens"),
    "dropped": ("x-llm-d-request-dropped-reason",),
    "body": ("body",),
    "priority": ("priority",),
    "retry_after": ("retry-after",),
}
"""Canonical field -> the names it is looked for under, best first."""

_CAPACITY_FLAGS = frozenset({"UO", "UH"})
"""Envoy: upstream overflow, no healthy upstream: nobody could take the call."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What differs between the gateways that write such logs."""

    identity_field: str
    identity_kind: str
    nobody_values: frozenset[str] = frozenset()
    """Values that stand for nobody, such as the name of a default flow."""


@dataclass(frozen=True, slots=True)
class _Line:
    record: Obj
    request: str
    status: int
    flags: frozenset[str]
    belongs_to: Obj
    model: str | None
    backend: str | None
    started_ms: int
    finished_ms: int
    service_class: str | None


def outcomes(record: Obj, source: SourceConfig, defaults: Defaults) -> Iterator[Outcome]:
    """What one line of the log says."""
    line = _line(record, source, defaults)
    verdict = _verdict(line, source)
    if isinstance(verdict, TurnedAway):
        yield _rejection(line, verdict, source)
        return
    if isinstance(verdict, ThrownOut):
        yield _preemption(line, verdict, source)
    # Without a model nothing can have run: a wrong path or a bad key is no fact of the ledger.
    if line.model is None and not source.option("model", "") and (_failed(line) or verdict is not None):
        return
    yield _request(line, _outcome(line, verdict), source)


def _field(record: Obj, source: SourceConfig, name: str) -> Any:
    chosen = source.option("fields", {}).get(name)
    names = (str(chosen),) if chosen else FIELDS[name]
    return next((record[key] for key in names if record.get(key) not in (None, "", "-")), None)


def _line(record: Obj, source: SourceConfig, defaults: Defaults) -> _Line:
    started_ms = native_ms(_field(record, source, "time"), source)
    status = count_of(_field(record, source, "status"))
    if status is None:
        raise Refusal("bad_record", "the line has no response code")
    who_field = source.option("identity_field", defaults.identity_field)
    named = text_of(record.get(who_field))
    priority = text_of(_field(record, source, "priority"))
    return _Line(
        record=record,
        request=needed(first_text(_field(record, source, "request")), "x-request-id"),
        status=status,
        flags=frozenset((text_of(_field(record, source, "flags")) or "").split(",")),
        belongs_to=who(
            source,
            source.option("identity", defaults.identity_kind),
            None if named in defaults.nobody_values else named,
        ),
        model=text_of(_field(record, source, "model")),
        backend=text_of(_field(record, source, "backend")),
        started_ms=started_ms,
        finished_ms=started_ms + (millis_of(_field(record, source, "duration_ms"), 1) or 0),
        service_class="preemptible" if priority is not None and priority.startswith("-") else None,
    )


def _verdict(line: _Line, source: SourceConfig) -> Verdict | None:
    dropped = text_of(_field(line.record, source, "dropped"))
    if dropped is not None:
        if dropped not in LLM_D_REASONS:
            raise Refusal("bad_record", f"x-llm-d-request-dropped-reason {dropped!r} is not known")
        return LLM_D_REASONS[dropped]
    if not _failed(line):
        return None
    known = verdict_of_text(text_of(_field(line.record, source, "body")))
    if known is not None:
        return known
    if line.status == 429:
        limited_here = "RL" in line.flags
        return TurnedAway(
            "rate_limit", "RL" if limited_here else "429", "gateway" if limited_here else "upstream"
        )
    if line.status == 503 and line.flags & _CAPACITY_FLAGS:
        return TurnedAway("capacity", sorted(line.flags & _CAPACITY_FLAGS)[0], "gateway")
    return None


def _failed(line: _Line) -> bool:
    return line.status >= 400 or line.status == 0


def _outcome(line: _Line, verdict: Verdict | None) -> str:
    if isinstance(verdict, ThrownOut):
        return "preempted"
    if isinstance(verdict, WalkedAway) or "DC" in line.flags or line.status == 499:
        return "aborted"
    if line.status in (408, 504) or line.flags & {"UT", "SI"}:
        return "timeout"
    # Envoy writes 0 where there was no answer at all.
    return "ok" if 100 <= line.status < 400 else "error"


def _request(line: _Line, outcome: str, source: SourceConfig) -> Event:
    counts = {
        part: count_of(_field(line.record, source, part))
        for part in ("input", "cached_input", "cache_write", "output", "reasoning")
    }
    return request_event(
        source,
        request=line.request,
        model=model_of(source, line.model),
        pool_names=(line.backend,),
        started_ms=line.started_ms,
        finished_ms=line.finished_ms,
        belongs_to=line.belongs_to,
        outcome=outcome,
        tokens=Tokens(**counts),
        service_class=line.service_class,
    )


def _rejection(line: _Line, verdict: TurnedAway, source: SourceConfig) -> Event:
    retry_after = text_of(_field(line.record, source, "retry_after"))
    return rejection_event(
        source,
        event_id=f"{line.request}/rejected",
        time_ms=line.finished_ms,
        belongs_to=line.belongs_to,
        layer=verdict.layer,
        reason=verdict.reason,
        status=http_status(line.status, 503),
        origin=verdict.origin,
        request=line.request,
        model=line.model,
        pool=optional_pool(source, line.backend, line.model),
        service_class=line.service_class,
        # The header may also hold a date, which is no duration.
        retry_after_seconds=retry_after if retry_after and retry_after.isdigit() else None,
    )


def _preemption(line: _Line, verdict: ThrownOut, source: SourceConfig) -> Event:
    return request_preemption(
        source,
        preemption=f"{line.request}/{verdict.reason}",
        request=line.request,
        decided_ms=line.finished_ms,
        belongs_to=line.belongs_to,
        cause=verdict.cause,
        pool=source.pool_for(line.backend, line.model),
        disposition="stopped",
        queued_only=True if verdict.queued_only else None,
    )
