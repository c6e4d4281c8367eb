"""What is known of each Kueue Workload, and the events that follow from it.

The state is a set of facts (admissions, releases, evictions, sightings of a preemption in Events), and events are
derived from the facts after each record: whatever the order in which facts come, the same events come out. `said` keeps
the ids that went out, so that a re-listed object says nothing twice.
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
    identity,
    rfc3339,
)
from ingest.core.adapters.kubernetes import holder, service_class
from ingest.core.adapters.kueue_demand import note_pending, pending, wanted
from ingest.core.adapters.kueue_messages import read_preempted
from ingest.core.adapters.kueue_workload import Workload

SIGHTING_WINDOW_MS = 60_000
"""An Event is written after the `Evicted` condition, by another clock and after a patch that may have to be retried."""
CLOCK_SKEW_MS = 1_000
UID_KIND = "label:kueue-workload-uid"
"""Identity of a preemptor of which only the UID is known: it stays unattributed until somebody maps it."""

Entry = dict[str, Any]


def new_state() -> State:
    return {"workloads": {}, "jobs": {}, "waiting": {}}


def entry_of(state: State, uid: str) -> Entry:
    fresh: Entry = {"held": {}, "ends": [], "evictions": {}, "sightings": {}, "pending": {}, "said": {}}
    found: Entry = state["workloads"].setdefault(uid, fresh)
    return found


# --- facts in -----------------------------------------------------------------------------------------------


def note_workload(state: State, w: Workload, source: SourceConfig) -> None:
    """Adds what one look at a Workload tells."""
    entry = entry_of(state, w.uid)
    queues = {"kueue_local_queue": f"{w.namespace}/{w.local_queue}" if w.local_queue else ""}
    if w.cluster_queue or entry.get("cluster_queue"):
        entry["cluster_queue"] = w.cluster_queue or entry["cluster_queue"]
        queues["kueue_cluster_queue"] = entry["cluster_queue"]
    entry.update(
        name=f"{w.namespace}/{w.name}",
        holder=holder(source, w.namespace, w.labels, queues),
        labels=w.labels,
        queues=[f"{w.namespace}/{w.local_queue}", w.local_queue, w.namespace],
        priority_class=w.priority_class,
        requested=w.requested_milli,
        last_ms=max(entry.get("last_ms", 0), *_instants(w)),
    )
    if w.job_uid:
        state["jobs"][w.job_uid] = w.uid
    if w.held_ms is not None:
        entry["held"].setdefault(str(w.held_ms), {"attempt": w.attempt, "milli": w.admitted_milli})
        if w.remaining_milli != w.admitted_milli:
            _note_given_back(entry, w)
    elif w.finished and w.admitted_milli:
        entry["finished_milli"] = w.admitted_milli
    # Without any of these, QuotaReserved=False only says that it never had quota.
    ever_held = w.finished or w.evictions > 0 or w.eviction is not None
    if w.released_ms is not None and (ever_held or entry["held"]):
        note_end(entry, w.released_ms, ever_held)
        entry["attempts_seen"] = max(entry.get("attempts_seen", 1), w.attempt, w.evictions)
    if w.eviction is not None and w.eviction.cause is not None:
        _note_eviction(entry, w)
    note_pending(entry, w, source)


def _instants(w: Workload) -> list[int]:
    seen = (w.created_ms, w.held_ms, w.released_ms, w.waiting_since_ms)
    return [moment for moment in seen if moment is not None] or [0]


def note_end(entry: Entry, end_ms: int, ever_held: bool) -> None:
    """It holds nothing from `end_ms` on. `ever_held`: it did hold something, even if that was not seen."""
    if end_ms not in entry["ends"]:
        entry["ends"] = sorted([*entry["ends"], end_ms])
    if ever_held:
        entry["ever_held"] = True


def _note_given_back(entry: Entry, w: Workload) -> None:
    """`reclaimablePods` carry no time: the level holds from the write in which it was seen."""
    if w.written_ms is None:
        raise Refusal(
            "no_instant",
            "reclaimablePods shrank the workload at a time this copy does not tell; list it with managedFields",
        )
    assert w.held_ms is not None
    held = entry["held"][str(w.held_ms)]
    if held.get("left") != w.remaining_milli:
        held["left"] = w.remaining_milli
        held.setdefault("shrinks", {})[str(max(w.written_ms, w.held_ms))] = w.remaining_milli


def _note_eviction(entry: Entry, w: Workload) -> None:
    eviction = w.eviction
    assert eviction is not None
    decided = eviction.decided_ms
    # An eviction first known from Events alone keeps the instant it was given then.
    for known, facts in entry["evictions"].items():
        if facts.get("by_event") and -CLOCK_SKEW_MS <= int(known) - decided <= SIGHTING_WINDOW_MS:
            decided = int(known)
    facts = entry["evictions"].setdefault(str(decided), {})
    facts.setdefault("cause", eviction.cause)
    facts["condition"] = True
    # Only one look that shows both instants says for certain that they belong together.
    if w.held_ms is not None and w.held_ms <= eviction.decided_ms:
        facts["start"] = w.held_ms
    if w.released_ms is not None and w.released_ms >= eviction.decided_ms:
        facts["released"] = w.released_ms
    if note := read_preempted(eviction.message):
        _merge_preemptor(facts, note.preemptor_uid, note.preemptor_job_uid, note.preemptor_queue)
        if note.victim_queue:
            entry.setdefault("cluster_queue", note.victim_queue)


def _merge_preemptor(facts: Entry, uid: str | None, job_uid: str | None, queue: str | None) -> None:
    for name, value in (("uid", uid), ("job", job_uid), ("queue", queue)):
        if value and not facts.get(name):
            facts[name] = value


def note_sighting(entry: Entry, occurrence: str, seen_ms: int, facts: Entry) -> None:
    """A preemption of this workload was named in an Event at `seen_ms`."""
    entry["sightings"].setdefault(occurrence, {"ms": seen_ms, **facts})


# --- events out ---------------------------------------------------------------------------------------------


def derive(state: State, uid: str, source: SourceConfig, final: bool = False) -> Iterator[Event]:
    """The events that follow from what is known of one workload and were not said yet.

    `final`: nothing more will come, so say what is known instead of waiting for the rest.
    """
    entry = state["workloads"][uid]
    if "name" in entry:
        yield from _new(entry, _levels(entry, uid, source))
        yield from _new(entry, pending(entry, uid, source))
    yield from _new(entry, _preemptions(state, entry, uid, source, final))


def _new(entry: Entry, events: Iterator[Event]) -> Iterator[Event]:
    for one in events:
        if one["id"] not in entry["said"]:
            entry["said"][one["id"]] = 1
            yield one


def _levels(entry: Entry, uid: str, source: SourceConfig) -> Iterator[Event]:
    for start, held in entry["held"].items():
        end = _first_after(entry["ends"], int(start))
        for pool, milli in held["milli"].items():
            yield _occupancy(entry, uid, source, pool, held["attempt"], int(start), milli)
            for moment, left in held.get("shrinks", {}).items():
                if end is None or int(moment) < end:
                    level = left.get(pool, 0)
                    yield _occupancy(entry, uid, source, pool, held["attempt"], int(moment), level)
            if end is not None:
                yield _occupancy(entry, uid, source, pool, held["attempt"], end, 0)
    yield from _ends_of_unseen(entry, uid, source)


def _ends_of_unseen(entry: Entry, uid: str, source: SourceConfig) -> Iterator[Event]:
    """A release whose start was never seen (state lost, or a dump): end whatever this workload may hold anywhere.

    Saying 0 of a pool where nothing was held changes nothing; leaving a start open would bill for ever.
    """
    if not entry.get("ever_held"):
        return
    known_pools = entry.get("finished_milli", {}).keys()
    pools = sorted(known_pools or {*source.pools.values(), *([source.pool] if source.pool else [])})
    for end in entry["ends"]:
        if any(int(start) < end for start in entry["held"]):
            continue
        for attempt in range(1, entry.get("attempts_seen", 1) + 1):
            for pool in pools:
                yield _occupancy(entry, uid, source, pool, attempt, end, 0)


def _occupancy(
    entry: Entry, uid: str, source: SourceConfig, pool: str, attempt: int, time_ms: int, milli: int
) -> Event:
    data: Entry = {
        "workload": uid,
        **entry["holder"],
        "pool": pool,
        "gpus": gpus_json(milli),
        "attempt": attempt,
    }
    if milli:
        data |= {
            "name": entry["name"],
            "priority_class": entry["priority_class"],
            "service_class": service_class(source, entry["priority_class"]),
            "labels": entry["labels"] or None,
        }
    return event(source, f"{uid}/{pool}/{attempt}/{rfc3339(time_ms)}", "occupancy", time_ms, data)


def _first_after(moments: list[int], start: int) -> int | None:
    return next((moment for moment in moments if moment >= start), None)


# --- preemptions --------------------------------------------------------------------------------------------


def _preemptions(state: State, entry: Entry, uid: str, source: SourceConfig, final: bool) -> Iterator[Event]:
    for sighting in sorted(entry["sightings"].values(), key=lambda one: one["ms"]):
        _settle(entry, sighting, final)
    if "name" not in entry:
        return
    for decided, facts in sorted(entry["evictions"].items(), key=lambda one: int(one[0])):
        start = facts.get("start")
        if start is None and final:
            start = max((int(s) for s in entry["held"] if int(s) <= int(decided)), default=None)
        known = _resolve_preemptor(state, facts, source, final)
        if not known:
            _wait_for_preemptor(state, uid, facts)
        if (known and start is not None) or final:
            yield from _tell(entry, uid, source, int(decided), facts, start)


def _settle(entry: Entry, sighting: Entry, final: bool) -> None:
    """Ties a sighting to the eviction it speaks of: the latest one decided shortly before it."""
    if "eviction" in sighting:
        return
    near = [
        int(decided)
        for decided in entry["evictions"]
        if -CLOCK_SKEW_MS <= sighting["ms"] - int(decided) <= SIGHTING_WINDOW_MS
    ]
    if not near and final:
        near = [sighting["ms"] // 1000 * 1000]
        entry["evictions"][str(near[0])] = {"by_event": True}
    if near:
        sighting["eviction"] = str(max(near))
        if "name" in entry:  # it cannot be refused any more
            sighting.pop("raw", None)
        facts = entry["evictions"][sighting["eviction"]]
        if sighting.get("cause"):
            facts.setdefault("cause", sighting["cause"])
        _merge_preemptor(facts, sighting.get("uid"), sighting.get("job"), sighting.get("queue"))
        if sighting.get("holder"):
            facts.setdefault("holder", sighting["holder"])


def _resolve_preemptor(state: State, facts: Entry, source: SourceConfig, final: bool) -> bool:
    """Fills `facts["preemptor"]` once and for all; False: it may still become known who it is."""
    if "preemptor" in facts:
        return True
    uid = facts.get("uid") or state["jobs"].get(facts.get("job"))
    known = state["workloads"].get(uid, {}) if uid else {}
    by_queue = identity("kueue_cluster_queue", facts["queue"]) if facts.get("queue") else None
    wants_queue = source.option("identity", "k8s_namespace") == "kueue_cluster_queue"
    if uid is None and not facts.get("job") and not facts.get("queue"):
        if not facts.get("condition") and not final:
            return False
        facts["preemptor"] = None
    elif "holder" in known:
        facts["preemptor"] = {"workload": uid, **known["holder"]}
    elif by_queue and (wants_queue or final):
        facts["preemptor"] = {"workload": uid, "identity": by_queue}
    elif facts.get("holder") and final:
        facts["preemptor"] = {"workload": uid, **facts["holder"]}
    elif final:
        facts["preemptor"] = {"workload": uid, "identity": identity(UID_KIND, uid or facts["job"])}
    return "preemptor" in facts


def _wait_for_preemptor(state: State, victim: str, facts: Entry) -> None:
    for name in (facts.get("uid"), facts.get("job")):
        victims = state["waiting"].setdefault(name, []) if name else []
        if victim not in victims:
            victims.append(victim)


def _tell(
    entry: Entry, uid: str, source: SourceConfig, decided: int, facts: Entry, start: int | None
) -> Iterator[Event]:
    held = entry["held"].get(str(start)) if start is not None else None
    lost = _milli_just_before(held, decided) if held else _fallback_milli(entry, source)
    if lost:
        facts["told"] = True
    released = facts.get("released")
    resumed = min((int(s) for s in entry["held"] if int(s) > decided), default=None)
    for pool, milli in lost.items():
        preemption = f"{uid}/{rfc3339(decided)}" + (f"/{pool}" if len(lost) > 1 else "")
        data = _record(entry, uid, preemption, pool, milli, facts, held)
        admitted = rfc3339(start) if start is not None else None
        if facts.get("condition"):
            first = {**data, "admitted_at": admitted}
            yield event(source, f"{preemption}/decided", "preemption", decided, first)
        if released is not None:
            last = {**data, "released_at": rfc3339(released), "disposition": "requeued"}
            yield event(source, f"{preemption}/released", "preemption", decided, last)
        for occurrence, sighting in entry["sightings"].items():
            if sighting.get("eviction") == str(decided):
                event_id = f"event/{occurrence}" + (f"/{pool}" if len(lost) > 1 else "")
                yield event(source, event_id, "preemption", sighting["ms"], data)
        if resumed is not None:
            attempt = entry["held"][str(resumed)]["attempt"]
            for new_pool in entry["held"][str(resumed)]["milli"]:
                again = {"preemption": preemption, "pool": new_pool, "workload": uid, "attempt": attempt}
                event_id = f"{preemption}/resumed/{new_pool}/{rfc3339(resumed)}"
                yield event(source, event_id, "resume", resumed, again)


def _record(
    entry: Entry, uid: str, preemption: str, pool: str, milli: int, facts: Entry, held: Entry | None
) -> Entry:
    preemptor = facts.get("preemptor")
    return {
        "preemption": preemption,
        "victim": {
            "workload": uid,
            **entry["holder"],
            **({"attempt": held["attempt"]} if held else {}),
        },
        "preemptor": {k: v for k, v in preemptor.items() if v is not None} if preemptor else None,
        "preemptor_source": "parsed" if preemptor else "none",
        "pool": pool,
        "gpus": gpus_json(milli),
        "cause": facts.get("cause") or "other",
    }


def _milli_just_before(held: Entry, decided: int) -> dict[str, int]:
    level: dict[str, int] = held["milli"]
    for moment, left in sorted(held.get("shrinks", {}).items(), key=lambda one: int(one[0])):
        if int(moment) < decided:
            level = left
    return level


def _fallback_milli(entry: Entry, source: SourceConfig) -> dict[str, int]:
    """The admission was never seen: what the pod templates ask for, in the pool the queue maps to."""
    try:
        pool = source.pool_for(entry.get("cluster_queue"), *entry["queues"])
    except Refusal:
        return {}
    milli = wanted(entry["requested"], pool, source)
    return {pool: milli} if milli else {}
