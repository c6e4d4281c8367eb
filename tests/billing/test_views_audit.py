"""The audit page and the settings: what is in force, who did what, and deciding what somebody else proposed."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from billing.models import Approval, ApprovalKind, Decision, Policy
from ledger.models import Membership, Role, User
from ledger.services.audit import Actor, record
from tests.billing.closed_months import NOVEMBER_5, OCTOBER, closable_ledger, close

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def signed_in(name: str, role: Role = Role.FINANCE) -> Client:
    user = User.objects.create_user(name)
    Membership.objects.create(user=user, role=role)
    client = Client()
    client.force_login(user)
    return client


def csv_rows(client: Client, path: str) -> list[list[str]]:
    answer = client.get(path)
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    return [line.split(",") for line in content.decode().splitlines()]


def test_the_chain_names_each_closed_statement_and_its_head() -> None:
    closable_ledger()
    close(OCTOBER, NOVEMBER_5)
    page = signed_in("ann").get("/audit/").content.decode()
    rows = csv_rows(signed_in("bob"), "/audit/?csv=chain")
    assert [row[1] for row in rows[1:]] == ["gamma", "beta", "acme"]
    first, second = rows[-1], rows[-2]
    assert second[5] == first[3], "each follows the one before it"
    assert rows[1][3] in page


def test_deeds_can_be_searched_and_say_what_was_before() -> None:
    closable_ledger()
    record(
        Actor("eve"),
        "change_pool",
        "pool",
        "bj-h100",
        before={"gpu_model": "H100"},
        after={"gpu_model": "H200"},
    )
    record(Actor("ann"), "open_review", "period", "2026-10")
    rows = csv_rows(signed_in("auditor", Role.AUDITOR), "/audit/?csv=deeds&deeds.actor=eve")
    assert len(rows) == 2
    assert rows[1][1:4] == ["eve", "change_pool", "pool"]


def ask() -> Approval:
    payload = {"tenant": "acme", "concerns": "2026-10", "amount_micro": "1000000", "reason": "because"}
    return Approval.objects.create(
        kind=ApprovalKind.CREDIT, payload=payload, reason="because", requested_by="ann"
    )


@pytest.mark.parametrize(("who", "role", "status"), [("bob", Role.PLATFORM, 403), ("eve", Role.AUDITOR, 403)])
def test_only_finance_decides(who: str, role: Role, status: int) -> None:
    closable_ledger()
    approval = ask()
    client = signed_in(who, role)
    assert "because" in client.get("/settings/").content.decode()
    answer = client.post("/settings/", {"approval": str(approval.pk), "decision": "rejected"})
    assert answer.status_code == status
    assert Approval.objects.get().decision == Decision.PENDING


def test_a_second_person_rejects_and_whoever_asked_cannot_approve() -> None:
    closable_ledger()
    approval = ask()
    form = {"approval": str(approval.pk)}
    refused = signed_in("ann").post("/settings/", {**form, "decision": "approved"})
    assert refused.status_code == 422
    assert Approval.objects.get().decision == Decision.PENDING
    done = signed_in("bob").post("/settings/", {**form, "decision": "rejected", "note": "no"})
    assert done.status_code == 303
    decided = Approval.objects.get()
    assert (decided.decision, decided.decided_by, decided.note) == (Decision.REJECTED, "bob", "no")


def test_versions_say_whether_they_are_in_force(settings: Any) -> None:
    closable_ledger()
    Policy.objects.create(valid_from="2020-01-01T00:00:00Z", preemption_charged_to="victim")
    Policy.objects.create(valid_from="2999-01-01T00:00:00Z", preemption_charged_to="platform")
    rows = csv_rows(signed_in("ann"), "/settings/?csv=policies")
    assert [(row[0], row[2]) for row in rows[1:]] == [
        ("to come", "platform"),
        ("in force", "entitlement"),
        ("over", "victim"),
    ]
