"""What belongs to an issued statement beside its lines, as the bytes it was issued with (domain.md section 10)."""

from __future__ import annotations

from django.db import models

from billing.models.statement import Statement


class AnnexName(models.TextChoices):
    """Preemptions come twice: with the names that the tenant sees, and as the ledger's own people see them. Slots and
    hits are what FOCUS files are made of: the lines' time slot by slot, and the preemptions with their measures."""

    USAGE = "usage"
    SLOTS = "slots"
    HITS = "hits"
    PREEMPTIONS = "preemptions"
    PREEMPTIONS_NAMED = "preemptions_named"


class StatementAnnex(models.Model):
    """One file of an issued statement. The statement's sealed content names `sha256` and `size_bytes`, both of the
    file as it is downloaded; it is kept compressed. A trigger refuses any change."""

    id = models.BigAutoField(primary_key=True)
    statement = models.ForeignKey(Statement, models.PROTECT, related_name="annexes")
    name = models.CharField(max_length=24, choices=AnnexName.choices)
    sha256 = models.CharField(max_length=64)
    size_bytes = models.BigIntegerField()
    compressed = models.BinaryField(help_text="zlib")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["statement", "name"], name="statement_annex_once")]
