"""A month under two policies: the differences by hand, and nothing of the books touched."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from billing.models import Policy
from ledger.models import Pool
from tests.billing.page_books import make_books
from tests.billing.test_periods_api import client, get, post

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

BOOKS = (
    "ledger_transfer",
    "billing_monthline",
    "billing_statement",
    "billing_statementline",
    "billing_preemptionrecord",
    "billing_preemptionshare",
    "billing_preemptionwait",
    "billing_allocation",
    "billing_policy",
    "ledger_dirtyspan",
    "ledger_auditentry",
)


@pytest.fixture
def pool() -> Pool:
    return make_books().pool


def everything_kept() -> dict[str, Any]:
    """All rows of every table of the books."""
    found = {}
    with connection.cursor() as cursor:
        for table in BOOKS:
            cursor.execute(f"SELECT row_to_json(t)::text FROM {table} t ORDER BY 1")
            found[table] = cursor.fetchall()
    return found


def test_the_victims_loss_goes_to_whoever_the_policy_names(pool: Pool) -> None:
    """gamma lost 8 GPU-hours and spent 0.1779 again, 2 of its 4 GPUs beyond entitlement each way: see page_books."""
    finance = client("finance")
    before = everything_kept()
    path = "policies/compare/"
    answer = post(finance, path, 200, month="2026-10", change={"preemption_charged_to": "platform"})
    assert everything_kept() == before
    differences = {row["account"]: row["difference"] for row in answer["rows"] if row["difference"] != "0"}
    assert set(differences) == {"tenant:gamma", "platform"}
    assert float(differences["platform"]) == -float(differences["tenant:gamma"]) > 0
    assert answer["total"]["base_amount"] == answer["total"]["other_amount"]
    assert answer["total"]["other_preemptions"] == answer["total"]["base_preemptions"] == "0"
    to_acme = post(finance, path, 200, month="2026-10", change={"preemption_charged_to": "preemptor"})
    moved = {row["account"]: row["difference"] for row in to_acme["rows"] if row["difference"] != "0"}
    assert moved == {
        "tenant:acme": differences["platform"],
        "tenant:gamma": differences["tenant:gamma"],
    }


def test_idle_time_is_borne_by_others_and_the_total_stands(pool: Pool) -> None:
    in_force = get(client("auditor"), "policies/")["results"][0]["id"]
    other = Policy.objects.create(valid_from="2100-01-01T00:00:00Z", unreserved_idle="even")
    answer = post(client("auditor"), "policies/compare/", 200, month="2026-10", base=in_force, other=other.pk)
    rows = {row["account"]: row["difference"] for row in answer["rows"]}
    # 8 GPU-hours of the ten hours and five hours before are idle and unreserved; three tenants held something.
    platform = float(rows["platform"])
    assert platform < 0
    shares = [float(rows[f"tenant:{slug}"]) for slug in ("acme", "beta", "gamma")]
    assert all(share == pytest.approx(-platform / 3, abs=0.000002) for share in shares)
    # Every line is rounded once, so three shares may differ from one whole by less than one micro unit each.
    assert abs(float(answer["total"]["difference"])) < 3e-6


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"month": "2031-01", "other": 1}, 404, "not_found"),
        ({"month": "2026-10"}, 422, "bad_comparison"),
        ({"month": "2026-10", "other": 999_999}, 404, "not_found"),
        ({"month": "2026-10", "change": {"lend_credit": "2"}}, 422, "bad_terms"),
        ({"month": "2026-10", "change": {"undelivered_counts_pending": True}}, 409, "counts_differ"),
    ],
)
def test_what_cannot_be_compared_is_said(pool: Pool, body: dict[str, Any], status: int, code: str) -> None:
    assert post(client("finance"), "policies/compare/", status, **body)["code"] == code


def test_tenants_do_not_compare(pool: Pool) -> None:
    post(client("tenant_admin", "acme"), "policies/compare/", 403, month="2026-10", other=1)
