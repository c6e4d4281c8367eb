"""Why an engine or gateway turned a request away or threw it out, told by its reason and not by its status.

The same 503 is a full queue in vLLM and SGLang, an expired wait in llm-d and a dead upstream in Envoy; the
same 429 is a tenant's own limit in LiteLLM, a full pool in llm-d, and a request that was already running.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """Refused before any GPU work: a `ledger.rejection.v1`."""

    layer: str
    reason: str
    origin: str


@dataclass(frozen=True, slots=True)
class ThrownOut:
    """Admitted, then displaced: a `ledger.preemption.v1` of the request."""

    cause: str
    reason: str
    queued_only: bool
    """It was still waiting: a deferral, no GPU time."""


@dataclass(frozen=True, slots=True)
class WalkedAway:
    """The client was gone before anything ran: neither refused nor preempted."""

    reason: str


Verdict = TurnedAway | ThrownOut | WalkedAway

_TEXTS: tuple[tuple[str, Verdict], ...] = (
    ("the request queue is full", TurnedAway("capacity", "queue_full", "engine")),
    ("max_num_queued_reqs", TurnedAway("capacity", "max_num_queued_reqs", "engine")),
    ("max_num_queued_tokens", TurnedAway("capacity", "max_num_queued_tokens", "engine")),
    ("aborted by a higher priority request", ThrownOut("priority", "displaced_in_queue", queued_only=True)),
    (
        "retracted under decode memory pressure",
        ThrownOut("kv_cache_pressure", "retracted", queued_only=False),
    ),
    ("sheddable request dropped", TurnedAway("admission", "sheddable_dropped", "gateway")),
    ("request evicted by flow control", ThrownOut("priority", "evicted", queued_only=False)),
)

LLM_D_REASONS: dict[str, Verdict] = {
    "rejected-saturated": TurnedAway("capacity", "rejected-saturated", "gateway"),
    "rejected-ttl-expired": TurnedAway("capacity", "rejected-ttl-expired", "gateway"),
    "rejected-context-cancelled": WalkedAway("rejected-context-cancelled"),
    "evicted": ThrownOut("priority", "evicted", queued_only=False),
    "evicted-priority": ThrownOut("priority", "evicted-priority", queued_only=False),
    "evicted-queue-pressure": ThrownOut("priority", "evicted-queue-pressure", queued_only=False),
}
"""Header `x-llm-d-request-dropped-reason`. Its victims are always those of the lowest priority."""


def verdict_of_text(message: str | None) -> Verdict | None:
    """What an error body or finish message means; `None` if it is none of the known refusals."""
    lowered = (message or "").lower()
    return next((verdict for text, verdict in _TEXTS if text in lowered), None)
