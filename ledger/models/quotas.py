"""Quotas as they stand: what a gateway asks before it admits (domain.md section 9). Derived, never a fact."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from ledger.models.masters import Pool, Service, Tenant


class QuotaStanding(models.Model):
    """The newest limit and use per tenant, layer, resource and scope, in thousandths of the resource's unit.

    Layers `cluster` and `serving` are the newest quota facts; `contract` is a token contract's month, used up by the
    hourly usage booked in [starts_at, ends_at). Moves with the booking; computing puts it right again after
    corrections and new mappings. Answering a gateway reads one tenant's rows by the key, and nothing else.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+", db_index=False)
    layer = models.CharField(max_length=8)
    resource = models.CharField(max_length=24)
    pool = models.ForeignKey(Pool, models.PROTECT, null=True, related_name="+", db_index=False)
    service = models.ForeignKey(Service, models.PROTECT, null=True, related_name="+", db_index=False)
    limit_milli = models.BigIntegerField()
    used_milli = models.BigIntegerField()
    as_of = models.DateTimeField()
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "layer", "resource", "pool", "service"],
                nulls_distinct=False,
                name="quota_standing_key",
            ),
            models.CheckConstraint(
                condition=Q(layer__in=["cluster", "serving", "contract"]), name="quota_standing_layer"
            ),
        ]
