"""The texts in which Kueue 0.5 to 0.19 says who preempted whom (cluster.md 1.2 and 1.4). No field says it."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREVIOUSLY = "Previously: "
"""Prefix of a condition message whose eviction is over: its transition time is the re-admission, not the eviction."""

CAUSE_OF_CONDITION = {
    "InClusterQueue": "priority",
    "InCohortReclamation": "reclaim_own_reservation",
    "InCohortFairSharing": "fair_share",
    "InCohortReclaimWhileBorrowing": "priority",
}
"""`Preempted` condition reason -> cause. While borrowing, only lower priorities may be taken, so priority decides."""

_CAUSE_OF_TEXT = {
    "prioritization in the ClusterQueue": "priority",
    "reclamation within the cohort": "reclaim_own_reservation",
    "Fair Sharing within the cohort": "fair_share",
    "reclamation within the cohort while borrowing": "priority",
    "UNKNOWN": "other",
}

_CUT = "..."
_ANONYMOUS = re.compile(r"Preempted to accommodate a higher priority [Ww]orkload")
_PREEMPTED = re.compile(
    r"Preempted to accommodate a workload "
    r"\(UID: (?P<uid>[^,()]*)(?:, JobUID: (?P<job>[^,()]*))?\)"
    r"(?: due to (?P<why>[^;]*))?"
    r"(?:; preemptor path: (?P<preemptor>[^;]*))?"
    r"(?:; preemptee path: (?P<preemptee>[^;]*))?"
)
_PREEMPTED_WORKLOAD = re.compile(
    r"Preempted workload (?P<namespace>[^/\s]+)/(?P<name>\S+) \(UID: (?P<uid>[^()]*)\)"
    r"(?: in ClusterQueue (?P<queue>[^;]*))?"
)


@dataclass(frozen=True, slots=True)
class PreemptedNote:
    """What a victim's message says of its preemptor; `None` for what that version, or UNKNOWN, leaves out."""

    preemptor_uid: str | None
    preemptor_job_uid: str | None
    cause: str | None
    preemptor_queue: str | None
    """ClusterQueue of the preemptor, the last step of its path."""
    victim_queue: str | None = None


@dataclass(frozen=True, slots=True)
class ReverseNote:
    """What the preemptor's own event (0.17 and later) says of its victim."""

    namespace: str
    name: str
    uid: str | None


def read_preempted(text: str) -> PreemptedNote | None:
    """The note in a victim's message, whichever version wrote it, wherever it was cut; `None`: another text."""
    text = text.removeprefix(PREVIOUSLY)
    match = _PREEMPTED.match(text)
    if match is None:
        return PreemptedNote(None, None, "priority", None) if _ANONYMOUS.match(text) else None
    # A path that the limit of Events (1024 bytes) or conditions cut short would name another queue.
    whole = {
        name: None if text.endswith(_CUT) and match.end(name) == len(text) else match[name]
        for name in ("why", "preemptor", "preemptee")
    }
    why = (whole["why"] or "").strip().rstrip(".")
    return PreemptedNote(
        preemptor_uid=_known(match["uid"]),
        preemptor_job_uid=_known(match["job"]),
        cause=_CAUSE_OF_TEXT.get(why, "other" if why else None),
        preemptor_queue=_queue(whole["preemptor"]),
        victim_queue=_queue(whole["preemptee"]),
    )


def read_preempted_workload(text: str) -> ReverseNote | None:
    """The note in the reverse event on the preemptor; `None` if it is another text."""
    match = _PREEMPTED_WORKLOAD.match(text)
    return ReverseNote(match["namespace"], match["name"], _known(match["uid"])) if match else None


def _known(value: str | None) -> str | None:
    value = (value or "").strip()
    return None if value in ("", "UNKNOWN") else value


def _queue(path: str | None) -> str | None:
    known = _known(path)
    return known.rstrip("/").rpartition("/")[2] or None if known else None
