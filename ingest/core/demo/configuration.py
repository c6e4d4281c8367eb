"""The demo's declarative file: tenants, pools, services, rates, policy, calibrations, sources, as TOML."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from ingest.core.demo.calendar import Calendar
from ingest.core.demo.cast import SERVICES, Company, TenantPlan
from ingest.core.demo.journal import (
    CAPACITY_MANAGER,
    GATEWAY,
    Json,
    api_key,
    controller_of,
    engines_of,
    scheduler_of,
)
from ingest.core.demo.traffic_shapes import MODELS
from ledger.core.periods import Month, to_datetime

CURRENCY = "USD"
PRICE_CHANGE_DAY = 16

# Per GPU-hour: reserved_used, reserved_idle, on_demand, borrowed, and what a GPU-hour of capacity costs.
_PRICES = {
    "H100": ("2.35", "1.90", "3.10", "1.45", "1.98"),
    "H200": ("3.05", "2.45", "3.95", "1.85", "2.52"),
    "H20": ("1.20", "0.95", "1.55", "0.70", "0.97"),
    "L40S": ("0.72", "0.60", "0.95", "0.45", "0.58"),
}
_PREEMPTIBLE_ON_DEMAND = {"H100": "2.20", "H200": "2.80"}
# From the 16th: demand for H200 outgrew its price, every month a little more. Thousandths per month of the year.
_RISES = {"bj-h200": (15, 15, 45, 20)}
_TOKEN_PRICES = {  # per million: input, cached input, output, reasoning
    "qwen3-235b-a22b": ("0.42", "0.06", "2.60", "2.60"),
    "deepseek-v3": ("0.38", "0.05", "1.90", "1.90"),
}


# search's month needs a little more; in tokens of all models, for a company of the size written for.
TOKEN_QUOTA = 96_000_000_000
# For gov-cloud, on the model that its calls go to.
RESERVED_THROUGHPUT: Json = {
    "model": "deepseek-v3",
    "pool": "sh-h20",
    "input_tokens_per_minute": 240_000,
    "output_tokens_per_minute": 48_000,
}
# Amounts and thresholds in percent, for a company of the size written for.
_BUDGETS: dict[str, tuple[int, tuple[int, ...]]] = {
    "research": (470_000, (50, 80, 95, 100)),
    "assistant": (290_000, (50, 80, 100)),
    "ads-ranking": (130_000, (80, 100)),
    "code": (115_000, (80, 100)),
    "robotics": (80_000, (50, 80, 100)),
    "data-platform": (120_000, (80, 100)),
}


def mark(month: str) -> str:
    """The ledger option that says which version of a demo month is loaded."""
    return f"demo {month}"


def document(company: Company, calendar: Calendar, signature: str) -> Json:
    """The file's content as TOML tables, in the order of its chapters.

    What holds for months is agreed at the start of the year: loading the next month changes nothing about it.
    """
    agreed = _from(_year_ms(calendar))
    return {
        "ledger": {
            "currency": CURRENCY,
            "billing_time_zone": calendar.zone,
            "mode": "rate_card",
            "options": {mark(str(calendar.month)): signature},
        },
        "tenant": [_tenant(tenant, number) for number, tenant in enumerate(company.tenants, start=1)],
        "pool": [
            {
                "slug": p.slug,
                "cluster": p.cluster,
                "gpu_model": p.gpu_model,
                "name": p.name,
                "region": p.region,
            }
            for p in company.pools
        ],
        "pool_cost": [
            {
                "pool": p.slug,
                "valid_from": agreed,
                "cost_per_gpu_hour": _PRICES[p.gpu_model][4],
            }
            for p in company.pools
        ],
        "service": [
            {
                "slug": plan.service,
                "name": plan.model,
                "pool": SERVICES[plan.service],
                "owner": "platform",
                "key": "gpu_seconds" if plan.has_gpu_seconds else "tokens",
                "service_basis": "spread",
            }
            for plan in MODELS
        ],
        "rate_card": _rate_cards(company, calendar),
        "policy": [
            {
                "valid_from": agreed,
                "preemption_charged_to": "entitlement",
                "unreserved_idle": "platform",
                "lend_credit": "borrower_paid",
                "min_confidence": "0.8",
            }
        ],
        "calibration": [
            {
                "model": plan.model,
                "gpu_model": plan.gpu_model,
                "valid_from": agreed,
                "load_test": f"{plan.service} on {plan.gpu_model}, replay of a day",
                "input_gpu_us_per_1k": plan.input_gpu_us,
                "cached_input_gpu_us_per_1k": plan.cached_input_gpu_us,
                "output_gpu_us_per_1k": plan.output_gpu_us,
                "concurrency_per_gpu": str(plan.concurrency_per_gpu),
            }
            for plan in MODELS
        ],
        "contract": _contracts(company, agreed, _from(calendar.span.start_ms)),
        "budget": _budgets(company),
        "source": _sources(company),
        "alert_rule": _alert_rules(),
    }


def _contracts(company: Company, agreed: str, month_start: str) -> list[Json]:
    """Those who buy tokens and not GPU time: one beyond its monthly quota, one with throughput reserved for it.

    Reserved throughput is a fact on the books from the contract's start: earlier than the month it would open, and
    bill, months of which the demo tells nothing else.
    """
    rows: list[Json] = [
        {
            "tenant": "search",
            "valid_from": agreed,
            "kind": "tokens",
            "token_quota": _rounded(TOKEN_QUOTA * company.scale, 1_000_000_000),
            "overage_price": "0.55",
            "on_preemption": "requeue",
            "max_delay_seconds": 300,
        },
        {
            "tenant": "gov-cloud",
            "valid_from": month_start,
            "kind": "tokens",
            "delay_credit": "0.25",
            "on_preemption": "degrade",
            "max_delay_seconds": 60,
            "reserved_throughput": [_reserved_throughput(company.scale)],
        },
    ]
    present = {tenant.slug for tenant in company.tenants}
    return [row for row in rows if row["tenant"] in present]


def _reserved_throughput(scale: float) -> Json:
    rates = {
        name: _rounded(RESERVED_THROUGHPUT[name] * scale, step)
        for name, step in (("input_tokens_per_minute", 10_000), ("output_tokens_per_minute", 2_000))
    }
    return RESERVED_THROUGHPUT | rates


def _budgets(company: Company) -> list[Json]:
    """For every month. In the first one research nearly uses its up, and assistant outspends its own."""
    present = {tenant.slug for tenant in company.tenants}
    rows: list[Json] = []
    for tenant, (amount, thresholds) in _BUDGETS.items():
        rows.append(
            {
                "tenant": tenant,
                "amount": str(_rounded(amount * company.scale, 500)),
                "thresholds": list(thresholds),
            }
        )
    rows.append({"tenant": "vision", "gpu_hours": str(_rounded(46_000 * company.scale, 100))})
    return [row for row in rows if row["tenant"] in present]


def _rounded(value: float, step: int) -> int:
    return max(round(value / step), 1) * step


def _alert_rules() -> list[Json]:
    """The usual ones. A demo month is all that ever comes in: that nothing follows it is no news.

    Capacity is ordered months ahead, and whoever plans with it is told when it is.
    """
    kinds = (
        *(
            "shortage",
            "unused_reservation",
            "quota_drift",
            "conversion_drift",
            "preemption_spike",
            "rejections",
        ),
        *("budget", "budget_forecast", "unattributed", "silent_source", "capacity_change"),
    )
    rules: list[Json] = [{"name": kind.replace("_", "-"), "kind": kind} for kind in kinds]
    rules[-1]["for"] = "60d"
    return [*rules, {"name": "ingest-lag", "kind": "ingest_lag", "enabled": False}]


def _tenant(tenant: TenantPlan, number: int) -> Json:
    spaces = [tenant.slug, f"{tenant.slug}-serving"]
    return {
        "slug": tenant.slug,
        "name": tenant.name,
        "display_alias": tenant.alias,
        "cost_center": f"CC-{4000 + 10 * number}",
        "gl_code": f"6420-{number:02d}",
        "contacts": [f"{tenant.slug}-billing@example.com"],
        "tags": {"division": tenant.parent},
        "contract": "gpu_time",
        "identities": [
            *({"kind": "k8s_namespace", "value": space} for space in spaces),
            {"kind": "api_key_hash", "value": api_key(tenant.slug)},
        ],
    }


def _rate_cards(company: Company, calendar: Calendar) -> list[Json]:
    tokens = [
        {"model": model, "input": p[0], "cached_input": p[1], "output": p[2], "reasoning": p[3]}
        for model, p in _TOKEN_PRICES.items()
    ]
    by_model: list[Json] = []
    for gpu_model, prices in _PRICES.items():
        by_model.append({"gpu_model": gpu_model, **_gpu_hour(prices)})
        if gpu_model in _PREEMPTIBLE_ON_DEMAND:
            cheaper = {"on_demand": _PREEMPTIBLE_ON_DEMAND[gpu_model]}
            by_model.append({"gpu_model": gpu_model, "service_class": "preemptible", **cheaper})
    gpu_models = {plan.slug: plan.gpu_model for plan in company.pools}
    changed = [
        {"pool": pool, **_gpu_hour(_risen(_PRICES[gpu_models[pool]], rises, calendar.month.number))}
        for pool, rises in _RISES.items()
    ]
    for pool, rises in _RISES.items():
        # A pool's price for all classes would also stand in for the cheaper one of its GPU model.
        cheaper_price = _PREEMPTIBLE_ON_DEMAND.get(gpu_models[pool])
        if cheaper_price is not None:
            (risen,) = _risen((cheaper_price,), rises[2:3], calendar.month.number)
            changed.append({"pool": pool, "service_class": "preemptible", "on_demand": risen})
    changes_ms = calendar.at(PRICE_CHANGE_DAY, 0)
    return [
        {
            "name": f"price list {calendar.month.year}",
            "valid_from": _from(_year_ms(calendar)),
            "gpu_hour": by_model,
            "token": tokens,
        },
        {
            "name": f"{calendar.month}, H200 repriced",
            "valid_from": _from(changes_ms),
            "reason": "H200 demand",
            "gpu_hour": by_model + changed,
            "token": tokens,
        },
    ]


def _risen(prices: tuple[str, ...], rises: tuple[int, ...], months: int) -> tuple[str, ...]:
    return tuple(
        str(Decimal(price) + Decimal(rise * months) / 1000)
        for price, rise in zip(prices, rises, strict=False)
    )


def _year_ms(calendar: Calendar) -> int:
    return Month(calendar.month.year, 1).starts_ms(calendar.zone)


def _gpu_hour(prices: tuple[str, ...]) -> Json:
    return dict(zip(("reserved_used", "reserved_idle", "on_demand", "borrowed"), prices, strict=False))


def _sources(company: Company) -> list[Json]:
    clusters = sorted({pool.cluster for pool in company.pools})
    sources: list[Json] = [
        {"name": "capacity-manager", "uri": CAPACITY_MANAGER},
        {"name": "ai-gateway", "uri": GATEWAY},
    ]
    for cluster in clusters:
        sources += [
            {"name": f"{cluster}-kueue", "uri": scheduler_of(cluster), "cluster": cluster},
            {"name": f"{cluster}-kube-events", "uri": controller_of(cluster), "cluster": cluster},
            {"name": f"{cluster}-engines", "uri": engines_of(cluster), "cluster": cluster},
        ]
    return sources


def _from(instant_ms: int) -> str:
    return to_datetime(instant_ms).isoformat()


# Writing TOML: only what the document above is made of.


def toml(content: Json) -> str:
    """The document as a TOML file that people can read, change and apply again."""
    chapters = ["# The demo month's masters and terms; made by load_demo_month."]
    for name, value in content.items():
        if isinstance(value, dict):
            chapters.append(f"[{name}]\n{_pairs(value)}")
        else:
            chapters += [_table(name, row) for row in value]
    return "\n\n".join(chapters) + "\n"


def _table(name: str, row: Json) -> str:
    """One array element; lists of tables inside a rate card become tables of their own."""
    nested = {key: value for key, value in row.items() if name == "rate_card" and isinstance(value, list)}
    plain = {key: value for key, value in row.items() if key not in nested}
    parts = [f"[[{name}]]\n{_pairs(plain)}"]
    parts += [f"[[{name}.{key}]]\n{_pairs(inner)}" for key, rows in nested.items() for inner in rows]
    return "\n".join(parts)


def _pairs(row: Json) -> str:
    return "\n".join(f"{key} = {_value(key, value)}" for key, value in row.items())


def _value(key: str, value: Any) -> str:
    if key == "valid_from":
        return str(value)  # a TOML instant, not a string
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_value(name, inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value("", inner) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else json.dumps(name)
