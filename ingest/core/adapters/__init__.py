"""One module per native format: pure functions from native records to canonical events.

The registry is lazy so that importing it costs nothing and a worker loads only the adapters its sources name.
"""

from __future__ import annotations

from importlib import import_module

from ingest.core.adapters.base import Adapter, no_flush

ADAPTERS: dict[str, str] = {
    name: f"ingest.core.adapters.{module}"
    for name, module in {
        "cloudevents": "cloudevents",
        "csv": "csv",
        "kueue": "kueue",
        "volcano": "volcano",
        "kube-events": "kube_events",
        "kube-pods": "kube_pods",
        "kube-state-metrics": "kube_state_metrics",
        "resource-quota": "resource_quota",
        "elastic-quota": "elastic_quota",
        "kai": "kai",
        "koordinator": "koordinator",
        "slurm-sacct": "slurm_sacct",
        "slurm-sacct-json": "slurm_sacct_json",
        "slurmctld-log": "slurmctld_log",
        "slurm-sreport": "slurm_sreport",
        "vllm-metrics": "vllm_metrics",
        "vllm-otel": "vllm_otel",
        "vllm-step-log": "vllm_step_log",
        "sglang-log": "sglang_log",
        "sglang-metrics": "sglang_metrics",
        "litellm-spendlogs": "litellm_spendlogs",
        "litellm-payload": "litellm_payload",
        "openai-usage": "openai_usage",
        "anthropic-usage": "anthropic_usage",
        "dynamo-trace": "dynamo_trace",
        "dynamo-fpm": "dynamo_fpm",
        "envoy-ai-gateway": "envoy_ai_gateway",
        "llm-d": "llm_d",
        "dcgm": "dcgm",
    }.items()
}
"""Adapter name, as written in a `[[source]]` table, to the module that implements it."""


def load(name: str) -> Adapter:
    """The adapter called `name`; raises `KeyError` with the known names if there is none."""
    if name not in ADAPTERS:
        raise KeyError(f"no adapter is called {name!r}; known: {', '.join(sorted(ADAPTERS))}")
    module = import_module(ADAPTERS[name])
    return Adapter(name=name, adapt=module.adapt, flush=getattr(module, "flush", no_flush))
