"""What was posted: accounts, transfers, periods (domain.md section 10)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from ledger.models.choices import AccountKind, PeriodState, Unit
from ledger.models.masters import Pool, Tenant


class Account(models.Model):
    """Belongs to a tenant, a pool, the platform, conversion or suspense; one of each."""

    kind = models.SmallIntegerField(choices=AccountKind.choices)
    tenant = models.OneToOneField(Tenant, models.PROTECT, null=True, blank=True, related_name="account")
    pool = models.OneToOneField(Pool, models.PROTECT, null=True, blank=True, related_name="account")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "tenant", "pool"], nulls_distinct=False, name="account_once"
            ),
            models.CheckConstraint(
                condition=Q(kind=AccountKind.TENANT, tenant__isnull=False, pool__isnull=True)
                | Q(kind=AccountKind.POOL, tenant__isnull=True, pool__isnull=False)
                | (
                    ~Q(kind__in=[AccountKind.TENANT, AccountKind.POOL])
                    & Q(tenant__isnull=True, pool__isnull=True)
                ),
                name="account_owner_fits_kind",
            ),
        ]

    def __str__(self) -> str:
        if self.tenant_id:
            return f"tenant:{self.tenant}"
        return f"pool:{self.pool}" if self.pool_id else self.get_kind_display()


class Period(models.Model):
    """A billing month. Strictly in order of months: open -> review -> closed."""

    month = models.CharField(max_length=7, primary_key=True)
    starts_at = models.DateTimeField(unique=True)
    ends_at = models.DateTimeField()
    state = models.SmallIntegerField(choices=PeriodState.choices, default=PeriodState.OPEN)
    horizon_at = models.DateTimeField(null=True, help_text="computed up to here")
    cut_sequence = models.BigIntegerField(null=True, help_text="the last booking a close includes")
    computed_at = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)
    closed_with = models.JSONField(
        null=True,
        help_text="mode, currency, showback and owners of services at the close: what has no date of its own",
    )

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="period_runs_forward"),
            models.CheckConstraint(
                condition=~Q(state=PeriodState.CLOSED)
                | Q(cut_sequence__isnull=False, closed_at__isnull=False),
                name="period_closed_has_cut",
            ),
        ]

    def __str__(self) -> str:
        return self.month


class Transfer(models.Model):
    """One positive quantity of one unit from one account to another. Never changed, never deleted.

    `id` is UUIDv5 of (target key, unit, posted before, posted after, earlier postings of the key), so posting the
    same thing twice is refused by the primary key.
    """

    id = models.UUIDField(primary_key=True)
    unit = models.SmallIntegerField(choices=Unit.choices)
    debit = models.ForeignKey(Account, models.PROTECT, related_name="transfers_out")
    credit = models.ForeignKey(Account, models.PROTECT, related_name="transfers_in")
    quantity = models.BigIntegerField()
    reason = models.CharField(max_length=40)
    target_key = models.TextField(db_collation="C")
    posted_in = models.ForeignKey(Period, models.PROTECT, related_name="transfers")
    concerns = models.ForeignKey(Period, models.PROTECT, related_name="+")
    recorded_at = models.DateTimeField(auto_now_add=True)
    memo = models.JSONField(null=True, help_text="links: preemption record, dispute, reason of a credit")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(quantity__gt=0), name="transfer_positive"),
            models.CheckConstraint(condition=~Q(debit=F("credit")), name="transfer_between_two"),
        ]
        indexes = [models.Index(fields=["target_key", "unit"], name="transfer_target")]
