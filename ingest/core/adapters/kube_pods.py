"""`kube-pods`: Pods -> occupancy, pending, the preemptions their own condition tells; Nodes -> capacity.

A Pod's UID is its workload id and, if it is preempted, the preemption's id, so that `kube-events`, `volcano` and
`koordinator`, which know more about the preemptor, add to the same record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ingest.core.adapters.base import (
    READING_ERRORS,
    Event,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    event,
    identity,
    instant_ms,
    refusal_of,
)
from ingest.core.adapters.kubernetes import Watched, read_objects
from ingest.core.adapters.node_capacity import capacity_events, note_node
from ingest.core.adapters.pods import (
    Entry,
    Pod,
    forget_old,
    new_only,
    new_state,
    note_pod,
    occupancy,
    pending,
    preemption_data,
    read_pod,
    released,
    resumes,
)

CAUSE_OF_DISRUPTION = {
    "PreemptionByScheduler": "priority",
    "DeletionByTaintManager": "capacity_lost",
    "DeletionByPodGC": "capacity_lost",
    "EvictionByEvictionAPI": "other",
    "TerminationByKubelet": "other",
}
"""`DisruptionTarget` reason -> cause. The Eviction API says not why: drains, deschedulers and quotas all use it."""

_OWN_WORDS = re.compile(r"volcano|kai-scheduler")
"""Schedulers whose `PreemptionByScheduler` covers several causes; their own adapters tell them apart."""

GANG_HINT = re.compile(
    r"preemptor: (?P<preemptor>[^,]+), triggerPod: (?P<namespace>[^/,\s]+)/(?P<name>[^,\s]+)"
)
"""Koordinator's gang preemption names its preemptor in the condition."""

REMEMBERS = True


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept = new_state() if state is None else state
    kept.setdefault("pods", {})
    for watched in read_objects(lines):
        if isinstance(watched, Refused):
            yield watched
            continue
        try:
            if watched.kind == "Node":
                note_node(watched, source, kept)
            elif watched.kind == "Pod":
                yield from _pod(watched, source, kept)
            else:
                name = watched.kind or "an object without kind"
                raise Refusal("unknown_kind", f"{name} is neither a Pod nor a Node")
        except READING_ERRORS as error:
            yield watched.refused(refusal_of(error))
    if source.option("capacity", True):
        yield from capacity_events(source, kept)
    if state is None:
        yield from flush(source, kept, None)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    """Says which pods replaced preempted ones, once none can come in between any more; forgets old pods."""
    pods = state.get("pods", {})
    for uid, entry in sorted(pods.items(), key=lambda one: (one[1].get("disrupted", 0), one[0])):
        if "disrupted" in entry and (before_ms is None or entry["disrupted"] < before_ms):
            yield from new_only(entry, resumes(state, uid, source, entry["disrupted"]))
    forget_old(state, before_ms)


def _pod(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    pod = read_pod(watched, source)
    if pod is None:
        return
    entry = note_pod(state, pod)
    yield from new_only(entry, occupancy(entry, pod.uid, source))
    yield from new_only(entry, pending(entry, pod.uid, source))
    if source.option("preemptions", True):
        yield from new_only(entry, disruption(entry, pod.uid, pod, source))


def disruption(entry: Entry, uid: str, pod: Pod | None, source: SourceConfig) -> Iterator[Event]:
    """The preemption in the pod's own condition, if it held GPUs and has one. `pod` is the look that is new."""
    found = pod.disruption if pod is not None else None
    if pod is not None and found is not None and pod.bound_ms is not None:
        reason = str(found.get("reason"))
        if reason == "PreemptionByScheduler" and _OWN_WORDS.search(pod.scheduler):
            return
        entry["disrupted"] = instant_ms(found.get("lastTransitionTime"))
        entry["cause"] = CAUSE_OF_DISRUPTION.get(reason, "other")
        entry["hint"] = str(found.get("message") or "")
    if "disrupted" not in entry:
        return
    data = preemption_data(entry, uid, entry["cause"])
    if hint := GANG_HINT.search(entry["hint"]):
        by = {"workload": hint["preemptor"], "identity": identity("k8s_namespace", hint["namespace"])}
        data |= {"preemptor": by, "preemptor_source": "parsed"}
    yield event(source, f"{uid}/disrupted", "preemption", entry["disrupted"], data)
    yield from released(entry, uid, source, entry["disrupted"], data, "disrupted/released")
