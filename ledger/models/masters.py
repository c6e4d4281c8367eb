"""Who and what exists: the ledger itself, holders, tenants, services, pools, identities (domain.md section 3)."""

from __future__ import annotations

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import Q

from ledger.models.choices import HolderKind


class Ledger(models.Model):
    """The one set of books of this deployment: currency, billing zone, mode and settings. A single row, id 1."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    currency = models.CharField(max_length=3, default="USD")
    billing_time_zone = models.CharField(max_length=64, default="UTC")
    mode = models.CharField(max_length=16, default="rate_card")  # rate_card | cost_recovery
    options = models.JSONField(default=dict, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="ledger_is_one"),
            models.CheckConstraint(condition=Q(mode__in=["rate_card", "cost_recovery"]), name="ledger_mode"),
        ]

    def __str__(self) -> str:
        return f"ledger in {self.currency}"


class Holder(models.Model):
    """Whoever can hold GPUs: a tenant, a shared service, or `unattributed`. One slug space for all of them.

    Slugs are collated "C" so that ORDER BY slug is the byte order that section 4 splits in.
    """

    kind = models.SmallIntegerField(choices=HolderKind.choices)
    slug = models.CharField(max_length=63, unique=True, db_collation="C")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=~Q(slug="") & ~Q(slug="platform"), name="holder_slug_not_reserved"
            ),
        ]

    def __str__(self) -> str:
        return self.slug


class Tenant(models.Model):
    """Who is charged."""

    holder = models.OneToOneField(Holder, models.PROTECT, primary_key=True, related_name="tenant")
    name = models.CharField(max_length=200)
    display_alias = models.CharField(max_length=200, blank=True, help_text="how other tenants see this one")
    parent = models.ForeignKey("self", models.PROTECT, null=True, blank=True, related_name="children")
    cost_center = models.CharField(max_length=64, blank=True)
    gl_code = models.CharField(max_length=64, blank=True)
    contacts = models.JSONField(default=list, blank=True)
    tags = models.JSONField(default=dict, blank=True)
    showback = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.holder.slug

    @property
    def slug(self) -> str:
        return self.holder.slug


class Pool(models.Model):
    """GPUs of one model in one cluster that are scheduled together."""

    slug = models.CharField(max_length=63, unique=True, db_collation="C")
    cluster = models.CharField(max_length=63)
    gpu_model = models.CharField(max_length=63)
    meter = models.CharField(max_length=16, default="gpu")
    name = models.CharField(max_length=200, blank=True)
    region = models.CharField(max_length=63, blank=True)

    def __str__(self) -> str:
        return self.slug


class Service(models.Model):
    """One inference deployment that serves many tenants. `owner` empty = the platform owns it."""

    holder = models.OneToOneField(Holder, models.PROTECT, primary_key=True, related_name="service")
    name = models.CharField(max_length=200, blank=True)
    pool = models.ForeignKey(Pool, models.PROTECT, null=True, blank=True, related_name="services")
    owner = models.ForeignKey(Tenant, models.PROTECT, null=True, blank=True, related_name="owned_services")

    def __str__(self) -> str:
        return self.holder.slug

    @property
    def slug(self) -> str:
        return self.holder.slug


class Identity(models.Model):
    """What a fact calls its holder: (kind, value), interned.

    Kinds `tenant` and `service` are reserved for slugs and resolve to themselves; every other kind resolves through
    `IdentityMapping` at the instant of the fact, and to `unattributed` where nothing maps it.
    """

    kind = models.CharField(max_length=80)
    value = models.CharField(max_length=512)
    first_seen_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "value"], name="identity_key")]

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}"


class IdentityMapping(models.Model):
    """An identity belongs to a tenant during [lower, upper) of `validity`; an open bound is for ever."""

    identity = models.ForeignKey(Identity, models.PROTECT, related_name="mappings")
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="identity_mappings")
    validity = DateTimeRangeField()
    recorded_at = models.DateTimeField(auto_now_add=True)
    recorded_by = models.CharField(max_length=150, blank=True)

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="identity_maps_to_one_tenant_at_a_time",
                expressions=[("identity", RangeOperators.EQUAL), ("validity", RangeOperators.OVERLAPS)],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.identity} -> {self.tenant}"


class ModelName(models.Model):
    """An inference model's name as requests state it, interned."""

    name = models.CharField(max_length=200, unique=True)

    def __str__(self) -> str:
        return self.name
