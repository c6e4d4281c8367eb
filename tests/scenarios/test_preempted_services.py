"""A shared service loses GPUs: each tenant's entitlement in it is its serving quota (domain.md section 6).

chat holds 4 on demand and serves acme and beta 3 : 1, so acme had 3 of its GPUs and beta 1. A GPU sustains 8 requests
at once, so that 16 are a quota of 2 GPUs. gamma preempts chat at 3:30; the price is 2 per entitled GPU-hour.
"""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from billing.exports.files import statement_file
from billing.models import PreemptionRecord, Statement
from ledger.access import Access
from tests.ingest.feeding import event
from tests.scenarios.golden import (
    ALWAYS,
    Fact,
    adjust,
    adjustments,
    at,
    billed,
    close,
    compute,
    correction,
    holds,
    policy,
    preempted,
    served,
    tell,
    terms,
    totals,
    transfers,
    world,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

GPUS = {"concurrency_per_gpu": "8"}


def calibrated(valid_from: Any = ALWAYS, **measured: str) -> None:
    costs = dict.fromkeys(
        ("input_gpu_us_per_1k", "cached_input_gpu_us_per_1k", "output_gpu_us_per_1k"), 1_000_000
    )
    terms(
        calibration=[
            {"model": "chat", "gpu_model": "H100", "valid_from": valid_from} | costs | GPUS | measured
        ]
    )


def quota(event_id: str, tenant: str, hour: float, limit: int, **said: Any) -> Fact:
    said = {"layer": "serving", "resource": "concurrency", "service": "chat"} | said
    return event("quota", event_id, at(hour).isoformat(), tenant=tenant, limit=limit, used=0, **said)


def chat_loses(gpus: int, *quotas: Fact, lost_hours: int = 8) -> None:
    world(8, "acme", "beta", "gamma")
    terms(service=[{"slug": "chat", "pool": "h100"}])
    calibrated()
    victim = {"workload": "chat-0", "service": "chat"}
    lost = {"lost_gpu_seconds": lost_hours * 3600, "disposition": "drained"}
    tell(
        *quotas,
        holds("chat", 0, 4, workload="chat-0", service="chat"),
        *(served("chat", "acme", hour, gpu_seconds=300) for hour in range(4)),
        *(served("chat", "beta", hour, gpu_seconds=100) for hour in range(4)),
        preempted(3.5, "chat", gpus, by="gamma", victim=victim, **lost),
        holds("chat", 4, 4 - gpus, workload="chat-0", service="chat"),
        holds("gamma", 4, gpus),
    )


def entitled() -> dict[str, int]:
    record = PreemptionRecord.objects.get()
    parts = {
        row.account.tenant.slug: row.entitled_milli_gpus
        for row in record.shares.select_related("account__tenant__holder")
        if row.account.tenant is not None
    }
    assert record.entitled_milli_gpus == sum(parts.values())
    return parts


def test_the_tenants_of_a_service_are_entitled_to_their_serving_quotas() -> None:
    """All 4 go. acme loses 3 of 3 with a quota of 2, beta 1 of 1 with a quota of half a GPU."""
    chat_loses(4, quota("q1", "acme", 0, 16), quota("q2", "beta", 0, 4))
    compute()
    assert entitled() == {"acme": 2_000, "beta": 500}
    # acme: 2/3 of 6 GPU-hours at 2; beta: half of 2 at 2. The service reserved nothing, yet its tenants are entitled.
    assert transfers() == {"gamma": 10, "acme": -8, "beta": -2}
    # 16 GPU-hours of chat 3 : 1 and gamma's 24, on demand at 3.
    assert totals() == {"acme": 36 - 8, "beta": 12 - 2, "gamma": 72 + 10}


def test_each_tenant_s_file_says_its_share_and_what_its_statement_charges_for_it() -> None:
    chat_loses(4, quota("q1", "acme", 0, 16), quota("q2", "beta", 0, 4))
    compute()
    for state in ("draft", "issued"):
        if state == "issued":
            close()
        rows = [
            (statement.tenant.slug, row["role"], row["gpus"], row["entitled_gpus"], float(row["amount"]))
            for statement in Statement.objects.filter(period="2026-10").order_by("tenant__holder__slug")
            for row in preemptions_of(statement)
        ]
        assert rows == [
            ("acme", "victim", "3", "2", -8),
            ("beta", "victim", "1", "0.5", -2),
            ("gamma", "cause", "4", "2.5", 10),
        ]
        assert {tenant: amount for tenant, *_, amount in rows} == transfers()
        assert set(Statement.objects.filter(period="2026-10").values_list("state", flat=True)) == {state}


def preemptions_of(statement: Statement) -> list[dict[str, str]]:
    """The rows of preemptions.csv as its tenant reads it."""
    access = Access(tenant_ids=frozenset({statement.tenant_id}))
    text = b"".join(statement_file(statement, "preemptions", access)).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_what_a_tenant_had_beyond_its_quota_goes_first() -> None:
    """2 of 4 go: 1.5 of acme's 3, of which 1 was beyond its quota of 2; half of beta's 1, all inside its quota of 1."""
    chat_loses(2, quota("q1", "acme", 0, 16), quota("q2", "beta", 0, 8))
    compute()
    assert entitled() == {"acme": 500, "beta": 500}
    # acme: a third of 6 GPU-hours at 2; beta: all of its 2 at 2.
    assert transfers() == {"gamma": 8, "acme": -4, "beta": -4}


def test_the_tightest_quota_counts_and_only_what_a_calibration_converts() -> None:
    """acme: 16 requests at once are 2 GPUs, all of its tenants' quota is 1 GPU. beta's requests a minute say nothing,
    so what the service reserved would count, which is nothing."""
    chat_loses(
        4,
        quota("q1", "acme", 0, 16),
        quota("q2", "acme", 0, 1, resource="gpus", service=None),
        quota("q3", "beta", 0, 600, resource="requests_per_minute"),
        quota("q4", "beta", 0, 99, layer="cluster", resource="gpus", service=None, pool="h100"),
    )
    compute()
    assert entitled() == {"acme": 1_000, "beta": 0}
    assert transfers() == {"gamma": 4, "acme": -4}


def test_a_quota_that_begins_with_the_decision_comes_too_late() -> None:
    chat_loses(4, quota("q1", "acme", 3.5, 16))
    compute()
    assert transfers() == {}
    assert PreemptionRecord.objects.get().charged_to == "victim"


def test_a_quota_that_is_told_late_or_corrected_has_the_preemption_measured_again() -> None:
    chat_loses(4)
    compute()
    assert transfers() == {}
    tell(quota("q1", "acme", 1, 16))
    compute()
    assert transfers() == {"gamma": 8, "acme": -8}
    tell(correction("q1", quota("q1b", "acme", 1, 8)))
    compute()
    assert transfers() == {"gamma": 4, "acme": -4}
    calibrated(at(2), concurrency_per_gpu="4")
    compute()
    assert transfers() == {"gamma": 8, "acme": -8}


def test_a_quota_told_after_the_close_becomes_an_adjustment() -> None:
    chat_loses(4)
    close()
    before = billed()
    tell(quota("q1", "acme", 1, 16))
    adjust()
    assert billed() == before
    # acme is entitled to 2 of the 3 it lost: 4 GPU-hours at 2.
    assert {key: amount for key, (_, amount) in adjustments().items()} == {
        ("acme", "2026-10", "preemption_lost"): -8,
        ("gamma", "2026-10", "preemption_lost"): 8,
    }


def test_preempted_time_has_the_price_of_the_victims_service_class() -> None:
    """beta's batch job is preemptible at 1 instead of 3 on demand; it loses 4 GPU-hours to gamma."""
    world(8, "beta", "gamma")
    cheap = {"pool": "h100", "service_class": "preemptible", "on_demand": "1"}
    dear = {"pool": "h100", "reserved_used": "2", "reserved_idle": "1", "on_demand": "3", "borrowed": "1"}
    terms(rate_card=[{"name": "classes", "valid_from": at(-100), "gpu_hour": [dear, cheap]}])
    policy(preemption_charged_to="preemptor")
    tell(
        holds("beta", 0, 4, service_class="preemptible"),
        preempted(4, "beta", 4, by="gamma", lost_gpu_seconds=4 * 3600, disposition="stopped"),
        # Coming back as something else later does not change what it was.
        holds("beta", 4, 0, service_class="guaranteed"),
    )
    compute()
    assert transfers() == {"gamma": 4, "beta": -4}
    assert totals()["beta"] == 16 - 4


def test_the_loss_of_a_load_test_is_the_platforms_who_paid_for_it() -> None:
    """beta's load test holds 4 on demand at 3 for the platform; gamma owes the platform for the 4 GPU-hours lost."""
    world(8, "beta", "gamma")
    policy(preemption_charged_to="preemptor")
    tell(
        holds("beta", 0, 4, purpose="load_test"),
        preempted(4, "beta", 4, by="gamma", lost_gpu_seconds=4 * 3600, disposition="stopped"),
        holds("beta", 4, 0, purpose="load_test"),
    )
    compute()
    assert transfers() == {"gamma": 12, "platform": -12}
    assert totals() == {"beta": 0, "gamma": 12}
