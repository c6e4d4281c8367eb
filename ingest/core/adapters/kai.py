"""`kai`: KAI-Scheduler's Pods, PodGroups, Queues and `Evict` Events (cluster.md 4.3).

The only scheduler that names its preemptor in fields: annotations on each Event. Events are about the victim's PodGroup
and name the victim Pod in their text, by name; so they wait until the Pod of that name is known, whose UID is the
workload and the preemption. `num-evicted-pods` is the size of the whole batch on each Event and is never summed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ingest.core.adapters.base import (
    Event,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    decimal_of,
    event,
    identity,
)
from ingest.core.adapters.kai_queues import queue_quota
from ingest.core.adapters.kubernetes import (
    KubeEvent,
    Watched,
    each_object,
    holder,
    kube_event,
    mapping,
    meta,
    name_of,
    optional,
    required,
)
from ingest.core.adapters.pods import (
    Entry,
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

DEFAULT_IDENTITY = "kai_queue"
ENDED_BEFORE_MS = 5_000
"""A pod may be gone a little before its eviction's Event by another clock; longer, and it is another pod's name."""

_VICTIM = re.compile(r"Pod (?P<pod>[^/\s]+/\S+) was preempted|evicting remaining pod: (?P<last>[^/\s]+/\S+)")
_SHARE = re.compile(r"uses <GPU: (?P<uses>[\d.]+)[^>]*> with a quota of <GPU: (?P<quota>[\d.]+|unlimited|-1)")

REMEMBERS = True


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept = new_state() if state is None else state
    for name in ("pods", "groups", "evictions", "named", "waiting"):
        kept.setdefault(name, {})
    yield from each_object(lines, lambda watched: _record(watched, source, kept))
    if state is None:
        yield from flush(source, kept, None)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    """Tells what waited for a Pod or for the evictor's PodGroup, refuses what stays unknown, finds replacements."""
    for occurrence, seen in list(state.get("evictions", {}).items()):
        if before_ms is not None and seen["ms"] >= before_ms:
            continue
        yield from _tell(state, occurrence, source, final=True)
        if "victim" not in seen and not seen.get("refused"):
            seen["refused"] = True
            detail = (
                f"the Event names Pod {seen['pod']}, which was never seen, so its GPUs and pool are unknown"
            )
            yield Refused(seen["position"], seen["raw"].encode(), "unknown_workload", detail)
        elif "victim" in seen:
            victim = state["pods"].get(seen["victim"])
            if victim is not None:
                yield from new_only(victim, resumes(state, seen["victim"], source, seen["ms"]))
        if before_ms is not None:
            del state["evictions"][occurrence]
    if before_ms is not None:
        _forget_names(state)
    forget_old(state, before_ms)


def _forget_names(state: State) -> None:
    """Drops index entries of pods and evictions that are forgotten themselves."""
    for index, of in (("named", state["pods"]), ("waiting", state["evictions"])):
        for name, members in list(state[index].items()):
            state[index][name] = kept = [member for member in members if member in of]
            if not kept:
                del state[index][name]


