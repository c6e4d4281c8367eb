"""`sglang-metrics`: Prometheus counters of SGLang -> usage per engine and hour (inference.md 2.1 and 2.3).

Tokens are counted when a request finishes. GPU time is there only with the device timer switched on, and needs
the number of GPUs, which SGLang does not export. Tokens can carry a tenant, if the gateway sets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ingest.core.adapters.base import Event, Outcome, Refused, SourceConfig, State, identity
from ingest.core.adapters.counters import Hour, Reading, reading_of
from ingest.core.adapters.engine_counters import (
    adapt_counters,
    first_of,
    flush_counters,
    gpu_seconds_json,
    gpus_milli,
    instance_of,
    sum_of,
    usage_event,
)
from ingest.core.adapters.prometheus import Sample

FIELDS = {
    "sglang:prompt_tokens_total": "input",
    "sglang:generation_tokens_total": "output",
    "sglang:num_requests_total": "requests",
    "sglang:num_retracted_requests_total": "preemptions",
}
LABELLED = {
    "sglang:cached_tokens_total": ("cache_source", "cached"),
    "sglang:realtime_tokens_total": ("mode", "realtime"),
    "sglang:prefill_effective_tokens_total": ("mode", "effective"),
}
BUSY = "sglang:forward_execution_seconds_total"
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
_CACHES = ("cached:device", "cached:host", "cached:storage")


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Scrapes or query answers -> usage per engine (and tenant, if a label names one) and hour."""
    return adapt_counters(lines, source, state, _reading, _events)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    return flush_counters(source, state, before_ms, _events)


def _reading(sample: Sample, source: SourceConfig) -> Reading | Refused | None:
    # Ranks that step together count the same steps; the first one speaks for all.
    if any(sample.labels.get(rank, "0") not in ("0", "") for rank in _RANKS):
        return None
    if sample.name in LABELLED:
        label, prefix = LABELLED[sample.name]
        field = f"{prefix}:{sample.labels.get(label, '')}"
    elif sample.name == BUSY:
        field = "busy_us"
    elif sample.name in FIELDS:
        field = FIELDS[sample.name]
    else:
        return None
    tenant_label = source.option("tenant_label", "")
    group = (
        instance_of(sample, source),
        sample.labels.get("model_name", ""),
        sample.labels.get("dp_rank", ""),
        sample.labels.get(tenant_label, "") if tenant_label else "",
    )
    return reading_of(sample, group, field, scale=1_000_000 if field == "busy_us" else 1)


def _events(hour: Hour, source: SourceConfig) -> Iterator[Event]:
    instance, model, _, tenant = hour.group
    counts = hour.counts
    kind = source.option("identity", f"label:{source.option('tenant_label', '')}")
    yield usage_event(
        hour,
        source,
        instance=instance,
        model=model,
        belongs_to={"identity": identity(kind, tenant)} if tenant else None,
        requests=counts.get("requests"),
        input_tokens=counts.get("input"),
        # `total` is what an engine reports that cannot tell its caches apart: instead of them, never beside.
        cached_input_tokens=first_of(sum_of(counts, *_CACHES), counts.get("cached:total")),
        output_tokens=counts.get("output"),
        gpu_seconds=_gpu_seconds(counts, source, instance, model),
        preemptions=counts.get("preemptions"),
        recomputed_tokens=_recomputed(counts),
    )


def _gpu_seconds(counts: Mapping[str, int], source: SourceConfig, instance: str, model: str) -> str | None:
    busy_us, milli = counts.get("busy_us"), gpus_milli(source, instance, model)
    return None if busy_us is None or milli is None else gpu_seconds_json(busy_us * milli // 1000)


def _recomputed(counts: Mapping[str, int]) -> int | None:
    """Prefill that ran beyond what prompts needed. The two counters tick apart, so a small negative rest is 0."""
    ran, needed = counts.get("realtime:prefill_compute"), counts.get("effective:input")
    return None if ran is None or needed is None else max(ran - needed, 0)
