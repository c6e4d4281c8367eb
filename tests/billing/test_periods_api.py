"""The life of a month through the API and the command line: who may do what, and what they are told."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import call_command
from rest_framework.test import APIClient

from billing.models import CloseRun, Decision, Statement
from billing.services import closing, periods
from billing.services.closing import run_close
from billing.services.deeds import decide
from billing.services.months import compute_month
from billing.services.periods import open_review
from billing.tasks import close_month
from ledger.management.base import BadInput, CommandFailed
from ledger.models import AuditEntry, FactFinding, Pool, Tenant, User
from ledger.services.masters import mark_pools_dirty
from ledger.services.tokens import create_api_token
from tests.billing.closed_months import ANNA, BO, NOVEMBER_5, OCTOBER, closable_ledger, close, hold
from tests.billing.level_facts import hour

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def fifth_of_november(monkeypatch: pytest.MonkeyPatch, no_broker: None) -> None:
    """The services' own clock, and no broker to hand work to."""

    class Clock:
        @staticmethod
        def now() -> object:
            return NOVEMBER_5

    for module in (closing, periods):
        monkeypatch.setattr(module, "timezone", Clock)


@pytest.fixture
def pool() -> Pool:
    return closable_ledger()


def client(role: str, *tenants: str, by: str = "") -> APIClient:
    rows = list(Tenant.objects.filter(holder__slug__in=tenants))
    user = User.objects.get_or_create(username=by)[0] if by else None
    _, secret = create_api_token(f"{role} token", role, tenants=rows, created_by=user)
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


def post(api: APIClient, path: str, status: int, **body: Any) -> Any:
    response = api.post(f"/api/v1/{path}", body, format="json")
    assert response.status_code == status, response.content
    return response.json()


def get(api: APIClient, path: str, status: int = 200) -> Any:
    response = api.get(f"/api/v1/{path}")
    assert response.status_code == status, response.content
    return response.json()


def test_a_month_is_reviewed_and_closed(pool: Pool) -> None:
    finance = client("finance")
    assert post(finance, "periods/2026-10/close/", 404)["code"] == "not_found"
    assert post(finance, "periods/2026-10/review/", 200)["state"] == "review"
    items = get(finance, "periods/2026-10/checklist/")["results"]
    assert {item["state"] for item in items if item["blocks"]} == {"clean"}
    unapproved = {"item": "drafts", "state": "open", "blocks": False, "evidence": ["3 of 3 are not approved"]}
    assert [item for item in items if unapproved.items() <= item.items()]
    started = post(finance, "periods/2026-10/close/", 202)
    assert (started["state"], [step["state"] for step in started["steps"]]) == ("running", ["waiting"] * 4)
    close_month(CloseRun.objects.get().pk)
    done = get(finance, "periods/2026-10/close/")
    assert (done["state"], done["message"]) == ("done", "2026-10 is closed")
    assert post(finance, "periods/2026-10/close/", 409)["code"] == "closed"
    assert post(finance, "periods/2026-13/review/", 404)["code"] == "not_found"
    entry = AuditEntry.objects.get(action="close_month")
    assert entry.actor == "token:finance token" and entry.request_id


@pytest.mark.parametrize("role", ["platform", "auditor", "tenant_admin", "tenant_viewer"])
def test_only_finance_moves_months(pool: Pool, role: str) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    api = client(role, *(["beta"] if role.startswith("tenant") else []))
    draft = Statement.objects.get(number="2026-10-beta")
    for path in (
        "periods/2026-10/review/",
        "periods/2026-10/close/",
        f"statements/{draft.pk}/approve/",
        "adjustments/",
    ):
        assert post(api, path, 403)["code"] == "not_allowed"
    get(api, "periods/2026-10/checklist/", 403 if role.startswith("tenant") else 200)
    get(api, "approvals/", 200 if role == "auditor" else 403)


def test_an_approval_names_the_hash(pool: Pool) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    draft, finance = Statement.objects.get(number="2026-10-beta"), client("finance")
    path = f"statements/{draft.pk}/approve/"
    assert post(finance, path, 400)["status"] == 400
    assert post(finance, path, 409, sha256="0" * 64)["code"] == "changed"
    assert post(finance, path, 201, sha256=draft.sha256)["statement"] == "2026-10-beta"


def test_an_override_by_two_people(pool: Pool) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    FactFinding.objects.create(code="merge_conflict", pool=pool, occurred_at=hour(1), subject="p1")
    anna, bo = client("finance", by="anna"), client("finance", by="bo")
    waiting = post(anna, "periods/2026-10/close/", 202, override="known and harmless")
    assert waiting["state"] == "waiting"
    decision = f"approvals/{waiting['approval']}/decide/"
    # Another token of the same person is no second person.
    assert post(client("finance", by="anna"), decision, 409, decision="approved")["code"] == "same_person"
    assert get(bo, "approvals/?decision=pending")["results"][0]["requested_by"] == "anna"
    assert post(bo, decision, 200, decision="approved", note="seen")["decided_by"] == "bo"
    post(anna, "periods/2026-10/close/", 202)
    assert run_close(CloseRun.objects.get().pk).state == "done"


