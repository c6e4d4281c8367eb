"""What the closing checklist asks of the inbox (wired by the setting INBOX_EVIDENCE; domain.md section 10)."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Count, Q
from django.db.models.functions import Coalesce

from ingest.models import Batch, BatchState, QuarantinedEvent
from ledger.inbox import InboxEvidence

_SHOWN = 20


def month_evidence(starts_at: datetime, ends_at: datetime) -> InboxEvidence:
    """Two queries, on the partial indexes batch_waiting and quarantine_open.

    A batch is unread, so any that waits may hold events of the month. At most 20 of them are named. A refused line
    counts in the month of its time, and where none can be read in that of `attributed_at`.
    """
    waiting = Batch.objects.filter(state=BatchState.RECEIVED).order_by("id").values_list("id", flat=True)
    in_month = Q(counts_at__gte=starts_at, counts_at__lt=ends_at)
    # What came later without a time may speak of this month, and what is of a closed one is adjusted in the next.
    may_concern = Q(counts_at__lt=starts_at) | Q(counts_at__gte=ends_at, occurred_at__isnull=True)
    refused = list(
        QuarantinedEvent.objects.filter(resolved_at__isnull=True)
        .alias(counts_at=Coalesce("occurred_at", "attributed_at"))
        .values_list("reason")
        .annotate(here=Count("pk", filter=in_month), elsewhere=Count("pk", filter=may_concern))
        .order_by("reason")
    )
    return InboxEvidence(
        unprocessed=tuple(waiting[:_SHOWN]),
        quarantined=tuple((reason, here) for reason, here, _ in refused if here),
        elsewhere=tuple((reason, count) for reason, _, count in refused if count),
    )
