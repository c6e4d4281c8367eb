"""Who did what to masters, periods, identities, approvals and disputes. Append-only; a trigger refuses changes."""

from __future__ import annotations

from django.db import models


class AuditEntry(models.Model):
    """One deed: who, when, what, to which object, and what the object said before and after.

    `action` is verb_object like the service that did it (`close_month`); `object_type` and `object_id` name the
    object in the field's words (`period`, `2026-10`). `before` is null for what did not exist.
    """

    id = models.BigAutoField(primary_key=True)
    recorded_at = models.DateTimeField(auto_now_add=True)
    actor = models.CharField(max_length=150)
    action = models.CharField(max_length=60)
    object_type = models.CharField(max_length=40)
    object_id = models.CharField(max_length=200)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.TextField(blank=True)
    request_id = models.CharField(max_length=128, blank=True)

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["object_type", "object_id", "id"], name="audit_of_object"),
            models.Index(fields=["recorded_at"], name="audit_when"),
        ]

    def __str__(self) -> str:
        return f"{self.actor}: {self.action} {self.object_type} {self.object_id}"
