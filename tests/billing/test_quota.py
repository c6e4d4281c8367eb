"""Quotas as they stand: booked, put right, and read by a gateway in one indexed query (domain.md section 9)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from billing.selectors.quota import quota_remaining
from billing.services.configuration import apply_document
from billing.services.quota_standings import refresh_quota_standings
from billing.sql.quota import REMAINING
from ledger.models import Holder, HolderKind, QuotaStanding, Tenant
from tests.billing.test_api import client, get
from tests.ingest.feeding import deliver, event, request, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

NOW = datetime(2026, 10, 20, tzinfo=UTC)
Row = tuple[str, str, str, str | None, str | None, int, int]


@pytest.fixture
def world() -> None:
    """acme has a contract of 1000 tokens a month."""
    small_world()
    contract = {
        "tenant": "acme",
        "kind": "tokens",
        "token_quota": 1000,
        "valid_from": datetime(2026, 10, 1, tzinfo=UTC),
    }
    apply_document({"contract": [contract]}, retroactive=True)
    refresh_quota_standings(NOW)


def quota(event_id: str, time: str, limit: int, used: int, **data: Any) -> dict[str, Any]:
    said = {"tenant": "acme", "layer": "serving", "resource": "concurrency", "service": "chat"} | data
    return event("quota", event_id, time, limit=limit, used=used, **said)


def standings() -> list[Row]:
    rows = QuotaStanding.objects.order_by("tenant__holder__slug", "layer", "resource", "pk")
    return list(
        rows.values_list(
            "tenant__holder__slug",
            "layer",
            "resource",
            "pool__slug",
            "service__holder__slug",
            "limit_milli",
            "used_milli",
        )
    )


CONTRACT: Row = ("acme", "contract", "tokens_per_month", None, None, 1_000_000, 0)


def test_the_newest_fact_stands_in_whatever_order_facts_come(world: None) -> None:
    deliver(quota("q2", "2026-10-03T02:00:00Z", 90, 40), quota("q1", "2026-10-03T01:00:00Z", 90, 10))
    deliver(quota("q0", "2026-10-03T00:00:00Z", 90, 5))
    deliver(
        event(
            "quota",
            "g1",
            "2026-10-03T01:00:00Z",
            tenant="acme",
            layer="cluster",
            resource="gpus",
            pool="bj-h100",
            limit=16,
            used="4.5",
        )
    )
    booked = standings()
    assert booked == [
        ("acme", "cluster", "gpus", "bj-h100", None, 16_000, 4_500),
        CONTRACT,
        ("acme", "serving", "concurrency", None, "chat", 90_000, 40_000),
    ]
    refresh_quota_standings(NOW)
    assert standings() == booked


@pytest.mark.parametrize("order", [("q1", "q2"), ("q2", "q1")])
def test_of_two_facts_for_one_instant_the_greatest_id_stands(world: None, order: tuple[str, str]) -> None:
    used = {"q1": 10, "q2": 20}
    for name in order:
        deliver(quota(name, "2026-10-03T01:00:00Z", 90, used[name]))
    assert standings()[-1] == ("acme", "serving", "concurrency", None, "chat", 90_000, 20_000)


def test_tokens_of_shared_services_use_up_the_contract_as_they_are_booked(world: None) -> None:
    served = {"service": "chat", "input_tokens": 100, "output_tokens": 50}
    deliver(
        request("r1", "2026-10-03T01:00:00Z", "2026-10-03T00:59:59Z", **served),
        request("r2", "2026-10-03T05:00:00Z", "2026-10-03T04:59:59Z", **served),
        # Not a service's, another month's, another tenant's.
        request("r3", "2026-10-03T05:00:00Z", "2026-10-03T04:59:59Z", input_tokens=7, output_tokens=7),
        request("r4", "2026-09-03T05:00:00Z", "2026-09-03T04:59:59Z", **served),
        request("r5", "2026-10-03T05:00:00Z", "2026-10-03T04:59:59Z", **served, tenant="beta"),
    )
    deliver(request("r1", "2026-10-03T01:00:00Z", "2026-10-03T00:59:59Z", **served))
    used: Row = (*CONTRACT[:6], 300_000)
    assert standings() == [used]
    refresh_quota_standings(NOW)
    assert standings() == [used]
    left = quota_remaining("acme", NOW, tenant_ids=None)
    assert left is not None
    assert left.left_milli["tokens_per_month"] == 700_000


def test_a_withdrawn_fact_and_a_new_mapping_are_put_right_by_computing(world: None) -> None:
    deliver(quota("q1", "2026-10-03T01:00:00Z", 90, 10), quota("q2", "2026-10-03T02:00:00Z", 90, 40))
    withdrawn = {"source": "/clusters/bj-1/kueue", "id": "q2"}
    deliver(event("correction", "c1", "2026-10-03T03:00:00Z", supersedes=withdrawn, reason="wrong"))
    refresh_quota_standings(NOW)
    assert standings()[-1] == ("acme", "serving", "concurrency", None, "chat", 90_000, 10_000)


def get_one(api: Any, path: str) -> Any:
    answer = api.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_what_a_gateway_is_told(world: None) -> None:
    deliver(
        quota("q1", "2026-10-03T01:00:00Z", 90, 90),
        quota("q2", "2026-10-03T01:00:00Z", 8, 2, resource="gpus"),
    )
    api = client("platform")
    left = get_one(api, "quota/remaining/?tenant=acme&service=chat")
    assert {
        name: left[name] for name in ("tokens_per_month", "concurrency", "gpus", "requests_per_minute")
    } == {
        "tokens_per_month": "1000",
        "concurrency": "0",
        "gpus": "6",
        "requests_per_minute": None,
    }
    assert left["exhausted"] == ["concurrency"]
    assert len(left["quotas"]) == 3
    other = get_one(api, "quota/remaining/?tenant=acme&service=other")
    assert (other["concurrency"], other["tokens_per_month"]) == (None, "1000")
    nothing = get_one(api, "quota/remaining/?tenant=beta")
    assert (nothing["concurrency"], nothing["exhausted"], nothing["quotas"]) == (None, [], [])


def _without_id(answer: Any) -> dict[str, Any]:
    """All of a problem document but the number of the request."""
    return {name: value for name, value in answer.json().items() if name != "request_id"}


def test_another_tenant_is_as_if_it_did_not_exist(world: None) -> None:
    api = client("tenant_viewer", "beta")
    answers = [api.get(f"/api/v1/quota/remaining/?tenant={slug}") for slug in ("acme", "never")]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert _without_id(answers[0]) == _without_id(answers[1])
    assert get_one(api, "quota/remaining/")["quotas"] == []
    assert client("finance").get("/api/v1/quota/remaining/").status_code == 422


def test_it_is_one_query_besides_authentication(world: None) -> None:
    api = client("platform")
    get_one(api, "quota/remaining/?tenant=acme")
    with CaptureQueriesContext(connection) as seen:
        get_one(api, "quota/remaining/?tenant=acme&service=chat")
    asked = [
        one["sql"] for one in seen if "ledger_apitoken" not in one["sql"] and "SAVEPOINT" not in one["sql"]
    ]
    assert len(asked) == 1
    assert "ledger_quotastanding" in asked[0]


def test_the_one_read_leans_on_its_indexes(world: None) -> None:
    """With 3000 tenants it looks at one tenant's rows."""
    holders = Holder.objects.bulk_create(
        Holder(kind=HolderKind.TENANT, slug=f"t-{n:04}") for n in range(3000)
    )
    Tenant.objects.bulk_create(Tenant(holder=holder, name=holder.slug) for holder in holders)
    QuotaStanding.objects.bulk_create(
        QuotaStanding(
            tenant_id=holder.pk, layer="cluster", resource="gpus", limit_milli=8, used_milli=1, as_of=NOW
        )
        for holder in holders
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE ledger_holder, ledger_tenant, ledger_quotastanding")
        cursor.execute(f"EXPLAIN {REMAINING}", {"tenant": "t-1500", "own": None, "tenant_ids": None})
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "quota_standing_key" in plan
    assert "Seq Scan on ledger_holder" not in plan
    assert "Seq Scan on ledger_quotastanding" not in plan
    assert "Seq Scan on ledger_tenant" not in plan
    found = quota_remaining("t-1500", NOW, tenant_ids=None)
    assert found is not None
    assert found.left_milli["gpus"] == 7


def test_both_layers_and_their_drift(world: None) -> None:
    """All 90 in flight from 1 to 3 o'clock while the cluster gives 4 of 16: 12 GPUs idle for 2 hours, until the
    serving limit is raised."""
    gpus = {
        "tenant": "acme",
        "layer": "cluster",
        "resource": "gpus",
        "pool": "bj-h100",
        "limit": 16,
        "used": 4,
    }
    deliver(
        event("quota", "g1", "2026-10-03T00:00:00Z", **gpus),
        quota("q1", "2026-10-03T01:00:00Z", 90, 90),
        quota("q2", "2026-10-03T03:00:00Z", 200, 90),
    )
    (row,) = get(client("finance"), "quota/drift/?window=2026-10")
    assert row == {
        "tenant": "acme",
        "starts_at": "2026-10-03T01:00:00Z",
        "ends_at": "2026-10-03T03:00:00Z",
        "full_layer": "serving",
        "loose_layer": "cluster",
        "unused_gpu_hours": "24",
        "reaction_seconds": "7200",
    }
    rows = get(client("tenant_viewer", "acme"), "quota/?at=2026-10-03T02:00:00Z")
    assert [(row["layer"], row["resource"], row["used"], row["used_share"]) for row in rows] == [
        ("cluster", "gpus", "4", "0.250000"),
        ("serving", "concurrency", "90", "1.000000"),
    ]
    for path in ("quota/", "quota/drift/?window=2026-10"):
        assert get(client("tenant_viewer", "beta"), path) == []
