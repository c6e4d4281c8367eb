"""Budgets, forecasts and plans over the API (domain.md section 9)."""

from __future__ import annotations

from typing import Any

import pytest

from billing.models import Budget, MonthLine, Statement
from billing.services.configuration import apply_document
from ledger.core.units import micro_text
from ledger.models import AuditEntry, Transfer
from tests.billing.page_books import Books, make_books
from tests.billing.test_api import client, get
from tests.fixtures.made_once import made_once

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@made_once
def books() -> Books:
    """The worked example."""
    return make_books()


def post(api: Any, **body: Any) -> Any:
    return api.post("/api/v1/budgets/", body, format="json")


def test_budgets_stand_beside_what_the_month_came_to(books: Books) -> None:
    """acme held 44 GPU-hours and owes what its statement says; the month is over, so nothing more is expected."""
    api = client("finance")
    assert post(api, tenant="acme", gpu_hours="50").json()["changed"] is True
    assert post(api, tenant="acme", amount="1000", month="2026-10", thresholds=[10, 200]).status_code == 200
    assert post(api, tenant="acme", amount="1", month="2026-11").status_code == 200
    amount, hours = get(api, "budgets/?month=2026-10")
    assert (hours["kind"], hours["recurring"], hours["limit"], hours["month_to_date"]) == (
        "gpu_hours",
        True,
        "50",
        "44",
    )
    assert (hours["used_share"], hours["left"], hours["passed"]) == ("0.880000", "6", [50, 80])
    owed = micro_text(Statement.objects.get(tenant__holder__slug="acme", period="2026-10").total_micro)
    assert (amount["limit"], amount["month_to_date"], amount["expected"]) == ("1000", owed, owed)
    assert (amount["passed"], amount["expected_to_pass"]) == ([10], [10])


def test_setting_a_budget_again_changes_nothing_and_leaves_no_trace(books: Books) -> None:
    api = client("finance")
    first = post(api, tenant="acme", amount="10.5").json()
    assert post(api, tenant="acme", amount="10.50").json() == {"id": first["id"], "changed": False}
    assert post(api, tenant="acme", amount="11").json() == {"id": first["id"], "changed": True}
    assert [budget.amount_micro for budget in Budget.objects.all()] == [11_000_000]
    assert AuditEntry.objects.filter(object_type="budget").count() == 2


def test_an_admin_sets_its_own_and_nobody_elses(books: Books) -> None:
    admin = client("tenant_admin", "acme")
    own = post(admin, tenant="acme", amount="10").json()["id"]
    theirs = post(client("finance"), tenant="beta", amount="10").json()["id"]
    assert post(admin, tenant="beta", amount="10").status_code == 404
    assert post(admin, tenant="never", amount="10").status_code == 404
    assert admin.delete(f"/api/v1/budgets/{theirs}/").status_code == 404
    for role, tenants in (("tenant_viewer", ["acme"]), ("auditor", []), ("platform", [])):
        api = client(role, *tenants)
        assert post(api, tenant="acme", amount="10").status_code == 403
        assert api.delete(f"/api/v1/budgets/{own}/").status_code == 403
    assert [row["tenant"] for row in get(admin, "budgets/?month=2026-10")] == ["acme"]
    assert admin.delete(f"/api/v1/budgets/{own}/").status_code == 204
    assert get(admin, "budgets/?month=2026-10") == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"amount": "1", "gpu_hours": "1"}, 422),
        ({}, 422),
        ({"amount": "0"}, 422),
        ({"amount": "1", "month": "2026-13"}, 400),
        ({"amount": "1", "thresholds": [0]}, 422),
        ({"amount": "-1"}, 400),
        ({"amount": "1e5"}, 400),
    ],
)
def test_what_is_no_budget_is_refused(books: Books, body: dict[str, Any], status: int) -> None:
    assert post(client("finance"), tenant="acme", **body).status_code == status
    assert not Budget.objects.exists()


def test_budgets_are_configuration(books: Books) -> None:
    document = {"budget": [{"tenant": "acme", "amount": "500.25"}, {"tenant": "beta", "gpu_hours": "1.5"}]}
    said = [str(line) for line in apply_document(document) if "budget" in str(line)]
    assert [line for line in said if "alert" not in line] == [
        "+ budget of acme for every month",
        "+ budget of beta for every month",
    ]
    assert apply_document(document) == []
    assert sorted(Budget.objects.values_list("amount_micro", "gpu_us"), key=str) == [
        (500_250_000, None),
        (None, 5_400_000_000),
    ]


