"""A source's row, as `apply_config` writes it -> what its adapter needs to know."""

from __future__ import annotations

from ingest.core.adapters import ADAPTERS
from ingest.core.adapters.base import SourceConfig
from ledger.models import Pool, Source


class UnreadableSource(ValueError):
    """Nothing says how to read the source; the message is for a person."""


def source_config(source: Source) -> SourceConfig:
    """Raises `UnreadableSource` for a source that no configuration names, or whose adapter does not exist."""
    if not source.name:
        raise UnreadableSource(f"source {source}: apply_config has not said how to read it")
    if source.adapter not in ADAPTERS:
        raise UnreadableSource(f"source {source}: no adapter is called {source.adapter!r}")
    config = source.config
    return SourceConfig(
        name=source.name,
        adapter=source.adapter,
        uri=source.uri,
        cluster=config.get("cluster", ""),
        pools=config.get("pools") or {},
        pool=config.get("pool") or None,
        time_zone=config.get("time_zone") or "UTC",
        options={name: value for name, value in (config.get("options") or {}).items() if name != "collect"},
        meters=dict(Pool.objects.exclude(meter="gpu").values_list("slug", "meter")),
    )
