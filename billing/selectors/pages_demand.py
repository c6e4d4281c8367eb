"""Reads of refusals one by one, as they were booked, for those who run the ledger."""

from __future__ import annotations

from django.db.models import QuerySet

from billing.services.allocation_facts import void_events
from ledger.core.periods import Span, to_datetime
from ledger.models import Rejection


def refusals_booked(window: Span) -> QuerySet[Rejection]:
    """Those of the window that no correction withdrew, newest first."""
    return (
        Rejection.objects.filter(
            occurred_at__gte=to_datetime(window.start_ms), occurred_at__lt=to_datetime(window.end_ms)
        )
        .exclude(event__in=void_events())
        .select_related("event", "identity", "model")
        .order_by("-occurred_at", "pk")
    )
