"""One answer of an OpenAI-style or Anthropic API, with what its caller knows about it, and its errors.

A bare answer says neither whose it was nor when it ended. Whoever logs it may wrap it:
`{"request_id", "started_at", "finished_at", "tenant" or "identity", "user", "x_request_id", "status", "provisional",
"settles", "response": {...}}`, or, for a stream, `"chunks": [...]` in place of `response`. Nothing in the wrapper is
required if the answer has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ingest.core.adapters.base import Event, Outcome, SourceConfig, event, identity
from ingest.core.adapters.native import Obj, as_object, child, count_of, first_text, needed, text_of
from ingest.core.adapters.refusal_reasons import ThrownOut, TurnedAway, verdict_of_text
from ingest.core.adapters.request_record import (
    Tokens,
    http_status,
    model_of,
    nobody,
    optional_pool,
    rejection_event,
    request_event,
    request_preemption,
)

WRAPPER = frozenset({"response", "chunks"})


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered (or refused) call, whatever API it came through."""

    request: str
    model: str | None
    started_ms: int
    finished_ms: int
    belongs_to: Mapping[str, Any]
    tokens: Tokens
    outcome: str
    """If it was not an error."""
    error: str | None
    """Message and type of the error, if it was one."""
    status: int | None
    user: str | None = None
    x_request_id: str | None = None
    """The caller's own id of the call, which a retry under a new id keeps."""
    provisional: bool = False
    """Its counts may still grow: a later record of the same request settles them."""
    settles: bool = False
    """It replaces what a provisional record said."""


def answer_of(
    wrapper: Obj,
    answer: Obj,
    source: SourceConfig,
    *,
    request: str,
    span: tuple[int, int],
    tokens: Tokens,
    is_cut: bool,
) -> Answer:
    """What every API's answer has in common with its wrapper. is_cut: it ended before it was whole."""
    error = error_of(answer) or error_of(wrapper)
    return Answer(
        request=request,
        model=first_text(answer.get("model"), wrapper.get("model")),
        started_ms=span[0],
        finished_ms=span[1],
        belongs_to=whose(wrapper, source),
        tokens=tokens,
        outcome="error" if error is not None else "aborted" if is_cut else "ok",
        error=error,
        status=status_in(wrapper) or status_in(answer),
        user=first_text(wrapper.get("user")),
        x_request_id=first_text(wrapper.get("x_request_id")),
        provisional=wrapper.get("provisional") is True,
        settles=wrapper.get("settles") is True,
    )


def wrapped(value: Obj) -> Obj:
    """The wrapper around an answer; a bare answer is wrapped in nothing."""
    return value if WRAPPER & value.keys() else {"response": value}


def whose(wrapper: Obj, source: SourceConfig) -> Obj:
    """Tenant, identity, or the source's own identity where the wrapper names nobody."""
    tenant = first_text(wrapper.get("tenant"))
    if tenant is not None:
        return {"tenant": tenant}
    named = child(wrapper, "identity")
    if named:
        kind = needed(first_text(named.get("kind")), "identity.kind")
        value = first_text(named.get("value"))
        return nobody(source) if value is None else {"identity": identity(kind, value)}
    return nobody(source)


def error_of(value: Obj) -> str | None:
    """`message (type)` of an error answer; `None` if it is none."""
    error = value.get("error")
    if isinstance(error, str):
        return error
    if not error:
        return None
    fields = as_object(error, "error")
    return " ".join(text for name in ("message", "type", "code") if (text := text_of(fields.get(name))))


def status_in(wrapper: Obj) -> int | None:
    """HTTP status, from the wrapper or from the error itself."""
    status = count_of(wrapper.get("status"))
    if status is None and isinstance(wrapper.get("error"), dict):
        code = wrapper["error"].get("code")
        status = code if isinstance(code, int) and not isinstance(code, bool) else None
    return status


def answer_outcomes(answer: Answer, source: SourceConfig) -> Iterator[Outcome]:
    """A request, a rejection, or a request with the preemption that ended it."""
    verdict = verdict_of_text(answer.error) or (_by_status(answer) if answer.error is not None else None)
    if isinstance(verdict, TurnedAway):
        yield _rejection(answer, verdict, source)
        return
    thrown_out = isinstance(verdict, ThrownOut)
    yield _request(answer, "preempted" if thrown_out else answer.outcome, source)
    if isinstance(verdict, ThrownOut):
        yield request_preemption(
            source,
            preemption=f"{answer.request}/{verdict.reason}",
            request=answer.request,
            decided_ms=answer.finished_ms,
            belongs_to=answer.belongs_to,
            cause=verdict.cause,
            pool=source.pool_for(answer.model),
            disposition="stopped",
            queued_only=True if verdict.queued_only else None,
        )


def _by_status(answer: Answer) -> TurnedAway | None:
    """An error whose text is not known, by its status. A 503 may be anything, so it stays an error."""
    text = (answer.error or "").lower()
    if answer.status == 529 or "overloaded_error" in text:
        return TurnedAway("capacity", "overloaded", "upstream")
    if answer.status == 429 or "rate_limit" in text:
        layer = "quota" if "insufficient_quota" in text else "rate_limit"
        return TurnedAway(layer, "insufficient_quota" if layer == "quota" else "rate_limit", "upstream")
    return None


def _rejection(answer: Answer, verdict: TurnedAway, source: SourceConfig) -> Event:
    default = 429 if verdict.layer in ("rate_limit", "quota") else 503
    return rejection_event(
        source,
        event_id=f"{answer.request}/rejected",
        time_ms=answer.finished_ms,
        belongs_to=answer.belongs_to,
        layer=verdict.layer,
        reason=verdict.reason,
        status=http_status(answer.status, default),
        origin=verdict.origin,
        request=answer.request,
        model=answer.model,
        pool=optional_pool(source, answer.model),
    )


def _request(answer: Answer, outcome: str, source: SourceConfig) -> Event:
    provisional_id = f"{answer.request}/provisional"
    booked = request_event(
        source,
        request=answer.request,
        event_id=provisional_id if answer.provisional else answer.request,
        model=model_of(source, answer.model),
        started_ms=answer.started_ms,
        finished_ms=answer.finished_ms,
        belongs_to=answer.belongs_to,
        outcome=outcome,
        tokens=answer.tokens,
        user=answer.user,
        labels=None if answer.x_request_id is None else {"x_request_id": answer.x_request_id},
    )
    if not answer.settles:
        return booked
    # What was booked stays on the record; a correction puts the later statement in its place.
    return event(
        source,
        f"{answer.request}/settled",
        "correction",
        answer.finished_ms,
        {
            "supersedes": {"source": source.uri, "id": provisional_id},
            "reason": "the final usage was reported after a provisional one",
            "event": booked,
        },
    )
