"""The bill: month lines and statements (domain.md sections 8, 10)."""

from __future__ import annotations

from django.db import models

from ledger.models import Account, Period, Tenant


class StatementState(models.TextChoices):
    DRAFT = "draft"
    ISSUED = "issued"


class MonthLine(models.Model):
    """The target of a month: one account, pool, service, class, purpose, category (or model and token kind) and
    version of rate, policy and calibration, with its exact quantity and its amount. Rebuilt with the month.

    `key` is the canonical line key; `amount_micro` is null where a price is missing (which blocks the close).
    `kind`: usage, tokens, transfer, credit, adjustment, shared (as in bill.csv).
    """

    id = models.BigAutoField(primary_key=True)
    period = models.ForeignKey(Period, models.PROTECT, related_name="lines")
    account = models.ForeignKey(Account, models.PROTECT, related_name="lines")
    key = models.TextField(db_collation="C")
    kind = models.CharField(max_length=12)
    pool = models.CharField(max_length=63, blank=True)
    cluster = models.CharField(max_length=63, blank=True)
    gpu_model = models.CharField(max_length=63, blank=True)
    service = models.CharField(max_length=63, blank=True)
    model = models.CharField(max_length=200, blank=True)
    service_class = models.CharField(max_length=16, blank=True)
    purpose = models.CharField(max_length=16, blank=True)
    category = models.CharField(max_length=24)
    service_idle = models.BooleanField(default=False)
    version_from = models.DateTimeField(help_text="start of the stretch of one version of all terms")
    quantity = models.DecimalField(max_digits=30, decimal_places=0, help_text="in `unit`, exact")
    unit = models.CharField(max_length=12)  # gpu_us | tokens | amount_micro
    unit_price_micro = models.BigIntegerField(null=True)
    amount_micro = models.BigIntegerField(null=True)
    full_amount_micro = models.BigIntegerField(null=True, help_text="before a ramp")
    counter_account = models.ForeignKey(Account, models.PROTECT, related_name="+", null=True)
    concerns = models.ForeignKey(Period, models.PROTECT, related_name="+", null=True)
    description = models.TextField(blank=True)
    preemptions = models.JSONField(default=list, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["period", "account", "key"], name="month_line_once")]
        indexes = [models.Index(fields=["account", "period"], name="month_line_of_account")]


class Statement(models.Model):
    """The frozen bill of one tenant and month once issued; a draft is replaced as facts arrive."""

    id = models.UUIDField(primary_key=True)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="statements")
    period = models.ForeignKey(Period, models.PROTECT, related_name="statements")
    number = models.CharField(max_length=64)
    state = models.CharField(max_length=6, choices=StatementState.choices, default=StatementState.DRAFT)
    currency = models.CharField(max_length=3)
    total_micro = models.BigIntegerField()
    total_minor = models.BigIntegerField(help_text="as printed, in the currency's minor unit")
    totals = models.JSONField(
        default=dict, help_text="GPU time by category, re-queued, waiting, tokens; decimal strings"
    )
    content = models.JSONField(help_text="the canonical content the hash is of")
    sha256 = models.CharField(max_length=64)
    previous_of_tenant = models.CharField(max_length=64, blank=True)
    previous_of_ledger = models.CharField(max_length=64, blank=True)
    computed_at = models.DateTimeField()
    issued_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "period"], name="statement_once")]
        indexes = [models.Index(fields=["period", "tenant"], name="statement_of_period")]


class StatementLine(models.Model):
    """A printed line: what MonthLine says, plus how its amount was rounded to add up to the printed total."""

    id = models.BigAutoField(primary_key=True)
    statement = models.ForeignKey(Statement, models.CASCADE, related_name="lines")
    position = models.IntegerField()
    key = models.TextField(db_collation="C")
    kind = models.CharField(max_length=12)
    pool = models.CharField(max_length=63, blank=True)
    cluster = models.CharField(max_length=63, blank=True)
    gpu_model = models.CharField(max_length=63, blank=True)
    service = models.CharField(max_length=63, blank=True)
    model = models.CharField(max_length=200, blank=True)
    service_class = models.CharField(max_length=16, blank=True)
    purpose = models.CharField(max_length=16, blank=True)
    category = models.CharField(max_length=24)
    service_idle = models.BooleanField(default=False)
    version_from = models.DateTimeField()
    description = models.TextField(blank=True)
    quantity = models.DecimalField(max_digits=30, decimal_places=0)
    unit = models.CharField(max_length=12)
    unit_price_micro = models.BigIntegerField(null=True)
    amount_micro = models.BigIntegerField(null=True)
    full_amount_micro = models.BigIntegerField(null=True)
    amount_minor = models.BigIntegerField(null=True, help_text="as printed")
    rounding_micro = models.BigIntegerField(default=0, help_text="printed minus exact")
    concerns_month = models.CharField(max_length=7, blank=True)
    preemptions = models.JSONField(default=list, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["statement", "position"], name="statement_line_once")]
