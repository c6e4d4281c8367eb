"""Applies the declarative file to masters and terms: idempotent, dated, with a diff (interfaces.md, events.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import models, transaction
from django.utils import timezone

from billing.core import configuration as core
from billing.core.alerts import KINDS
from billing.core.configuration import Configuration, ConfigurationError, decimal_micro
from billing.models import (
    AlertRule,
    Calibration,
    Contract,
    GpuPrice,
    Policy,
    PoolCost,
    RateCard,
    ServicePolicy,
    TokenPrice,
)
from billing.services.budgets import BudgetError, set_budget
from billing.services.quota_standings import refresh_quota_standings
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.locks import Lock, acquire
from ledger.models import (
    DirtySpan,
    Holder,
    HolderKind,
    Identity,
    ModelName,
    Period,
    PeriodState,
    Pool,
    Service,
    ServiceClass,
    Source,
    Tenant,
)
from ledger.services import masters
from ledger.services.audit import SYSTEM, Actor, record


class _Undo(Exception):
    """Rolls a dry run back."""


@dataclass
class Application:
    """One application of a file: what it changes, in words, and what must be computed again."""

    by: str
    retroactive: bool
    now: datetime
    reason: str = ""
    keeps_started: bool = False
    diff: list[str] = field(default_factory=list)

    def say(self, sign: str, what: str) -> None:
        self.diff.append(f"{sign} {what}")


def apply_document(document: dict[str, Any], **options: Any) -> list[str]:
    """`apply_configuration` for an already decoded TOML document."""
    return apply_configuration(core.from_document(document), **options)


def apply_configuration(
    wanted: Configuration, *, by: str = "", retroactive: bool = False, dry_run: bool = False
) -> list[str]:
    """Make masters and terms what the file says; returns the diff as lines ('+', '~' and what), empty if none.

    Nothing is deleted: what the file does not name stays. A version that has started is not edited, and a version
    that reaches into the past of existing ones is refused, unless `retroactive`.

    Raises:
        ConfigurationError: an unknown tenant, pool or owner, or a change that needs `retroactive`.
    """
    application = Application(by=by, retroactive=retroactive, now=timezone.now())
    try:
        with transaction.atomic():
            acquire(Lock.MASTERS)
            for step in STEPS:
                step(application, wanted)
            if dry_run:
                raise _Undo
            if application.diff:
                # A quota that a contract gives counts for gateways at once, not from the next computation on.
                refresh_quota_standings(application.now)
                after = {"changes": application.diff, "retroactive": retroactive}
                record(Actor(by or SYSTEM), "apply_configuration", "configuration", "ledger", after=after)
    except _Undo:
        pass
    return application.diff


def apply_tables(
    document: dict[str, Any],
    *,
    by: Actor,
    reason: str = "",
    retroactive: bool = False,
    dry_run: bool = False,
) -> list[str]:
    """Apply only the tables that `document` names, as one person's change with a reason; returns the diff.

    A version that has started is not edited, `retroactive` or not: another one is added. Audited under the
    table's name.

    Raises:
        ConfigurationError: as `apply_configuration`.
    """
    wanted = core.from_document(document)
    application = Application(by.name, retroactive, timezone.now(), reason, keeps_started=True)
    try:
        with transaction.atomic():
            acquire(Lock.MASTERS)
            for step in (step for table in document for step in _STEPS_OF[table]):
                step(application, wanted)
            if dry_run:
                raise _Undo
            for table in document if application.diff else ():
                after = {"rows": document[table], "changes": application.diff}
                record(by, f"change_{table}", table, _name_of(document[table]), after=after, reason=reason)
    except _Undo:
        pass
    return application.diff


def _name_of(rows: list[dict[str, Any]]) -> str:
    """What an audit entry calls the rows: their names and dates."""

    def name(row: dict[str, Any]) -> str:
        keys = ("slug",) if "slug" in row else ("tenant", "pool", "model", "gpu_model", "name")
        return " ".join(str(row[key]) for key in (*keys, "valid_from") if row.get(key))

    return "; ".join(name(row) for row in rows)[:200]


# Masters


def _apply_ledger(application: Application, wanted: Configuration) -> None:
    ledger = masters.ensure_books()
    table = wanted.ledger
    if table is None:
        return
    if table.billing_time_zone != ledger.billing_time_zone and Period.objects.exists():
        raise ConfigurationError("ledger.billing_time_zone", "cannot change once a month has been computed")
    options = {**ledger.options, **table.options, "showback": table.showback, "approvals": table.approvals}
    _update(
        application,
        "ledger",
        ledger,
        currency=table.currency,
        billing_time_zone=table.billing_time_zone,
        mode=table.mode,
        options=options,
    )


def _apply_tenants(application: Application, wanted: Configuration) -> None:
    said_before = len(application.diff)
    for table in wanted.tenant:
        holder = _holder(table.slug, HolderKind.TENANT, "tenant")
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
            application.say("+", f"tenant {table.slug}")
        else:
            _update(application, f"tenant {table.slug}", tenant, **values)
        masters.ensure_tenant_books(tenant)
    for index, table in enumerate(wanted.tenant):
        parent = _tenant(table.parent, f"tenant[{index}].parent") if table.parent else None
        _update(application, f"tenant {table.slug}", _tenant(table.slug, ""), parent=parent)
    if len(application.diff) > said_before:
        _draft_again()


def _draft_again() -> None:
    """What a bill says of its tenant follows in every month that is not closed, as facts do: by dirty time."""
    pool = Pool.objects.order_by("slug").first()
    if pool is None:
        return
    for period in Period.objects.exclude(state=PeriodState.CLOSED).filter(horizon_at__isnull=False):
        hour = (period.starts_at, period.starts_at + timedelta(hours=1))
        DirtySpan.objects.create(pool=pool, span=hour)


def _apply_identities(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.tenant):
        tenant = _tenant(table.slug, f"tenant[{index}].slug")
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
                raise ConfigurationError(f"tenant[{index}].identities[{place}]", str(error)) from None
            if changed:
                application.say("+", f"identity {identity.kind}:{identity.value} is {table.slug}")


def _apply_pools(application: Application, wanted: Configuration) -> None:
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
            application.say("+", f"pool {table.slug} ({table.gpu_model} in {table.cluster})")
        else:
            _update(application, f"pool {table.slug}", pool, **values)
        masters.ensure_pool_books(pool)


def _apply_services(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.service):
        path = f"service[{index}]"
        holder = _holder(table.slug, HolderKind.SERVICE, path)
        values = {
            "name": table.name,
            "pool": _pool(table.pool, f"{path}.pool") if table.pool else None,
            "owner": None if table.owner == "platform" else _tenant(table.owner, f"{path}.owner"),
        }
        service = Service.objects.filter(holder=holder).first()
        if service is None:
            service = Service.objects.create(holder=holder, **values)
            Identity.objects.get_or_create(kind="service", value=table.slug)
            application.say("+", f"service {table.slug}")
        else:
            _update(application, f"service {table.slug}", service, **values)
        for slug in table.shares:
            _tenant(slug, f"{path}.shares.{slug}")
        _version(
            application,
            ServicePolicy,
            {"service": service},
            table.valid_from,
            {"key": table.key, "basis": table.service_basis, "shares": dict(table.shares)},
            f"policy of service {table.slug}",
            path,
        )


def _apply_sources(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.source):
        path = f"source[{index}]"
        for native, slug in table.pools.items():
            _pool(slug, f"{path}.pools.{native}")
        if table.pool:
            _pool(table.pool, f"{path}.pool")
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
            application.say("+", f"source {table.name}")
        else:
            _update(application, f"source {table.name}", source, **values)


# Terms


def _apply_rate_cards(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.rate_card):
        path = f"rate_card[{index}]"
        gpu = {
            row
            for place, t in enumerate(table.gpu_hour)
            for row in _gpu_prices(t, f"{path}.gpu_hour[{place}]")
        }
        token = {
            row for place, t in enumerate(table.token) for row in _token_prices(t, f"{path}.token[{place}]")
        }
        existing = RateCard.objects.filter(valid_from=table.valid_from).first()
        if existing is not None:
            has_gpu = set(
                existing.gpu_prices.values_list(
                    "pool", "gpu_model", "category", "service_class", "price_micro"
                )
            )
            has_token = set(existing.token_prices.values_list("model", "kind", "price_micro"))
            if has_gpu == gpu and has_token == token:
                _update(application, f"rate card {table.name}", existing, name=table.name)
                continue
        _allow(application, RateCard.objects.all(), table.valid_from, existing is not None, path)
        if existing is None:
            existing = RateCard.objects.create(
                name=table.name,
                valid_from=table.valid_from,
                recorded_by=application.by,
                reason=table.reason or application.reason,
            )
        existing.gpu_prices.all().delete()
        existing.token_prices.all().delete()
        GpuPrice.objects.bulk_create(
            GpuPrice(
                rate_card=existing,
                pool_id=pool,
                gpu_model=gpu_model,
                category=category,
                service_class=service_class,
                price_micro=price,
            )
            for pool, gpu_model, category, service_class, price in gpu
        )
        TokenPrice.objects.bulk_create(
            TokenPrice(rate_card=existing, model_id=model, kind=kind, price_micro=price)
            for model, kind, price in token
        )
        application.say("+", f"rate card {table.name} from {table.valid_from.isoformat()}")
        masters.mark_pools_dirty(None, table.valid_from)


def _gpu_prices(table: core.GpuHourTable, path: str) -> Iterable[tuple[int | None, str, str, int, int]]:
    pool = _pool(table.pool, f"{path}.pool").pk if table.pool else None
    service_class = _SERVICE_CLASSES[table.service_class]
    for category in core.GPU_CATEGORIES:
        value = getattr(table, category)
        if value:
            yield pool, table.gpu_model, category, service_class, decimal_micro(value, f"{path}.{category}")


_SERVICE_CLASSES = {str(choice.label): choice.value for choice in ServiceClass}


def _token_prices(table: core.TokenTable, path: str) -> Iterable[tuple[int, str, int]]:
    model = _model(table.model).pk
    for kind in core.TOKEN_KINDS:
        value = getattr(table, kind)
        if value:
            yield model, kind, decimal_micro(value, f"{path}.{kind}")


def _apply_pool_costs(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.pool_cost):
        path = f"pool_cost[{index}]"
        cost = decimal_micro(table.cost_per_gpu_hour, f"{path}.cost_per_gpu_hour")
        _version(
            application,
            PoolCost,
            {"pool": _pool(table.pool, f"{path}.pool")},
            table.valid_from,
            {"cost_micro_per_gpu_hour": cost},
            f"cost of pool {table.pool}",
            path,
        )


def _apply_policies(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.policy):
        path = f"policy[{index}]"
        _version(
            application,
            Policy,
            {},
            table.valid_from,
            policy_values(table, path),
            "policy",
            path,
            table.reason,
        )


def policy_values(table: core.PolicyTable, path: str) -> dict[str, Any]:
    """A policy's fields but for its date."""
    return {
        "preemption_charged_to": table.preemption_charged_to,
        "unreserved_idle": table.unreserved_idle,
        "lend_credit": table.lend_credit,
        "min_confidence_ppm": decimal_micro(table.min_confidence, f"{path}.min_confidence"),
        "undelivered_counts_pending": table.undelivered_counts_pending,
        "names_visible": table.names_visible,
        "purpose_payers": dict(table.purpose_payers),
    }


