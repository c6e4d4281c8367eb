"""`openai-usage`: answers of OpenAI-style APIs, whole or streamed -> requests (inference.md 1.2 and 2.2).

Read are the usage of chat, completion and embedding answers, of the Responses API, and SGLang's top-level
`reasoning_tokens`. In a stream usage is cumulative: the last one counts, and nothing is summed. A stream that was
cut before its last chunk is booked as aborted with what was last said, and notice is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ingest.core.adapters.api_answers import answer_of, answer_outcomes, wrapped
from ingest.core.adapters.base import Notice, Outcome, Refusal, SourceConfig, State
from ingest.core.adapters.json_records import JsonRecord
from ingest.core.adapters.native import (
    Obj,
    as_object,
    child,
    children,
    count_of,
    first_text,
    millis_of,
    native_ms,
    needed,
    read_each,
)
from ingest.core.adapters.request_record import Tokens

_METRICS = ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Answers, bare or wrapped (see `api_answers`), one JSON per line."""
    return read_each(lines, lambda record: _record(record, source))


def _record(record: JsonRecord, source: SourceConfig) -> Iterator[Outcome]:
    wrapper = wrapped(as_object(record.value, "the record"))
    chunks = children(wrapper, "chunks")
    answer = stream_answer(chunks) if "chunks" in wrapper else child(wrapper, "response")
    cut = bool(chunks) and not _finished(chunks)
    request = needed(first_text(wrapper.get("request_id"), answer.get("id")), "request_id or id")
    found = answer_of(
        wrapper,
        answer,
        source,
        request=request,
        span=_span(wrapper, answer, source),
        tokens=tokens_of(child(answer, "usage")),
        is_cut=cut or _aborted(answer),
    )
    yield from answer_outcomes(found, source)
    if cut:
        detail = f"{request}: the stream ended before its last chunk"
        yield Notice(record.position, "incomplete_stream", detail, request)


def tokens_of(usage: Obj) -> Tokens:
    """Counts of one usage object, in the names of chat completions or of the Responses API."""
    given = child(usage, "prompt_tokens_details") or child(usage, "input_tokens_details")
    made = child(usage, "completion_tokens_details") or child(usage, "output_tokens_details")
    return Tokens(
        input=_count(usage, "prompt_tokens", "input_tokens"),
        cached_input=_count(given, "cached_tokens"),
        cache_write=_count(given, "created_cache_tokens", "cache_write_tokens"),
        output=_count(usage, "completion_tokens", "output_tokens"),
        reasoning=_count(made, "reasoning_tokens") if made else _count(usage, "reasoning_tokens"),
    )


def _count(holder: Obj, *names: str) -> int | None:
    return next((count_of(holder[name]) for name in names if holder.get(name) is not None), None)


def stream_answer(chunks: list[Obj]) -> Obj:
    """One answer out of the chunks of a stream: the last id, model, usage and finish reason that was said.

    The last usage replaces the earlier ones. Where it leaves a detail out that an earlier one had, the earlier
    one is not brought back: it was about fewer tokens.
    """
    answer: dict[str, Any] = {}
    for chunk in chunks:
        for name in ("id", "model", "created", "usage", "metrics", "error"):
            if chunk.get(name) is not None:
                answer[name] = chunk[name]
        reasons = [c["finish_reason"] for c in children(chunk, "choices") if c.get("finish_reason")]
        if reasons:
            answer["choices"] = [{"finish_reason": reasons[-1]}]
    return answer


def _finished(chunks: list[Obj]) -> bool:
    """Whether the stream was closed: by a finish reason, or by the last chunk, which has usage and no choice."""
    last = chunks[-1]
    closed = "choices" in last and not children(last, "choices") and last.get("usage") is not None
    return closed or any(c.get("finish_reason") for chunk in chunks for c in children(chunk, "choices"))


def _aborted(answer: Obj) -> bool:
    reasons = [choice.get("finish_reason") for choice in children(answer, "choices")]
    return bool(reasons) and all(reason == "abort" for reason in reasons)


def _span(wrapper: Obj, answer: Obj, source: SourceConfig) -> tuple[int, int]:
    """Start and finish: from the wrapper, else `created` and, where the engine reports them, its durations."""
    started = wrapper.get("started_at")
    if started is None:
        started = answer.get("created", answer.get("created_at"))
    if started is None and wrapper.get("finished_at") is None:
        raise Refusal("no_instant", "neither started_at, finished_at nor created")
    if started is None:
        finished_ms = native_ms(wrapper["finished_at"], source)
        return finished_ms, finished_ms
    started_ms = native_ms(started, source)
    if wrapper.get("finished_at") is not None:
        return started_ms, native_ms(wrapper["finished_at"], source)
    metrics = child(answer, "metrics")
    return started_ms, started_ms + sum(millis_of(metrics.get(name), 1) or 0 for name in _METRICS)
