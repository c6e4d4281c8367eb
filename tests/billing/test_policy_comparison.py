"""A month under two policies: the differences by hand, and nothing of the books touched."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from rest_framework.test import APIClient

from billing import tasks
from billing.models import Policy
from billing.services import effects
from ledger.models import Pool
from tests.billing.page_books import make_books
from tests.billing.test_periods_api import client, get, post

pytestmark = [pytest.mark.django_db, pytest.mark.postgres, pytest.mark.usefixtures("no_broker")]
PATH = "policies/compare/"

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


def compared(api: APIClient, **body: Any) -> Any:
    """The result, once a worker was there: the address that was answered leads to it."""
    asked = post(api, PATH, 202, month="2026-10", **body)
    assert (asked["state"], asked["rows"], asked["total"]) == ("running", [], None)
    tasks.go_on_comparing()
    answer = api.get(asked["status_url"])
    assert answer.status_code == 200, answer.content
    found = answer.json()
    assert (found["id"], found["state"], found["problem"]) == (asked["id"], "done", "")
    return found


def test_the_victims_loss_goes_to_whoever_the_policy_names(pool: Pool) -> None:
    """gamma lost 8 GPU-hours and spent 0.1779 again, 2 of its 4 GPUs beyond entitlement each way: see page_books."""
    finance = client("finance")
    before = everything_kept()
    answer = compared(finance, change={"preemption_charged_to": "platform"})
    assert everything_kept() == before
    differences = {row["account"]: row["difference"] for row in answer["rows"] if row["difference"] != "0"}
    assert set(differences) == {"tenant:gamma", "platform"}
    assert float(differences["platform"]) == -float(differences["tenant:gamma"]) > 0
    assert answer["total"]["base_amount"] == answer["total"]["other_amount"]
    assert answer["total"]["other_preemptions"] == answer["total"]["base_preemptions"] == "0"
    to_acme = compared(finance, change={"preemption_charged_to": "preemptor"})
    moved = {row["account"]: row["difference"] for row in to_acme["rows"] if row["difference"] != "0"}
    assert moved == {
        "tenant:acme": differences["platform"],
        "tenant:gamma": differences["tenant:gamma"],
    }


def test_idle_time_is_borne_by_others_and_the_total_stands(pool: Pool) -> None:
    in_force = get(client("auditor"), "policies/")["results"][0]["id"]
    other = Policy.objects.create(valid_from="2100-01-01T00:00:00Z", unreserved_idle="even")
    answer = compared(client("auditor"), base=in_force, other=other.pk)
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
        ({"month": "2026-10", "other": 10**30}, 404, "not_found"),
        ({"month": "2026-10", "base": 999_999, "change": {"lend_credit": "0"}}, 404, "not_found"),
        ({"month": "2026-10", "change": {"lend_credit": "2"}}, 422, "bad_terms"),
        ({"month": "2026-10", "change": {"undelivered_counts_pending": True}}, 409, "counts_differ"),
    ],
)
def test_what_cannot_be_compared_is_said(pool: Pool, body: dict[str, Any], status: int, code: str) -> None:
    assert post(client("finance"), "policies/compare/", status, **body)["code"] == code


def test_tenants_do_not_compare(pool: Pool) -> None:
    asked = post(client("auditor"), PATH, 202, month="2026-10", change={"lend_credit": "0"})
    tenant = client("tenant_admin", "acme")
    post(tenant, PATH, 403, month="2026-10", other=1)
    get(tenant, f"policies/comparisons/{asked['id']}/", 403)
    get(client("platform"), f"policies/comparisons/{asked['id']}/")
    for nothing in (0, asked["id"] + 1, 10**30):
        get(client("platform"), f"policies/comparisons/{nothing}/", 404)


def test_a_request_computes_nothing_itself(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two whole months take minutes on large books: longer than anybody in between lets a request be open."""
    auditor = client("auditor")

    def in_the_request(*_args: Any) -> Any:
        raise AssertionError("computed inside the request")

    with monkeypatch.context() as requests:
        requests.setattr(effects, "compare_policies", in_the_request)
        asked = post(auditor, PATH, 202, month="2026-10", change={"preemption_charged_to": "platform"})
        get(auditor, f"policies/comparisons/{asked['id']}/")
    tasks.go_on_comparing()
    kept = get(auditor, f"policies/comparisons/{asked['id']}/")
    assert kept["ended_at"] and kept == get(client("finance"), f"policies/comparisons/{asked['id']}/")


class Killed(BaseException):
    """What no computation can catch, as when the kernel ends its process."""


def test_one_that_kills_its_workers_is_given_up_and_says_why(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor = client("auditor")
    deadly = post(auditor, PATH, 202, month="2026-10", change={"preemption_charged_to": "platform"})
    begun = []

    def kill(period: Any, base: Any, other: Any, say: Any) -> Any:
        say("now")
        begun.append(1)
        raise Killed

    monkeypatch.setattr(effects, "compare_policies", kill)
    for _time in range(3):
        with pytest.raises(Killed):
            tasks.go_on_comparing()
        assert get(auditor, f"policies/comparisons/{deadly['id']}/")["state"] == "running"
    tasks.go_on_comparing()
    given_up = get(auditor, f"policies/comparisons/{deadly['id']}/")
    assert (given_up["state"], given_up["problem"], len(begun)) == ("failed", "worker_died", 3)
    assert given_up["ended_at"] and given_up["detail"]