def _apply_contracts(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.contract):
        path = f"contract[{index}]"
        _version(
            application,
            Contract,
            {"tenant": _tenant(table.tenant, f"{path}.tenant")},
            table.valid_from,
            {
                "kind": table.kind,
                "token_quota": table.token_quota,
                "committed_tokens": table.committed_tokens,
                "overage_price_micro": decimal_micro(table.overage_price, path)
                if table.overage_price
                else None,
                "delay_credit_micro_per_gpu_hour": decimal_micro(table.delay_credit, path),
                "on_preemption": table.on_preemption,
                "max_delay_s": table.max_delay_seconds,
                "reserved_idle_ramp": list(table.reserved_idle_ramp),
                "reserved_throughput": [dict(row) for row in table.reserved_throughput],
            },
            f"contract of {table.tenant}",
            path,
            table.reason,
        )
    named = {table.tenant for table in wanted.contract}
    for index, tenant in enumerate(wanted.tenant):
        if tenant.slug not in named:
            _version(
                application,
                Contract,
                {"tenant": _tenant(tenant.slug, "")},
                core.ALWAYS,
                {"kind": tenant.contract},
                f"contract of {tenant.slug}",
                f"tenant[{index}].contract",
            )


def _apply_calibrations(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.calibration):
        path = f"calibration[{index}]"
        concurrency = table.concurrency_per_gpu
        _version(
            application,
            Calibration,
            {"model": _model(table.model), "gpu_model": table.gpu_model},
            table.valid_from,
            {
                "load_test": table.load_test,
                "input_gpu_us_per_1k": table.input_gpu_us_per_1k,
                "cached_input_gpu_us_per_1k": table.cached_input_gpu_us_per_1k,
                "output_gpu_us_per_1k": table.output_gpu_us_per_1k,
                "concurrency_per_gpu_milli": decimal_micro(concurrency, path) // 1000
                if concurrency
                else None,
                "tolerance_ppm": decimal_micro(table.tolerance, f"{path}.tolerance"),
            },
            f"calibration of {table.model} on {table.gpu_model}",
            path,
            table.reason,
        )


