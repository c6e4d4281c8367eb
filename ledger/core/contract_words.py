"""Words that a configuration and events share: names of adapters, kinds of identity (events.md)."""

# As a source's table gives them: one module of ingest each.
ADAPTER_NAMES = (
    "cloudevents",
    "csv",
    "kueue",
    "volcano",
    "kube-events",
    "kube-pods",
    "kube-state-metrics",
    "resource-quota",
    "elastic-quota",
    "kai",
    "koordinator",
    "slurm-sacct",
    "slurm-sacct-json",
    "slurmctld-log",
    "slurm-sreport",
    "vllm-metrics",
    "vllm-otel",
    "vllm-step-log",
    "sglang-log",
    "sglang-metrics",
    "litellm-spendlogs",
    "litellm-payload",
    "openai-usage",
    "anthropic-usage",
    "dynamo-trace",
    "dynamo-fpm",
    "envoy-ai-gateway",
    "llm-d",
    "dcgm",
)

# `label:<name>` is one, too.
IDENTITY_KINDS = frozenset(
    {
        "k8s_namespace",
        "kueue_local_queue",
        "kueue_cluster_queue",
        "volcano_queue",
        "kai_queue",
        "slurm_account",
        "litellm_team",
        "api_key_hash",
        "user",
    }
)


def is_identity_kind(kind: str) -> bool:
    return kind in IDENTITY_KINDS or (kind.startswith("label:") and kind != "label:")
