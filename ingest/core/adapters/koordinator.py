"""`koordinator`: ElasticQuotas with Koordinator's labels and annotations, its Pods, and their preemptions.

Three ways to lose GPUs (cluster.md 4.2): preemption inside a quota (kube-scheduler's Event), gang preemption (the same
Event, and a hint in the Pod's condition), and the revocation of overuse, which leaves an eviction without a word about
the quota; that cause is inferred from `used > runtime` of the Pod's quota at the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ingest.core.adapters.base import (
    Event,
    Outcome,
    Refusal,
    SourceConfig,
    State,
    identity,
    instant_ms,
)
from ingest.core.adapters.kube_events import flush as flush_events
from ingest.core.adapters.kube_events import index_pod, scheduler_event
from ingest.core.adapters.kube_pods import disruption
from ingest.core.adapters.kubernetes import Obj, Watched, each_object, mapping, meta, required, written_ms
from ingest.core.adapters.pods import (
    ELASTIC_QUOTA_LABEL,
    Entry,
    Pod,
    new_only,
    new_state,
    occupancy,
    pending,
    read_pod,
    resumes,
)
from ingest.core.adapters.quota_objects import gpus_by_pool, instant_of, quota_event, reservation_event

PREFIX = "quota.scheduling.koordinator.sh/"
DEFAULT_IDENTITY = f"label:{ELASTIC_QUOTA_LABEL}"
SAMPLES_KEPT = 200
SAMPLE_AGE_MS = 10 * 60_000
"""A sample of `used` and `runtime` speaks for an eviction at most this much later."""

REMEMBERS = True


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept = new_state() if state is None else state
    for name in ("pods", "quotas"):
        kept.setdefault(name, {})
    kept["identity_kind"] = DEFAULT_IDENTITY
    yield from each_object(lines, lambda watched: _record(watched, source, kept))
    if state is None:
        yield from flush(source, kept, None)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    """Tells evictions through the API, once the quota's samples around them are in; then what `kube-events` held."""
    for uid, entry in sorted(state.get("pods", {}).items()):
        evicted = entry.get("api_evicted")
        if evicted is not None and (before_ms is None or evicted < before_ms):
            entry["disrupted"] = evicted
            entry["cause"] = "overuse" if _overused(state, entry, evicted) else "other"
            entry["hint"] = ""
            yield from new_only(entry, disruption(entry, uid, None, source))
        if "disrupted" in entry and (before_ms is None or entry["disrupted"] < before_ms):
            yield from new_only(entry, resumes(state, uid, source, entry["disrupted"]))
    yield from flush_events(source, state, before_ms)


def _overused(state: State, entry: Entry, evicted_ms: int) -> bool:
    samples = state["quotas"].get(entry["queue"], [])
    before = [s for s in samples if evicted_ms - SAMPLE_AGE_MS <= s[0] <= evicted_ms]
    return bool(before) and before[-1][1] > before[-1][2]


def _record(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    if watched.kind == "Pod":
        pod = read_pod(watched, source, DEFAULT_IDENTITY)
        yield from index_pod(watched, pod, source, state)
        if pod is not None:
            yield from _pod(pod, source, state)
    elif watched.kind == "Event":
        yield from scheduler_event(watched, source, state)
    elif watched.kind == "ElasticQuota":
        yield from _quota(watched, source, state)
    else:
        raise Refusal(
            "unknown_kind", f"{watched.kind or 'an object'} is not an object of Koordinator's quotas"
        )


def _pod(pod: Pod, source: SourceConfig, state: State) -> Iterator[Event]:
    entry = state["pods"][pod.uid]
    if source.option("occupancy", True):
        yield from new_only(entry, occupancy(entry, pod.uid, source))
        yield from new_only(entry, pending(entry, pod.uid, source))
    if pod.disruption is not None and pod.disruption.get("reason") == "EvictionByEvictionAPI":
        entry["api_evicted"] = instant_ms(pod.disruption.get("lastTransitionTime"))
    else:
        yield from new_only(entry, disruption(entry, pod.uid, pod, source))


def _quota(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    """Leaves only: a parent's `used` contains its children's. `runtime`, the share in force, decides on overuse."""
    metadata, spec = meta(watched.obj), mapping(watched.obj, "spec")
    labels, annotations = mapping(metadata, "labels"), mapping(metadata, "annotations")
    name = required(metadata, "name", "the ElasticQuota")
    if labels.get(f"{PREFIX}is-parent") == "true" or labels.get(f"{PREFIX}is-root") == "true":
        return
    who = {"identity": _identity(name, annotations, source)}
    used = gpus_by_pool(mapping(mapping(watched.obj, "status"), "used"), source, name)
    runtime = gpus_by_pool(_resource_list(annotations, "runtime"), source, name)
    moment = written_ms(watched)
    if moment is not None and runtime:
        samples = state["quotas"].setdefault(name, [])
        samples.append([moment, sum(used.values()), sum(runtime.values())])
        state["quotas"][name] = sorted(samples)[-SAMPLES_KEPT:]
    limits = gpus_by_pool(mapping(spec, "max"), source, name)
    if source.option("limit", "max") == "runtime" and runtime:
        limits = runtime
    for pool, limit in limits.items():
        yield quota_event(
            source,
            f"quota/{name}",
            instant_of(watched, "an ElasticQuota"),
            who,
            pool,
            limit,
            used.get(pool, 0),
        )
    if source.option("reservations", False):
        lendable = labels.get(f"{PREFIX}allow-lent-resource") != "false"
        for pool, milli in gpus_by_pool(mapping(spec, "min"), source, name).items():
            moment = instant_of(watched, "an ElasticQuota")
            yield reservation_event(source, f"quota/{name}", moment, who, pool, milli, lendable)


def _identity(name: str, annotations: Obj, source: SourceConfig) -> dict[str, str]:
    """The quota's name, as its pods carry it; or by option the one namespace it is bound to."""
    if source.option("identity", DEFAULT_IDENTITY) == "k8s_namespace":
        namespaces = _decoded(annotations, "namespaces")
        if isinstance(namespaces, list) and len(namespaces) == 1:
            return identity("k8s_namespace", str(namespaces[0]))
    return identity(DEFAULT_IDENTITY, name)


def _resource_list(annotations: Obj, suffix: str) -> Obj:
    value = _decoded(annotations, suffix)
    if value is not None and not isinstance(value, dict):
        raise Refusal("bad_record", f"annotation {PREFIX}{suffix} is not a JSON resource list")
    return value or {}


def _decoded(annotations: Obj, suffix: str) -> Any:
    text = annotations.get(f"{PREFIX}{suffix}")
    if text is None:
        return None
    try:
        return msgspec.json.decode(str(text))
    except msgspec.DecodeError as error:
        raise Refusal("bad_record", f"annotation {PREFIX}{suffix} is not JSON: {error}") from error
