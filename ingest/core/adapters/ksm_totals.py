"""Nodes -> capacity, and ResourceQuotas -> quota, from kube-state-metrics samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ingest.core.adapters.base import Event, Refusal, SourceConfig, State, event, gpus_json, identity, rfc3339
from ingest.core.adapters.gpu_resources import is_gpu_resource, metered_milli, unsanitised
from ingest.core.adapters.prometheus import Sample
from ingest.core.adapters.quota_objects import gpus_by_pool, quota_event

Label = Callable[[dict[str, str], str], str]
_PREFIX = "requests."


def note_total(sample: Sample, source: SourceConfig, state: State, label: Label) -> bool:
    """Keeps a sample of a node or a quota by its instant; `False` for any other."""
    if sample.name == "kube_node_status_allocatable":
        resource = unsanitised(sample.labels.get("resource", ""))
        if is_gpu_resource(resource, source) or resource in source.meters.values():
            at = state["nodes"].setdefault(str(sample.at_ms), {})
            at.setdefault(label(sample.labels, "node"), {})[resource] = str(sample.number())
        return True
    if sample.name == "kube_node_status_condition":
        if (sample.labels.get("condition"), sample.labels.get("status")) == ("Ready", "true"):
            at = state["nodes"].setdefault(str(sample.at_ms), {})
            at.setdefault(label(sample.labels, "node"), {})["ready"] = str(sample.number())
        return True
    if sample.name == "kube_resourcequota":
        resource = sample.labels.get("resource", "")  # not sanitised here
        if resource.startswith(_PREFIX):
            name = f"{label(sample.labels, 'namespace')} {sample.labels.get('resourcequota')}"
            at = state["quotas"].setdefault(name, {}).setdefault(str(sample.at_ms), {})
            kind = sample.labels.get("type", "")
            at.setdefault(kind, {})[resource.removeprefix(_PREFIX)] = str(sample.number())
        return True
    return False


def capacity_events(state: State, source: SourceConfig) -> Iterator[Event]:
    """The sum over ready nodes of each pool, at each sample where it differs from the one before.

    All nodes come from one exporter, so a node that is missing where others are present is gone.
    """
    samples, state["nodes"] = state["nodes"], {}
    if not source.option("capacity", True):
        return
    for moment in sorted(map(int, samples)):
        nodes = samples[str(moment)]
        for pool, milli in sorted(_by_pool(nodes, source, state["told"]).items()):
            if state["told"].get(f"capacity {pool}") != milli:
                state["told"][f"capacity {pool}"] = milli
                data = {"pool": pool, "gpus": gpus_json(milli)}
                yield event(source, f"capacity/{pool}/{rfc3339(moment)}", "capacity", moment, data)


def _by_pool(nodes: dict[str, dict[str, str]], source: SourceConfig, told: dict[str, Any]) -> dict[str, int]:
    found = {name.removeprefix("capacity "): 0 for name in told if name.startswith("capacity ")}
    for node, resources in nodes.items():
        counted = {name: value for name, value in resources.items() if name != "ready"}
        if not counted:
            continue
        try:
            pool = source.pool_for(node)
        except Refusal:
            continue  # nodes outside the pools of this source are not its capacity
        ready = resources.get("ready", "1") not in ("0", "0.0")
        found[pool] = found.get(pool, 0) + (metered_milli(counted, source, pool) if ready else 0)
    return found


def quota_events(state: State, source: SourceConfig) -> Iterator[Event]:
    """One fact per quota and sample at which its limit or its use changed."""
    samples, state["quotas"] = state["quotas"], {}
    for name in sorted(samples):
        namespace, _, quota = name.partition(" ")
        for moment in sorted(map(int, samples[name])):
            at = samples[name][str(moment)]
            limits = gpus_by_pool(at.get("hard", {}), source, namespace)
            used = gpus_by_pool(at.get("used", {}), source, namespace)
            for pool, limit in limits.items():
                if pool not in used or state["told"].get(f"quota {name} {pool}") == [limit, used[pool]]:
                    continue
                state["told"][f"quota {name} {pool}"] = [limit, used[pool]]
                who = {"identity": identity("k8s_namespace", namespace)}
                yield quota_event(source, f"{namespace}/{quota}", moment, who, pool, limit, used[pool])