def _apply_alert_rules(application: Application, wanted: Configuration) -> None:
    """The rules that are named; a ledger that never had any gets the usual ones, so that it is not silent."""
    tables = wanted.alert_rule
    if not tables and not AlertRule.objects.exists():
        tables = tuple(core.AlertRuleTable(name=kind.replace("_", "-"), kind=kind) for kind in KINDS)  # type: ignore[arg-type]
    for index, table in enumerate(tables):
        path, usual = f"alert_rule[{index}]", KINDS[table.kind]
        lasting_s = core.duration_s(table.lasting, f"{path}.for")
        values = {
            "kind": table.kind,
            "pool": _pool(table.pool, f"{path}.pool") if table.pool else None,
            "tenant": _tenant(table.tenant, f"{path}.tenant") if table.tenant else None,
            "threshold_micro": decimal_micro(table.threshold, f"{path}.threshold")
            if table.threshold
            else usual.threshold_micro,
            "lasting_s": usual.lasting_s if lasting_s is None else lasting_s,
            "severity": table.severity or usual.severity,
            "enabled": table.enabled,
        }
        rule = AlertRule.objects.filter(name=table.name).first()
        if rule is None:
            AlertRule.objects.create(name=table.name, recorded_by=application.by, **values)
            application.say("+", f"alert rule {table.name}")
        elif rule.kind != table.kind:
            raise ConfigurationError(f"{path}.kind", "cannot change; name a new rule and disable this one")
        else:
            _update(application, f"alert rule {table.name}", rule, **values)


