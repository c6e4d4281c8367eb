"""Credits: money given back with a reason, by two people (domain.md section 10)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing.models import Approval, ApprovalKind, Credit, CreditKind, Dispute, DisputeEvent, DisputeState
from billing.services.approvals import ApprovalError, request_approval
from ledger.core.periods import to_datetime, to_ms
from ledger.locks import Lock, acquire
from ledger.models import Period, Tenant
from ledger.services.audit import Actor, record


def request_credit(
    tenant: Tenant,
    concerns: Period,
    amount_micro: int,
    reason: str,
    by: Actor,
    *,
    dispute: Dispute | None = None,
) -> Approval | None:
    """Ask to give `amount_micro` back; None: granted at once, because the ledger needs no second person.

    Raises:
        ApprovalError: `no_reason`, `bad_amount`.
    """
    if amount_micro <= 0:
        raise ApprovalError("bad_amount", "a credit is more than 0")
    payload = {
        "tenant": tenant.slug,
        "concerns": concerns.month,
        "amount_micro": str(amount_micro),
        "dispute": None if dispute is None else str(dispute.pk),
    }
    return request_approval(ApprovalKind.CREDIT, payload, reason, by, grant_credit)


@transaction.atomic
def grant_credit(payload: dict[str, Any], approval: Approval | None, by: Actor, reason: str) -> None:
    """The deed: a credit, which the month it concerns shows and posts when it is computed next.

    A closed month's credit is posted, like any adjustment, in the earliest month that is not closed. Settles the
    dispute it answers.
    """
    acquire(Lock.MASTERS)
    tenant = Tenant.objects.select_related("holder").get(holder__slug=payload["tenant"])
    dispute_id = payload["dispute"]
    credit = Credit.objects.create(
        kind=CreditKind.GOODWILL if dispute_id is None else CreditKind.DISPUTE,
        tenant=tenant,
        concerns_id=payload["concerns"],
        amount_micro=int(payload["amount_micro"]),
        reason=reason,
        requested_by=by.name,
        granted_at=to_datetime(_free_ms(tenant, payload["concerns"])),
        approval=approval,
        dispute_id=dispute_id,
    )
    record(by, "grant_credit", "credit", credit.pk, after=payload, reason=reason)
    if dispute_id is not None:
        _settle(UUID(dispute_id), credit, by)


def _free_ms(tenant: Tenant, month: str) -> int:
    """Now, or the first millisecond after the tenant's last credit of the month: the instant names the line."""
    now_ms = to_ms(timezone.now())
    last = Credit.objects.filter(tenant=tenant, concerns=month).order_by("-granted_at").first()
    return now_ms if last is None else max(now_ms, to_ms(last.granted_at) + 1)


def _settle(dispute_id: UUID, credit: Credit, by: Actor) -> None:
    dispute = Dispute.objects.select_for_update().get(pk=dispute_id)
    before = dispute.state
    dispute.state = DisputeState.ADJUSTED
    dispute.save(update_fields=["state"])
    DisputeEvent.objects.create(
        dispute=dispute,
        kind=DisputeState.ADJUSTED,
        text=credit.reason,
        amount_micro=credit.amount_micro,
        by=by.name,
    )
    record(by, "adjust_dispute", "dispute", dispute_id, before={"state": before}, after={"state": "adjusted"})
