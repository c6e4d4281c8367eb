"""How inference records become `ledger.request.v1`, `ledger.rejection.v1` and `ledger.preemption.v1`.

Token counts follow one rule for all sources (domain.md section 7): cached and cache-written tokens are part
of input, reasoning tokens are part of output, and a count that was not stated is absent, not 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingest.core.adapters.base import Event, Refusal, SourceConfig, event, identity, rfc3339
from ingest.core.adapters.native import needed, text_of


@dataclass(frozen=True, slots=True)
class Tokens:
    """Counts of one request; `None` = not stated."""

    input: int | None = None
    cached_input: int | None = None
    cache_write: int | None = None
    output: int | None = None
    reasoning: int | None = None

    def data(self) -> dict[str, int | None]:
        """The contract's fields. Raises `Refusal("impossible_tokens")` if a part exceeds its whole."""
        if self.input is not None and (self.cached_input or 0) + (self.cache_write or 0) > self.input:
            raise Refusal(
                "impossible_tokens",
                f"{self.cached_input or 0} cached and {self.cache_write or 0} cache-written tokens "
                f"are more than the {self.input} input tokens they are part of",
            )
        if self.output is not None and (self.reasoning or 0) > self.output:
            raise Refusal(
                "impossible_tokens",
                f"{self.reasoning} reasoning tokens are more than the {self.output} output tokens",
            )
        return {
            "input_tokens": self.input,
            "cached_input_tokens": self.cached_input,
            "cache_write_tokens": self.cache_write,
            "output_tokens": self.output,
            "reasoning_tokens": self.reasoning,
        }


def nobody(source: SourceConfig) -> dict[str, Any]:
    """Who a record that names nobody belongs to: one identity per source, in suspense until it is mapped."""
    return {"identity": identity("label:source", source.name)}


def who(source: SourceConfig, kind: str, value: Any) -> dict[str, Any]:
    """`{"identity": ...}` of `value`, or of the source itself where the record names nobody."""
    named = text_of(value)
    return nobody(source) if named is None else {"identity": identity(kind, named)}


def service_of(source: SourceConfig, *native_names: str | None) -> str | None:
    """The shared service that serves a model: options.services by native name, else options.service."""
    services = source.option("services", {})
    for name in native_names:
        if name is not None and name in services:
            return str(services[name])
    return source.option("service", "") or None


def model_of(source: SourceConfig, *native_names: str | None) -> str:
    """The model a record names, under the name options.models gives it, else options.model.

    Raises `Refusal` if there is none.
    """
    named = next((name for name in native_names if name is not None), None)
    if named is None:
        return needed(source.option("model", "") or None, "model, and options.model is not set")
    return str(source.option("models", {}).get(named, named))


def request_event(
    source: SourceConfig,
    *,
    request: str,
    model: str,
    started_ms: int,
    finished_ms: int,
    belongs_to: Mapping[str, Any],
    outcome: str,
    tokens: Tokens,
    pool_names: tuple[str | None, ...] = (),
    attempt: int = 1,
    event_id: str | None = None,
    **optional: Any,
) -> Event:
    """One `ledger.request.v1`. `pool_names` are tried before the model when the pool is looked up."""
    if started_ms > finished_ms:
        raise Refusal("bad_time", f"the request ends {started_ms - finished_ms} ms before it starts")
    default_id = request if attempt == 1 else f"{request}#{attempt}"
    return event(
        source,
        event_id or default_id,
        "request",
        finished_ms,
        {
            "request": request,
            **belongs_to,
            "pool": source.pool_for(*pool_names, model),
            "service": service_of(source, *pool_names, model),
            "model": model,
            "started_at": rfc3339(started_ms),
            "attempt": attempt if attempt != 1 else None,
            "outcome": outcome,
            **tokens.data(),
            **optional,
        },
    )


def rejection_event(
    source: SourceConfig,
    *,
    event_id: str,
    time_ms: int,
    belongs_to: Mapping[str, Any],
    layer: str,
    reason: str,
    status: int,
    origin: str,
    **optional: Any,
) -> Event:
    """One `ledger.rejection.v1`. A refused call has no tokens and no GPU time, so there is no request beside it."""
    return event(
        source,
        event_id,
        "rejection",
        time_ms,
        {
            **belongs_to,
            "layer": layer,
            "reason": reason,
            "status": status,
            "origin": origin,
            **optional,
        },
    )


def request_preemption(
    source: SourceConfig,
    *,
    preemption: str,
    request: str,
    decided_ms: int,
    belongs_to: Mapping[str, Any],
    cause: str,
    pool: str,
    disposition: str,
    attempt: int | None = None,
    **optional: Any,
) -> Event:
    """A preemption inside an engine: no GPU changes hands, and no engine says who the preemptor was."""
    return event(
        source,
        preemption,
        "preemption",
        decided_ms,
        {
            "preemption": preemption,
            "victim": {"request": request, **belongs_to, **({} if attempt is None else {"attempt": attempt})},
            "preemptor_source": "none",
            "pool": pool,
            "gpus": 0,
            "cause": cause,
            "disposition": disposition,
            **optional,
        },
    )


def optional_pool(source: SourceConfig, *native_names: str | None) -> str | None:
    """The pool where one is known; a rejection may go without."""
    try:
        return source.pool_for(*native_names)
    except Refusal:
        return None


def http_status(value: Any, default: int) -> int:
    """The HTTP status of a refusal; `default` where the record states none that is one."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and 400 <= int(text[:9]) <= 599 else default
