"""`kube-events`: the scheduler's and the kubelet's preemption Events -> preemptions, with Pods as the index.

The preemptor is read from `related`, which every version fills alike; the text changes between versions and is not read
(cluster.md 3.1). The victim's GPUs and pool come from its Pod, so Events wait in the state until it was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.core.adapters.base import (
    Event,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    event,
    identity,
)
from ingest.core.adapters.kubernetes import KubeEvent, Watched, each_object, kube_event, optional
from ingest.core.adapters.pods import (
    Entry,
    Pod,
    forget_old,
    new_only,
    new_state,
    note_pod,
    preemption_data,
    read_pod,
    released,
)

IN_MEMORY = "(in kube-scheduler memory)"
"""Suffix of the note when the victim was only reserved or binding: nothing was deleted, no running time is lost."""

REMEMBERS = True


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept = new_state() if state is None else state
    kept.setdefault("pods", {})
    yield from each_object(lines, lambda watched: _record(watched, source, kept))
    if state is None:
        yield from flush(source, kept, None)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    """Says what waited for a preemptor's Pod, and refuses what names a victim that was never seen."""
    for uid, entry in list(state.get("pods", {}).items()):
        newest = max((one["ms"] for one in entry["sightings"].values()), default=0)
        if before_ms is not None and newest >= before_ms:
            continue
        yield from _tell(state, uid, source, final=True)
        if "milli" not in entry:
            yield from refuse_unseen(entry, uid)
    forget_old(state, before_ms)


def refuse_unseen(entry: Entry, uid: str) -> Iterator[Refused]:
    for sighting in entry["sightings"].values():
        if not sighting.get("refused"):
            sighting["refused"] = True
            detail = f"the Event names Pod {uid}, which was never seen, so its GPUs and pool are unknown"
            yield Refused(sighting["position"], sighting["raw"].encode(), "unknown_workload", detail)


def _record(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    if watched.kind == "Pod":
        yield from index_pod(watched, read_pod(watched, source), source, state)
    elif watched.kind == "Event":
        yield from scheduler_event(watched, source, state)
    else:
        raise Refusal(
            "unknown_kind", f"{watched.kind or 'an object without kind'} is neither an Event nor a Pod"
        )


def index_pod(watched: Watched, pod: Pod | None, source: SourceConfig, state: State) -> Iterator[Event]:
    """Remembers a pod and tells what waited for it; the kube-scheduler's share of every adapter that reads Pods."""
    uid = str(watched.obj["metadata"].get("uid"))
    if pod is None:
        # It asks for no GPUs: what happens to it is none of this ledger's business.
        state["pods"].pop(uid, None)
        state.setdefault("ignored", {})[uid] = 1
        return
    note_pod(state, pod)
    yield from _tell(state, pod.uid, source, final=False)
    for victim in state.setdefault("waiting", {}).pop(pod.uid, []):
        yield from _tell(state, victim, source, final=False)


def scheduler_event(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    """A preemption Event of kube-scheduler or the kubelet; any other Event says nothing here."""
    seen = kube_event(watched.obj)
    facts = sighting(seen)
    if facts and seen.regarding.get("uid") not in state.get("ignored", {}):
        victim = note_sighting(state, seen, watched, facts)
        yield from _tell(state, victim, source, final=False)


def sighting(seen: KubeEvent) -> Entry | None:
    """What a preemption Event says; `None` for any other Event."""
    if seen.regarding.get("kind") != "Pod":
        return None
    if seen.reason == "Preempted" and seen.action in ("Preempting", ""):
        return {
            "cause": "priority",
            "preemptor": optional(seen.related, "uid"),
            "namespace": optional(seen.related, "namespace"),
            "queued_only": IN_MEMORY in seen.note or None,
        }
    if seen.reason == "Preempting":  # kubelet, for a critical pod it does not name
        return {"cause": "priority"}
    return None


def note_sighting(state: State, seen: KubeEvent, watched: Watched, facts: Entry) -> str:
    victim = seen.regarding.get("uid")
    if not isinstance(victim, str) or not victim:
        raise Refusal("bad_record", "the Event does not say the UID of the pod it is about")
    entry = state["pods"].setdefault(victim, {"said": {}, "sightings": {}})
    # A pod is preempted once: later occurrences are the recorder repeating itself.
    place = {"position": watched.position, "raw": watched.raw.decode("utf-8", "replace")}
    entry["sightings"].setdefault(f"{seen.uid}/1", {"ms": seen.first_ms, **facts, **place})
    return victim


def _tell(state: State, uid: str, source: SourceConfig, final: bool) -> Iterator[Event]:
    entry = state["pods"][uid]
    # A look from before the binding does not know since when the victim ran.
    if "bound" in entry or (final and "milli" in entry):
        for occurrence, seen in sorted(entry["sightings"].items()):
            yield from new_only(entry, _preemption(state, uid, source, occurrence, seen, final))


def _preemption(
    state: State, uid: str, source: SourceConfig, occurrence: str, seen: Entry, final: bool
) -> Iterator[Event]:
    entry = state["pods"][uid]
    data = {**preemption_data(entry, uid, seen["cause"]), "queued_only": seen.get("queued_only")}
    if seen.get("preemptor"):
        by = _preemptor(state, uid, source, seen, final)
        if by is None:
            return
        data |= {"preemptor": by, "preemptor_source": "structured"}
    seen.pop("raw", None)  # told, so never to be refused
    yield event(source, f"event/{occurrence}", "preemption", seen["ms"], data)
    if not seen.get("queued_only"):
        yield from released(entry, uid, source, seen["ms"], data)


def _preemptor(state: State, victim: str, source: SourceConfig, seen: Entry, final: bool) -> Entry | None:
    """Who it is; by its Pod if identities are not namespaces, and then the Event waits for that Pod."""
    known = state["pods"].get(seen["preemptor"], {})
    if "holder" not in seen:
        default_kind = state.get("identity_kind", "k8s_namespace")
        by_namespace = source.option("identity", default_kind) == "k8s_namespace"
        if "holder" in known:
            seen["holder"] = known["holder"]
        elif (by_namespace and not source.option("service_label", "")) or final:
            seen["holder"] = {"identity": identity("k8s_namespace", str(seen["namespace"]))}
        else:
            state.setdefault("waiting", {}).setdefault(seen["preemptor"], []).append(victim)
            return None
    return {"workload": seen["preemptor"], **seen["holder"]}
