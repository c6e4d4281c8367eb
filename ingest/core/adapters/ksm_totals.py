"""Nodes -> capacity, and ResourceQuotas -> quota, from kube-state-metrics samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec

from ingest.core.adapters import set_aside
from ingest.core.adapters.base import (
    Event,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    decimal_of,
    event,
    gpus_json,
    identity,
    rfc3339,
)
from ingest.core.adapters.gpu_resources import is_gpu_resource, metered_milli, unsanitised
from ingest.core.adapters.native import in_calendar
from ingest.core.adapters.prometheus import Sample
from ingest.core.adapters.quota_objects import gpus_by_pool, quota_event

Label = Callable[[dict[str, str], str], str]
_PREFIX = "requests."
KEPT_QUOTA = "quota_of_samples"


class QuotaOfSamples(msgspec.Struct, tag=KEPT_QUOTA):
    """A quota in no pool at one instant, as a record that can be read again."""

    name: str
    at_ms: int
    amounts: dict[str, dict[str, str]]
    """`hard` and `used`: resource -> quantity."""


def note_total(sample: Sample, source: SourceConfig, state: State, label: Label) -> bool:
    """Keeps a sample of a node or a quota by its instant; `False` for any other."""
    if sample.name == "kube_node_status_allocatable":
        resource = unsanitised(sample.labels.get("resource", ""))
        if is_gpu_resource(resource, source) or resource in source.meters.values():
            at = state["nodes"].setdefault(str(sample.at_ms), {})
            at.setdefault(label(sample.labels, "node"), {})[resource] = str(not_negative(sample))
        return True
    if sample.name == "kube_node_status_condition":
        if (sample.labels.get("condition"), sample.labels.get("status")) == ("Ready", "true"):
            at = state["nodes"].setdefault(str(sample.at_ms), {})
            at.setdefault(label(sample.labels, "node"), {})["ready"] = str(not_negative(sample))
        return True
    if sample.name == "kube_resourcequota":
        resource = sample.labels.get("resource", "")  # not sanitised here
        if resource.startswith(_PREFIX):
            name = f"{label(sample.labels, 'namespace')} {sample.labels.get('resourcequota')}"
            at = state["quotas"].setdefault(name, {}).setdefault(str(sample.at_ms), {})
            kind = sample.labels.get("type", "")
            at.setdefault(kind, {})[resource.removeprefix(_PREFIX)] = str(not_negative(sample))
        return True
    return False


def not_negative(sample: Sample) -> Decimal:
    number = sample.number()
    if number < 0:
        raise Refusal("bad_quantity", f"{sample.name} is below 0")
    return number


def capacity_events(state: State, source: SourceConfig) -> Iterator[Outcome]:
    """The sum over ready nodes of each pool, at each sample where it differs from the one before.

    All nodes come from one exporter, so a node that is missing where others are present is gone.
    """
    samples, state["nodes"] = state["nodes"], {}
    if not source.option("capacity", True):
        return
    for moment in sorted(map(int, samples)):
        nodes = samples[str(moment)]
        yield from _unreadable(nodes, source, state["told"])
        for pool, milli in sorted(_by_pool(nodes, source, state["told"]).items()):
            if state["told"].get(f"capacity {pool}") != milli:
                state["told"][f"capacity {pool}"] = milli
                data = {"pool": pool, "gpus": gpus_json(milli)}
                yield event(source, f"capacity/{pool}/{rfc3339(moment)}", "capacity", moment, data)


def _unreadable(
    nodes: dict[str, dict[str, str]], source: SourceConfig, told: dict[str, Any]
) -> Iterator[Refused]:
    """Nodes whose resources cannot be sized: refused once each, and left out of the sum."""
    for node, resources in nodes.items():
        try:
            _node_milli(node, resources, source)
        except Refusal as refusal:
            if not told.get(f"refused {node}"):
                told[f"refused {node}"] = True
                detail = (
                    f"node {node}: {refusal.detail}; it counts from the first sample after that is mended"
                )
                yield Refused(1, node.encode(), refusal.reason, detail)
            resources.clear()


def _node_milli(node: str, resources: dict[str, str], source: SourceConfig) -> tuple[str, int] | None:
    """`(pool, milli)`; `None` for a node without such resources, or outside the pools of this source."""
    counted = {name: value for name, value in resources.items() if name != "ready"}
    try:
        pool = source.pool_for(node)
    except Refusal:
        return None
    ready = decimal_of(resources.get("ready", "1")) != 0
    return (pool, metered_milli(counted, source, pool) if ready else 0) if counted else None


def _by_pool(nodes: dict[str, dict[str, str]], source: SourceConfig, told: dict[str, Any]) -> dict[str, int]:
    found = {name.removeprefix("capacity "): 0 for name in told if name.startswith("capacity ")}
    for node, resources in nodes.items():
        measured = _node_milli(node, resources, source)
        if measured is not None:
            pool, milli = measured
            found[pool] = found.get(pool, 0) + milli
    return found


def quota_events(state: State, source: SourceConfig) -> Iterator[Outcome]:
    """One fact per quota and sample at which its limit or its use changed."""
    samples, state["quotas"] = state["quotas"], {}
    for name in sorted(samples):
        for moment in sorted(map(int, samples[name])):
            amounts = samples[name][str(moment)]
            try:
                yield from _quota(name, moment, amounts, source, state["told"])
            except Refusal as refusal:
                if state["told"].get(f"refused {name}") != amounts:
                    state["told"][f"refused {name}"] = amounts
                    yield set_aside.refused(QuotaOfSamples(name, moment, amounts), refusal)


def note_kept_quota(line: bytes, source: SourceConfig, state: State) -> None:
    """Takes up again what was refused. Raises `Refusal`."""
    quota = set_aside.read_kept(line, QuotaOfSamples)
    in_calendar(quota.at_ms)
    list(_quota(quota.name, quota.at_ms, quota.amounts, source, {}))
    state["quotas"].setdefault(quota.name, {})[str(quota.at_ms)] = quota.amounts


def _quota(
    name: str, moment: int, at: dict[str, dict[str, str]], source: SourceConfig, told: dict[str, Any]
) -> Iterator[Event]:
    namespace, _, quota = name.partition(" ")
    limits = gpus_by_pool(at.get("hard", {}), source, namespace)
    used = gpus_by_pool(at.get("used", {}), source, namespace)
    for pool, limit in limits.items():
        if pool not in used or told.get(f"quota {name} {pool}") == [limit, used[pool]]:
            continue
        told[f"quota {name} {pool}"] = [limit, used[pool]]
        who = {"identity": identity("k8s_namespace", namespace)}
        yield quota_event(source, f"{namespace}/{quota}", moment, who, pool, limit, used[pool])
