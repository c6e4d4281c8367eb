"""What sources themselves add up to: control totals that the books are compared with, never booked (domain.md 9)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from ledger.models.facts import Source


class SourceTotal(models.Model):
    """One sum of one source over [starts_at, ends_at), or over a subject's life up to `ends_at`. Append-only.

    measure: `occupied`, `occupied_by_account`, `capacity` (gpu_us), `preemptions` (count) or `held_time` (s). A source
    that says another sum for the same subject and span later adds a row; the newest counts.
    """

    id = models.BigAutoField(primary_key=True)
    source = models.ForeignKey(Source, models.PROTECT, related_name="totals")
    measure = models.CharField(max_length=40)
    unit = models.CharField(max_length=16)
    subject = models.TextField(db_collation="C")
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField()
    quantity = models.BigIntegerField()
    detail = models.TextField(blank=True)
    recorded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(starts_at__isnull=True) | Q(ends_at__gt=F("starts_at")),
                name="source_total_runs_forward",
            ),
        ]
        indexes = [
            models.Index(fields=["ends_at"], name="source_total_when"),
            models.Index(fields=["source", "measure", "ends_at"], name="source_total_of_source"),
        ]

    def __str__(self) -> str:
        return f"{self.measure} of {self.subject}: {self.quantity} {self.unit}"
