"""The declarative file's terms: rates, costs, policies, contracts, calibrations, alert rules, budgets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from billing.core import configuration as core
from billing.core.alerts import KINDS
from billing.core.configuration import Configuration, ConfigurationError, decimal_micro
from billing.core.sentences import sentence
from billing.models import (
    AlertRule,
    Calibration,
    Contract,
    GpuPrice,
    Policy,
    PoolCost,
    RateCard,
    TokenPrice,
)
from billing.services.budgets import BudgetError, set_budget
from billing.services.configuration_rows import (
    Application,
    add_version,
    model_named,
    pool_named,
    refuse_the_past,
    say_differences,
    tenant_named,
    update_row,
)
from ledger.core.units import GPU_US_PER_GPU_HOUR, micro_text
from ledger.models import (
    ServiceClass,
)
from ledger.services import masters
from ledger.services.audit import SYSTEM, Actor


def apply_rate_cards(application: Application, wanted: Configuration) -> None:
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
                update_row(
                    application, sentence("rate_card_named", name=table.name), existing, name=table.name
                )
                continue
        refuse_the_past(application, RateCard.objects.all(), table.valid_from, existing is not None, path)
        if existing is None:
            existing = RateCard.objects.create(
                name=table.name,
                valid_from=table.valid_from,
                recorded_by=application.by,
                reason=table.reason or application.reason,
            )
        what = sentence("rate_card_named", name=table.name)
        application.say("version_added", what, at=table.valid_from)
        before = RateCard.objects.filter(valid_from__lt=table.valid_from).order_by("valid_from").last()
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
        if before is not None:
            say_differences(application, what, table.valid_from, _prices_of(before), _prices_of(existing))
        masters.mark_pools_dirty(None, table.valid_from)


def _prices_of(card: RateCard) -> dict[str, str]:
    """By what each is of, per GPU-hour or per million tokens."""
    gpu = card.gpu_prices.select_related("pool")
    return {
        **{
            " ".join(filter(None, (
                price.pool.slug if price.pool else price.gpu_model, price.category,
                str(price.get_service_class_display()),
            ))): micro_text(price.price_micro)
            for price in gpu
        },
        **{
            f"{price.model.name} {price.kind}": micro_text(price.price_micro)
            for price in card.token_prices.select_related("model")
        },
    }  # fmt: skip


def _gpu_prices(table: core.GpuHourTable, path: str) -> Iterable[tuple[int | None, str, str, int, int]]:
    pool = pool_named(table.pool, f"{path}.pool").pk if table.pool else None
    service_class = _SERVICE_CLASSES[table.service_class]
    for category in core.GPU_CATEGORIES:
        value = getattr(table, category)
        if value:
            yield pool, table.gpu_model, category, service_class, decimal_micro(value, f"{path}.{category}")


_SERVICE_CLASSES = {str(choice.label): choice.value for choice in ServiceClass}


def _token_prices(table: core.TokenTable, path: str) -> Iterable[tuple[int, str, int]]:
    model = model_named(table.model).pk
    for kind in core.TOKEN_KINDS:
        value = getattr(table, kind)
        if value:
            yield model, kind, decimal_micro(value, f"{path}.{kind}")


def apply_pool_costs(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.pool_cost):
        path = f"pool_cost[{index}]"
        cost = decimal_micro(table.cost_per_gpu_hour, f"{path}.cost_per_gpu_hour")
        add_version(
            application,
            PoolCost,
            {"pool": pool_named(table.pool, f"{path}.pool")},
            table.valid_from,
            {"cost_micro_per_gpu_hour": cost},
            sentence("cost_of_pool", name=table.pool),
            path,
        )


def apply_policies(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.policy):
        path = f"policy[{index}]"
        add_version(
            application,
            Policy,
            {},
            table.valid_from,
            policy_values(table, path),
            sentence("the_policy"),
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


def throughput_rows(table: core.ContractTable) -> list[dict[str, Any]]:
    """A contract's reserved throughput as it is stored."""
    return [msgspec.structs.asdict(row) for row in table.reserved_throughput]


def apply_contracts(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.contract):
        path = f"contract[{index}]"
        add_version(
            application,
            Contract,
            {"tenant": tenant_named(table.tenant, f"{path}.tenant")},
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
                "reserved_throughput": throughput_rows(table),
            },
            sentence("contract_of", name=table.tenant),
            path,
            table.reason,
        )
    named = {table.tenant for table in wanted.contract}
    for index, tenant in enumerate(wanted.tenant):
        if tenant.slug not in named:
            add_version(
                application,
                Contract,
                {"tenant": tenant_named(tenant.slug, "")},
                core.ALWAYS,
                {"kind": tenant.contract},
                sentence("contract_of", name=tenant.slug),
                f"tenant[{index}].contract",
            )


def apply_calibrations(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.calibration):
        path = f"calibration[{index}]"
        concurrency = table.concurrency_per_gpu
        add_version(
            application,
            Calibration,
            {"model": model_named(table.model), "gpu_model": table.gpu_model},
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
            sentence("calibration_of", name=table.model, gpu=table.gpu_model),
            path,
            table.reason,
        )


def apply_alert_rules(application: Application, wanted: Configuration) -> None:
    """The rules that are named; a ledger that never had any gets the usual ones, so that it is not silent."""
    tables = wanted.alert_rule
    if not tables and not AlertRule.objects.exists():
        tables = tuple(core.AlertRuleTable(name=kind.replace("_", "-"), kind=kind) for kind in KINDS)  # type: ignore[arg-type]
    for index, table in enumerate(tables):
        path, usual = f"alert_rule[{index}]", KINDS[table.kind]
        lasting_s = core.duration_s(table.lasting, f"{path}.for")
        values = {
            "kind": table.kind,
            "pool": pool_named(table.pool, f"{path}.pool") if table.pool else None,
            "tenant": tenant_named(table.tenant, f"{path}.tenant") if table.tenant else None,
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
            application.say("added", sentence("alert_rule_named", name=table.name))
        elif rule.kind != table.kind:
            raise ConfigurationError(f"{path}.kind", sentence("kind_of_rule_stays"))
        else:
            update_row(application, sentence("alert_rule_named", name=table.name), rule, **values)


def apply_budgets(application: Application, wanted: Configuration) -> None:
    for index, table in enumerate(wanted.budget):
        path = f"budget[{index}]"
        tenant = tenant_named(table.tenant, f"{path}.tenant")
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
            raise ConfigurationError(path, error.told) from None
        if changed:
            of_month = sentence("budget_of_month", name=table.tenant, month=table.month)
            of_every = sentence("budget_of_every_month", name=table.tenant)
            application.say("added", of_month if table.month else of_every)