def _record(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    if watched.kind == "Pod":
        pod = read_pod(watched, source, DEFAULT_IDENTITY)
        if pod is None:
            return
        entry = note_pod(state, pod)
        if source.option("occupancy", True):
            yield from new_only(entry, occupancy(entry, pod.uid, source))
            yield from new_only(entry, pending(entry, pod.uid, source))
        uids = state["named"].setdefault(entry["name"], [])
        if pod.uid not in uids:
            uids.append(pod.uid)
        yield from _tell_waiting(state, f"pod {entry['name']}", source)
    elif watched.kind == "PodGroup":
        spec = mapping(watched.obj, "spec")
        queue = str(spec.get("queue") or "")
        namespace = required(meta(watched.obj), "namespace", "the PodGroup")
        who = holder(
            source,
            namespace,
            mapping(meta(watched.obj), "labels"),
            {DEFAULT_IDENTITY: queue},
            DEFAULT_IDENTITY,
        )
        state["groups"][name_of(watched.obj)] = {"uid": optional(meta(watched.obj), "uid"), "holder": who}
        yield from _tell_waiting(state, f"group {name_of(watched.obj)}", source)
    elif watched.kind == "Event":
        yield from _event(watched, source, state)
    elif watched.kind == "Queue":
        yield from queue_quota(watched, source)
    elif watched.kind not in ("BindRequest", "SchedulingShard", "Topology"):
        raise Refusal("unknown_kind", f"{watched.kind or 'an object without kind'} is not an object of KAI")


def _event(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    seen = kube_event(watched.obj)
    if seen.reason != "Evict":
        return
    match = _VICTIM.search(seen.note)
    if match is None:
        raise Refusal("bad_record", f"the message of an eviction cannot be read: {seen.note!r}")
    name = optional(seen.annotations, "evictor-pod-group-name")
    namespace = optional(seen.annotations, "evictor-pod-group-namespace")
    facts = {
        "pod": match["pod"] or match["last"],
        "cause": _cause(seen),
        # Consolidation moves work about; whoever it made room for did not take anything away.
        "evictor": f"{namespace}/{name}" if name and namespace and not _moves(seen) else None,
        "position": watched.position,
        "raw": watched.raw.decode("utf-8", "replace"),
    }
    for occurrence, moment in seen.occurrences():
        if occurrence not in state["evictions"]:
            state["evictions"][occurrence] = {"ms": moment, **facts}
            for name in (f"pod {facts['pod']}", f"group {facts['evictor']}"):
                state["waiting"].setdefault(name, []).append(occurrence)
        yield from _tell(state, occurrence, source, final=False)


def _cause(seen: KubeEvent) -> str:
    """`reclaim` by a queue below its quota takes back its own; above it, it is the fair share that decides."""
    action = str(seen.annotations.get("evictor-action-type") or "")
    if action == "preempt" or (not action and "higher priority workload" in seen.note):
        return "priority"
    shares = list(_SHARE.finditer(seen.note))
    if action == "reclaim" or (not action and shares):
        if len(shares) < 2 or shares[1]["quota"] in ("unlimited", "-1"):
            return "reclaim_own_reservation"
        uses, quota = decimal_of(shares[1]["uses"]), decimal_of(shares[1]["quota"])
        return "reclaim_own_reservation" if uses < quota else "fair_share"
    return "other"  # consolidation, staleness of the victim's own gang


def _moves(seen: KubeEvent) -> bool:
    action = seen.annotations.get("evictor-action-type")
    return action == "consolidation" or "(resource consolidation)" in seen.note


def _tell_waiting(state: State, name: str, source: SourceConfig) -> Iterator[Event]:
    for occurrence in list(state["waiting"].get(name, [])):
        if occurrence in state["evictions"]:
            yield from _tell(state, occurrence, source, final=False)


def _tell(state: State, occurrence: str, source: SourceConfig, final: bool) -> Iterator[Event]:
    seen = state["evictions"][occurrence]
    uid = seen.get("victim") or _pod_named(state, seen["pod"], seen["ms"])
    if uid is None:
        return
    by = _evictor(state, seen, final)
    if by is None and seen["evictor"]:
        return
    seen["victim"] = uid
    entry = state["pods"].get(uid)
    if entry is None:
        return
    data = preemption_data(entry, uid, seen["cause"])
    if by is not None:
        data |= {"preemptor": by, "preemptor_source": "structured"}
    yield from new_only(entry, iter([event(source, f"event/{occurrence}", "preemption", seen["ms"], data)]))
    yield from new_only(entry, released(entry, uid, source, seen["ms"], data))


def _pod_named(state: State, name: str, evicted_ms: int) -> str | None:
    """The pod that had the name when it was evicted: names come back, with other UIDs."""
    found = [
        (entry["bound"], uid)
        for uid, entry in ((uid, state["pods"].get(uid, {})) for uid in state["named"].get(name, []))
        if "bound" in entry
        and entry["bound"] <= evicted_ms
        and entry.get("ended", evicted_ms) >= evicted_ms - ENDED_BEFORE_MS
    ]
    return max(found)[1] if found else None


def _evictor(state: State, seen: Entry, final: bool) -> Entry | None:
    """The PodGroup that took the GPUs; `None` where the scheduler names none, or while it is still unknown."""
    name = seen["evictor"]
    if not name:
        return None
    if "by" not in seen:
        group = state["groups"].get(name)
        if group is not None:
            seen["by"] = {"workload": group["uid"] or name, **group["holder"]}
        elif final:
            seen["by"] = {"workload": name, "identity": identity("k8s_namespace", name.partition("/")[0])}
    by: Entry | None = seen.get("by")
    return by
