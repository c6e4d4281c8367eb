"""Who pays for re-queued GPU time: every policy with every payer (domain.md section 6).

beta reserves 4 and holds 6, so 2 are on demand. At hour 4 it loses 4 of them: 2 were entitled, 2 on demand (the GPUs
beyond the reservation go first). 8 GPU-hours are lost and at hour 6 2 GPU-hours are spent again:

    lost       4 entitled at the reserved 2 =  8, 4 on demand at 3 = 12
    recompute  1 entitled at the reserved 2 =  2, 1 on demand at 3 =  3
"""

from __future__ import annotations

from typing import Any

import pytest

from billing.models import PreemptionRecord
from ledger.core.units import MICRO_PER_UNIT
from tests.scenarios.golden import (
    at,
    billed,
    compute,
    holds,
    policy,
    preempted,
    rates,
    reserves,
    resumed,
    served,
    tell,
    terms,
    totals,
    transfers,
    world,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

ENTITLED, ALL = (8, 2), (20, 5)
NOBODY = (0, 0)
INFERRED = {"preemptor_source": "inferred", "confidence": "0.8"}


def beta_loses_four(**said: Any) -> None:
    """gamma comes with 4 of its own; without a reservation unless one is added."""
    loss = preempted(4, "beta", 4, by="gamma", lost_gpu_seconds=8 * 3600, **said)
    tell(
        reserves("beta", 0, 4),
        holds("beta", 0, 6),
        loss,
        holds("beta", 4, 2),
        holds("gamma", 4, 4),
        resumed(6, loss["data"]["preemption"], recompute_gpu_seconds=2 * 3600),
        holds("beta", 6, 6),
    )


# policy, what is known of the preemptor, whether gamma reserves its 4, payer, (lost, recompute) that moves
CASES = [
    pytest.param("entitlement", {}, False, "gamma", ENTITLED, id="entitlement: the preemptor"),
    pytest.param("entitlement", {}, True, "platform", ENTITLED, id="entitlement: oversold"),
    pytest.param("entitlement", {"cause": "maintenance"}, False, "platform", ENTITLED, id="maintenance"),
    pytest.param("entitlement", {"cause": "capacity_lost"}, False, "platform", ENTITLED, id="lost nodes"),
    pytest.param("entitlement", INFERRED, False, "platform", ENTITLED, id="entitlement: a guess"),
    pytest.param("victim", {}, False, "", NOBODY, id="victim"),
    pytest.param("preemptor", {}, False, "gamma", ALL, id="preemptor"),
    pytest.param("preemptor", {}, True, "gamma", ALL, id="preemptor inside its reservation"),
    pytest.param("preemptor", {"cause": "maintenance"}, False, "platform", ALL, id="preemptor: platform's"),
    pytest.param("preemptor", INFERRED, False, "platform", ALL, id="preemptor: a guess"),
    pytest.param("platform", {}, False, "platform", ALL, id="platform"),
]


@pytest.mark.parametrize(("charged_to", "said", "reserved", "payer", "moved"), CASES)
def test_each_policy_and_payer(
    charged_to: str, said: dict[str, Any], reserved: bool, payer: str, moved: tuple[int, int]
) -> None:
    world(16, "beta", "gamma")
    policy(preemption_charged_to=charged_to)
    if reserved:
        tell(reserves("gamma", 0, 4))
    beta_loses_four(**said)
    compute()
    record = PreemptionRecord.objects.get()
    assert (record.entitled_milli_gpus, record.on_demand_milli_gpus) == (2_000, 2_000)
    for category, amount in zip(("preemption_lost", "preemption_recompute"), moved, strict=True):
        assert transfers(category) == ({payer: amount, "beta": -amount} if payer else {})
    assert record.amount_micro == sum(moved) * MICRO_PER_UNIT
    # What was held is charged once, whoever bears the loss. beta: 4 reserved for 4 + 4 hours, 2 of them for 2 more
    # with 2 idle (waiting: undelivered), at 2: 72; on demand 2 x 8 at 3: 48.
    # gamma: 24 GPU-hours at 3; or at 2 and 16 idle at 1 before it came.
    own = {"beta": 72 + 48, "gamma": 48 + 16 if reserved else 72}
    own["beta"] -= sum(moved)
    if payer == "gamma":
        own["gamma"] += sum(moved)
    assert totals() == own


def test_a_guess_that_is_sure_enough_for_the_policy_counts() -> None:
    world(16, "beta", "gamma")
    policy(min_confidence="0.8")
    beta_loses_four(**INFERRED)
    compute()
    assert transfers() == {"gamma": 8, "beta": -8}


def test_a_preemptor_that_nobody_names_is_the_platform() -> None:
    world(16, "beta", "gamma")
    policy(preemption_charged_to="preemptor")
    tell(holds("beta", 0, 4), preempted(4, "beta", 4, lost_gpu_seconds=3600), holds("beta", 4, 0))
    compute()
    # Nothing is reserved: one GPU-hour on demand at 3.
    assert transfers() == {"platform": 3, "beta": -3}


def test_a_service_stands_for_its_owner() -> None:
    world(16, "beta", "gamma")
    terms(service=[{"slug": "chat", "pool": "h100", "owner": "gamma"}])
    beta_loses_four(preemptor={"workload": "chat-0", "service": "chat"})
    compute()
    assert transfers() == {"gamma": 8, "beta": -8}


def test_the_platforms_own_service_is_the_platform() -> None:
    world(16, "beta", "gamma")
    terms(service=[{"slug": "chat", "pool": "h100"}])
    beta_loses_four(preemptor={"workload": "chat-0", "service": "chat"})
    compute()
    assert transfers() == {"platform": 8, "beta": -8}


def test_a_tenant_that_preempts_itself_moves_nothing() -> None:
    world(16, "beta")
    policy(preemption_charged_to="preemptor")
    beta = {"workload": "wl-2", "tenant": "beta"}
    lost = preempted(4, "beta", 4, lost_gpu_seconds=3600, preemptor=beta, preemptor_source="structured")
    tell(holds("beta", 0, 4), lost, holds("beta", 4, 0), holds("beta", 4, 4, workload="wl-2"))
    compute()
    assert transfers() == {}
    assert totals() == {"beta": 120}


def test_lost_and_recomputed_time_have_the_prices_of_their_instants() -> None:
    """Prices rise at hour 5, between the decision at 4 and the resume at 6: reserved 3 and on demand 5."""
    world(16, "beta", "gamma")
    rates(at(5), reserved_used="3", on_demand="5")
    policy(preemption_charged_to="platform")
    beta_loses_four()
    compute()
    # Lost: as in the table, 20. Recompute: 1 GPU-hour entitled at 3, 1 on demand at 5.
    assert transfers() == {"platform": 20, "beta": -20}
    assert transfers("preemption_recompute") == {"platform": 8, "beta": -8}


def test_borrowed_time_moves_at_the_borrowed_price() -> None:
    """gamma holds 6 of 8 beyond any reservation: 2 on demand, 4 borrowed of acme's 6. It loses 3 and 6 GPU-hours."""
    world(8, "acme", "gamma")
    policy(preemption_charged_to="preemptor")
    tell(
        reserves("acme", 0, 6),
        holds("gamma", 0, 6),
        preempted(2, "gamma", 3, by="acme", lost_gpu_seconds=6 * 3600, disposition="stopped"),
        holds("gamma", 2, 3),
        holds("acme", 2, 3),
    )
    compute()
    # Just before: on demand 2 to borrowed 4, so 2 GPU-hours at 3 and 4 at 1.
    assert transfers() == {"acme": 10, "gamma": -10}


def test_a_request_inside_an_engine_moves_its_recompute_only() -> None:
    """No GPUs change hands. Recompute of half a GPU-hour, none of it entitled, in a service on demand: 1.50."""
    world(8, "acme", "gamma")
    terms(service=[{"slug": "chat", "pool": "h100"}])
    policy(preemption_charged_to="platform")
    victim = {"request": "req-1", "tenant": "acme"}
    tell(
        holds("chat", 0, 2, workload="chat-0", service="chat"),
        served("chat", "acme", 1, gpu_seconds=60),
        preempted(1.5, "acme", 0, victim=victim, cause="kv_cache_pressure"),
        resumed(1.75, "p-1.5", recompute_gpu_seconds=1800),
    )
    compute(4)
    assert transfers("preemption_recompute") == {"platform": 1.5, "acme": -1.5}
    assert "preemption_lost" not in {category for _, category in billed()}


@pytest.mark.parametrize("decided_hour", [3.5, 4], ids=["inside a slot", "where a slot begins"])
def test_a_shared_service_that_is_hit_is_paid_for_tenant_by_tenant(decided_hour: float) -> None:
    """chat holds 4 on demand, serving acme and beta 3 : 1 of each hour; at 3:30, or at 4:00 sharp, it
    loses all 4 and 8 GPU-hours."""
    world(8, "acme", "beta", "gamma")
    terms(service=[{"slug": "chat", "pool": "h100"}])
    policy(preemption_charged_to="preemptor")
    victim = {"workload": "chat-0", "service": "chat"}
    lost = {"lost_gpu_seconds": 8 * 3600, "disposition": "drained"}
    tell(
        holds("chat", 0, 4, workload="chat-0", service="chat"),
        *(served("chat", "acme", hour, gpu_seconds=300) for hour in range(4)),
        *(served("chat", "beta", hour, gpu_seconds=100) for hour in range(4)),
        preempted(decided_hour, "chat", 4, by="gamma", victim=victim, **lost),
        holds("chat", 4, 0, workload="chat-0", service="chat"),
        holds("gamma", 4, 4),
    )
    compute()
    # 6 and 2 GPU-hours on demand at 3.
    assert transfers() == {"gamma": 24, "acme": -18, "beta": -6}
    # 16 GPU-hours of chat 3 : 1, and gamma's 24, at 3.
    assert totals() == {"acme": 36 - 18, "beta": 12 - 6, "gamma": 72 + 24}
