"""The books compared with what others counted, and how people explain what differs (domain.md section 9)."""

from __future__ import annotations

from django.db import models

from ledger.models import Period, Pool, Source


class CountedDay(models.Model):
    """A pool's segment (a UTC day of the month) whose tokens are added up by who counted them. Computing it takes the
    row away, since facts or mappings of it have changed; the next reconciliation adds it up again.
    """

    pk = models.CompositePrimaryKey("pool", "starts_at")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    starts_at = models.DateTimeField()


class CountedTokens(models.Model):
    """Tokens of a tenant, or of nobody known (`unattributed`), as a source counted them in such a segment.

    Only where gateways and engines both count: else there is nothing to compare.
    """

    pk = models.CompositePrimaryKey("pool", "starts_at", "source", "tenant")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    starts_at = models.DateTimeField()
    source = models.ForeignKey(Source, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    tenant = models.CharField(max_length=63)
    input_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()

    class Meta:
        indexes = [models.Index(fields=["starts_at"], name="counted_tokens_when")]


class ReconciliationLine(models.Model):
    """One comparison of a month, as it stood when the month was reconciled last. Derived; replaced as a whole.

    kind: `source_total`, `engine`, `tokens` or `quota`. `cause` is one that the ledger knows by itself; a difference
    without any waits for a person.
    """

    id = models.BigAutoField(primary_key=True)
    period = models.ForeignKey(Period, models.PROTECT, related_name="reconciliation")
    key = models.TextField(db_collation="C")
    kind = models.CharField(max_length=16)
    measure = models.CharField(max_length=40)
    unit = models.CharField(max_length=16)
    source = models.CharField(max_length=512, blank=True)
    pool = models.CharField(max_length=63, blank=True)
    tenant = models.CharField(max_length=63, blank=True)
    subject = models.TextField(blank=True)
    stated = models.DecimalField(max_digits=30, decimal_places=0)
    booked = models.DecimalField(max_digits=30, decimal_places=0)
    cause = models.CharField(max_length=40, blank=True)
    reconciled_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["period", "key"], name="reconciliation_line_once")]

    @property
    def difference(self) -> int:
        return int(self.stated - self.booked)


class DifferenceExplanation(models.Model):
    """Why a difference is as it is, said by a person for exactly this amount. Append-only; the newest counts."""

    id = models.BigAutoField(primary_key=True)
    period = models.ForeignKey(Period, models.PROTECT, related_name="explanations")
    key = models.TextField(db_collation="C")
    difference = models.DecimalField(max_digits=30, decimal_places=0)
    unit = models.CharField(max_length=16)
    reason = models.TextField()
    explained_by = models.CharField(max_length=150)
    recorded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["period", "key"], name="explanation_of_line")]
