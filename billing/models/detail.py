"""What a closed statement's lines were made of, kept once later facts would say something else."""

from __future__ import annotations

from django.db import models

from billing.models.statement import Statement


class StatementDetail(models.Model):
    """Slots and preemptions of a statement that was issued without `slots` and `hits` among its files.

    Written just before its closed month is computed again for late facts; until then the slots themselves say it.
    `content`: zstd of text lines (billing.selectors.detail).
    """

    statement = models.OneToOneField(Statement, models.PROTECT, primary_key=True, related_name="detail")
    content = models.BinaryField()
    sha256 = models.CharField(max_length=64)
    recorded_at = models.DateTimeField(auto_now_add=True)
