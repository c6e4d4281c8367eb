"""The declarative file's masters: the ledger, tenants, pools, services, identities, sources."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import QuerySet

from billing.core import configuration as core
from billing.core.configuration import Configuration, ConfigurationError
from billing.core.sentences import sentence
from billing.models import (
    ServicePolicy,
)
from billing.services.configuration_rows import (
    Application,
    add_version,
    holder_of_kind,
    pool_named,
    tenant_named,
    update_row,
)
from ledger.models import (
    DirtySpan,
    HolderKind,
    Identity,
    Period,
    PeriodState,
    Pool,
    Service,
    Source,
    Tenant,
)
from ledger.services import masters


def apply_ledger(application: Application, wanted: Configuration) -> None:
    ledger = masters.ensure_books()
    table = wanted.ledger
    if table is None:
        return
    if table.billing_time_zone != ledger.billing_time_zone and Period.objects.exists():
        zones = {"now": ledger.billing_time_zone, "wanted": table.billing_time_zone}
        raise ConfigurationError("ledger.billing_time_zone", sentence("zone_stays", **zones))
    options = {**ledger.options, **table.options, "showback": table.showback, "approvals": table.approvals}
    said_before, mode = len(application.diff), ledger.mode
    update_row(
        application,
        sentence("the_ledger"),
        ledger,
        currency=table.currency,
        billing_time_zone=table.billing_time_zone,
        mode=table.mode,
        options=options,
    )
    if table.mode != mode:
        _compute_again()
    if len(application.diff) > said_before:
        _draft_again()


def apply_tenants(application: Application, wanted: Configuration) -> None:
    said_before = len(application.diff)
    for table in wanted.tenant:
        holder = holder_of_kind(table.slug, HolderKind.TENANT, "tenant")
        tenant = Tenant.objects.filter(holder=holder).first()
        values = {
            "name": table.name or table.slug,
            "display_alias": table.display_alias,
            "cost_center": table.cost_center,
            "gl_code": table.gl_code,
            "contacts": list(table.contacts),
            "tags": dict(table.tags),
            "showback": table.showback,
        }
        if tenant is None:
            tenant = Tenant.objects.create(holder=holder, **values)
            application.say("added", sentence("tenant_named", name=table.slug))
        else:
            update_row(application, sentence("tenant_named", name=table.slug), tenant, **values)
        masters.ensure_tenant_books(tenant)
    for index, table in enumerate(wanted.tenant):
        parent = tenant_named(table.parent, f"tenant[{index}].parent") if table.parent else None
        update_row(
            application,
            sentence("tenant_named", name=table.slug),
            tenant_named(table.slug, ""),
            parent=parent,
        )
    if len(application.diff) > said_before:
        _draft_again()


def _compute_again() -> None:
    """What has no date but enters figures counts in every month that is not closed, and there for all of it."""
    for period in _computed_months():
        masters.mark_pools_dirty(None, period.starts_at, period.ends_at)


def _draft_again() -> None:
    """What a bill says beside its figures follows in every month that is not closed, as facts do: by dirty time, here
    of no pool, so that nothing is split or rated again."""
    for period in _computed_months():
        hour = (period.starts_at, period.starts_at + timedelta(hours=1))
        DirtySpan.objects.create(pool=None, span=hour)


def _computed_months() -> QuerySet[Period]:
    """Those that are not closed and have figures; the others are computed whole when their time comes."""
    return Period.objects.exclude(state=PeriodState.CLOSED).filter(horizon_at__isnull=False)


def apply_identities(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.tenant):
        tenant = tenant_named(table.slug, f"tenant[{index}].slug")
        for place, identity in enumerate(table.identities):
            try:
                changed = masters.map_identity(
                    identity.kind,
                    identity.value,
                    tenant,
                    valid_from=identity.valid_from,
                    valid_to=identity.valid_to,
                    by=application.by,
                )
            except masters.MappingConflict as error:
                raise ConfigurationError(f"tenant[{index}].identities[{place}]", error.told) from None
            if changed:
                named = {"kind": identity.kind, "value": identity.value, "name": table.slug}
                application.say("added", sentence("identity_of", **named))


def apply_pools(application: Application, wanted: Configuration) -> None:
    for table in wanted.pool:
        values = {
            "cluster": table.cluster,
            "gpu_model": table.gpu_model,
            "name": table.name,
            "region": table.region,
            "meter": table.meter,
        }
        pool = Pool.objects.filter(slug=table.slug).first()
        if pool is None:
            pool = Pool.objects.create(slug=table.slug, **values)
            named = {"name": table.slug, "gpu": table.gpu_model, "cluster": table.cluster}
            application.say("added", sentence("pool_of_cluster", **named))
        else:
            stood = (pool.cluster, pool.gpu_model)
            update_row(application, sentence("pool_named", name=table.slug), pool, **values)
            if stood != (table.cluster, table.gpu_model):
                _compute_again()
        masters.ensure_pool_books(pool)


def apply_services(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.service):
        path = f"service[{index}]"
        holder = holder_of_kind(table.slug, HolderKind.SERVICE, path)
        values = {
            "name": table.name,
            "pool": pool_named(table.pool, f"{path}.pool") if table.pool else None,
            "owner": None if table.owner == "platform" else tenant_named(table.owner, f"{path}.owner"),
        }
        service = Service.objects.filter(holder=holder).first()
        if service is None:
            service = Service.objects.create(holder=holder, **values)
            Identity.objects.get_or_create(kind="service", value=table.slug)
            application.say("added", sentence("service_named", name=table.slug))
        else:
            stood = (service.pool_id, service.owner_id)
            update_row(application, sentence("service_named", name=table.slug), service, **values)
            if stood != (service.pool_id, service.owner_id):
                _compute_again()
        for slug in table.shares:
            tenant_named(slug, f"{path}.shares.{slug}")
        add_version(
            application,
            ServicePolicy,
            {"service": service},
            table.valid_from,
            {"key": table.key, "basis": table.service_basis, "shares": dict(table.shares)},
            sentence("policy_of_service", name=table.slug),
            path,
        )


def apply_sources(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.source):
        path = f"source[{index}]"
        for native, slug in table.pools.items():
            pool_named(slug, f"{path}.pools.{native}")
        if table.pool:
            pool_named(table.pool, f"{path}.pool")
        values = {
            "name": table.name,
            "adapter": table.adapter,
            "silence_after_s": core.duration_s(table.silence_after, f"{path}.silence_after"),
            "config": {
                "cluster": table.cluster,
                "pool": table.pool,
                "pools": dict(table.pools),
                "time_zone": table.time_zone,
                "options": table.options,
            },
        }
        source = Source.objects.filter(uri=table.uri).first()
        if source is None:
            Source.objects.create(uri=table.uri, **values)
            application.say("added", sentence("source_named", name=table.name))
        else:
            update_row(application, sentence("source_named", name=table.name), source, **values)
