"""Who took an evicted pod's place? Volcano does not say; place, queue and time do (cluster.md 2.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

WINDOW_SECONDS = 300
"""How long after an eviction its beneficiary may be bound: the victim's grace period comes in between."""
EARLIER_MS = 5_000
"""Nominations are written before the eviction, by a clock of 1 s."""


@dataclass(frozen=True, slots=True)
class Guess:
    uid: str
    """A representative pod of the group that is taken to be the preemptor."""
    rule: str
    confidence: str
    """Decimal in (0, 1]: of the rule, divided by the number of groups that fit it equally."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    group: str
    moment: int
    uid: str


_RULES = (("nominated-node", 90), ("bound-node", 70))
"""Rule and its confidence in hundredths when exactly one group fits. A nomination is the scheduler's own word."""


def infer_preemptor(
    pods: Mapping[str, Mapping[str, Any]], victim_uid: str, evicted_ms: int, action: str, window_ms: int
) -> Guess | None:
    """The pod group on the victim's node that fits the action's queue rule soonest after the eviction.

    `preempt`: same queue and a higher priority; `reclaim`: another queue; `shuffle` moves work and has no preemptor.
    """
    if action not in ("preempt", "gangpreempt", "reclaim", "gangreclaim"):
        return None
    victim = pods[victim_uid]
    same_queue = action.endswith("preempt")
    for rule, hundredths in _RULES:
        found = sorted(
            _candidates(pods, victim, victim_uid, evicted_ms, window_ms, same_queue, rule),
            key=lambda c: (c.moment, c.uid),
        )
        if found:
            groups = len({candidate.group for candidate in found})
            suffix = "same-queue" if same_queue else "other-queue"
            return Guess(found[0].uid, f"{rule}-{suffix}", f"{hundredths // groups / 100:.2f}")
    return None


def _candidates(
    pods: Mapping[str, Mapping[str, Any]],
    victim: Mapping[str, Any],
    victim_uid: str,
    evicted_ms: int,
    window_ms: int,
    same_queue: bool,
    rule: str,
) -> Iterator[_Candidate]:
    for uid, pod in pods.items():
        if uid == victim_uid or "milli" not in pod or _same_group(pod, victim):
            continue
        if (pod["queue"] == victim["queue"]) is not same_queue:
            continue
        if same_queue and pod["priority"] <= victim["priority"]:
            continue
        moment = pod.get("bound", evicted_ms)
        in_time = evicted_ms - EARLIER_MS <= moment <= evicted_ms + window_ms
        there = pod.get("nominated") if rule == "nominated-node" else pod.get("node")
        if in_time and there and there == victim["node"] and (rule == "nominated-node" or "bound" in pod):
            yield _Candidate(group=pod["group"] or uid, moment=moment, uid=uid)


def _same_group(pod: Mapping[str, Any], victim: Mapping[str, Any]) -> bool:
    return bool(pod["group"]) and (pod["group"], pod["queue"]) == (victim["group"], victim["queue"])
