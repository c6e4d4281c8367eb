"""Reads of what came in: sources, batches, quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Max, QuerySet, Sum
from django.db.models.functions import Coalesce

from ingest.models import Batch, BatchState, QuarantinedEvent
from ledger.models import Event


def batches() -> QuerySet[Batch]:
    """The newest first, without their bytes."""
    return Batch.objects.defer("body").order_by("-pk")


def booked_from(batch: Batch) -> QuerySet[Event]:
    """The events of a batch in order of its lines, without their content. Uses the booking's index."""
    events = Event.objects.filter(booking__batch=batch.pk).defer("body", "content_hash")
    return events.select_related("source").order_by("line", "pk")


@dataclass(frozen=True)
class Intake:
    """All batches in sum; by domain.md 11.9 received = booked + duplicate + conflict + quarantined."""

    batches: int
    waiting: int
    refused: int
    received: int
    booked: int
    duplicate: int
    conflict: int
    quarantined: int

    @property
    def loses_nothing(self) -> bool:
        return self.received == self.booked + self.duplicate + self.conflict + self.quarantined


def intake() -> Intake:
    """Two queries."""
    states = dict(Batch.objects.values_list("state").annotate(Count("pk")).order_by())
    names = ("received", "booked", "duplicate", "conflict", "quarantined")
    sums = Batch.objects.filter(state=BatchState.BOOKED).aggregate(
        **{f"n_{name}": Sum(name) for name in names}
    )
    return Intake(
        batches=sum(states.values()),
        waiting=states.get(BatchState.RECEIVED, 0),
        refused=states.get(BatchState.REFUSED, 0),
        **{name: sums[f"n_{name}"] or 0 for name in names},
    )


def open_quarantine() -> Sequence[Mapping[str, Any]]:
    """What waits for a person, by reason and source, the most first."""
    return list(
        QuarantinedEvent.objects.filter(resolved_at__isnull=True)
        .values("reason", "source_uri")
        .annotate(count=Count("pk"), newest=Max(Coalesce("occurred_at", "attributed_at")))
        .order_by("-count", "reason", "source_uri")
    )
