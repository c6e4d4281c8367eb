"""What each kind of approval does once a second person has agreed, and what becomes of it if not."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from billing.models import Approval, ApprovalKind, Decision, Dispute
from billing.services.approvals import Deed, decide_approval
from billing.services.credits import grant_credit
from billing.services.disputes import reopen_dispute
from billing.services.grants import give_finance
from billing.services.overrides import waive_items
from billing.services.proposals import put_in_force
from ledger.services.audit import Actor

DEEDS: dict[str, Deed] = {
    ApprovalKind.OVERRIDE: waive_items,
    ApprovalKind.CREDIT: grant_credit,
    ApprovalKind.TERMS: put_in_force,
    ApprovalKind.ACCESS: give_finance,
}


@transaction.atomic
def decide(approval_id: UUID, decision: Decision, by: Actor, note: str = "") -> Approval:
    """Decide an approval of any kind; see `decide_approval` for what it raises."""
    kind = Approval.objects.values_list("kind", flat=True).get(pk=approval_id)
    approval = decide_approval(approval_id, decision, by, note, DEEDS[kind])
    dispute_id = approval.payload.get("dispute")
    if decision == Decision.REJECTED and dispute_id:
        reopen_dispute(Dispute.objects.get(pk=dispute_id), note, by)
    return approval
