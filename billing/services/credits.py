"""Credits: money given back with a reason, by two people (domain.md section 10)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone

from billing.models import (
    Approval,
    ApprovalKind,
    Credit,
    CreditKind,
    Dispute,
    DisputeEvent,
    DisputeState,
    StatementLine,
)
from billing.selectors.adjustments import CREDIT_CATEGORIES
from billing.services.approvals import ApprovalError, request_approval
from ledger.core.periods import to_datetime, to_ms
from ledger.core.units import micro_text
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
        ApprovalError: `no_reason`, `bad_amount`, `too_much`: more than there is to give back.
    """
    if amount_micro <= 0:
        raise ApprovalError("bad_amount", "a credit is more than 0")
    _refuse_too_much(tenant, concerns.month, amount_micro, dispute)
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

    Raises:
        ApprovalError: `too_much`: since it was asked for, others were granted or the bill became smaller.
    """
    acquire(Lock.MASTERS)
    tenant = Tenant.objects.select_related("holder").get(holder__slug=payload["tenant"])
    dispute_id = payload["dispute"]
    dispute = None if dispute_id is None else Dispute.objects.get(pk=dispute_id)
    _refuse_too_much(tenant, payload["concerns"], int(payload["amount_micro"]), dispute)
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


def _refuse_too_much(tenant: Tenant, month: str, amount_micro: int, dispute: Dispute | None) -> None:
    """Giving back never makes a bill, or a line of it, something that the tenant is owed."""
    if dispute is None:
        most_micro, of_what = _most_goodwill_micro(tenant, month), f"what {tenant.slug} is billed for {month}"
    else:
        most_micro, of_what = _most_adjustment_micro(dispute), "the amount of the disputed line"
    if amount_micro > most_micro:
        most = micro_text(most_micro)
        raise ApprovalError(
            "too_much", f"{of_what}, less what was given back before, is {most}; no more can be given"
        )


def _most_adjustment_micro(dispute: Dispute) -> int:
    """The line's amount as it is billed now, whichever its sign, less earlier adjustments of the line; at least 0.

    A line that a draft no longer has, or that has no price, bills nothing.
    """
    lines = StatementLine.objects.filter(statement=dispute.statement_id, key=dispute.line_key)
    billed_micro = lines.values_list("amount_micro", flat=True).first() or 0
    same_line = Credit.objects.filter(
        dispute__statement=dispute.statement_id, dispute__line_key=dispute.line_key
    )
    return max(0, abs(billed_micro) - _sum_micro(same_line))


def _most_goodwill_micro(tenant: Tenant, month: str) -> int:
    """What the month's statement says without credits that a person granted, less all of those; at least 0.

    A draft shows a credit only once it is computed, so the credits are counted themselves.
    """
    lines = StatementLine.objects.filter(statement__tenant=tenant, statement__period=month)
    billed_micro = _sum_micro(lines.exclude(kind="credit", category__in=CREDIT_CATEGORIES.values()))
    return max(0, billed_micro - _sum_micro(Credit.objects.filter(tenant=tenant, concerns=month)))


def _sum_micro(rows: QuerySet[Any]) -> int:
    return rows.aggregate(sum=Sum("amount_micro"))["sum"] or 0


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
