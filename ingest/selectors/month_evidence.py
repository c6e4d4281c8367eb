"""What the closing checklist asks of the inbox (wired by the setting INBOX_EVIDENCE; domain.md section 10)."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Count, Q

from ingest.models import Batch, BatchState, QuarantinedEvent
from ledger.inbox import InboxEvidence

_SHOWN = 20


def month_evidence(starts_at: datetime, ends_at: datetime) -> InboxEvidence:
    """Two queries, on the partial indexes batch_waiting and quarantine_open.

    A batch is unread, so any that waits may hold events of the month. At most 20 of them are named.
    """
    waiting = Batch.objects.filter(state=BatchState.RECEIVED).order_by("id").values_list("id", flat=True)
    in_month = Q(occurred_at__gte=starts_at, occurred_at__lt=ends_at) | Q(occurred_at__isnull=True)
    refused = (
        QuarantinedEvent.objects.filter(in_month, resolved_at__isnull=True)
        .values_list("reason")
        .annotate(count=Count("pk"))
        .order_by("reason")
    )
    return InboxEvidence(tuple(waiting[:_SHOWN]), tuple((reason, count) for reason, count in refused))
