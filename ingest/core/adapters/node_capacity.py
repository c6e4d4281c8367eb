"""Nodes -> what a pool has, from the Kubernetes API: allocatable devices of the nodes that are ready.

A Node's `Ready` condition holds only its latest transition. So what the nodes were before they were first seen is not
known: the first sum of a pool holds from the latest transition among its nodes; from then on each change is told. What
is learnt late of a node (it was refused, or is of the past) counts after the newest change that was told without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ingest.core.adapters.base import (
    Event,
    Refusal,
    SourceConfig,
    State,
    event,
    gpus_json,
    instant_ms,
    rfc3339,
)
from ingest.core.adapters.gpu_resources import metered_milli
from ingest.core.adapters.kubernetes import Watched, condition, mapping, meta, required, written_ms


def note_node(watched: Watched, source: SourceConfig, state: State) -> None:
    """Remembers a node of one of the source's pools; other nodes, and those without GPUs, are no capacity of it.

    Pools are mapped by node name, then by the values of the node's labels.
    """
    name = required(meta(watched.obj), "name", "the Node")
    labels = mapping(meta(watched.obj), "labels")
    status = mapping(watched.obj, "status")
    try:
        pool = source.pool_for(name, *(str(value) for value in labels.values()))
    except Refusal:
        return
    milli = metered_milli(mapping(status, "allocatable") or mapping(status, "capacity"), source, pool)
    nodes: dict[str, Any] = state.setdefault("nodes", {})
    known = nodes.get(name)
    if not milli and known is None:
        return
    ready = condition(watched.obj, "Ready") or {}
    serves = ready.get("status") == "True" and watched.change != "DELETED"
    level = milli if serves else 0
    if known is not None and (known["pool"], known["milli"]) == (pool, level):
        return
    since = _since_ms(
        watched, ready.get("lastTransitionTime"), known is not None and known["milli"] > 0 and serves
    )
    # Levels up to the newest change that was told are sums without this one: it joins them after it.
    since = max(since, state.get("capacity_ms", {}).get(pool, since - 1) + 1)
    nodes[name] = {"pool": pool, "milli": level, "ms": since, "before": known["milli"] if known else 0}
    state.setdefault("changed", []).append([since, pool])


def _since_ms(watched: Watched, transition: Any, resized: bool) -> int:
    """Since when it serves that much: its `Ready` transition, or for a change of devices or a deletion the write."""
    moment = None
    if resized or watched.change == "DELETED" or transition is None:
        moment = watched.observed_ms if watched.change == "DELETED" else written_ms(watched)
    if moment is None and transition is not None:
        moment = instant_ms(transition)
    if moment is None:
        raise Refusal("no_instant", "the Node changed at a time that the record lacks")
    return moment


def capacity_events(source: SourceConfig, state: State) -> Iterator[Event]:
    """The sums after a batch of nodes: one fact per instant of change, each the whole level of its pool."""
    changed = state.pop("changed", [])
    told: dict[str, int] = state.setdefault("capacity", {})
    for pool in sorted({pool for _, pool in changed}):
        nodes = [node for node in state["nodes"].values() if node["pool"] == pool]
        moments = sorted({moment for moment, of_pool in changed if of_pool == pool})
        for moment in moments if pool in told else moments[-1:]:
            level = sum(node["milli"] for node in nodes if node["ms"] <= moment)
            level += sum(node["before"] for node in nodes if node["ms"] > moment)
            state.setdefault("capacity_ms", {})[pool] = moment
            if told.get(pool) != level:
                told[pool] = level
                data = {"pool": pool, "gpus": gpus_json(level)}
                yield event(source, f"capacity/{pool}/{rfc3339(moment)}", "capacity", moment, data)
