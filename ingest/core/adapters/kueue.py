"""`kueue`: Workloads, Kueue's Events and ClusterQueues -> occupancy, pending, preemption, resume and quota.

Reads v1beta1 and v1beta2 objects and the messages of 0.5 to 0.19. One preemption is seen in up to five records (two
events on the victim, one on the preemptor, one on its job, the conditions); all give the id `<victim UID>/<Evicted
transition>`. Events wait in the state for the condition that carries that instant; see `kueue_books`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.core.adapters.base import (
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    instant_ms,
)
from ingest.core.adapters.kubernetes import (
    KubeEvent,
    Watched,
    each_object,
    holder,
    kube_event,
    meta,
    optional,
)
from ingest.core.adapters.kueue_books import (
    Entry,
    derive,
    entry_of,
    new_state,
    note_end,
    note_sighting,
    note_workload,
)
from ingest.core.adapters.kueue_demand import note_no_more, note_record, open_waits, refuse_unmapped
from ingest.core.adapters.kueue_messages import read_preempted, read_preempted_workload
from ingest.core.adapters.kueue_queues import cluster_queue_quota
from ingest.core.adapters.kueue_totals import count_notice
from ingest.core.adapters.kueue_workload import read_workload

_SILENT_KINDS = frozenset(
    {"LocalQueue", "ResourceFlavor", "Cohort", "AdmissionCheck", "Topology", "WorkloadPriorityClass"}
)
_VICTIM_REASONS = frozenset({"Preempted", "EvictedDueToPreempted"})
KEEP_GONE_MS = 7 * 24 * 3600 * 1000
"""How long a deleted workload stays in the index, so that a late Event can still name it."""

REMEMBERS = True


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """See the module; options are documented on the source's page."""
    kept = new_state() if state is None else state
    for name, empty in new_state().items():
        kept.setdefault(name, empty)
    yield from each_object(lines, lambda watched: _record(watched, source, kept))
    if state is None:
        yield from flush(source, kept, None)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    """Says what was held back and is older than `before_ms` (`None`: all), and forgets what is long gone."""
    for uid, entry in list(state.get("workloads", {}).items()):
        newest = max([entry.get("last_ms", 0), *(one["ms"] for one in entry["sightings"].values())])
        if before_ms is not None and newest >= before_ms:
            continue
        yield from derive(state, uid, source, final=True)
        if "name" not in entry:
            yield from _refuse_sightings(entry, uid)
        else:
            yield from _refuse_untold(entry)
            yield from refuse_unmapped(entry, source)
        if before_ms is not None and entry.get("gone") and newest < before_ms - KEEP_GONE_MS:
            del state["workloads"][uid]


def _refuse_sightings(entry: Entry, uid: str) -> Iterator[Refused]:
    for sighting in entry["sightings"].values():
        if not sighting.get("refused"):
            sighting["refused"] = True
            detail = f"the Event names Workload {uid}, which was never seen, so its GPUs and pool are unknown"
            yield Refused(sighting["position"], sighting["raw"].encode(), "unknown_workload", detail)


def _refuse_untold(entry: Entry) -> Iterator[Refused]:
    """Preemptions of which only the end was seen, in a queue that no pool is mapped to."""
    for facts in entry["evictions"].values():
        if not facts.get("told") and not facts.get("refused") and "raw" in facts:
            facts["refused"] = True
            queue = entry.get("cluster_queue") or entry["queues"][0]
            detail = (
                f"{entry['name']} was preempted, but its admission was never seen and its queue {queue!r} "
                "maps to no pool, or its pod templates ask for nothing"
            )
            yield Refused(facts["position"], facts["raw"].encode(), "unmapped_pool", detail)


def _record(watched: Watched, source: SourceConfig, state: State) -> Iterator[Outcome]:
    if watched.kind == "Workload":
        yield from _workload(watched, source, state)
    elif watched.kind == "Event":
        yield from _event(watched, source, state)
    elif watched.kind == "ClusterQueue":
        yield from cluster_queue_quota(watched, source)
    elif watched.kind not in _SILENT_KINDS:
        raise Refusal("unknown_kind", f"{watched.kind or 'an object without kind'} is not an object of Kueue")


