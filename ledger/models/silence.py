"""What a person said about a source that stopped reporting (events.md; domain.md section 10)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from ledger.models.facts import Source


class SilenceWaiver(models.Model):
    """Somebody answers for a source as if it had been heard of up to `until_at`. Append-only; the one said last counts.

    It moves no level and no watermark: the books are what the facts say, with or without it.
    """

    source = models.ForeignKey(Source, models.PROTECT, related_name="silence_waivers")
    until_at = models.DateTimeField()
    reason = models.TextField()
    recorded_by = models.CharField(max_length=150)
    recorded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=~Q(reason=""), name="silence_waiver_has_reason"),
        ]
        indexes = [models.Index(fields=["source", "-id"], name="silence_waiver_latest")]

    def __str__(self) -> str:
        return f"{self.source} until {self.until_at}"
