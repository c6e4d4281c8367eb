"""`volcano`: Pods, PodGroups, Queues and Evict Events -> occupancy, pending, quota and preemptions.

No object of Volcano names a preemptor (cluster.md 2.3). Each eviction is first told without one; when the window after
it has passed, a second record of the same preemption adds the inferred preemptor, with a confidence, and with the rule
that found it at the end of its id. No candidate is a legitimate outcome: before 2026 Volcano evicted in vain at times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ingest.core.adapters.base import (
    Event,
    Outcome,
    Refusal,
    SourceConfig,
    State,
    event,
    instant_ms,
)
from ingest.core.adapters.kube_events import note_sighting, refuse_unseen
from ingest.core.adapters.kubernetes import Watched, each_object, kube_event
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
from ingest.core.adapters.volcano_inference import WINDOW_SECONDS, Guess, infer_preemptor
from ingest.core.adapters.volcano_queues import pod_group_pending, queue_quota

CAUSE_OF_ACTION = {
    "preempt": "priority",
    "gangpreempt": "priority",
    "reclaim": "reclaim_own_reservation",
    "gangreclaim": "reclaim_own_reservation",
    "shuffle": "other",
}
_EVICTED = re.compile(r"Pod is evicted, because of (\w+)")
_SILENT_KINDS = frozenset({"Job", "Numatopology", "HyperNode", "JobFlow", "JobTemplate", "Command"})
DEFAULT_IDENTITY = "volcano_queue"

REMEMBERS = True


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept = new_state() if state is None else state
    for name in ("pods", "groups"):
        kept.setdefault(name, {})
    yield from each_object(lines, lambda watched: _record(watched, source, kept))
    if state is None:
        yield from flush(source, kept, None)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    """Infers the preemptors of evictions whose window has passed, and which pods replaced the victims."""
    window_ms = source.option("window_seconds", WINDOW_SECONDS) * 1000
    for uid, entry in sorted(state.get("pods", {}).items()):
        evicted = evicted_ms(entry)
        if evicted is None or (before_ms is not None and evicted + window_ms >= before_ms):
            continue
        if "milli" not in entry:
            yield from refuse_unseen(entry, uid)
            continue
        yield from new_only(entry, _evictions(entry, uid, source, final=True))
        if "guess" not in entry:
            entry["guess"] = True
            guess = infer_preemptor(state["pods"], uid, evicted, entry["action"], window_ms)
            yield from new_only(entry, _inferred(state, uid, source, guess))
        yield from new_only(entry, resumes(state, uid, source, evicted))
    forget_old(state, before_ms)


def _record(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    if watched.kind == "Pod":
        pod = read_pod(watched, source, DEFAULT_IDENTITY)
        if pod is not None:
            yield from _pod(pod, source, state)
    elif watched.kind == "Event":
        yield from _event(watched, source, state)
    elif watched.kind == "PodGroup":
        yield from pod_group_pending(watched, source, state["groups"])
    elif watched.kind == "Queue":
        yield from queue_quota(watched, source)
    elif watched.kind not in _SILENT_KINDS:
        raise Refusal(
            "unknown_kind", f"{watched.kind or 'an object without kind'} is not an object of Volcano"
        )


def _pod(pod: Pod, source: SourceConfig, state: State) -> Iterator[Event]:
    entry = note_pod(state, pod)
    if pod.evict_condition is not None and (match := _EVICTED.match(str(pod.evict_condition.get("message")))):
        entry["action"] = match[1]
        entry["evict_condition"] = instant_ms(pod.evict_condition.get("lastTransitionTime"))
    if source.option("occupancy", True):
        yield from new_only(entry, occupancy(entry, pod.uid, source))
        if not pod.group:  # a PodGroup reports its own wait as a whole
            yield from new_only(entry, pending(entry, pod.uid, source))
    yield from new_only(entry, _evictions(entry, pod.uid, source))


def _event(watched: Watched, source: SourceConfig, state: State) -> Iterator[Event]:
    seen = kube_event(watched.obj)
    if seen.reason != "Evict" or seen.regarding.get("kind") != "Pod":
        # The PodGroup's own Evict event is one for many pods (its count is unreliable); the pods tell it all.
        return
    match = _EVICTED.match(seen.note)
    if match is None:
        raise Refusal("bad_record", f"the message of an eviction cannot be read: {seen.note!r}")
    victim = note_sighting(state, seen, watched, {"action": match[1]})
    entry = state["pods"][victim]
    entry["action"] = match[1]
    if "milli" in entry:
        yield from new_only(entry, _evictions(entry, victim, source))


def evicted_ms(entry: Entry) -> int | None:
    """The earliest instant at which anything says that this pod was evicted."""
    moments = [one["ms"] for one in entry["sightings"].values()]
    if "evict_condition" in entry:
        moments.append(entry["evict_condition"])
    return min(moments, default=None)


def _evictions(entry: Entry, uid: str, source: SourceConfig, final: bool = False) -> Iterator[Event]:
    decided = evicted_ms(entry)
    # A look from before the binding does not know since when the victim ran.
    if decided is None or not ("bound" in entry or final):
        return
    data = preemption_data(entry, uid, CAUSE_OF_ACTION.get(entry["action"], "other"))
    if "evict_condition" in entry:
        yield event(source, f"{uid}/evicted", "preemption", entry["evict_condition"], data)
    for occurrence, seen in entry["sightings"].items():
        yield event(source, f"event/{occurrence}", "preemption", seen["ms"], data)
    yield from released(entry, uid, source, decided, data)


def _inferred(state: State, uid: str, source: SourceConfig, guess: Guess | None) -> Iterator[Event]:
    if guess is None:
        return
    entry = state["pods"][uid]
    decided = evicted_ms(entry)
    assert decided is not None
    data = {
        **preemption_data(entry, uid, CAUSE_OF_ACTION.get(entry["action"], "other")),
        "preemptor": {"workload": guess.uid, **state["pods"][guess.uid]["holder"]},
        "preemptor_source": "inferred",
        "confidence": guess.confidence,
    }
    yield event(source, f"{uid}/inferred/{guess.rule}", "preemption", decided, data)
