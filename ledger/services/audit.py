"""Writes the audit trail: one entry beside each deed, in the deed's own transaction (domain.md section 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.models import AuditEntry

# Who acts where nobody said a name: the ledger's own set-up and demo.
SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a user's or token's name (`Access.name`), and the request it came with, if any."""

    name: str
    request_id: str = ""


def record(
    actor: Actor,
    action: str,
    object_type: str,
    object_id: object,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    reason: str = "",
) -> AuditEntry:
    """Add an entry. It stands or falls with the surrounding transaction, as the deed does."""
    return AuditEntry.objects.create(
        actor=actor.name,
        action=action,
        object_type=object_type,
        object_id=str(object_id),
        before=before,
        after=after,
        reason=reason,
        request_id=actor.request_id,
    )
