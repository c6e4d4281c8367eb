"""Which series each adapter reads from Prometheus, and what is lost where they are switched off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ingest.core.adapters import sglang_metrics, vllm_metrics


@dataclass(frozen=True, slots=True)
class Metrics:
    names: tuple[str, ...]
    is_counter: bool
    """Counters are booked by the hour in which they grew, so a window of them is read once and from the full hour."""
    needed: Mapping[str, str] = field(default_factory=dict)
    """Any of these series (`a|b`) -> what is missing without them."""


def _both_spellings(names: Iterable[str]) -> tuple[str, ...]:
    """Older clients leave `_total` away."""
    return tuple(spelling for name in names for spelling in (name, name.removesuffix("_total")))


_KSM_PODS = (
    "kube_pod_container_resource_requests",
    "kube_pod_init_container_resource_requests",
    "kube_pod_status_phase",
    "kube_pod_status_scheduled_time",
    "kube_pod_completion_time",
    "kube_pod_info",
    "kube_pod_status_reason",
    "kube_pod_status_disruption_reason",
)
_KSM_TOTALS = ("kube_node_status_allocatable", "kube_node_status_condition", "kube_resourcequota")
_QUEUES = (
    "kueue_cluster_queue_nominal_quota",
    "kueue_cluster_queue_resource_reservation",
    "volcano_queue_capacity_scalar_resources",
    "volcano_queue_deserved_scalar_resources",
    "volcano_queue_allocated_scalar_resources",
    "kai_queue_deserved_gpus",
    "kai_queue_allocated_gpus",
    "queue_deserved_gpus",
    "queue_allocated_gpus",
    "scheduler_elastic_quota_spec",
    "scheduler_elastic_quota_status",
)

METRICS: dict[str, Metrics] = {
    "vllm-metrics": Metrics(
        _both_spellings([*vllm_metrics.FIELDS, vllm_metrics.BY_SOURCE, vllm_metrics.REJECTIONS]),
        True,
        {
            "vllm:prompt_tokens_total": "input tokens (is the engine's /metrics scraped?)",
            "vllm:generation_tokens_total": "output tokens",
            "vllm:num_preemptions_total": "preemptions inside the engine",
        },
    ),
    "sglang-metrics": Metrics(
        (*sglang_metrics.FIELDS, *sglang_metrics.LABELLED, sglang_metrics.BUSY),
        True,
        {
            "sglang:prompt_tokens_total": "input tokens (start the engine with --enable-metrics)",
            "sglang:num_retracted_requests_total": "preemptions inside the engine",
            sglang_metrics.BUSY: "GPU time (set SGLANG_ENABLE_METRICS_DEVICE_TIMER=1)",
        },
    ),
    "kube-state-metrics": Metrics(
        (*_KSM_PODS, *_KSM_TOTALS, *_QUEUES),
        False,
        {
            "kube_pod_container_resource_requests": "GPUs of Pods, and with them all occupancy",
            "kube_pod_status_phase": "who holds anything",
            "kube_pod_status_scheduled_time": "exact starts; they are known to one scrape only",
            "kube_pod_completion_time": "exact ends; they are known to one scrape only",
            "kube_node_status_allocatable": "capacity",
            "kube_pod_status_reason|kube_pod_status_disruption_reason": "preemptions",
        },
    ),
    # Any series of a GPU says that it exists and who is on it; GPU_UTIL does not exist on MIG instances.
    "dcgm": Metrics(
        ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"),
        False,
        {"DCGM_FI_DEV_FB_USED|DCGM_FI_DEV_GPU_UTIL": "which GPUs there are (is dcgm-exporter scraped?)"},
    ),
}
