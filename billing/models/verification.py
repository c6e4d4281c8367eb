"""Runs of the invariants over the books, kept so that the last result can be read (domain.md section 11)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class VerificationState(models.TextChoices):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class VerificationRun(models.Model):
    """One run of every check. findings: the first of them, {"invariant", "where", "problem"}; found: how many.

    steps: [{"check", "state": waiting | running | done, "found"}] in order. A run without an end whose worker died is
    ended by the next one.
    """

    id = models.BigAutoField(primary_key=True)
    month = models.CharField(max_length=7, blank=True, help_text="empty: every month")
    state = models.CharField(
        max_length=8, choices=VerificationState.choices, default=VerificationState.RUNNING
    )
    steps = models.JSONField(default=list)
    findings = models.JSONField(default=list)
    found = models.IntegerField(default=0)
    message = models.TextField(blank=True)
    requested_by = models.CharField(max_length=150)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["state"],
                condition=Q(state=VerificationState.RUNNING),
                name="verification_run_one_at_a_time",
            )
        ]
