"""Small months told as events and terms, through the doors of users: what golden scenarios share.

Prices per GPU-hour, unless a scenario says otherwise: 2 reserved, 1 reserved-but-idle, 3 on demand, 1 borrowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from billing.checks import CHECKS
from billing.models import Allocation, MonthLine, Statement, StatementLine
from billing.selectors.accounts import accounts
from billing.services.adjustments import adjust_closed_months
from billing.services.closing import run_close, start_close
from billing.services.configuration import apply_document
from billing.services.months import compute_month
from billing.services.periods import open_review
from ledger.checks import run_checks
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR, MICRO_PER_UNIT
from ledger.models import Source
from ledger.services.audit import Actor
from tests.ingest.feeding import SOURCE, deliver, event

MONTH, NEXT_MONTH = Month.parse("2026-10"), Month.parse("2026-11")
START = datetime(2026, 10, 1, tzinfo=UTC)
NOVEMBER_5, DECEMBER_5 = datetime(2026, 11, 5, tzinfo=UTC), datetime(2026, 12, 5, tzinfo=UTC)
ANNA, BO = Actor("anna"), Actor("bo")
PRICES = {"reserved_used": "2", "reserved_idle": "1", "on_demand": "3", "borrowed": "1"}
PRICES |= {"unreserved_idle": "1"}
ALWAYS = datetime(2020, 1, 1, tzinfo=UTC)
POOL = "h100"
_ids = count(1)
Fact = dict[str, Any]


def at(hour: float) -> datetime:
    """So many hours after the month's start."""
    return START + timedelta(hours=hour)


# Terms


def terms(**tables: Any) -> list[str]:
    """Apply tables of the configuration, as finance may: also with an earlier validity."""
    return apply_document(tables, retroactive=True)


def policy(valid_from: datetime = ALWAYS, **values: Any) -> None:
    terms(policy=[{"valid_from": valid_from, **values}])


def rates(valid_from: datetime = ALWAYS, token: Iterable[Fact] = (), **changed: str) -> None:
    prices = {"pool": POOL, **PRICES, **changed}
    card = {"name": f"from {valid_from:%F}", "valid_from": valid_from, "gpu_hour": [prices]}
    terms(rate_card=[card | {"token": list(token)}])


def cost(per_gpu_hour: str, valid_from: datetime = ALWAYS, pool: str = POOL) -> None:
    terms(pool_cost=[{"pool": pool, "valid_from": valid_from, "cost_per_gpu_hour": per_gpu_hour}])


def world(gpus: float, *tenants: str, begin: float = 0) -> None:
    """One pool of so many GPUs from an hour on, its tenants, the usual prices and the default policy."""
    pools = [{"slug": POOL, "cluster": "bj", "gpu_model": "H100"}]
    terms(tenant=[{"slug": slug} for slug in tenants], pool=pools)
    rates()
    policy()
    tell(capacity(begin, gpus))


# Facts


def tell(*facts: Fact) -> None:
    """Deliver these; each of them must be booked."""
    receipt = deliver(*facts)
    assert receipt.booked == len(facts), receipt


def _fact(kind: str, hour: float, event_id: str = "", **data: Any) -> Fact:
    return event(kind, event_id or f"e{next(_ids)}", at(hour).isoformat(), **data)


def capacity(hour: float, gpus: float, pool: str = POOL) -> Fact:
    return _fact("capacity", hour, pool=pool, gpus=str(gpus))


def reserves(tenant: str, hour: float, gpus: float, **data: Any) -> Fact:
    who = {} if "service" in data else {"tenant": tenant}
    return _fact(
        "reservation", hour, **{"reservation": f"r-{tenant}", "pool": POOL, "gpus": str(gpus)} | who | data
    )


def holds(tenant: str, hour: float, gpus: float, workload: str = "", event_id: str = "", **data: Any) -> Fact:
    """A tenant's workload, by default its only one, holds so many GPUs from an hour on."""
    who = {} if {"service", "identity"} & data.keys() else {"tenant": tenant}
    workload = workload or f"wl-{tenant}"
    return _fact(
        "occupancy", hour, event_id, workload=workload, **{"pool": POOL, "gpus": str(gpus)} | who | data
    )


def served(service: str, tenant: str, hour: int, model: str = "qwen", **sums: Any) -> Fact:
    """What a service did for a tenant in an hour, as its gateway adds it up."""
    span = {"starts_at": at(hour).isoformat(), "ends_at": at(hour + 1).isoformat()}
    named = {"usage": f"{service}/{tenant}/{hour}", "service": service, "tenant": tenant, "model": model}
    return _fact("usage", hour + 1, pool=POOL, requests=1, **span, **named, **sums)


