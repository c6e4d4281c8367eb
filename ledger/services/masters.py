"""Writers of the masters: holders, accounts, identities and their mappings (domain.md section 3)."""

from __future__ import annotations

from datetime import datetime

from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from ledger.core.record_sentences import sentence
from ledger.core.sentences import Told
from ledger.locks import Lock, acquire
from ledger.models import (
    Account,
    AccountKind,
    Holder,
    HolderKind,
    Identity,
    IdentityMapping,
    Ledger,
    Pool,
    Tenant,
)
from ledger.services.audit import SYSTEM, Actor, record

UNATTRIBUTED = "unattributed"


class MappingConflict(Told):
    """The identity belongs to another tenant in a part of the asked-for time."""


def ensure_books() -> Ledger:
    """The ledger row, the `unattributed` holder and the platform's accounts; creates what is missing."""
    ledger, _ = Ledger.objects.get_or_create(id=1)
    Holder.objects.get_or_create(slug=UNATTRIBUTED, defaults={"kind": HolderKind.UNATTRIBUTED})
    for kind in (AccountKind.PLATFORM, AccountKind.CONVERSION, AccountKind.SUSPENSE):
        Account.objects.get_or_create(kind=kind, tenant=None, pool=None)
    return ledger


def ensure_tenant_books(tenant: Tenant) -> None:
    """A tenant's account, and the identity that facts naming it by slug resolve through."""
    Account.objects.get_or_create(kind=AccountKind.TENANT, tenant=tenant, defaults={"pool": None})
    Identity.objects.get_or_create(kind="tenant", value=tenant.holder.slug)


def ensure_pool_books(pool: Pool) -> None:
    Account.objects.get_or_create(kind=AccountKind.POOL, pool=pool, defaults={"tenant": None})


@transaction.atomic
def map_identity(
    kind: str,
    value: str,
    tenant: Tenant,
    *,
    valid_from: datetime | None = None,
    valid_to: datetime | None = None,
    by: str | Actor = "",
    reason: str = "",
) -> bool:
    """Say that an identity is `tenant`'s during [valid_from, valid_to); open bounds are for ever.

    Time that is already the tenant's stays; an open mapping to another tenant that began earlier is ended at
    `valid_from`. Marks every pool the identity has facts in as dirty, so that the books follow. Returns
    whether anything changed.

    Raises:
        MappingConflict: the time overlaps another tenant's mapping that cannot simply be ended.
    """
    acquire(Lock.MASTERS)
    actor = by if isinstance(by, Actor) else Actor(by or SYSTEM)
    identity, _ = Identity.objects.get_or_create(kind=kind, value=value)
    wanted = DateTimeTZRange(valid_from, valid_to, "[)")
    overlapping = list(identity.mappings.filter(validity__overlap=wanted).order_by("validity"))
    before = {"mappings": [f"{mapping.tenant} {mapping.validity}" for mapping in overlapping]}
    for mapping in overlapping:
        if mapping.tenant_id == tenant.pk and _covers(mapping.validity, wanted):
            return False
        _make_room(mapping, tenant, wanted)
    IdentityMapping.objects.create(
        identity=identity, tenant=tenant, validity=wanted, recorded_by=actor.name[:150]
    )
    mark_identity_dirty(identity, wanted)
    after = {"tenant": tenant.slug, "validity": str(wanted)}
    record(actor, "map_identity", "identity", _bounded(identity), before=before, after=after, reason=reason)
    return True


def _bounded(identity: Identity) -> str:
    """Its name as the audit trail can hold it; values may be longer."""
    return str(identity)[:200]


def _covers(outer: DateTimeTZRange, inner: DateTimeTZRange) -> bool:
    starts = outer.lower is None or (inner.lower is not None and outer.lower <= inner.lower)
    ends = outer.upper is None or (inner.upper is not None and outer.upper >= inner.upper)
    return starts and ends


def _make_room(mapping: IdentityMapping, tenant: Tenant, wanted: DateTimeTZRange) -> None:
    """End an earlier open mapping where the new one begins, swallow the tenant's own, refuse anything else."""
    if mapping.tenant_id == tenant.pk and _covers(wanted, mapping.validity):
        mapping.delete()
        return
    begins_earlier = wanted.lower is not None and (
        mapping.validity.lower is None or mapping.validity.lower < wanted.lower
    )
    if not (begins_earlier and mapping.validity.upper is None):
        raise MappingConflict(
            sentence("mapped_already", identity=str(mapping.identity), tenant=str(mapping.tenant))
        )
    mapping.validity = DateTimeTZRange(mapping.validity.lower, wanted.lower, "[)")
    mapping.save(update_fields=["validity"])


# Pools where the identity holds levels (index level identity_id), was hit or hit others, or had requests; and those of
# services that were hit, if it has serving quotas.
_POOLS_OF_IDENTITY = """
INSERT INTO ledger_dirtyspan (pool_id, span)
SELECT pool_id, tstzrange(%(lower)s, %(upper)s, '[)') FROM (
    SELECT DISTINCT pool_id FROM ledger_level WHERE identity_id = %(identity)s
    UNION SELECT DISTINCT pool_id FROM ledger_usagehour WHERE identity_id = %(identity)s
    UNION SELECT DISTINCT pool_id FROM ledger_preemptionreport
          WHERE victim_identity_id = %(identity)s OR preemptor_identity_id = %(identity)s
    UNION SELECT DISTINCT report.pool_id FROM ledger_preemptionreport report
          JOIN ledger_identity victim ON victim.id = report.victim_identity_id AND victim.kind = 'service'
          WHERE EXISTS (SELECT 1 FROM ledger_quotalevel
                        WHERE identity_id = %(identity)s AND layer = 'serving')
) touched
"""


def mark_identity_dirty(identity: Identity, during: DateTimeTZRange) -> None:
    """Have every pool that knows `identity` computed again for that time."""
    with connection.cursor() as cursor:
        cursor.execute(
            _POOLS_OF_IDENTITY, {"identity": identity.pk, "lower": during.lower, "upper": during.upper}
        )


_MARK_POOLS = """
INSERT INTO ledger_dirtyspan (pool_id, span)
SELECT id, tstzrange(%(lower)s, %(upper)s, '[)') FROM ledger_pool WHERE %(all)s OR id = ANY(%(pools)s)
"""


def mark_pools_dirty(
    pool_ids: list[int] | None, starts_at: datetime | None, ends_at: datetime | None = None
) -> None:
    """Have these pools (None: all) computed again from `starts_at` on, until `ends_at` or the horizon."""
    with connection.cursor() as cursor:
        cursor.execute(
            _MARK_POOLS,
            {"lower": starts_at, "upper": ends_at, "all": pool_ids is None, "pools": pool_ids or []},
        )
