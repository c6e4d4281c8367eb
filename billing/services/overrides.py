"""Overriding what blocks a close, item by item, for what was seen (domain.md section 10)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from billing.core.checklist import Item, blocked
from billing.models import Approval, ApprovalKind, ChecklistWaiver
from billing.selectors.checklist import month_checklist
from billing.services.approvals import request_approval
from billing.services.periods import PeriodError
from ledger.models import Period
from ledger.services.audit import Actor, record


def request_override(
    period: Period, reason: str, by: Actor, *, now: datetime | None = None
) -> Approval | None:
    """Ask to close over everything that blocks the month now; None: nothing blocks, or no second person is needed.

    Raises:
        PeriodError: `cannot_be_waived`: something blocks that no reason can override.
        ApprovalError: `no_reason`.
    """
    items = blocked(month_checklist(period, now))
    hard = [item for item in items if not item.can_be_waived]
    if hard:
        raise PeriodError("cannot_be_waived", str(hard[0].told()))
    if not items:
        return None
    payload = {"month": period.month, "items": [_seen(item) for item in items]}
    return request_approval(ApprovalKind.OVERRIDE, payload, reason, by, waive_items)


def _seen(item: Item) -> dict[str, Any]:
    evidence = [one.kept() for one in item.evidence]
    return {"item": item.code, "evidence": evidence, "evidence_sha256": item.evidence_sha256}


@transaction.atomic
def waive_items(payload: dict[str, Any], approval: Approval | None, by: Actor, reason: str) -> None:
    """The deed of an override: from now on these items, as they were seen, do not block."""
    ChecklistWaiver.objects.bulk_create(
        (
            ChecklistWaiver(
                period_id=payload["month"],
                reason=reason,
                requested_by=by.name,
                approval=approval,
                **item,
            )
            for item in payload["items"]
        ),
        ignore_conflicts=True,
    )
    items = {item["item"]: item["evidence"] for item in payload["items"]}
    record(by, "override_checklist", "period", payload["month"], after=items, reason=reason)
