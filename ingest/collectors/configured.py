"""A source's row, as `apply_config` writes it -> its collector."""

from __future__ import annotations

import time

from ingest.collectors.contract import Clock, Collector, NotConfigured
from ingest.collectors.kubernetes import KubernetesCollector
from ingest.collectors.kubernetes_resources import RESOURCES
from ingest.collectors.prometheus import PrometheusCollector
from ingest.collectors.prometheus_metrics import METRICS
from ingest.collectors.slurm import SLURM_ADAPTERS, SlurmCollector
from ingest.collectors.table import CollectTable
from ingest.core.adapters.base import SourceConfig
from ingest.services.source_config import UnreadableSource
from ingest.services.source_config import source_config as configured
from ledger.models import Source

COLLECTED_ADAPTERS = tuple(sorted({*METRICS, *RESOURCES, *SLURM_ADAPTERS}))
EVERY_SECONDS = 60


def present_ms() -> int:
    return time.time_ns() // 1_000_000


def source_config(source: Source) -> SourceConfig:
    """Raises `NotConfigured` for a source that no configuration names, or whose adapter does not exist."""
    try:
        return configured(source)
    except UnreadableSource as error:
        raise NotConfigured(str(error)) from None


def is_collected(source: Source) -> bool:
    """Whether the source is one to be collected from time to time: its table has `options.collect`."""
    return "collect" in (source.config.get("options") or {})


def every_ms(source: Source) -> int:
    """How often it is collected; a wrong table is told when it is read."""
    table = source.config["options"]["collect"]
    seconds = table.get("every_seconds", EVERY_SECONDS) if isinstance(table, dict) else EVERY_SECONDS
    return (seconds if isinstance(seconds, int) else EVERY_SECONDS) * 1000


def collector_for(source: Source, config: SourceConfig, clock: Clock = present_ms) -> Collector:
    """Raises `NotConfigured`."""
    if config.adapter not in COLLECTED_ADAPTERS:
        known = ", ".join(COLLECTED_ADAPTERS)
        raise NotConfigured(f"source {config.name!r}: {config.adapter} cannot be collected, only {known}")
    if not is_collected(source):
        raise NotConfigured(f"source {config.name!r}: options.collect is missing; it says where to read")
    options = source.config["options"]["collect"]
    if not isinstance(options, dict):
        raise NotConfigured(f"source {config.name!r}: options.collect must be a table")
    table = CollectTable(config.name, options)
    table.whole("every_seconds", EVERY_SECONDS, least=1)
    if config.adapter in METRICS:
        return PrometheusCollector(config.adapter, table, clock)
    if config.adapter in RESOURCES:
        return KubernetesCollector(config, table, clock)
    return SlurmCollector(config, table, clock)
