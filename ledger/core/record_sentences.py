"""The codes under which checks of the record tell what they found (ledger.checks), with their English."""

from __future__ import annotations

from ledger.core.sentences import Sentence, declare, sentence

__all__ = ["FINDINGS", "INVARIANTS", "MAPPINGS", "PROBLEMS", "Sentence", "sentence"]


def _(text: str) -> str:
    """Marks a text for the catalogue of translations; pages look it up there."""
    return text


INVARIANTS = declare(
    {
        "transfers_net_to_zero": _("transfers net to zero"),
        "transfers_are_what_was_posted": _("transfers are what was posted"),
        "no_event_is_lost": _("no event is lost"),
        "facts_are_append_only": _("facts are append-only"),
    }
)

PROBLEMS = declare(
    {
        "accounts_off_zero": _("accounts sum to %(net)s, not to 0"),
        "transfer_does_not_follow": _("transfer %(id)s does not follow from its key"),
        "received_not_accounted_for": _("batch %(batch)s: received is not what became of its events"),
        "booked_not_in_record": _("batch %(batch)s: booked %(booked)s, in the record %(present)s"),
        "trigger_missing": _("its trigger is missing or has been switched off"),
    }
)

# Why an identity was not mapped (ledger.services.masters).
MAPPINGS = declare(
    {"mapped_already": _("%(identity)s already maps to %(tenant)s in a part of that time; give valid_from")}
)

# How a finding is told as one line: the invariant, where, and the problem.
FINDINGS = declare(
    {
        "finding": _("%(invariant)s: %(problem)s"),
        "finding_somewhere": _("%(invariant)s: %(where)s: %(problem)s"),
    }
)