def test_the_forecast_of_a_finished_month_is_its_statement(books: Books) -> None:
    rows = get(client("finance"), "forecast/?month=2026-10")
    assert [row["tenant"] for row in rows] == ["acme", "beta", "delta", "gamma"]
    for row in rows:
        owed = micro_text(
            Statement.objects.get(tenant__holder__slug=row["tenant"], period="2026-10").total_micro
        )
        assert {row[f"amount_{name}"] for name in ("to_date", "expected", "low", "high")} == {owed}
    assert [row["gpu_hours_to_date"] for row in rows] == ["44", "40", "0", "52"]
    (row,) = get(client("tenant_viewer", "gamma"), "forecast/?month=2026-10")
    assert row["tenant"] == "gamma"


def test_a_running_month_is_forecast_from_the_days_before(books: Books) -> None:
    """November is 5 hours old and nothing was held: of October's 31 days one came to something, so the days to come
    are expected at 0."""
    (row,) = get(client("finance"), "forecast/?month=2026-11&tenant=beta")
    assert (row["horizon"], row["amount_to_date"], row["amount_expected"]) == (
        "2026-11-01T05:00:00Z",
        "0",
        "0",
    )


def test_a_plan_is_the_month_split_and_rated_again(books: Books) -> None:
    """acme with 4 instead of 8 reserved. As it was: 44 used at 2, 16 idle at 1, 20 lent at 2 and credited at 1: 124.
    With 4: used 2 x 4 h + 4 x 6 h = 32 at 2; 4 x 3 h = 12 on demand at 3; 2 x 4 h = 8 idle at 1: 108. Nobody needs to
    borrow, as 8 are unreserved."""
    before = (MonthLine.objects.count(), Transfer.objects.count())
    october, november = get(client("finance"), "plan/?tenant=acme&pool=bj-h100&reservation=4")
    assert (october["month"], november["month"]) == ("2026-10", "2026-11")
    assert {name: value for name, value in october["as_it_was"].items() if value != "0"} == {
        "reserved_used_gpu_hours": "44",
        "lent_gpu_hours": "20",
        "reserved_idle_gpu_hours": "16",
        "amount": "124",
    }
    then = october["re_rated"]
    # The pool has no capacity after hour 10: there a reservation is oversold, and nobody's to pay.
    assert {name: value for name, value in then.items() if value != "0"} == {
        "reserved_used_gpu_hours": "32",
        "on_demand_gpu_hours": "12",
        "reserved_idle_gpu_hours": "8",
        "oversold_gpu_hours": str(4 * (31 * 24 - 10)),
        "amount": "108",
    }
    assert october["difference"] == "-16"
    assert (MonthLine.objects.count(), Transfer.objects.count()) == before


def test_a_plan_as_it_was_is_what_the_bill_says(books: Books) -> None:
    for tenant in ("acme", "beta", "gamma"):
        october = get(client("finance"), f"plan/?tenant={tenant}&pool=bj-h100&reservation=1")[0]
        lines = MonthLine.objects.filter(
            account__tenant__holder__slug=tenant, period="2026-10", kind__in=["usage", "credit"]
        )
        assert october["as_it_was"]["amount"] == micro_text(sum(line.amount_micro or 0 for line in lines))


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("tenant=acme&pool=bj-h100", 400),
        ("tenant=acme&pool=bj-h100&reservation=1.2345", 400),
        ("tenant=acme&pool=bj-h100&reservation=-1", 400),
        ("tenant=never&pool=bj-h100&reservation=1", 404),
        ("tenant=acme&pool=nowhere&reservation=1", 404),
    ],
)
def test_a_plan_that_cannot_be(books: Books, query: str, status: int) -> None:
    assert client("finance").get(f"/api/v1/plan/?{query}").status_code == status


def test_another_tenants_plan_is_not_there(books: Books) -> None:
    api = client("tenant_admin", "beta")
    assert api.get("/api/v1/plan/?tenant=acme&pool=bj-h100&reservation=1").status_code == 404
    assert get(api, "plan/?tenant=beta&pool=bj-h100&reservation=1")[0]["tenant"] == "beta"
