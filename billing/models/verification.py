"""Verifications of the books: when, by whom, and what deviated (domain.md section 11)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from billing.models.life import RunState
from ledger.core.sentences import Sentence, read


class VerificationRun(models.Model):
    """One run of all invariants, with its progress. A worker that dies leaves it `running`; any other goes on.

    steps: [{"name", "state": waiting | running | done | failed, "attempts", "deviations", "detail", "started_at",
    "ended_at"}].
    month: only what concerns it; empty: everything.
    """

    month = models.CharField(max_length=7, blank=True)
    state = models.CharField(max_length=8, choices=RunState.choices, default=RunState.RUNNING)
    steps = models.JSONField(default=list)
    deviations = models.IntegerField(default=0)
    failed = models.IntegerField(default=0, help_text="checks that could not be carried out")
    requested_by = models.CharField(max_length=150)
    request_id = models.CharField(max_length=128, blank=True)
    started_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["state"], condition=Q(state=RunState.RUNNING), name="verification_one_at_a_time"
            )
        ]


class Deviation(models.Model):
    """One deviation that a verification found. The first ones of each check are kept; the run counts all.

    invariant, code, values: as a check's `Finding` has them. problem: the finished sentence of rows that are older
    than the codes.
    """

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(VerificationRun, models.CASCADE, related_name="found")
    check_name = models.CharField(max_length=60)
    invariant = models.CharField(max_length=100)
    where = models.TextField()
    problem = models.TextField(blank=True)
    code = models.CharField(max_length=60, blank=True)
    values = models.JSONField(default=dict)

    @property
    def told(self) -> Sentence | str:
        return read({"code": self.code, "values": self.values}) if self.code else self.problem
