"""What needs a second person: asked for, decided once, done at that moment (domain.md section 10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing.core.canonical_json import canonical_sha256
from billing.core.sentences import Sentence
from billing.models import Approval, ApprovalKind, Decision, Statement, StatementApproval, StatementState
from ledger.locks import Lock, acquire
from ledger.models import Period
from ledger.services.audit import Actor, record
from ledger.services.masters import ensure_books

Deed = Callable[[dict[str, Any], Approval | None, Actor, str], None]
"""(payload, approval or None where none is needed, who asked, reason) -> does it."""


class ApprovalError(ValueError):
    """It cannot be approved that way; `code` says why to programs. told: the same for people, where values matter."""

    def __init__(self, code: str, message: str, told: Sentence | None = None) -> None:
        super().__init__(message)
        self.code, self.told = code, told


def second_person_needed() -> bool:
    """The ledger's setting `approvals`, on by default."""
    return bool(ensure_books().options.get("approvals", True))


@transaction.atomic
def request_approval(
    kind: ApprovalKind, payload: dict[str, Any], reason: str, by: Actor, deed: Deed
) -> Approval | None:
    """Ask for a second person's word, or do it at once (and return None) where the ledger needs none.

    Asking again for the same while the first is undecided gives the first.

    Raises:
        ApprovalError: `no_reason`.
    """
    if not reason.strip():
        raise ApprovalError("no_reason", "a reason is needed; it stays on record")
    if not second_person_needed():
        deed(payload, None, by, reason)
        return None
    # Two that ask for the same at one moment take turns: the second one finds what the first has asked for.
    acquire(Lock.MASTERS)
    waiting = Approval.objects.filter(kind=kind, payload=payload, decision=Decision.PENDING).first()
    if waiting is not None:
        return waiting
    approval = Approval.objects.create(kind=kind, payload=payload, reason=reason, requested_by=by.name)
    record(by, "request_approval", "approval", approval.pk, after={"kind": kind, **payload}, reason=reason)
    return approval


@transaction.atomic
def decide_approval(approval_id: UUID, decision: Decision, by: Actor, note: str, deed: Deed) -> Approval:
    """Decide once. Approving does what was asked, in the same transaction.

    Raises:
        Approval.DoesNotExist
        ApprovalError: `decided` already; `same_person`: whoever asked cannot approve, but may withdraw.
    """
    approval = Approval.objects.select_for_update().get(pk=approval_id)
    if approval.decision != Decision.PENDING:
        raise ApprovalError("decided", f"it was {approval.decision} by {approval.decided_by}")
    if decision == Decision.APPROVED and by.name == approval.requested_by:
        raise ApprovalError("same_person", "a second person has to approve it")
    approval.decision, approval.decided_by, approval.note = decision, by.name, note
    approval.decided_at = timezone.now()
    approval.save(update_fields=["decision", "decided_by", "decided_at", "note"])
    record(
        by,
        "decide_approval",
        "approval",
        approval.pk,
        before={"decision": Decision.PENDING},
        after={"decision": decision},
        reason=note,
    )
    if decision == Decision.APPROVED:
        deed(approval.payload, approval, Actor(approval.requested_by, by.request_id), approval.reason)
    return approval


@transaction.atomic
def approve_statement(statement: Statement, sha256: str, by: Actor) -> StatementApproval:
    """Agree to a draft, named by its hash; a close refuses the draft once it says something else.

    Raises:
        ApprovalError: `issued` already; `changed`: the draft is not the one that was looked at.
    """
    current = (
        Statement.objects.select_for_update()
        .only("number", "state", "sha256", "content")
        .get(pk=statement.pk)
    )
    if current.state != StatementState.DRAFT:
        raise ApprovalError("issued", f"{statement.number} is issued already")
    if current.sha256 != sha256:
        raise ApprovalError("changed", f"the draft of {statement.number} has changed: look at it again")
    approval = StatementApproval.objects.create(
        statement=current, sha256=sha256, content=current.content, approved_by=by.name
    )
    record(by, "approve_statement", "statement", statement.number, after={"sha256": sha256})
    return approval


@transaction.atomic
def approve_drafts(period: Period, digest: str, by: Actor) -> int:
    """Agree to every draft of a month, named together by `digest`; how many they are.

    Raises:
        ApprovalError: `issued` already; `changed`: they are not the drafts that were looked at.
    """
    drafts = list(
        Statement.objects.select_for_update()
        .filter(period=period)
        .only("number", "state", "sha256")
        .order_by("number")
    )
    if any(draft.state != StatementState.DRAFT for draft in drafts):
        raise ApprovalError("issued", f"the statements of {period.month} are issued already")
    if not drafts or digest_of([(draft.number, draft.sha256) for draft in drafts]) != digest:
        raise ApprovalError("changed", f"drafts of {period.month} have changed: look at them again")
    StatementApproval.objects.bulk_create(
        StatementApproval(statement=draft, sha256=draft.sha256, approved_by=by.name) for draft in drafts
    )
    record(
        by, "approve_drafts", "period", period.month, after={draft.number: draft.sha256 for draft in drafts}
    )
    return len(drafts)


def digest_of(drafts: list[tuple[str, str]]) -> str:
    """One name for (number, hash) of all drafts: whoever approves them says with it what was looked at."""
    return canonical_sha256([list(draft) for draft in drafts])
