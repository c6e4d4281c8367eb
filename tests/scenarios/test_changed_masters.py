"""Whatever of the masters enters an open month's figures: once it changes, the books follow it without being asked.

What is dirty is computed again and nothing else, as beat does; afterwards the books are those of computing the whole
month from nothing. Each change is one that the declarative file, the API or the pages can make.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from billing.models import (
    Allocation,
    AllocationDay,
    BillingFinding,
    LendingDay,
    MonthLine,
    PoolSlot,
    PreemptionRecord,
    PreemptionShare,
    PreemptionWait,
    RateCard,
    ServicePolicy,
    Statement,
    TenantMonth,
    TokenDay,
    WorkloadDay,
)
from billing.services.configuration import apply_document
from billing.services.months import compute_month, is_up_to_date
from billing.services.proposals import propose, propose_end
from billing.services.tenants import change_pool, change_tenant
from ingest.services.identities import attribute_identity
from tests.fixtures.made_once import made_once
from tests.scenarios.golden import (
    ALWAYS,
    ANNA,
    MONTH,
    PRICES,
    at,
    capacity,
    cost,
    holds,
    policy,
    preempted,
    proved,
    reserves,
    resumed,
    served,
    tell,
    terms,
    world,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

DAYS = 3
HORIZON: datetime = at(24 * DAYS)
FAR = "far"
POOL = "h100"
NOBODY = {"kind": "k8s_namespace", "value": "nobody"}
CALIBRATION = {"model": "qwen", "input_gpu_us_per_1k": 400_000, "cached_input_gpu_us_per_1k": 40_000}
CALIBRATION |= {"output_gpu_us_per_1k": 4_000_000, "gpu_model": "H100"}


@made_once
def told() -> None:
    """Three days of everything that masters bear on: lending, idle time, a shared service, preemptions, tokens, and
    an identity that nobody claims."""
    world(8, "acme", "beta", "gamma")
    terms(
        ledger={"approvals": False},
        pool=[{"slug": FAR, "cluster": "sh", "gpu_model": "H100"}],
        service=[
            {"slug": "chat", "pool": POOL, "owner": "acme", "key": "tokens", "service_basis": "measured"}
        ],
        contract=[{"tenant": "gamma", "valid_from": ALWAYS, "kind": "tokens"}],
        calibration=[{**CALIBRATION, "valid_from": ALWAYS}],
        rate_card=[
            {
                "name": "list",
                "valid_from": ALWAYS,
                "gpu_hour": [
                    {"gpu_model": "H100", **PRICES},
                    {"gpu_model": "H200", **PRICES, "on_demand": "9"},
                ],
                "token": [{"model": "qwen", "input": "2", "output": "8"}],
            }
        ],
    )
    policy(preemption_charged_to="preemptor", unreserved_idle="proportional")
    cost("1.5")
    cost("2.5", pool=FAR)
    tell(
        capacity(0, 4, pool=FAR),
        reserves("acme", 0, 4),
        reserves("beta", 0, 2, pool=FAR),
        holds("acme", 0, 1),
        holds("beta", 2, 2, pool=FAR),
        holds("gamma", 3, 2),
        holds("gamma", 40, 0),
        holds("", 1, 2, workload="wl-chat", service="chat"),
        holds("", 5, 1, workload="wl-who", identity=NOBODY),
        *(served("chat", tenant, hour, input_tokens=2_000, output_tokens=500, gpu_seconds="900")
          for tenant, hour in (("beta", 4), ("gamma", 4), ("beta", 30), ("acme", 50))),
        preempted(40, "gamma", 2, by="acme", lost_gpu_seconds=3600),
        resumed(44, "p-40", recompute_gpu_seconds=1800),
    )  # fmt: skip
    compute_month(MONTH, horizon=HORIZON)


BOOKS = (
    PoolSlot, Allocation, AllocationDay, TenantMonth, LendingDay, WorkloadDay, TokenDay, MonthLine, BillingFinding,
    PreemptionRecord, PreemptionShare, PreemptionWait,
)  # fmt: skip


def books() -> dict[str, list[dict[str, Any]]]:
    found = {}
    for model in BOOKS:
        names = [field.attname for field in model._meta.concrete_fields if field.attname not in ("id", "pk")]
        found[model.__name__] = sorted(model.objects.values(*names), key=repr)
    statements = Statement.objects.order_by("number")
    found["Statement"] = list(statements.values("number", "currency", "total_minor", "content"))
    return found


def followed() -> dict[str, list[dict[str, Any]]]:
    """The books after as much is computed as beat would find to do."""
    if not is_up_to_date(MONTH, HORIZON):
        compute_month(MONTH, horizon=HORIZON)
    return books()


def ledger(**settings: Any) -> Callable[[], object]:
    return lambda: apply_document({"ledger": {"approvals": False, **settings}})


def file(**tables: Any) -> Callable[[], object]:
    return lambda: terms(**tables)


def proposed(table: str, **row: Any) -> Callable[[], object]:
    return lambda: propose(table, row, "agreed", ANNA)


def ended(table: str, model: Any, **of: Any) -> Callable[[], object]:
    return lambda: propose_end(table, model.objects.get(**of).pk, at(30), "agreed", ANNA)


def _attribute(tenant: str) -> object:
    forever: dict[str, Any] = {"valid_from": None, "valid_to": None}
    return attribute_identity(**NOBODY, tenant_slug=tenant, **forever, reason="found", by=ANNA)


CHAT = {"slug": "chat", "pool": POOL, "key": "tokens", "service_basis": "measured"}
CARD = {"name": "new", "gpu_hour": [{"gpu_model": "H100", **PRICES, "on_demand": "4"}]}
HOUR_20 = at(20).isoformat()
CHANGES: dict[str, Callable[[], object]] = {
    "ledger mode": ledger(mode="cost_recovery"),
    "ledger showback": ledger(showback=True),
    "ledger currency": ledger(currency="JPY"),
    "ledger issuer": ledger(options={"organization": "GPUs for all"}),
    "tenant by file": file(tenant=[{"slug": "beta", "name": "Beta", "showback": True}]),
    "tenant by page": lambda: change_tenant({"slug": "beta", "cost_center": "42"}, "moved", ANNA),
    "new tenant by file": file(tenant=[{"slug": "newcomer"}]),
    "new tenant by page": lambda: change_tenant({"slug": "newcomer"}, "came", ANNA),
    "identity by file": file(tenant=[{"slug": "beta", "identities": [NOBODY]}]),
    "identity by page": lambda: _attribute("beta"),
    "pool's cluster": file(pool=[{"slug": POOL, "cluster": "sh", "gpu_model": "H100"}]),
    "pool's GPU model by file": file(pool=[{"slug": POOL, "cluster": "bj", "gpu_model": "H200"}]),
    "pool's GPU model by page": lambda: change_pool({"slug": FAR, "gpu_model": "H200"}, "it is", ANNA),
    "service's owner by file": file(service=[{**CHAT, "owner": "beta"}]),
    "service's owner by page": proposed("service", slug="chat", owner="platform"),
    "service's policy": proposed("service", slug="chat", valid_from=HOUR_20, service_basis="spread"),
    "end of a service's policy": ended("service_policy", ServicePolicy, service__holder__slug="chat"),
    "rate card by file": file(rate_card=[{**CARD, "valid_from": ALWAYS}]),
    "rate card by page": proposed("rate_card", valid_from=HOUR_20, **CARD),
    "end of a rate card": ended("rate_card", RateCard, valid_from=ALWAYS),
    "pool cost": proposed("pool_cost", pool=POOL, valid_from=HOUR_20, cost_per_gpu_hour="7"),
    "policy": proposed("policy", valid_from=HOUR_20, preemption_charged_to="platform"),
    "contract": file(contract=[{"tenant": "beta", "valid_from": ALWAYS, "kind": "tokens"}]),
    "calibration": proposed("calibration", **CALIBRATION | {"output_gpu_us_per_1k": 9}, valid_from=HOUR_20),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_master_is_followed_in_an_open_month(told: None, change: str) -> None:
    before = books()
    CHANGES[change]()
    found = followed()
    compute_month(MONTH, horizon=HORIZON, everything=True)
    assert books() == found
    assert found != before
    proved()


def test_a_mode_that_is_tried_and_taken_back_leaves_the_books_as_they_were(told: None) -> None:
    before = books()
    ledger(mode="cost_recovery")()
    assert followed() != before
    ledger(mode="rate_card")()
    assert followed() == before