def preempted(hour: float, tenant: str, gpus: float, by: str = "", **data: Any) -> Fact:
    """A preemption p-HOUR of the tenant's only workload, told by the preemptor's scheduler where one is named."""
    said: dict[str, Any] = {"preemptor_source": "none", "cause": "priority", "preemption": f"p-{hour}"}
    if by:
        said |= {
            "preemptor": {"workload": f"wl-{by}", "tenant": by},
            "preemptor_source": "structured",
        }
    victim = {"workload": f"wl-{tenant}", "tenant": tenant}
    return _fact(
        "preemption", hour, event_id=data.pop("event_id", ""),
        **{"victim": victim, "pool": POOL, "gpus": str(gpus)} | said | data,
    )  # fmt: skip


def resumed(hour: float, preemption: str, **data: Any) -> Fact:
    return _fact("resume", hour, preemption=preemption, pool=POOL, **data)


def correction(target: str, instead: Fact | None = None) -> Fact:
    """Withdraws an event, or says what holds instead."""
    said = {"supersedes": {"source": SOURCE, "id": target}, "reason": "it was not so"}
    return _fact("correction", 100, **said | ({"event": instead} if instead else {}))


# The books


def compute(hours: float = 10, month: Month = MONTH) -> None:
    """Compute up to an hour; everything that verify_ledger checks must hold."""
    compute_month(month, horizon=at(hours))
    proved()


def proved() -> None:
    assert run_checks(CHECKS) == []


def close(month: Month = MONTH, now: datetime = NOVEMBER_5) -> None:
    """Every source signs off, the month is reviewed and closed with a clean checklist."""
    Source.objects.update(complete_until=now)
    open_review(month, ANNA, now=now)
    run = run_close(start_close(month, ANNA).pk, now=now)
    assert run.state == "done", run.message
    proved()


def adjust(now: datetime = NOVEMBER_5) -> None:
    adjust_closed_months(now)
    proved()


def _name(account: str) -> str:
    return account.removeprefix("tenant:")


def billed(month: str = "2026-10") -> dict[tuple[str, str], float]:
    """(tenant or other account, category) -> amount of the month's lines, zeros left out."""
    names, found = accounts().names, Counter[tuple[str, str]]()
    for line in MonthLine.objects.filter(period=month):
        assert line.amount_micro is not None, (line.category, "has no price")
        found[_name(names[line.account_id]), line.category] += line.amount_micro
    return {key: micro / MICRO_PER_UNIT for key, micro in found.items() if micro}


def transfers(category: str = "preemption_lost") -> dict[str, float]:
    """account -> money that preemptions moved to it (less than 0: away from it)."""
    return {who: amount for (who, what), amount in billed().items() if what == category}


def totals(month: str = "2026-10") -> dict[str, float]:
    """tenant -> what its statement says it owes, in whole currency units."""
    return {one.tenant.slug: one.total_minor / 100 for one in Statement.objects.filter(period=month)}


def adjustments(month: str = "2026-11") -> dict[tuple[str, str, str], tuple[float, float]]:
    """(tenant, month concerned, category) -> (GPU-hours, amount) of a month's adjustment lines."""
    found = {}
    for line in StatementLine.objects.filter(statement__period=month, kind="adjustment"):
        hours = int(line.quantity) / GPU_US_PER_GPU_HOUR if line.unit == "gpu_us" else 0.0
        key = (line.statement.tenant.slug, line.concerns_month, line.category)
        assert key not in found
        found[key] = (hours, (line.amount_micro or 0) / MICRO_PER_UNIT)
    return found


def frozen(month: str = "2026-10") -> list[Any]:
    """Everything a closed month keeps, to be compared byte for byte."""
    statements = Statement.objects.filter(period=month).order_by("number")
    lines = StatementLine.objects.filter(statement__period=month).order_by("pk")
    return [list(statements.values()), list(lines.values())]


def allocated(category: str, tenant: str) -> list[tuple[datetime, float]]:
    """(slot start, GPU-hours) of a tenant's category."""
    rows = Allocation.objects.filter(account__tenant__holder__slug=tenant).order_by("starts_at")
    found = [(row.starts_at, getattr(row, f"{category}_gpu_us") / GPU_US_PER_GPU_HOUR) for row in rows]
    return [(starts_at, hours) for starts_at, hours in found if hours]
