"""`vllm-otel`: request spans of vLLM and SGLang in OTLP/JSON -> requests (inference.md 1.3, 2.3 and 5.1).

A span carries no preemptions, and vLLM's no cached tokens and no model. A client that goes away leaves no span
at all: its tokens show up only in the engine's counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ingest.core.adapters.base import Event, Outcome, Refusal, SourceConfig, State, rfc3339, whole
from ingest.core.adapters.json_records import JsonRecord
from ingest.core.adapters.native import (
    Obj,
    as_object,
    child,
    children,
    count_of,
    first_text,
    millis_of,
    needed,
    read_each,
    text_of,
)
from ingest.core.adapters.request_record import Tokens, model_of, request_event, who

ENGINE_SPAN = "llm_request"
_TOKENS = {
    # The names of the conventions first, then the deprecated ones that engines still send.
    "input": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "cached_input": ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens"),
    "cache_write": ("gen_ai.usage.cache_creation.input_tokens",),
    "output": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "reasoning": ("gen_ai.usage.reasoning.output_tokens",),
}
_NS_PER_MS = 1_000_000


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """OTLP/JSON exports (`resourceSpans`) or bare spans, one per line; spans of other operations are passed over."""
    return read_each(lines, lambda record: _record(record, source))


def _record(record: JsonRecord, source: SourceConfig) -> Iterator[Outcome]:
    value = as_object(record.value, "the export")
    if "resourceSpans" not in value:
        yield from _span(value, {}, source)
        return
    for resource_spans in children(value, "resourceSpans"):
        resource = child(resource_spans, "resource")
        for scope_spans in children(resource_spans, "scopeSpans"):
            for span in children(scope_spans, "spans"):
                yield from _one_of_many(record, span, resource, source)


def _one_of_many(record: JsonRecord, span: Obj, resource: Obj, source: SourceConfig) -> Iterator[Outcome]:
    """One span of an export that holds many: if it cannot be read, it alone is refused."""
    try:
        yield from list(_span(span, _attributes(resource), source))
    except Refusal as refusal:
        alone = {"resource": resource, "scopeSpans": [{"spans": [span]}]}
        yield refusal.at(record.position, msgspec.json.encode({"resourceSpans": [alone]}))


def _span(span: Obj, resource: Obj, source: SourceConfig) -> Iterator[Event]:
    attributes = _attributes(span)
    if span.get("name") != ENGINE_SPAN and not any(
        name in attributes for names in _TOKENS.values() for name in names
    ):
        return
    arrived_ms, finished_ms = _nano_ms(span, "startTimeUnixNano"), _nano_ms(span, "endTimeUnixNano")
    queued_ms = millis_of(attributes.get("gen_ai.latency.time_in_queue"), 1000)
    service_name = text_of(resource.get("service.name"))
    span_id = first_text(span.get("spanId"))
    request = first_text(
        attributes.get("gen_ai.request.id"),
        attributes.get("gen_ai.response.id"),
        None if span_id is None else f"{text_of(span.get('traceId')) or ''}/{span_id}",
    )
    waited = queued_ms is not None and arrived_ms + queued_ms <= finished_ms
    yield request_event(
        source,
        request=needed(request, "gen_ai.request.id and no spanId"),
        model=model_of(
            source,
            text_of(attributes.get("gen_ai.response.model")),
            text_of(attributes.get("gen_ai.request.model")),
            service_name if service_name in source.option("models", {}) else None,
        ),
        pool_names=(service_name,),
        queued_at=rfc3339(arrived_ms) if waited else None,
        started_ms=arrived_ms + (queued_ms or 0) if waited else arrived_ms,
        finished_ms=finished_ms,
        belongs_to=_who(attributes, resource, source),
        outcome=_outcome(span, attributes),
        tokens=Tokens(**{part: _first_count(attributes, names) for part, names in _TOKENS.items()}),
    )


def _who(attributes: Obj, resource: Obj, source: SourceConfig) -> Obj:
    name = source.option("identity_attribute", "")
    kind = source.option("identity", f"label:{name}")
    return who(source, kind, attributes.get(name, resource.get(name)) if name else None)


def _outcome(span: Obj, attributes: Obj) -> str:
    reasons = attributes.get("gen_ai.response.finish_reasons")
    if isinstance(reasons, list) and "abort" in reasons:
        return "aborted"
    status = child(span, "status").get("code")
    return "error" if status in (2, "STATUS_CODE_ERROR") else "ok"


def _first_count(attributes: Obj, names: tuple[str, ...]) -> int | None:
    return next((count_of(attributes[name]) for name in names if attributes.get(name) is not None), None)


def _nano_ms(span: Obj, name: str) -> int:
    if span.get(name) is None:
        raise Refusal("no_instant", f"the span has no {name}")
    return whole(span[name]) // _NS_PER_MS


def _attributes(holder: Obj) -> Obj:
    return {str(entry.get("key")): _value(child(entry, "value")) for entry in children(holder, "attributes")}


def _value(value: Obj) -> Any:
    """OTLP's AnyValue; 64-bit integers are JSON strings there."""
    for name in ("stringValue", "intValue", "doubleValue", "boolValue"):
        if name in value:
            return value[name]
    if "arrayValue" in value:
        return [_value(entry) for entry in children(child(value, "arrayValue"), "values")]
    return None
