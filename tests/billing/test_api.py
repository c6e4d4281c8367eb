"""The API as its callers see it: rows, conventions, and nothing of other tenants."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from billing.models import Allocation, PoolSlot
from billing.services.configuration import apply_document
from ledger.models import Account, ApiToken, Holder, Pool, Tenant
from ledger.services.tokens import create_api_token
from tests.fixtures.made_once import made_once

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

PAST = datetime(2020, 1, 1, tzinfo=UTC)
HOUR_US = 3_600_000_000
LISTS = [
    "allocations/?window=2026-10",
    "requeued/?window=2026-10",
    "usage/tokens/?window=2026-10",
    "tenants/",
    "pools/",
    "services/",
    "periods/",
    "rate-cards/",
    "policies/",
    "calibrations/",
]


@made_once
def books() -> None:
    """One pool of 16 GPUs for two hours: acme uses 4 of its 8 reserved, beta runs 2 on demand."""
    apply_document(
        {
            "tenant": [{"slug": "acme", "name": "=ACME()"}, {"slug": "beta"}],
            "pool": [{"slug": "bj-h100", "cluster": "bj", "gpu_model": "H100"}],
            "rate_card": [
                {
                    "name": "2020",
                    "valid_from": PAST,
                    "gpu_hour": [{"gpu_model": "H100", "reserved_used": "2", "on_demand": "3.3333"}],
                }
            ],
            "policy": [{"valid_from": PAST}],
        }
    )
    pool = Pool.objects.get()
    for hour in range(2):
        starts_at = datetime(2026, 10, 3, hour, tzinfo=UTC)
        PoolSlot.objects.create(
            pool=pool,
            starts_at=starts_at,
            ends_at=starts_at + timedelta(hours=1),
            capacity_gpu_us=16 * HOUR_US,
            reserved_used_gpu_us=4 * HOUR_US,
            on_demand_gpu_us=2 * HOUR_US,
            borrowed_gpu_us=0,
            reserved_idle_gpu_us=4 * HOUR_US,
            undelivered_gpu_us=0,
            unreserved_idle_gpu_us=6 * HOUR_US,
            over_reserved_gpu_us=0,
            excess_gpu_us=0,
            oversold_gpu_us=0,
        )
        for slug, figures in (
            ("acme", {"reserved_used_gpu_us": 4 * HOUR_US, "reserved_idle_gpu_us": 4 * HOUR_US}),
            ("beta", {"on_demand_gpu_us": 2 * HOUR_US}),
        ):
            Allocation.objects.create(
                pool=pool,
                starts_at=starts_at,
                holder=Holder.objects.get(slug=slug),
                account=Account.objects.get(tenant__holder__slug=slug),
                **figures,
            )


def client(role: str, *tenants: str, **options: Any) -> APIClient:
    rows = list(Tenant.objects.filter(holder__slug__in=tenants))
    _, secret = create_api_token("test", role, tenants=rows, **options)
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


def get(api: APIClient, path: str) -> Any:
    response = api.get(f"/api/v1/{path}")
    assert response.status_code == 200, response.content
    return response.json()["results"]


def test_allocations_by_tenant_and_category(books: None) -> None:
    rows = get(client("finance"), "allocations/?window=2026-10&by=tenant,category&include=idle")
    assert [
        (
            row["tenant"],
            row["category"],
            row["gpu_hours"],
            row["gpu_us"],
            row["share_of_capacity"],
            row["amount"],
        )
        for row in rows
    ] == [
        ("acme", "reserved_idle", "8", str(8 * HOUR_US), "0.250000", "16"),
        ("acme", "reserved_used", "8", str(8 * HOUR_US), "0.250000", "16"),
        ("beta", "on_demand", "4", str(4 * HOUR_US), "0.125000", "13.3332"),
        # No price of its own, so that of reserved_idle, which has none either: reserved_used's.
        ("platform", "unreserved_idle", "12", str(12 * HOUR_US), "0.375000", "24"),
    ]


@pytest.mark.parametrize(("step", "expected"), [("hour", 2), ("day", 1), ("month", 1), ("all", 1)])
def test_steps_cut_and_add_up(books: None, step: str, expected: int) -> None:
    rows = get(client("finance"), f"allocations/?window=2026-10&by=pool&step={step}")
    assert len(rows) == expected
    assert sum(int(row["gpu_us"]) for row in rows) == 20 * HOUR_US


def test_filters(books: None) -> None:
    api = client("finance")
    rows = get(api, "allocations/?window=2026-10&by=tenant&tenant=beta")
    assert [(row["tenant"], row["gpu_us"]) for row in rows] == [("beta", str(4 * HOUR_US))]
    assert get(api, "allocations/?window=2026-10&pool=nowhere") == []


def test_a_tenant_sees_its_own_rows_and_no_idle_of_the_pool(books: None) -> None:
    api = client("tenant_viewer", "beta")
    rows = get(api, "allocations/?window=2026-10&by=tenant&include=idle")
    assert [row["tenant"] for row in rows] == ["beta"]
    assert get(api, "allocations/?window=2026-10&by=tenant&tenant=acme") == []
    assert [row["slug"] for row in get(api, "tenants/")] == ["beta"]


def test_pages_follow_each_other(books: None) -> None:
    api = client("finance")
    path = "allocations/?window=2026-10&by=tenant,category&step=hour&page_size=2"
    seen: list[Any] = []
    url: str | None = f"http://testserver/api/v1/{path}"
    while url:
        document = api.get(url).json()
        seen += document["results"]
        url = document["next"]
    assert len(seen) == 6
    assert len({(row["starts_at"], row["tenant"], row["category"]) for row in seen}) == 6


def test_csv_is_the_same_rows_and_defuses_formulas(books: None) -> None:
    response = client("finance").get("/api/v1/tenants/?format=csv")
    assert response["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(response.content.decode(), newline="")))
    assert [(row["slug"], row["name"]) for row in rows] == [("acme", "'=ACME()"), ("beta", "beta")]


def test_fields(books: None) -> None:
    assert get(client("finance"), "tenants/?fields=slug") == [{"slug": "acme"}, {"slug": "beta"}]


@pytest.mark.parametrize(
    ("path", "code", "parameter"),
    [
        ("tenants/?colour=red", "unknown_parameter", "colour"),
        ("allocations/", "missing_parameter", "window"),
        ("allocations/?window=2026-13", "bad_window", "window"),
        ("allocations/?window=2026-10-01T00:00:00,2026-10-02T00:00:00Z", "bad_window", "window"),
        ("allocations/?window=2026-10&by=colour", "bad_by", "by"),
        ("allocations/?window=2026-10&step=week", "bad_step", "step"),
        ("allocations/?window=2026-10&service_class=gold", "bad_filter", "service_class"),
        ("allocations/?window=2026-10&tenant=%00", "bad_filter", "tenant"),
        ("tenants/?cursor=nonsense", "bad_cursor", "cursor"),
        ("tenants/?page_size=0", "bad_page_size", "page_size"),
        ("tenants/?ordering=password", "bad_ordering", "ordering"),
        ("tenants/?fields=password", "unknown_field", "fields"),
    ],
)
def test_what_is_not_understood_is_named(books: None, path: str, code: str, parameter: str) -> None:
    response = client("finance").get(f"/api/v1/{path}")
    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    document = response.json()
    assert (document["code"], document["parameter"], document["status"]) == (code, parameter, 400)


@pytest.mark.parametrize("path", LISTS)
def test_without_a_token_nothing(path: str) -> None:
    response = APIClient().get(f"/api/v1/{path}")
    assert response.status_code == 401
    assert response["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("path", LISTS)
def test_a_service_account_for_ingest_reads_nothing(books: None, path: str) -> None:
    assert client("ingest").get(f"/api/v1/{path}").status_code == 403


def test_tokens_end(books: None) -> None:
    expired = client("finance", expires_at=timezone.now() - timedelta(seconds=1))
    assert expired.get("/api/v1/tenants/").status_code == 401
    revoked = client("finance")
    assert revoked.get("/api/v1/tenants/").status_code == 200
    ApiToken.objects.update(revoked_at=timezone.now())
    assert revoked.get("/api/v1/tenants/").status_code == 401


def test_only_a_hash_of_the_secret_is_kept() -> None:
    token, secret = create_api_token("gateway", "ingest")
    stored = str(ApiToken.objects.filter(pk=token.pk).values().get())
    assert secret not in stored
    assert secret[len(token.prefix) :] not in stored


def test_an_unchanged_answer_is_a_304_and_request_ids_come_back(books: None) -> None:
    api = client("finance")
    first = api.get("/api/v1/tenants/", headers={"X-Request-Id": "gw-1"})
    assert first["X-Request-Id"] == "gw-1"
    again = api.get("/api/v1/tenants/", headers={"If-None-Match": first["ETag"]})
    assert again.status_code == 304
    forged = api.get("/api/v1/tenants/", headers={"X-Request-Id": "a\tb"})
    assert len(forged["X-Request-Id"]) == 32