def test_a_line_of_a_draft_is_disputed_by_the_hash_that_its_row_says(pool: Pool) -> None:
    """Numbers change when a draft is computed again: the hash says which draft they are of."""
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    beta = client("tenant_viewer", "beta")
    path = f"statements/{Statement.objects.get(number='2026-10-beta').pk}/"
    row = get(beta, f"{path}lines/")["results"][0]
    wrong = {"line": row["line"], "reason": "we held 2"}
    assert post(beta, f"{path}disputes/", 422, **wrong)["code"] == "sha256_needed"
    hold(pool, "wl-0", "beta", 0, 1, 1_000)
    mark_pools_dirty([pool.pk], hour(0))
    compute_month(OCTOBER, horizon=NOVEMBER_5)
    assert post(beta, f"{path}disputes/", 409, **wrong, sha256=row["sha256"])["code"] == "line_changed"
    again = get(beta, f"{path}lines/")["results"][0]
    assert (
        post(beta, f"{path}disputes/", 422, line=99, reason="?", sha256=again["sha256"])["code"]
        == "unknown_line"
    )
    dispute = post(beta, f"{path}disputes/", 201, **wrong, sha256=again["sha256"])
    assert dispute["amount"] == again["amount"].removesuffix(".00")


def test_a_dispute_is_the_tenants_and_finances_business(pool: Pool) -> None:
    close()
    beta, acme = client("tenant_viewer", "beta"), client("tenant_admin", "acme")
    finance, platform = client("finance", by="anna"), client("platform")
    path = f"statements/{Statement.objects.get(number='2026-10-beta').pk}/disputes/"
    assert post(acme, path, 404, line=1, reason="mine?")["code"] == "not_found"
    assert post(finance, path, 403, line=1, reason="?")["code"] == "not_allowed"
    assert post(beta, path, 422, line=9, reason="wrong")["code"] == "unknown_line"
    dispute = post(beta, path, 201, line=1, reason="wrong")
    assert (dispute["state"], dispute["amount"]) == ("open", "120")
    assert post(beta, path, 409, line=1, reason="wrong")["code"] == "already_open"
    counts = [len(get(api, "disputes/")["results"]) for api in (beta, finance, acme, platform)]
    assert counts == [1, 1, 0, 0]
    resolve = f"disputes/{dispute['id']}/resolve/"
    assert post(beta, resolve, 403, decision="reject", text="no")["code"] == "not_allowed"
    assert post(finance, resolve, 422, decision="adjust", text="half")["code"] == "bad_amount"
    too_much = post(finance, resolve, 422, decision="adjust", text="all", amount="120.000001")
    assert too_much["code"] == "too_much"
    proposed = post(finance, resolve, 200, decision="adjust", text="half", amount="60")
    assert proposed["state"] == "proposed"
    approval = get(finance, "approvals/")["results"][0]
    decide(approval["id"], Decision.APPROVED, BO)
    events = get(beta, path)["results"][0]["events"]
    assert [(event["kind"], event["amount"]) for event in events] == [
        ("open", None),
        ("proposed", "60"),
        ("adjusted", "60"),
    ]


def test_a_goodwill_credit_waits_for_a_second_person(pool: Pool) -> None:
    close()
    finance = client("finance", by="anna")
    credit = {"tenant": "beta", "month": "2026-10", "amount": "5", "reason": "outage"}
    given = post(finance, "adjustments/", 201, **credit)
    assert (given["granted"], given["approval"]["payload"]["amount_micro"]) == (False, "5000000")
    assert post(finance, "adjustments/", 422, **credit | {"amount": "-5"})["code"] == "bad_amount"
    assert post(finance, "adjustments/", 422, **credit | {"amount": "120.01"})["code"] == "too_much"
    assert post(finance, "adjustments/", 422, **credit | {"tenant": "nobody"})["code"] == "unknown_statement"


def test_the_command_line_reviews_and_closes(pool: Pool) -> None:
    out = io.StringIO()
    with pytest.raises(BadInput, match="in review"):
        call_command("close_month", "2026-10")
    call_command("open_review", "2026-10", stdout=out)
    call_command("close_month", "2026-10", stdout=out)
    assert "2026-10 is in review" in out.getvalue()
    assert f"head of the chain {Statement.objects.get(number='2026-10-gamma').sha256}" in out.getvalue()
    with pytest.raises(BadInput, match="is closed"):
        call_command("open_review", "2026-10")
    with pytest.raises(BadInput, match="not a month"):
        call_command("close_month", "october")


def test_the_command_line_says_what_blocks_and_waits_for_the_second_person(pool: Pool) -> None:
    open_review(OCTOBER, ANNA, now=NOVEMBER_5)
    FactFinding.objects.create(code="merge_conflict", pool=pool, occurred_at=hour(1), subject="p1")
    out = io.StringIO()
    with pytest.raises(CommandFailed, match="No other exception that blocks: merge_conflict bj-h100: 1"):
        call_command("close_month", "2026-10", stdout=out)
    with pytest.raises(CommandFailed, match="waits for a second person"):
        call_command("close_month", "2026-10", override="known", stdout=out)


def test_journals_are_downloads_for_those_who_see_the_books(pool: Pool) -> None:
    close()
    finance, beta = client("finance"), client("tenant_admin", "beta")
    for form, start in (("csv", b"transfer,date,"), ("beancount", b'option "title"')):
        path = f"/api/v1/periods/2026-10/journal.{form}"
        response = finance.get(path)
        assert b"".join(response.streaming_content).startswith(start)
        assert response["Content-Disposition"] == f'attachment; filename="journal-2026-10.{form}"'
        assert beta.get(path).status_code == 403
        assert finance.get(path.replace("10", "13")).status_code == 404
