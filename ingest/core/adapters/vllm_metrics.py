"""`vllm-metrics`: Prometheus counters of vLLM -> control totals per engine and hour, and refusals (inference.md 1.1).

`prompt_tokens` counts a prompt once, at its first prefill, cached tokens included: recompute after a preemption
is not in it. `generation_tokens` counts every step, requests whose client went away included. So these
totals exceed the sum of requests by what aborted clients consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.core.adapters.base import Event, Outcome, Refused, SourceConfig, State
from ingest.core.adapters.counters import Hour, Reading, reading_of
from ingest.core.adapters.engine_counters import (
    adapt_counters,
    first_of,
    flush_counters,
    instance_of,
    sum_of,
    usage_event,
    whose_engine,
)
from ingest.core.adapters.prometheus import Sample
from ingest.core.adapters.request_record import optional_pool, rejection_event

FIELDS = {
    "vllm:prompt_tokens_total": "input",
    "vllm:prompt_tokens_cached_total": "cached",
    "vllm:generation_tokens_total": "output",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:request_success_total": "requests",
    # Both older and newer names count tokens, not blocks: no block size is ever multiplied in.
    "vllm:prefix_cache_hits_total": "prefix_hits",
}
BY_SOURCE = "vllm:prompt_tokens_by_source_total"
REJECTIONS = "vllm:admission_rejections_total"
_CACHED_SOURCES = ("source:local_cache_hit", "source:external_kv_transfer")


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Scrapes or query answers -> usage without tenant per engine and hour, rejections per reason and hour."""
    return adapt_counters(lines, source, state, _reading, _events)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    return flush_counters(source, state, before_ms, _events)


def _reading(sample: Sample, source: SourceConfig) -> Reading | Refused | None:
    # The text form and older clients leave `_total` away; both are the same counter.
    name = sample.name if sample.name.endswith("_total") else f"{sample.name}_total"
    if name == BY_SOURCE:
        field = f"source:{sample.labels.get('source', '')}"
    elif name == REJECTIONS:
        field = f"rejected:{sample.labels.get('reason', '')}"
    elif name in FIELDS:
        field = FIELDS[name]
    else:
        return None
    # Rejections carry no engine index: they are counted by the front, which all engines of an instance share.
    engine = "" if name == REJECTIONS else sample.labels.get("engine", "0")
    group = (instance_of(sample, source), sample.labels.get("model_name", ""), engine)
    return reading_of(sample, group, field)


def _events(hour: Hour, source: SourceConfig) -> Iterator[Event]:
    instance, model, _ = hour.group
    counts = hour.counts
    if any(not field.startswith("rejected:") for field in counts):
        yield usage_event(
            hour,
            source,
            instance=instance,
            model=model,
            requests=counts.get("requests"),
            input_tokens=counts.get("input"),
            cached_input_tokens=first_of(
                counts.get("cached"), sum_of(counts, *_CACHED_SOURCES), counts.get("prefix_hits")
            ),
            output_tokens=counts.get("output"),
            preemptions=counts.get("preemptions"),
        )
    for field in sorted(counts):
        if field.startswith("rejected:") and counts[field]:
            yield _rejection(hour, source, field.removeprefix("rejected:"), counts[field])


def _rejection(hour: Hour, source: SourceConfig, reason: str, count: int) -> Event:
    instance, model, _ = hour.group
    return rejection_event(
        source,
        event_id=f"{hour.id}/{reason}",
        time_ms=hour.ends_ms,
        belongs_to=whose_engine(source, model),
        layer="capacity",
        reason=reason,
        status=503,
        origin="engine",
        count=count,
        model=model,
        pool=optional_pool(source, instance, model),
    )
