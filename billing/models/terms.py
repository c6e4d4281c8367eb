"""What it costs and who bears it: dated, versioned terms (domain.md sections 5, 7, 8).

One version is in force at an instant: the latest `valid_from` at or before it, or none once that one has ended. Every
version counts from `recorded_at` on for `as of` questions, and its end from `ended_recorded_at` on.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from ledger.models import ModelName, Pool, Service, ServiceClass, Tenant


class Version(models.Model):
    """Common to all dated terms."""

    valid_from = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_recorded_at = models.DateTimeField(null=True, blank=True, help_text="when the end became known")
    recorded_at = models.DateTimeField(auto_now_add=True)
    recorded_by = models.CharField(max_length=150, blank=True)
    reason = models.TextField(blank=True)

    class Meta:
        abstract = True


class RateCard(Version):
    """A price list; its prices hold from `valid_from` until the next card does."""

    name = models.CharField(max_length=100)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["valid_from"], name="rate_card_one_at_an_instant")]

    def __str__(self) -> str:
        return self.name


class GpuPrice(models.Model):
    """Micro currency units per GPU-hour of a category, for a pool, else for a GPU model; by class where given."""

    rate_card = models.ForeignKey(RateCard, models.CASCADE, related_name="gpu_prices")
    pool = models.ForeignKey(Pool, models.PROTECT, null=True, blank=True, related_name="+")
    gpu_model = models.CharField(max_length=63, blank=True)
    category = models.CharField(max_length=20)
    service_class = models.SmallIntegerField(choices=ServiceClass.choices, default=ServiceClass.NONE)
    price_micro = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["rate_card", "pool", "gpu_model", "category", "service_class"],
                nulls_distinct=False,
                name="gpu_price_once",
            ),
            models.CheckConstraint(
                condition=Q(pool__isnull=False, gpu_model="") | (Q(pool__isnull=True) & ~Q(gpu_model="")),
                name="gpu_price_for_pool_or_model",
            ),
            models.CheckConstraint(condition=Q(price_micro__gte=0), name="gpu_price_not_negative"),
        ]


class TokenPrice(models.Model):
    """Micro currency units per million tokens of a kind (input, cached_input, output, reasoning) of a model."""

    rate_card = models.ForeignKey(RateCard, models.CASCADE, related_name="token_prices")
    model = models.ForeignKey(ModelName, models.PROTECT, related_name="+")
    kind = models.CharField(max_length=20)
    price_micro = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["rate_card", "model", "kind"], name="token_price_once")
        ]


class PoolCost(Version):
    """What a GPU-hour of the pool's capacity costs the platform; in cost_recovery it is what gets distributed."""

    pool = models.ForeignKey(Pool, models.PROTECT, related_name="costs")
    cost_micro_per_gpu_hour = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["pool", "valid_from"], name="pool_cost_once")]


class Policy(Version):
    """Who bears what. `lend_credit`: 'borrower_paid' or a decimal share of the reserved rate."""

    preemption_charged_to = models.CharField(max_length=12, default="entitlement")
    unreserved_idle = models.CharField(max_length=12, default="platform")
    lend_credit = models.CharField(max_length=20, default="borrower_paid")
    min_confidence_ppm = models.IntegerField(default=1_000_000)
    undelivered_counts_pending = models.BooleanField(default=False)
    names_visible = models.BooleanField(default=False)
    purpose_payers = models.JSONField(default=dict, blank=True)
    options = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name_plural = "policies"
        constraints = [
            models.UniqueConstraint(fields=["valid_from"], name="policy_one_at_an_instant"),
            models.CheckConstraint(
                condition=Q(preemption_charged_to__in=["entitlement", "victim", "preemptor", "platform"]),
                name="policy_preemption_payer",
            ),
            models.CheckConstraint(
                condition=Q(unreserved_idle__in=["platform", "proportional", "even"]),
                name="policy_idle_payer",
            ),
        ]


class ServicePolicy(Version):
    """How a shared service's time is divided (section 5)."""

    service = models.ForeignKey(Service, models.PROTECT, related_name="policies")
    key = models.CharField(max_length=12)
    basis = models.CharField(max_length=8, default="spread")
    shares = models.JSONField(
        default=dict, blank=True, help_text="tenant slug -> integer share, for key 'shares'"
    )

    class Meta:
        verbose_name_plural = "service policies"
        constraints = [
            models.UniqueConstraint(fields=["service", "valid_from"], name="service_policy_once"),
            models.CheckConstraint(
                condition=Q(key__in=["gpu_seconds", "tokens", "concurrency", "shares"]),
                name="service_policy_key",
            ),
            models.CheckConstraint(
                condition=Q(basis__in=["spread", "measured"]), name="service_policy_basis"
            ),
        ]


class Contract(Version):
    """What a tenant has agreed to; changes only at a month's start (section 7)."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="contracts")
    kind = models.CharField(max_length=8, default="gpu_time")
    token_quota = models.BigIntegerField(null=True, blank=True)
    committed_tokens = models.BigIntegerField(null=True, blank=True)
    overage_price_micro = models.BigIntegerField(null=True, blank=True)
    reserved_throughput = models.JSONField(default=list, blank=True)
    delay_credit_micro_per_gpu_hour = models.BigIntegerField(default=0)
    on_preemption = models.CharField(max_length=8, blank=True)
    max_delay_s = models.IntegerField(null=True, blank=True)
    reserved_idle_ramp = models.JSONField(
        default=list, blank=True, help_text="percent by month, such as 0, 25, 50"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "valid_from"], name="contract_once"),
            models.CheckConstraint(condition=Q(kind__in=["gpu_time", "tokens"]), name="contract_kind"),
        ]


class Calibration(Version):
    """GPU time per 1000 tokens of a model on a GPU model, from load tests (section 7)."""

    model = models.ForeignKey(ModelName, models.PROTECT, related_name="calibrations")
    gpu_model = models.CharField(max_length=63)
    load_test = models.CharField(max_length=200, blank=True)
    input_gpu_us_per_1k = models.BigIntegerField()
    cached_input_gpu_us_per_1k = models.BigIntegerField()
    output_gpu_us_per_1k = models.BigIntegerField()
    concurrency_per_gpu_milli = models.BigIntegerField(null=True, blank=True)
    tolerance_ppm = models.IntegerField(default=100_000)
    load_tests = models.JSONField(default=list, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["model", "gpu_model", "valid_from"], name="calibration_once")
        ]
