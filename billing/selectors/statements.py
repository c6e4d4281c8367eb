"""Reads of statements and of preemption records."""

from __future__ import annotations

from django.db.models import Prefetch, QuerySet
from django.db.models.fields.json import KeyTransform

from billing.models import PreemptionRecord, PreemptionShare, Statement
from ledger.access import Access
from ledger.querysets import visible_to


def statements_for(access: Access) -> QuerySet[Statement]:
    """Statements the asker may see, newest month first, then by tenant."""
    rows = Statement.objects.select_related("tenant__holder", "period").defer("content")
    # Showback as the statement itself says it; the tenant may be billed by now.
    rows = rows.annotate(shown_only=KeyTransform("informational", "content"))
    return visible_to(rows, access).order_by("-period", "tenant__holder__slug")


def statement_of(month: str, slug: str, access: Access) -> Statement:
    """One tenant's month.

    Raises:
        Statement.DoesNotExist: there is none, or it is not the asker's to see; nobody can tell which.
    """
    return statements_for(access).get(period=month, tenant__holder__slug=slug)


def preemption_records(access: Access) -> QuerySet[PreemptionRecord]:
    """Preemption records the asker may see, newest decision first."""
    rows = PreemptionRecord.objects.select_related("pool", "resumed_pool", "victim", "preemptor__service")
    rows = rows.prefetch_related(Prefetch("shares", PreemptionShare.objects.select_related("account")))
    return visible_to(rows, access).order_by("-decided_at", "pk")
