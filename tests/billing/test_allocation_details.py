"""Allocations below the holder: by workload, user, label, model and key; they add up to what is coarser."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from billing.services.configuration import apply_document
from billing.services.months import compute_month
from ledger.core.periods import Month
from ledger.models import Role, Tenant
from ledger.services.tokens import create_api_token
from tests.fixtures.made_once import made_once
from tests.ingest.feeding import deliver, event, occupancy, request, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

HOUR = "3600000000"  # gpu_us


def key(value: str) -> dict[str, Any]:
    return {"identity": {"kind": "api_key_hash", "value": value}}


@made_once
def books() -> None:
    """16 GPUs. acme runs two workloads of two teams; chat holds 2 GPUs for two hours and serves both tenants."""
    small_world()
    keys = {"acme": ["k-acme"], "beta": ["k-beta-1", "k-beta-2"]}
    tenants = [
        {"slug": slug, "identities": [{"kind": "api_key_hash", "value": value} for value in values]}
        for slug, values in keys.items()
    ]
    prices = {"pool": "bj-h100", "reserved_used": "2", "on_demand": "3"}
    card = {"name": "2020", "valid_from": datetime(2020, 1, 1, tzinfo=UTC), "gpu_hour": [prices]}
    apply_document({"tenant": tenants, "rate_card": [card]}, retroactive=True)
    deliver(
        event("capacity", "c", "2026-10-01T00:00:00Z", pool="bj-h100", gpus=16),
        occupancy("a1", "2026-10-01T01:00:00Z", 4, workload="train", user="ann", labels={"team": "vision"}),
        occupancy("a2", "2026-10-01T03:30:00Z", 0, workload="train"),
        occupancy("b1", "2026-10-02T05:00:00Z", 1, workload="eval", user="bob", labels={"team": "speech"}),
        occupancy("b2", "2026-10-02T06:00:00Z", 0, workload="eval"),
        occupancy("s1", "2026-10-01T00:00:00Z", 2, workload="chat-0", service="chat"),
        occupancy("s2", "2026-10-01T02:00:00Z", 0, workload="chat-0", service="chat"),
        *(
            request(
                f"r{number}",
                "2026-10-01T00:30:00Z",
                "2026-10-01T00:29:00Z",
                service="chat",
                model=model,
                gpu_seconds=seconds,
                **key(value),
            )
            for number, (value, model, seconds) in enumerate(
                [
                    ("k-acme", "qwen", 10),
                    ("k-beta-1", "qwen", 20),
                    ("k-beta-2", "qwen", 6),
                    ("k-beta-2", "llama", 4),
                ]
            )
        ),
    )
    compute_month(Month.parse("2026-10"), horizon=datetime(2026, 11, 1, tzinfo=UTC))


def client(role: Role = Role.FINANCE, *slugs: str) -> Client:
    tenants = list(Tenant.objects.filter(holder__slug__in=slugs))
    _, secret = create_api_token("t", role, tenants=tenants)
    return Client(headers={"Authorization": f"Bearer {secret}"})


def rows(who: Client, query: str, *names: str) -> list[tuple[str, ...]]:
    answer = who.get(f"/api/v1/allocations/?window=2026-10&page_size=1000&{query}")
    assert answer.status_code == 200, answer.content
    return [tuple(row[name] for name in names) for row in answer.json()["results"]]


def test_by_workload_user_and_label(books: None) -> None:
    found = rows(
        client(),
        "by=workload,user,label:team,tenant",
        "tenant",
        "workload",
        "user",
        "label:team",
        "gpu_hours",
    )
    # chat's first hour is acme's and beta's by their requests, its second is idle time of the owner.
    assert found == [
        ("acme", "", "", "", "2.5"),
        ("acme", "eval", "bob", "speech", "1"),
        ("acme", "train", "ann", "vision", "10"),
        ("beta", "", "", "", "1.5"),
    ]


def test_a_shared_services_time_by_model_and_key(books: None) -> None:
    found = rows(
        client(),
        "by=tenant,service,model,api_key&service=chat",
        "tenant",
        "model",
        "api_key",
        "gpu_us",
        "amount",
    )
    assert found == [
        ("acme", "", "", "7200000000", "6"),
        ("acme", "qwen", "k-acme", "1800000000", "1.5"),
        ("beta", "llama", "k-beta-2", "720000000", "0.6"),
        ("beta", "qwen", "k-beta-1", "3600000000", "3"),
        ("beta", "qwen", "k-beta-2", "1080000000", "0.9"),
    ]


@pytest.mark.parametrize(
    "detail", ["workload", "user", "label:team", "model", "api_key", "workload,model,api_key"]
)
@pytest.mark.parametrize("step", ["day", "month", "all"])
def test_details_add_up_to_what_is_coarser(books: None, detail: str, step: str) -> None:
    names = ("starts_at", "tenant", "category", "service")

    def sums(by: str) -> dict[tuple[str, ...], int]:
        total: dict[tuple[str, ...], int] = {}
        for *where, gpu_us in rows(client(), f"step={step}&include=idle&by={by}", *names, "gpu_us"):
            total[tuple(where)] = total.get(tuple(where), 0) + int(gpu_us)
        return total

    coarse = sums("tenant,category,service")
    assert coarse
    assert sums(f"tenant,category,service,{detail}") == coarse


def test_filters_by_the_same_names(books: None) -> None:
    who = client()
    assert rows(who, "by=workload&label:team=speech", "workload", "gpu_us") == [("eval", HOUR)]
    assert rows(who, "by=label:team&label:team=speech,vision&user=ann", "label:team") == [("vision",)]
    assert rows(who, "by=tenant&api_key=k-beta-2", "tenant", "gpu_us") == [("beta", "1800000000")]
    assert rows(who, "by=tenant&model=nothing", "tenant") == []


def test_a_tenant_sees_its_own_keys_only(books: None) -> None:
    beta = client(Role.TENANT_VIEWER, "beta")
    assert rows(beta, "by=tenant,api_key", "tenant", "api_key") == [
        ("beta", "k-beta-1"),
        ("beta", "k-beta-2"),
    ]
    assert rows(beta, "by=workload", "workload") == [("",)]
    assert rows(beta, "by=tenant&workload=train", "tenant") == []


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("window=2026-10&by=workload&step=hour", 422, "bad_step"),
        ("window=2026-10-01T03:00:00Z,2026-10-02T00:00:00Z&by=user", 422, "bad_window"),
        ("window=2026-10&by=label:a,label:b", 422, "bad_by"),
        ("window=2026-10&by=label:", 400, "bad_by"),
        ("window=2026-10&by=label", 400, "bad_by"),
        ("window=2026-10&by=label:a&label:b=c", 422, "bad_by"),
        ("window=2026-10&by=nonsense", 400, "bad_by"),
    ],
)
def test_what_cannot_be_answered_says_why(books: None, query: str, status: int, code: str) -> None:
    answer = client().get(f"/api/v1/allocations/?{query}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


# --- by the minute ----------------------------------------------------------------------------------------------

HALF_PAST_TWO = "window=2026-10-01T02:30:00Z,2026-10-01T04:00:00Z"


def minutes(query: str, *names: str) -> list[tuple[str, ...]]:
    found, path = [], f"/api/v1/allocations/?step=minute&page_size=1000&{query}"
    who = client()
    while path:
        answer = who.get(path)
        assert answer.status_code == 200, answer.content
        found += [tuple(row[name] for name in names) for row in answer.json()["results"]]
        path = answer.json()["next"]
    return found


def test_by_the_minute_a_workload_ends_within_the_hour(books: None) -> None:
    found = minutes(
        f"{HALF_PAST_TWO}&by=tenant,category", "starts_at", "tenant", "category", "gpu_us", "amount"
    )
    assert len(found) == 60
    assert found[0] == ("2026-10-01T02:30:00Z", "acme", "on_demand", "240000000", "0.2")
    assert found[-1] == ("2026-10-01T03:29:00Z", "acme", "on_demand", "240000000", "0.2")


@pytest.mark.parametrize("by", ["tenant,category", "pool,tenant,service,category,service_class", "pool"])
def test_the_minutes_of_a_slot_add_up_to_it(books: None, by: str) -> None:
    window, names = "window=2026-10-01T00:00:00Z,2026-10-01T06:00:00Z&include=idle", by.split(",")
    hours: dict[tuple[str, ...], int] = {}
    for at, *where, gpu_us in minutes(f"{window}&by={by}", "starts_at", *names, "gpu_us"):
        key = (at[:13], *where)
        hours[key] = hours.get(key, 0) + int(gpu_us)
    answer = client().get(f"/api/v1/allocations/?step=hour&page_size=1000&{window}&by={by}").json()["results"]
    assert hours == {
        (row["starts_at"][:13], *(row[name] for name in names)): int(row["gpu_us"]) for row in answer
    }


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("window=2026-10", "bad_window"),
        (f"{HALF_PAST_TWO}&by=workload", "bad_by"),
        (f"{HALF_PAST_TWO}&model=x", "bad_by"),
    ],
)
def test_by_the_minute_a_day_at_most_and_from_levels_only(books: None, query: str, code: str) -> None:
    answer = client().get(f"/api/v1/allocations/?step=minute&{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, code)


def test_a_tenant_sees_its_own_minutes_only(books: None) -> None:
    beta = client(Role.TENANT_VIEWER, "beta")
    answer = beta.get(
        "/api/v1/allocations/?step=minute&window=2026-10-01T00:00:00Z,2026-10-01T06:00:00Z&by=tenant"
    )
    assert {row["tenant"] for row in answer.json()["results"]} == {"beta"}
