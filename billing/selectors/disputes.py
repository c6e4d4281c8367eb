"""Reads of disputes, for the tenant they are of, finance and auditors; nobody else's business."""

from __future__ import annotations

from django.db.models import OuterRef, Prefetch, QuerySet, Subquery
from django.utils.crypto import salted_hmac

from billing.models import (
    Approval,
    ApprovalKind,
    Decision,
    Dispute,
    DisputeEvent,
    DisputeState,
    Statement,
    StatementLine,
)
from ledger.access import Access
from ledger.models import Role
from ledger.querysets import visible_to


def disputes_for(access: Access) -> QuerySet[Dispute]:
    """Disputes the asker may see with their history, newest first, and where their lines stand by now."""
    rows = Dispute.objects.select_related("statement__tenant__holder", "statement__period")
    rows = rows.defer("statement__content")
    lines = StatementLine.objects.filter(statement=OuterRef("statement"), key=OuterRef("line_key"))
    place = {"line_position": Subquery(lines.values("position")[:1])}
    rows = rows.annotate(**place)
    rows = rows.prefetch_related(Prefetch("events", DisputeEvent.objects.order_by("pk")))
    if access.roles & {Role.FINANCE, Role.AUDITOR} or not access.sees_all_tenants:
        return visible_to(rows, access).order_by("-opened_at", "pk")
    return rows.none()


def name_of_line(line: StatementLine) -> str:
    """What names a line of a statement in a form, wherever it stands by the time that is sent: 64 hexadecimal digits.

    Its key cannot, since it says whom a transfer is with; nor can a plain hash of it, which a guess would confirm.
    """
    return salted_hmac("billing.line", f"{line.statement_id}|{line.key}", algorithm="sha256").hexdigest()


def credits_asked(statement: Statement) -> QuerySet[Approval]:
    """Credits for this tenant and month that were put before a second person, decided or not, oldest first."""
    wanted = {"payload__tenant": statement.tenant.slug, "payload__concerns": statement.period_id}
    return Approval.objects.filter(kind=ApprovalKind.CREDIT, **wanted).order_by("requested_at", "pk")


def credits_waiting(statement: Statement) -> QuerySet[Approval]:
    """Those of them that a second person has to decide."""
    return credits_asked(statement).filter(decision=Decision.PENDING)


def months_in_dispute() -> set[str]:
    """Months of which a statement has a dispute that is not settled (wired by the setting MONTHS_IN_DISPUTE)."""
    unsettled = Dispute.objects.exclude(state__in=[DisputeState.ADJUSTED, DisputeState.REJECTED])
    return set(unsettled.values_list("statement__period", flat=True))