def _apply_budgets(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.budget):
        path = f"budget[{index}]"
        tenant = _tenant(table.tenant, f"{path}.tenant")
        micro = decimal_micro(table.amount or table.gpu_hours, path)
        try:
            _, changed = set_budget(
                tenant,
                table.month,
                Actor(application.by or SYSTEM),
                amount_micro=micro if table.amount else None,
                gpu_us=micro * GPU_US_PER_GPU_HOUR // core.MICRO if table.gpu_hours else None,
                thresholds=table.thresholds,
            )
        except BudgetError as error:
            raise ConfigurationError(path, str(error)) from None
        if changed:
            application.say("+", f"budget of {table.tenant} for {table.month or 'every month'}")


STEPS: list[Callable[[Application, Configuration], None]] = [
    _apply_ledger,
    _apply_pools,
    _apply_tenants,
    _apply_services,
    _apply_identities,
    _apply_sources,
    _apply_rate_cards,
    _apply_pool_costs,
    _apply_policies,
    _apply_contracts,
    _apply_calibrations,
    _apply_alert_rules,
    _apply_budgets,
]


_STEPS_OF: dict[str, tuple[Callable[[Application, Configuration], None], ...]] = {
    "tenant": (_apply_tenants, _apply_identities),
    "pool": (_apply_pools,),
    "service": (_apply_services,),
    "rate_card": (_apply_rate_cards,),
    "pool_cost": (_apply_pool_costs,),
    "policy": (_apply_policies,),
    "contract": (_apply_contracts,),
    "calibration": (_apply_calibrations,),
}


