"""Kueue's waiting Workloads -> `ledger.pending.v1`: since when, how much, and for which pool.

A queue does not say which flavor its work will run on. The pool is the one that `pools` names for the ClusterQueue,
LocalQueue or namespace; else the one of the flavors that ended the wait. Demand that still waits without a pool is
refused, so that a person maps its queue and tries it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ingest.core.adapters.base import Event, Refusal, Refused, SourceConfig, event, gpus_json, rfc3339
from ingest.core.adapters.kubernetes import Watched
from ingest.core.adapters.kueue_workload import Workload

Entry = dict[str, Any]


def note_pending(entry: Entry, w: Workload, source: SourceConfig) -> None:
    """Demand that waits to start. What waits after a preemption is that preemption's waiting time instead."""
    if not source.option("pending", True) or w.held_ms is not None or w.finished:
        return
    if not w.active:
        _note_switched_off(entry, w)
        return
    if w.eviction is not None and w.eviction.cause is not None:
        return
    since = w.waiting_since_ms if w.evictions or w.eviction is not None else w.created_ms
    if since is None or str(since) in entry["pending"]:
        return
    if w.requested_milli:
        entry["pending"][str(since)] = {"milli": w.requested_milli}
    elif w.unsized is not None:
        entry["pending"][str(since)] = {"milli": {}, "why": [w.unsized.reason, w.unsized.detail]}


def note_record(entry: Entry, watched: Watched, source: SourceConfig) -> None:
    """Keeps the record of demand that may have to be refused; beside demand whose pool is known, none."""
    for start, facts in entry["pending"].items():
        if not _has_pool(entry, start, facts, source):
            facts.setdefault("position", watched.position)
            facts.setdefault("raw", watched.raw.decode("utf-8", "replace"))
        else:
            facts.pop("raw", None)


def _note_switched_off(entry: Entry, w: Workload) -> None:
    """Deactivated work waits no more: from its eviction on, or from the write that shows it off."""
    for start in open_waits(entry):
        decided = w.eviction.decided_ms if w.eviction is not None else None
        off_ms = decided if decided is not None and decided > start else w.written_ms
        if off_ms is None:
            raise Refusal(
                "no_instant",
                "the Workload was deactivated while it waited, at a time this copy does not tell; "
                "list it with managedFields",
            )
        note_no_more(entry, max(off_ms, start))


def open_waits(entry: Entry) -> list[int]:
    """Starts of waits that have no end yet."""
    return [int(start) for start in entry["pending"] if _end(entry, start) is None]


def note_no_more(entry: Entry, end_ms: int) -> None:
    """Whatever waits, waits until `end_ms` at the latest."""
    for start in entry["pending"]:
        if _end(entry, start) is None:
            entry["pending"][start]["off"] = end_ms


def pending(entry: Entry, uid: str, source: SourceConfig) -> Iterator[Event]:
    """The waits whose pool is known, each with its end where it has one."""
    for start, facts in entry["pending"].items():
        end = _end(entry, start)
        pools = _pools(entry, start, facts, source)
        for pool, waits in pools.items():
            for moment, milli in ((int(start), waits), (end, 0)):
                if moment is None:
                    continue
                data = {"workload": uid, **entry["holder"], "pool": pool, "gpus": gpus_json(milli)}
                if milli:
                    data["priority_class"] = entry["priority_class"]
                event_id = f"{uid}/pending/{rfc3339(moment)}" + (f"/{pool}" if len(pools) > 1 else "")
                yield event(source, event_id, "pending", moment, data)


def refuse_unmapped(entry: Entry, source: SourceConfig) -> Iterator[Refused]:
    """Demand that no pool is known for by now, once; a retry after the map was mended tells it."""
    for start, facts in entry["pending"].items():
        if "raw" not in facts or facts.get("refused") or _has_pool(entry, start, facts, source):
            continue
        facts["refused"] = True
        reason, why = facts.get("why") or (
            "unmapped_pool",
            f"it waits for {_amounts(facts['milli'])}, but its queue {_queues(entry)[0]!r} maps to no pool: "
            "map the ClusterQueue, the LocalQueue or the namespace, or switch pending off for this source",
        )
        detail = f"{entry['name']} has not been admitted since {rfc3339(int(start))}; {why}"
        yield Refused(facts["position"], facts["raw"].encode(), reason, detail)


def _amounts(milli: dict[str, int]) -> str:
    words = {"gpu": "GPUs"}
    return " and ".join(f"{gpus_json(amount)} {words.get(meter, meter)}" for meter, amount in milli.items())


def wanted(milli: dict[str, int] | int, pool: str, source: SourceConfig) -> int:
    """The part of what was asked for that the pool meters. A bare number, from a memory of before, is of GPUs."""
    return milli if isinstance(milli, int) else milli.get(source.meter(pool), 0)


def _queues(entry: Entry) -> list[str]:
    known = entry.get("cluster_queue")
    return [*([known] if known else []), *(queue for queue in entry["queues"] if queue)]


def _pools(entry: Entry, start: str, facts: Entry, source: SourceConfig) -> dict[str, int]:
    """Pool -> milli-GPU that wait for it; found once, and then kept."""
    if "pool" not in facts and "pools" not in facts and facts["milli"]:
        try:
            facts["pool"] = source.pool_for(*_queues(entry))
        except Refusal:
            got = entry["held"].get(str(_end(entry, start)), {}).get("milli", {})
            if len(got) == 1:
                (facts["pool"],) = got
            elif got:
                facts["pools"] = dict(got)
    if "pool" not in facts:
        told: dict[str, int] = facts.get("pools", {})
        return told
    milli = wanted(facts["milli"], facts["pool"], source)
    return {facts["pool"]: milli} if milli else {}


def _has_pool(entry: Entry, start: str, facts: Entry, source: SourceConfig) -> bool:
    """Also of demand that asks for nothing its pool meters, which is no demand there."""
    _pools(entry, start, facts, source)
    return "pool" in facts or "pools" in facts


def _end(entry: Entry, start: str) -> int | None:
    moments = sorted([*map(int, entry["held"]), *entry["ends"]])
    ends = [m for m in moments if m >= int(start) and not _is_own_start(entry, start, m)][:1]
    if "off" in entry["pending"][start]:
        ends.append(entry["pending"][start]["off"])
    return min(ends, default=None)


def _is_own_start(entry: Entry, start: str, moment: int) -> bool:
    """The release that put it back into the queue is where this wait begins, not where it ends."""
    return moment == int(start) and moment in entry["ends"] and str(moment) not in entry["held"]
