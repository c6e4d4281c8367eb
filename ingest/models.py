"""The inbox: raw batches as they came, and what was refused (events.md, Doors)."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class BatchState(models.TextChoices):
    RECEIVED = "received"
    BOOKED = "booked"
    REFUSED = "refused"  # unreadable as a whole, such as broken gzip; the reason stands beside it


class AdapterMemory(models.Model):
    """What an adapter remembered of an imported file, as long as records of it that it refused wait for a person."""

    id = models.BigAutoField(primary_key=True)
    source_uri = models.TextField()
    kept_at = models.DateTimeField(auto_now_add=True)
    state = models.BinaryField(help_text="JSON, packed with zstd")

    class Meta:
        verbose_name_plural = "adapter memories"

    def __str__(self) -> str:
        return f"memory {self.pk} of {self.source_uri}"


class Batch(models.Model):
    """Raw bytes, committed before anyone is told so. Booked once, whoever takes it and however often."""

    id = models.BigAutoField(primary_key=True)
    received_at = models.DateTimeField(auto_now_add=True)
    door = models.CharField(max_length=40, help_text="api, import_events, collector, retry")
    submitted_by = models.CharField(max_length=150, blank=True)
    content_type = models.CharField(max_length=100)
    content_encoding = models.CharField(max_length=20, blank=True)
    adapter = models.CharField(max_length=40, default="cloudevents")
    origin = models.CharField(max_length=500, blank=True, help_text="file or source it was cut from")
    first_line = models.BigIntegerField(default=1, help_text="of the file that this batch begins with")
    allowed_sources = models.JSONField(
        null=True, help_text="ids of the sources its sender may speak for; null: any"
    )
    memory = models.ForeignKey(
        AdapterMemory, models.SET_NULL, null=True, help_text="for a retry of what its adapter refused"
    )
    idempotency_key = models.CharField(max_length=200)
    body_sha256 = models.CharField(max_length=64)
    body = models.BinaryField(null=True, help_text="null once past retention")
    body_bytes = models.BigIntegerField()
    state = models.CharField(max_length=10, choices=BatchState.choices, default=BatchState.RECEIVED)
    refusal = models.CharField(max_length=40, blank=True)
    taken_at = models.DateTimeField(null=True)
    attempts = models.SmallIntegerField(default=0)
    booked_at = models.DateTimeField(null=True)
    received = models.IntegerField(null=True)
    booked = models.IntegerField(null=True)
    duplicate = models.IntegerField(null=True)
    conflict = models.IntegerField(null=True)
    quarantined = models.IntegerField(null=True)

    class Meta:
        verbose_name_plural = "batches"
        constraints = [models.UniqueConstraint(fields=["submitted_by", "idempotency_key"], name="batch_once")]
        indexes = [
            models.Index(fields=["id"], condition=models.Q(state="received"), name="batch_waiting"),
        ]

    def __str__(self) -> str:
        return f"batch {self.pk}"


class QuarantinedEvent(models.Model):
    """A line that could not be booked, with the reason and its original bytes, until a person deals with it."""

    id = models.BigAutoField(primary_key=True)
    batch = models.ForeignKey(Batch, models.PROTECT, related_name="quarantine")
    line = models.IntegerField()
    event_id = models.TextField(blank=True)
    source_uri = models.TextField(blank=True)
    occurred_at = models.DateTimeField(null=True)
    attributed_at = models.DateTimeField(
        db_default=Now(),
        help_text="where no time could be read: the newest instant it speaks of, else when it first came",
    )
    reason = models.CharField(max_length=40)
    detail = models.TextField(blank=True)
    raw = models.BinaryField()
    adapter = models.CharField(
        max_length=40, blank=True, db_default="", help_text="that refused it: `raw` is then a native record"
    )
    resolved_at = models.DateTimeField(null=True)
    resolution = models.CharField(max_length=40, blank=True)
    resolved_by = models.CharField(max_length=150, blank=True)
    retried_in = models.ForeignKey(Batch, models.PROTECT, null=True, related_name="retries")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["batch", "line"], name="quarantine_once")]
        indexes = [
            models.Index(
                fields=["reason"], condition=models.Q(resolved_at__isnull=True), name="quarantine_open"
            ),
        ]