def _workload(watched: Watched, source: SourceConfig, state: State) -> Iterator[Outcome]:
    workload = read_workload(watched, source)
    refusal: Refusal | None = None
    try:
        note_workload(state, workload, source)
    except Refusal as refused:
        refusal = refused  # one fact of the object cannot be told; the others go on
    entry = entry_of(state, workload.uid)
    for facts in entry["evictions"].values():
        if not entry["held"] and "raw" not in facts:
            facts.update(position=watched.position, raw=watched.raw.decode("utf-8", "replace"))
    if watched.change == "DELETED":
        _note_deletion(watched, entry)
    note_record(entry, watched, source)
    yield from derive(state, workload.uid, source)
    yield from count_notice(watched, entry)
    # Victims may have waited to learn who this is.
    for name in (workload.uid, workload.job_uid):
        for victim in state["waiting"].pop(name, []):
            yield from derive(state, victim, source)
    if refusal is not None:
        raise refusal


def _note_deletion(watched: Watched, entry: Entry) -> None:
    """The quota is given back at the latest when the object is gone."""
    entry["gone"] = True
    starts = [int(start) for start in entry["held"]]
    holds = bool(starts) and not any(end >= max(starts) for end in entry["ends"])
    waits = open_waits(entry)
    if not holds and not waits:
        return
    deleted = watched.observed_ms
    if deleted is None and meta(watched.obj).get("deletionTimestamp"):
        deleted = instant_ms(meta(watched.obj)["deletionTimestamp"])
    if deleted is None:
        raise Refusal(
            "no_instant", "the Workload was deleted while it held or wanted quota, at a time the record lacks"
        )
    if holds:
        note_end(entry, max(deleted, max(starts)), ever_held=True)
    else:
        note_no_more(entry, max(deleted, max(waits)))


def _event(watched: Watched, source: SourceConfig, state: State) -> Iterator[Outcome]:
    seen = kube_event(watched.obj)
    victim: str | None
    if seen.reason == "PreemptedWorkload":
        victim, facts = _told_by_preemptor(seen, source)
    elif seen.reason in _VICTIM_REASONS or seen.reason == "Stopped":
        victim, facts = _told_by_victim(seen, state)
    else:
        return
    if victim is None:
        return
    facts |= {"position": watched.position, "raw": watched.raw.decode("utf-8", "replace")}
    entry = entry_of(state, victim)
    for occurrence, moment in seen.occurrences():
        note_sighting(entry, occurrence, moment, facts)
    yield from derive(state, victim, source)


def _told_by_preemptor(seen: KubeEvent, source: SourceConfig) -> tuple[str, Entry]:
    reverse = read_preempted_workload(seen.note)
    if reverse is None or reverse.uid is None:
        raise Refusal("bad_record", f"a PreemptedWorkload event without the victim's UID: {seen.note!r}")
    by = holder(source, str(seen.regarding.get("namespace")), {}, {})
    return reverse.uid, {"uid": optional(seen.regarding, "uid"), "holder": by}


def _told_by_victim(seen: KubeEvent, state: State) -> tuple[str | None, Entry]:
    """`(victim UID, facts)`; no UID if the event is none of a preemption, or a job's copy of an unknown workload's."""
    note = read_preempted(seen.note)
    if note is None:
        if seen.reason == "Stopped":
            return None, {}  # stopped for another reason
        raise Refusal("bad_record", f"the message of a preemption cannot be read: {seen.note!r}")
    uid = optional(seen.regarding, "uid")
    victim = uid if seen.regarding.get("kind") == "Workload" else state["jobs"].get(uid)
    return victim, {
        "cause": note.cause,
        "uid": note.preemptor_uid,
        "job": note.preemptor_job_uid,
        "queue": note.preemptor_queue,
    }
