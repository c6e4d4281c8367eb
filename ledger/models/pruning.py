"""What was pruned: raw requests that are no longer in the database, and where their archive is (domain.md 10)."""

from __future__ import annotations

from django.db import models

from ledger.models.facts import Booking


class PrunedDay(models.Model):
    """A UTC day whose requests were archived and dropped. Append-only."""

    day = models.DateField(primary_key=True)
    rows = models.BigIntegerField()
    archive = models.TextField(help_text="name of the file in the archive directory")
    sha256 = models.CharField(max_length=64, help_text="of the file")
    pruned_at = models.DateTimeField(auto_now_add=True)


class PrunedRows(models.Model):
    """How many rows of a booking went with a day, so that no event is lost from the count. Append-only."""

    id = models.BigAutoField(primary_key=True)
    day = models.ForeignKey(PrunedDay, models.PROTECT, related_name="bookings")
    booking = models.ForeignKey(Booking, models.PROTECT, related_name="pruned")
    rows = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["day", "booking"], name="pruned_rows_once")]
