"""The files: fixed columns, amounts that add up, the same strings through every door, nothing of others."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from rest_framework.test import APIClient

from billing.exports.bill import COLUMNS as BILL
from billing.models import GpuPrice, Policy, PreemptionRecord, RateCard, Statement
from billing.selectors.preemption_rows import COLUMNS as PREEMPTIONS
from billing.selectors.usage_rows import COLUMNS as USAGE
from billing.services.months import compute_month
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import Pool, Tenant
from ledger.services.tokens import create_api_token
from tests.billing.level_facts import (
    MONTH,
    capacity,
    hour,
    identity,
    make_pool,
    make_tenants,
    occupancy,
    reservation,
)
from tests.billing.preemption_facts import preemption

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture
def month() -> Pool:
    """acme reserves 4 and uses 1 or 3 of them; beta borrows 2 for three hours and loses 1 to acme."""
    pool = make_pool()
    make_tenants("acme", "beta")
    Tenant.objects.filter(holder__slug="acme").update(display_alias="+tenant A")
    capacity(pool, hour(0), 4_000)
    reservation(pool, "acme", hour(0), 4_000)
    occupancy(pool, "=1+1", identity("acme"), hour(0), 1_000)
    occupancy(pool, "wl-b", identity("beta"), hour(1), 2_000)
    occupancy(pool, "=1+1", identity("acme"), hour(4), 3_000)
    occupancy(pool, "wl-b", identity("beta"), hour(4), 1_000)
    preemption(
        pool,
        hour(4),
        "wl-b",
        identity("beta"),
        1_000,
        preemption="wl-b/4",
        preemptor_identity=identity("acme"),
        preemptor_workload="=1+1",
        preemptor_source="structured",
    )
    card = RateCard.objects.create(name="card", valid_from=hour(-1))
    for category, price in (("reserved_used", 2_000_001), ("on_demand", 3_333_333)):
        GpuPrice.objects.create(rate_card=card, pool=pool, category=category, price_micro=price)
    Policy.objects.create(valid_from=hour(-1), preemption_charged_to="preemptor")
    compute_month(Month.parse(MONTH), horizon=hour(10))
    return pool


def exported(tenant: str, name: str) -> list[dict[str, str]]:
    out = io.StringIO(newline="")
    call_command("export_statement", MONTH, tenant, "--format", name, stdout=out)
    text = out.getvalue()
    assert text.count("\r\n") == text.count("\n")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def client(tenant: str) -> APIClient:
    token = create_api_token("t", "tenant_viewer", tenants=list(Tenant.objects.filter(holder__slug=tenant)))
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {token[1]}")
    return api


@pytest.mark.parametrize("tenant", ["acme", "beta"])
def test_a_bill_adds_up_to_its_total_to_the_minor_unit(month: Pool, tenant: str) -> None:
    rows = exported(tenant, "bill")
    assert tuple(rows[0]) == BILL
    *lines, total = rows
    assert total["kind"] == "total"
    assert sum(Decimal(row["amount"]) for row in lines) == Decimal(total["amount"])
    statement = Statement.objects.get(tenant__holder__slug=tenant)
    assert Decimal(total["amount"]) * 100 == statement.total_minor
    exact = sum(Decimal(row["amount"]) - Decimal(row["rounding"]) for row in lines)
    assert exact * 1_000_000 == statement.total_micro
    assert {row["sha256"] for row in rows} == {statement.sha256}


def test_quantity_times_unit_price_is_the_exact_amount(month: Pool) -> None:
    for row in exported("acme", "bill"):
        if row["kind"] == "usage":
            exact = Decimal(row["amount"]) - Decimal(row["rounding"])
            assert abs(Decimal(row["quantity"]) * Decimal(row["unit_price"]) - exact) < Decimal("0.000001")
            assert row["unit"] == "GPU-hour"


def test_usage_has_every_slot_in_exact_integers(month: Pool) -> None:
    rows = exported("beta", "usage")
    assert tuple(rows[0]) == USAGE
    assert [(row["hour"], row["category"], row["gpu_us"], row["gpu_hours"]) for row in rows[:3]] == [
        ("2026-10-01T01:00:00Z", "borrowed", str(2 * GPU_US_PER_GPU_HOUR), "2"),
        ("2026-10-01T02:00:00Z", "borrowed", str(2 * GPU_US_PER_GPU_HOUR), "2"),
        ("2026-10-01T03:00:00Z", "borrowed", str(2 * GPU_US_PER_GPU_HOUR), "2"),
    ]
    assert {row["share_of_capacity"] for row in rows[:3]} == {"0.500000"}
    assert sum(int(row["gpu_us"]) for row in rows) == (6 + 6) * GPU_US_PER_GPU_HOUR


def test_a_preemption_stands_on_both_statements(month: Pool) -> None:
    (suffered,) = exported("beta", "preemptions")
    (caused,) = exported("acme", "preemptions")
    assert tuple(suffered) == PREEMPTIONS
    assert (suffered["role"], caused["role"]) == ("victim", "cause")
    for name in ("decided_at", "gpus", "lost_gpu_us", "waiting_gpu_us", "charged_to"):
        assert suffered[name] == caused[name]
    assert -Decimal(suffered["amount"]) == Decimal(caused["amount"]) > 0
    assert suffered["lost_gpu_us"] == str(3 * GPU_US_PER_GPU_HOUR)
    assert suffered["recompute_gpu_us"] == ""
    assert suffered["requeued_gpu_us"] == suffered["lost_gpu_us"]


def test_a_tenant_sees_others_by_alias_and_not_their_ids(month: Pool) -> None:
    statement = Statement.objects.get(tenant__holder__slug="beta")
    response = client("beta").get(f"/api/v1/statements/{statement.pk}/preemptions.csv")
    (row,) = csv.DictReader(io.StringIO(b"".join(response.streaming_content).decode(), newline=""))
    assert row["victim"] == "beta"
    # The alias begins like a formula, so a spreadsheet must not run it.
    assert row["preemptor"] == "'+tenant A"
    caused = Statement.objects.get(tenant__holder__slug="acme")
    response = client("acme").get(f"/api/v1/statements/{caused.pk}/preemptions/")
    assert response.json()["results"][0]["victim"] == "another tenant"
    assert response.json()["results"][0]["preemption"] == str(PreemptionRecord.objects.get().pk)
    assert "wl-b" not in response.content.decode()


@pytest.mark.parametrize("path", ["", "lines/", "preemptions/", "bill.csv", "usage.csv", "preemptions.csv"])
def test_anothers_statement_is_a_404_like_one_that_is_not_there(month: Pool, path: str) -> None:
    statement = Statement.objects.get(tenant__holder__slug="acme")
    api = client("beta")
    other = api.get(f"/api/v1/statements/{statement.pk}/{path}")
    absent = api.get(f"/api/v1/statements/00000000-0000-0000-0000-000000000000/{path}")
    assert (other.status_code, absent.status_code) == (404, 404)
    documents = [{**response.json(), "instance": "", "request_id": ""} for response in (other, absent)]
    assert documents[0] == documents[1]


def test_api_and_csv_are_the_same_strings(month: Pool) -> None:
    statement = Statement.objects.get(tenant__holder__slug="acme")
    api = client("acme")
    lines = api.get(f"/api/v1/statements/{statement.pk}/lines/").json()["results"]
    *rows, total = exported("acme", "bill")
    assert [{name: str(value) for name, value in line.items()} for line in lines] == [
        {name: row[name] for name in lines[0]} for row in rows
    ]
    assert api.get(f"/api/v1/statements/{statement.pk}/").json()["total"] == total["amount"]


def test_for_spreadsheets_a_mark_and_headings_in_the_readers_language(month: Pool) -> None:
    statement = Statement.objects.get(tenant__holder__slug="acme")
    response = client("acme").get(f"/api/v1/statements/{statement.pk}/bill.csv?excel=1")
    content = b"".join(response.streaming_content)
    assert content.startswith(b"\xef\xbb\xbf")
    assert b"unit price" in content.splitlines()[0]


def test_preemptions_list_and_matrix(month: Pool) -> None:
    finance: Any = APIClient()
    finance.credentials(HTTP_AUTHORIZATION=f"Bearer {create_api_token('f', 'finance')[1]}")
    (row,) = finance.get(f"/api/v1/preemptions/?window={MONTH}").json()["results"]
    assert (row["victim"], row["preemptor"], row["preemption"]) == ("beta", "acme", "wl-b/4")
    assert finance.get(f"/api/v1/preemptions/?window={MONTH}&victim=acme").json()["results"] == []
    (cell,) = finance.get(f"/api/v1/preemptions/matrix/?window={MONTH}").json()["results"]
    assert (cell["preemptor"], cell["victim"], cell["preemptions"], cell["gpus"]) == ("acme", "beta", 1, "1")
    one = finance.get(f"/api/v1/preemptions/{row['id']}/").json()
    assert one["lost_gpu_us"] == row["lost_gpu_us"]
    assert len(one["events"]) == 1
    (requeued,) = finance.get(f"/api/v1/requeued/?window={MONTH}").json()["results"]
    assert (requeued["tenant"], requeued["lost_gpu_us"]) == ("beta", row["lost_gpu_us"])


def test_a_month_without_a_statement_is_one_line() -> None:
    with pytest.raises(CommandError, match="no statement of acme for 2026-10"):
        call_command("export_statement", MONTH, "acme")