# What the steps share


def _version(
    application: Application,
    model: Any,
    of: dict[str, Any],
    valid_from: datetime,
    values: dict[str, Any],
    what: str,
    path: str,
    reason: str = "",
) -> None:
    """Add a dated version, or leave it where it is already so."""
    versions = model.objects.filter(**of)
    existing = versions.filter(valid_from=valid_from).first()
    if existing is not None and all(getattr(existing, name) == value for name, value in values.items()):
        return
    _allow(application, versions, valid_from, existing is not None, path)
    if existing is None:
        told = {"recorded_by": application.by, "reason": reason or application.reason}
        model.objects.create(**of, valid_from=valid_from, **told, **values)
        application.say("+", f"{what} from {valid_from.isoformat()}")
    else:
        _update(application, f"{what} from {valid_from.isoformat()}", existing, **values)
    masters.mark_pools_dirty(None, valid_from)


def _allow(
    application: Application, versions: models.QuerySet, valid_from: datetime, edits: bool, path: str
) -> None:
    """Refuse to change what already counted: terms of the past change only with a person's word for it."""
    if application.keeps_started and edits and valid_from <= application.now:
        raise ConfigurationError(
            f"{path}.valid_from", "has started and cannot be edited; add another version"
        )
    if application.retroactive or valid_from > application.now:
        return
    # A first file may bring several versions of the past; only what stood before it is protected.
    if not versions.filter(recorded_at__lt=application.now).exists():
        return
    problem = "has started and cannot be edited" if edits else "begins in the past of existing versions"
    raise ConfigurationError(f"{path}.valid_from", f"{problem}; give a later valid_from, or --retroactive")


def _update(application: Application, what: str, row: models.Model, **values: Any) -> None:
    changed = [name for name, value in values.items() if getattr(row, name) != value]
    for name in changed:
        application.say("~", f"{what} {name}: {getattr(row, name)!s} -> {values[name]!s}")
        setattr(row, name, values[name])
    if changed:
        row.save(update_fields=changed)


def _holder(slug: str, kind: HolderKind, path: str) -> Holder:
    holder, _ = Holder.objects.get_or_create(slug=slug, defaults={"kind": kind})
    if holder.kind != kind:
        raise ConfigurationError(path, f"{slug!r} is already a {holder.get_kind_display()}")
    return holder


def _tenant(slug: str, path: str) -> Tenant:
    try:
        return Tenant.objects.select_related("holder").get(holder__slug=slug)
    except Tenant.DoesNotExist:
        raise ConfigurationError(path, f"unknown tenant {slug!r}") from None


def _pool(slug: str, path: str) -> Pool:
    try:
        return Pool.objects.get(slug=slug)
    except Pool.DoesNotExist:
        raise ConfigurationError(path, f"unknown pool {slug!r}") from None


def _model(name: str) -> ModelName:
    return ModelName.objects.get_or_create(name=name)[0]
