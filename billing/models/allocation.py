"""Whose GPU time it was, per slot: derived from facts, recomputed by the day, never edited (domain.md 4, 5).

Foreign keys of these rows are no constraints: the rows are copied in by the day from ids just read under the same
lock, masters are never deleted, and checking every row would take longer than computing it.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from ledger.models import Account, Holder, ModelName, Period, Pool, Purpose, ServiceClass, Tenant


class PoolSlot(models.Model):
    """One slot of one pool: what the pool had and where all of it went. The conservation law is a constraint."""

    pk = models.CompositePrimaryKey("pool", "starts_at")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    capacity_gpu_us = models.BigIntegerField()
    reserved_used_gpu_us = models.BigIntegerField()
    on_demand_gpu_us = models.BigIntegerField()
    borrowed_gpu_us = models.BigIntegerField()
    reserved_idle_gpu_us = models.BigIntegerField()
    undelivered_gpu_us = models.BigIntegerField()
    unreserved_idle_gpu_us = models.BigIntegerField()
    over_reserved_gpu_us = models.BigIntegerField()
    excess_gpu_us = models.BigIntegerField()
    oversold_gpu_us = models.BigIntegerField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="pool_slot_conserves_capacity",
                condition=Q(
                    capacity_gpu_us=F("reserved_used_gpu_us")
                    + F("on_demand_gpu_us")
                    + F("borrowed_gpu_us")
                    + F("reserved_idle_gpu_us")
                    + F("undelivered_gpu_us")
                    + F("unreserved_idle_gpu_us")
                    - F("over_reserved_gpu_us")
                ),
            ),
        ]
        # With the capacity, which the list of months adds up over all of them.
        indexes = [models.Index(fields=["starts_at"], include=["capacity_gpu_us"], name="pool_slot_capacity")]


class Allocation(models.Model):
    """One slot, one holder, one payer: the holder's categories, as charged to `account`.

    A tenant's own time: holder = the tenant, account = its account. A shared service's occupied time is divided:
    one row per tenant served, and rows with `service_idle` for the owner. `lent`, `reserved_idle`, `undelivered`
    and `oversold` of a service belong to its owner. `lent_waiting_gpu_us` is the part of lent up to the owner's own
    waiting work, which is credited in full. Rows of holder `unattributed` are on the suspense account.
    """

    pk = models.CompositePrimaryKey(
        "pool", "starts_at", "holder", "account", "service_class", "purpose", "service_idle"
    )
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    starts_at = models.DateTimeField()
    holder = models.ForeignKey(Holder, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    account = models.ForeignKey(
        Account, models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    service_class = models.SmallIntegerField(choices=ServiceClass.choices, default=ServiceClass.NONE)
    purpose = models.SmallIntegerField(choices=Purpose.choices, default=Purpose.NONE)
    service_idle = models.BooleanField(default=False)
    reserved_used_gpu_us = models.BigIntegerField(default=0)
    on_demand_gpu_us = models.BigIntegerField(default=0)
    borrowed_gpu_us = models.BigIntegerField(default=0)
    excess_gpu_us = models.BigIntegerField(default=0)
    lent_gpu_us = models.BigIntegerField(default=0)
    lent_waiting_gpu_us = models.BigIntegerField(default=0)
    reserved_idle_gpu_us = models.BigIntegerField(default=0)
    undelivered_gpu_us = models.BigIntegerField(default=0)
    undelivered_pending_gpu_us = models.BigIntegerField(
        default=0, help_text="part of undelivered: for work that had not started yet"
    )
    oversold_gpu_us = models.BigIntegerField(default=0)
    measured_gpu_us = models.BigIntegerField(
        default=0, help_text="what the requests served measured (services)"
    )

    class Meta:
        indexes = [
            models.Index(fields=["account", "starts_at"], name="allocation_of_account"),
            models.Index(fields=["starts_at"], name="allocation_when"),
        ]


class AllocationDay(models.Model):
    """Allocation added up per pool, payer and service class, per segment (a UTC day of the month, cut at price changes
    and where a day of the billing zone begins): what pages and forecasts add up, hundreds of tenants at a time.
    """

    pk = models.CompositePrimaryKey("pool", "starts_at", "account", "service_class")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    starts_at = models.DateTimeField()
    account = models.ForeignKey(
        Account, models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    service_class = models.SmallIntegerField(choices=ServiceClass.choices, default=ServiceClass.NONE)
    reserved_used_gpu_us = models.BigIntegerField(default=0)
    on_demand_gpu_us = models.BigIntegerField(default=0)
    borrowed_gpu_us = models.BigIntegerField(default=0)
    excess_gpu_us = models.BigIntegerField(default=0)
    lent_gpu_us = models.BigIntegerField(default=0)
    reserved_idle_gpu_us = models.BigIntegerField(default=0)
    undelivered_gpu_us = models.BigIntegerField(default=0)
    oversold_gpu_us = models.BigIntegerField(default=0)

    class Meta:
        indexes = [
            models.Index(fields=["account", "starts_at"], name="allocation_day_of_account"),
            models.Index(fields=["starts_at"], name="allocation_day_when"),
        ]


class TenantMonth(models.Model):
    """A tenant's days of a month, one after the other: what forecasts of hundreds of tenants go by, a row instead of
    one per day, pool and class.

    Days are those of the billing zone, each list from the first one with a figure to the last one with one; what lies
    between without any is 0. Amounts are in micro units at the rate card as it was when the month was computed, rounded
    once a day, and 0 where a price was missing. Held is GPU time of work, in GPU-microseconds, as far as there was any.
    A list is the bytes of its integers, eight each and the most significant first, as `int8send` writes them: an array
    of PostgreSQL takes ten times as long to hand out.
    """

    pk = models.CompositePrimaryKey("period", "tenant")
    period = models.ForeignKey(Period, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    amounts_from = models.DateField()
    amounts = models.BinaryField()
    held_from = models.DateField(null=True)
    held = models.BinaryField()


class LendingDay(models.Model):
    """Whose idle reservation ran whose burst: per pool and segment (a UTC day of the month, cut at price changes)."""

    pk = models.CompositePrimaryKey("pool", "starts_at", "lender", "borrower")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    starts_at = models.DateTimeField()
    lender = models.ForeignKey(Holder, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    borrower = models.ForeignKey(
        Holder, models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    gpu_us = models.BigIntegerField()

    class Meta:
        indexes = [models.Index(fields=["starts_at"], name="lending_when")]


class WorkloadDay(models.Model):
    """A workload's share of its holder's categories, per UTC day of the month: the drill-down below a line."""

    pk = models.CompositePrimaryKey("pool", "starts_at", "holder", "workload", "attempt")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    starts_at = models.DateTimeField()
    holder = models.ForeignKey(Holder, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    workload = models.TextField(db_collation="C")
    attempt = models.IntegerField(default=1)
    name = models.TextField(blank=True)
    user = models.TextField(blank=True)
    labels = models.JSONField(null=True)
    service_class = models.SmallIntegerField(choices=ServiceClass.choices, default=ServiceClass.NONE)
    purpose = models.SmallIntegerField(choices=Purpose.choices, default=Purpose.NONE)
    reserved_used_gpu_us = models.BigIntegerField(default=0)
    on_demand_gpu_us = models.BigIntegerField(default=0)
    borrowed_gpu_us = models.BigIntegerField(default=0)
    excess_gpu_us = models.BigIntegerField(default=0)

    class Meta:
        indexes = [models.Index(fields=["holder", "starts_at"], name="workload_day_of_holder")]


class TokenDay(models.Model):
    """Requests and tokens of a tenant per pool, model and segment (a UTC day of the month, cut at price changes).

    What bills add up, so that a month's bill reads days and not hours. `served`: by a shared service, so that a token
    contract counts them. Requests of nobody known are on no bill.
    """

    pk = models.CompositePrimaryKey("pool", "starts_at", "tenant", "model", "served")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    starts_at = models.DateTimeField()
    tenant = models.ForeignKey(Holder, models.PROTECT, related_name="+", db_index=False, db_constraint=False)
    model = models.ForeignKey(
        ModelName, models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    served = models.BooleanField()
    requests = models.BigIntegerField()
    input_tokens = models.BigIntegerField()
    cached_input_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()

    class Meta:
        indexes = [models.Index(fields=["starts_at"], name="token_day_when")]


class BillingFinding(models.Model):
    """An exception the computation raises for a pool and day or a month; replaced when that part is recomputed.

    seen_quantity: how much of it stood when a month was last closed; more than that has yet to be seen by a close.
    """

    id = models.BigAutoField(primary_key=True)
    code = models.CharField(max_length=40)
    month = models.CharField(max_length=7)
    pool = models.ForeignKey(Pool, models.CASCADE, null=True, related_name="+")
    starts_at = models.DateTimeField(null=True)
    subject = models.TextField(blank=True)
    quantity = models.BigIntegerField(null=True)
    seen_quantity = models.BigIntegerField(default=0, db_default=0)
    unit = models.CharField(max_length=16, blank=True)
    detail = models.JSONField(default=dict)
    blocks_close = models.BooleanField(default=True)

    class Meta:
        indexes = [models.Index(fields=["month", "code"], name="billing_finding_month")]
