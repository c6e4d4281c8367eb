"""What tenants mean to spend: budgets per month, or for every month (domain.md section 9)."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q

from ledger.models import Tenant

DEFAULT_THRESHOLDS = [50, 80, 100]


def default_thresholds() -> list[int]:
    return list(DEFAULT_THRESHOLDS)


class Budget(models.Model):
    """A tenant's limit in money or in GPU time held, for one month or, with an empty month, for every month that has
    none of its own. thresholds: percentages at which somebody wants to know."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="budgets")
    month = models.CharField(max_length=7, blank=True, default="")
    amount_micro = models.BigIntegerField(null=True, blank=True)
    gpu_us = models.BigIntegerField(null=True, blank=True)
    thresholds = models.JSONField(default=default_thresholds)
    recorded_at = models.DateTimeField(auto_now=True)
    recorded_by = models.CharField(max_length=150, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "month"], condition=Q(gpu_us__isnull=True), name="budget_amount_once"
            ),
            models.UniqueConstraint(
                fields=["tenant", "month"],
                condition=Q(amount_micro__isnull=True),
                name="budget_gpu_time_once",
            ),
            models.CheckConstraint(
                condition=Q(amount_micro__gt=0, gpu_us__isnull=True)
                | Q(amount_micro__isnull=True, gpu_us__gt=0),
                name="budget_is_money_or_gpu_time",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.month or 'every month'}"

    @property
    def kind(self) -> str:
        return "amount" if self.gpu_us is None else "gpu_hours"

    @property
    def limit(self) -> int:
        """Micro currency units, or GPU-microseconds."""
        return (self.amount_micro if self.gpu_us is None else self.gpu_us) or 0
