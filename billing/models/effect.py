"""Previews of changed terms, and policies compared: what was asked for, and what came out (domain.md section 8)."""

from __future__ import annotations

from django.db import models

from billing.models.life import Approval, RunState
from ledger.models import Period


class EffectRun(models.Model):
    """A month as it stands beside the same month under other terms. A worker that dies leaves it `running`; any other
    begins it again, up to `ATTEMPTS` times.

    asked: a version as a row of the declarative file ({"table", "row"}), or the end of one ({"table", "ends",
    "ended_at"}), as an approval's payload has them; or two policies ({"policies": {"base", "other" or "change"}}).
    typed: the form it came from. step: what is at work. attempts: how often a worker began to compute it.
    rows: [account, now, then, of it moved by preemptions now, then], in micro currency units.
    problem: the code of why it cannot be compared; detail: the reason as a sentence (`Sentence.kept`).
    """

    STEPS = ("now", "then")

    period = models.ForeignKey(Period, models.CASCADE, related_name="+")
    asked = models.JSONField()
    typed = models.JSONField(default=dict)
    approval = models.ForeignKey(Approval, models.CASCADE, related_name="+", null=True)
    state = models.CharField(max_length=8, choices=RunState.choices, default=RunState.RUNNING)
    step = models.CharField(max_length=8, blank=True)
    attempts = models.PositiveSmallIntegerField(default=0)
    rows = models.JSONField(default=list)
    problem = models.CharField(max_length=40, blank=True)
    detail = models.JSONField(default=str)
    requested_by = models.CharField(max_length=150)
    started_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["approval", "period"], name="effect_of_approval")]
