"""What a statement's page says beyond its lines: bridge, split, shares, quota; disputes and credits by its forms."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from billing.models import (
    Approval,
    Contract,
    Credit,
    Decision,
    Dispute,
    DisputeState,
    Statement,
    StatementApproval,
    StatementLine,
    StatementState,
    WorkloadDay,
)
from billing.services.credits import request_credit
from billing.services.deeds import decide
from billing.services.months import compute_month
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR, MICRO_PER_UNIT
from ledger.models import (
    Ledger,
    Membership,
    ModelName,
    Outcome,
    Period,
    PeriodState,
    Role,
    Service,
    Tenant,
    UsageHour,
    User,
)
from ledger.services.audit import Actor
from tests.billing.closed_months import ANNA
from tests.billing.level_facts import hour, identity, make_service
from tests.billing.page_books import (
    HOURS_OF_OCTOBER,
    MONTH,
    NEXT_MONTH,
    Books,
    client_of,
    line_position,
)
from tests.billing.page_text import shown_text

pytestmark = [pytest.mark.django_db, pytest.mark.postgres, pytest.mark.usefixtures("no_broker")]
ACME = f"/months/{MONTH}/statements/acme/"


def rows_of(client: Client, path: str, table: str) -> list[tuple[Any, ...]]:
    """A table as it is downloaded: all rows, all columns."""
    lines = client.get(path + ("&" if "?" in path else "?") + f"csv={table}").getvalue().decode().splitlines()
    return [tuple(line.split(",")) for line in lines]


def test_the_bridge_adds_up_to_the_difference(people: dict[str, User]) -> None:
    """October: 44 GPU-hours used at 2, 20 lent at 2, 16 idle at 1, 20 credited at 1: 124. November: nothing."""
    path = f"/months/{NEXT_MONTH}/statements/acme/"
    client = client_of(people["viewer-of-acme"])
    assert rows_of(client, path, "bridge") == [
        ("step", "amount", "exact_amount"),
        ("volume", "-128.00", "-128"),
        ("idle", "-16.00", "-16"),
        ("credits", "20.00", "20"),
    ]
    assert "Difference \u2212124.00" in shown_text(client.get(path))
    assert "bridge" not in client.get(ACME).context["tables"]


def test_the_split_inside_the_tenant_adds_up_to_the_lines(people: dict[str, User]) -> None:
    client = client_of(people["viewer-of-acme"])
    assert rows_of(client, f"{ACME}?split=workload", "inside") == [
        ("name", "gpu_hours", "share", "amount", "gpu_us"),
        ("", "36", "45.0", "56", str(36 * GPU_US_PER_GPU_HOUR)),
        ("wl-4/a", "24", "30.0", "48", str(24 * GPU_US_PER_GPU_HOUR)),
        ("wl-1", "20", "25.0", "40", str(20 * GPU_US_PER_GPU_HOUR)),
    ]
    page = client.get(ACME)
    assert [choice.name for choice in page.context["splits"]] == ["User", "API key", "Model", "Workload"]
    assert [choice.is_chosen for choice in page.context["splits"]] == [True, False, False, False]


def test_a_team_is_a_label_of_the_work(books: Books, people: dict[str, User]) -> None:
    WorkloadDay.objects.filter(workload="wl-1").update(labels={"team": "core", "app": "chat"})
    client = client_of(people["viewer-of-acme"])
    names = [choice.name for choice in client.get(ACME).context["splits"]]
    assert names == ["Team", "User", "API key", "Model", "Workload", "Label app"]
    assert [row[:2] for row in rows_of(client, ACME, "inside")] == [
        ("name", "gpu_hours"),
        ("", "60"),
        ("core", "20"),
    ]


def test_the_share_of_capacity(people: dict[str, User]) -> None:
    assert rows_of(client_of(people["viewer-of-acme"]), ACME, "shares") == [
        ("pool", "gpu_model", "gpu_hours", "capacity_gpu_hours", "share_of_capacity"),
        ("bj-h100", "H100", "44", "160", "0.275000"),
    ]


def test_a_token_contract_shows_its_quota_first(books: Books, people: dict[str, User]) -> None:
    period = Period.objects.get(month=MONTH)
    acme = Tenant.objects.get(holder__slug="acme")
    Contract.objects.create(tenant=acme, valid_from=period.starts_at, kind="tokens", token_quota=2_000_000)
    make_service("chat")
    UsageHour.objects.create(
        pool=books.pool,
        service=Service.objects.get(),
        hour=hour(1),
        identity=identity("acme"),
        outcome=Outcome.OK,
        model=ModelName.objects.create(name="qwen3-32b"),
        requests=1,
        input_tokens=1_000_000,
        output_tokens=500_000,
    )
    page = client_of(people["viewer-of-acme"]).get(ACME)
    assert (page.context["quota"].quota.used, page.context["quota"].percent) == (1_500_000, "75.0")
    text = shown_text(page)
    assert text.index("Tokens against quota") < text.index("Occupied")
    assert "Left 0.50" in text
    other = client_of(people["finance"]).get(f"/months/{MONTH}/statements/gamma/")
    assert "Tokens against quota" not in shown_text(other)


def line_path(books: Books) -> str:
    return f"{ACME}lines/{line_position(books.statement('acme'), 'reserved_idle')}/"


def disputing(client: Client, path: str, text: str) -> dict[str, str]:
    """The form on a line's page, as the browser sends it: what it holds unseen, and what was typed."""
    page = client.get(path).content.decode()
    form = next((one for one in page.split("<form") if 'value="dispute"' in one), "")
    hidden = re.findall(r'<input type="hidden" name="(line|amount)" value="([^"]*)"', form)
    return {"deed": "dispute", "text": text, **dict(hidden)}


def answer_path() -> str:
    """Where the last dispute is answered, whatever became of its line."""
    return f"{ACME}disputes/{Dispute.objects.latest('opened_at').pk}/"


def said(response: Any) -> str:
    return " ".join(str(message) for message in response.context["messages"])


def test_a_dispute_from_the_tenants_form_to_the_credit(books: Books, people: dict[str, User]) -> None:
    path = line_path(books)
    viewer, finance = client_of(people["viewer-of-acme"]), client_of(people["finance"])
    form = disputing(viewer, path, "we released it")
    assert viewer.post(path, {**form, "text": "  "}).status_code == 422
    opened = viewer.post(path, form, follow=True)
    assert "The dispute is open" in said(opened)
    dispute = Dispute.objects.get()
    assert (dispute.opened_by, dispute.amount_micro) == ("viewer-of-acme", 16 * MICRO_PER_UNIT)
    again = viewer.post(path, {**form, "text": "again"})
    assert again.status_code == 422 and "not settled" in shown_text(again)
    assert ">Dispute this line<" not in viewer.get(path).content.decode()

    answer, to = {"text": "looking"}, answer_path()
    assert f'action="{to}"' in finance.get(path).content.decode()
    finance.post(to, {**answer, "deed": "answer"})
    for amount in ("", "0", "-1", "x", "1.1234567"):
        refused = finance.post(to, {**answer, "deed": "adjust", "amount": amount})
        assert refused.status_code == 422, amount
    refused = finance.post(to, {**answer, "deed": "adjust", "amount": "16.01"})
    assert refused.status_code == 422 and "more than there is to give back" in shown_text(refused)
    proposed = finance.post(to, {**answer, "deed": "adjust", "amount": "6.5", "text": "half"}, follow=True)
    assert proposed.request["PATH_INFO"] == path
    assert "A second person" in said(proposed)
    decide(Approval.objects.get().pk, Decision.APPROVED, Actor("bo"))
    history = viewer.get(path).context["disputes"][0].events.all()
    assert [(event.kind, event.text, event.amount_micro, event.by) for event in history] == [
        ("open", "we released it", None, "viewer-of-acme"),
        ("answered", "looking", None, "finance"),
        ("proposed", "half", 6_500_000, "finance"),
        ("adjusted", "half", 6_500_000, "finance"),
    ]
    (head, row) = rows_of(viewer, ACME, "disputes")
    assert head == ("line", "what", "amount", "state", "opened_by", "opened_at", "last_word")
    assert row[1:5] == ("Reserved-but-idle", "16", "adjusted", "viewer-of-acme")
    assert Credit.objects.get().amount_micro == 6_500_000
    assert finance.post(to, {**answer, "deed": "reject"}).status_code == 422


def test_a_dispute_leads_to_its_line_wherever_that_stands(books: Books, people: dict[str, User]) -> None:
    """Its own adjustment puts a line before it; later the facts leave nothing of the line at all."""
    path = line_path(books)
    viewer, finance, auditor = (client_of(people[name]) for name in ("viewer-of-acme", "finance", "auditor"))
    viewer.post(path, disputing(viewer, path, "we released it"))
    dispute = Dispute.objects.get()
    finance.post(answer_path(), {"deed": "adjust", "text": "so you did", "amount": "6.5"})
    decide(Approval.objects.get().pk, Decision.APPROVED, Actor("bo"))
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER))
    statement = books.statement("acme")
    now = line_position(statement, "reserved_idle")
    assert now != dispute.position, "the adjustment moved nothing: this test looks at nothing"

    def lists() -> list[tuple[Client, str]]:
        return [
            (viewer, ACME),
            (finance, ACME),
            (finance, f"/months/{MONTH}/"),
            (auditor, f"/months/{MONTH}/"),
        ]

    def api_lines(client: Client) -> list[int | None]:
        paths = ("disputes/", f"statements/{statement.pk}/disputes/")
        answers = [client.get(f"/api/v1/{path}").json()["results"] for path in paths]
        return [row["line"] for rows in answers for row in rows]

    def everything_leads_to_it() -> None:
        for client, page in lists():
            links = re.findall(r'href="([^"]*)#dispute"', client.get(page).content.decode())
            assert links == [f"{ACME}lines/{now}/"], page
            led_to = shown_text(client.get(links[0]))
            assert "we released it" in led_to and "so you did" in led_to
            assert cells(client, page) == (str(now), "so you did")
        assert api_lines(viewer) == api_lines(finance) == [now] * 2

    def cells(client: Client, page: str) -> tuple[str, str]:
        head, row = rows_of(client, page, "disputes")
        return row[head.index("line")], row[head.index("last_word")]

    everything_leads_to_it()
    line = statement.lines.get(position=now)
    line.delete()
    for client, page in lists():
        answer = client.get(page)
        assert '#dispute"' not in answer.content.decode()
        assert "no longer on the statement" in shown_text(answer)
        assert f'href="{answer_path()}"' in answer.content.decode()
        assert "so you did" in shown_text(client.get(answer_path()))
        assert cells(client, page) == ("", "so you did")
    assert api_lines(viewer) == api_lines(finance) == [None] * 2
    line.save()
    Statement.objects.filter(pk=statement.pk).update(state=StatementState.ISSUED)
    everything_leads_to_it()


def test_finance_rejects_a_dispute(books: Books, people: dict[str, User]) -> None:
    path, admin = line_path(books), client_of(people["admin-of-acme"])
    admin.post(path, disputing(admin, path, "why"))
    client_of(people["finance"]).post(answer_path(), {"deed": "reject", "text": "it was reserved"})
    assert Dispute.objects.get().state == DisputeState.REJECTED
    assert ">Dispute this line<" in admin.get(path).content.decode()


def moved(books: Books, path: str) -> str:
    """The line's address, once a credit has put another line before it."""
    request_credit(
        Tenant.objects.get(holder__slug="acme"), Period.objects.get(month=MONTH), 1_000_000, "a gift", ANNA
    )
    decide(Approval.objects.latest("requested_at").pk, Decision.APPROVED, Actor("bo"))
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER))
    now = line_path(books)
    assert now != path, "nothing has moved: this test looks at nothing"
    return now


def test_a_dispute_is_of_the_line_that_was_shown_wherever_it_stands_by_then(
    books: Books, people: dict[str, User]
) -> None:
    path, viewer = line_path(books), client_of(people["viewer-of-acme"])
    form = disputing(viewer, path, "we released it")
    # What names the line says nothing of whom it is about: its key can name others.
    assert re.fullmatch(r"[0-9a-f]{64}", form["line"])
    now = moved(books, path)
    opened = viewer.post(path, form, follow=True)
    assert opened.request["PATH_INFO"] == now
    line = books.statement("acme").lines.get(category="reserved_idle")
    assert Dispute.objects.get().line_key == line.key


def test_a_line_that_changed_since_it_was_shown_is_not_disputed_unseen(
    books: Books, people: dict[str, User]
) -> None:
    path, viewer = line_path(books), client_of(people["viewer-of-acme"])
    form = disputing(viewer, path, "we released it")
    for broken in ({"line": ""}, {"line": "0" * 64}, {"amount": ""}, {"amount": "x"}):
        refused = viewer.post(path, {**form, **broken}, follow=True)
        assert not Dispute.objects.exists(), broken
        assert "has changed since" in refused.content.decode() or "no longer on" in refused.content.decode()
    line = books.statement("acme").lines.get(category="reserved_idle")
    StatementLine.objects.filter(pk=line.pk).update(amount_micro=1)
    refused = viewer.post(path, form)
    assert refused.status_code == 422 and "has changed since" in shown_text(refused)
    assert "we released it" in refused.content.decode()
    assert not Dispute.objects.exists()
    line.delete()
    gone = viewer.post(path, form, follow=True)
    assert gone.request["PATH_INFO"] == ACME
    assert "no longer on the statement" in said(gone)
    assert not Dispute.objects.exists()


def test_a_dispute_whose_line_is_gone_is_answered_on_its_own_page(
    books: Books, people: dict[str, User]
) -> None:
    path = line_path(books)
    viewer, finance = client_of(people["viewer-of-acme"]), client_of(people["finance"])
    viewer.post(path, disputing(viewer, path, "we released it"))
    StatementLine.objects.filter(key=Dispute.objects.get().line_key).delete()
    page = finance.get(answer_path())
    assert "no longer on the statement" in shown_text(page)
    assert "Reserved-but-idle" in shown_text(page) and "16" in shown_text(page)
    assert 'name="amount"' not in page.content.decode()
    adjusted = finance.post(answer_path(), {"deed": "adjust", "text": "so you did", "amount": "1"})
    assert adjusted.status_code == 422
    assert "Answered" in said(
        finance.post(answer_path(), {"deed": "answer", "text": "it is gone"}, follow=True)
    )
    rejected = finance.post(answer_path(), {"deed": "reject", "text": "nothing is billed"}, follow=True)
    assert "The dispute is rejected." in said(rejected)
    seen = shown_text(viewer.get(answer_path()))
    assert "it is gone" in seen and "nothing is billed" in seen
    elsewhere = answer_path().replace("/acme/", "/gamma/")
    assert finance.get(elsewhere).status_code == 404


def test_who_may_dispute_and_who_may_answer(books: Books, people: dict[str, User]) -> None:
    path = line_path(books)
    dispute = disputing(client_of(people["viewer-of-acme"]), path, "no")
    statuses = {name: client_of(user).post(path, dispute).status_code for name, user in people.items()}
    assert statuses == {
        "finance": 403,
        "platform": 403,
        "auditor": 403,
        "admin-of-acme": 303,
        "viewer-of-acme": 422,  # it is open by now
        "viewer-of-gamma": 404,
        "viewer-of-delta": 404,
        "nobody": 404,
    }
    answer, to = {"deed": "reject", "text": "no"}, answer_path()
    answered = {
        name: client_of(user).post(to, answer).status_code
        for name, user in people.items()
        if name != "finance"
    }
    assert answered == {
        "platform": 404,
        "auditor": 403,
        "admin-of-acme": 403,
        "viewer-of-acme": 403,
        "viewer-of-gamma": 404,
        "viewer-of-delta": 404,
        "nobody": 404,
    }
    assert client_of(people["finance"]).post(path, answer).status_code == 403
    assert client_of(people["finance"]).post(to, {"deed": "x", "text": "no"}).status_code == 403
    assert client_of(people["finance"]).get(f"{ACME}disputes/{books.record.pk}/").status_code == 404
    # What is said in a dispute is between the tenant, finance and auditors.
    seen = {
        name: len(client_of(people[name]).get(path).context["disputes"])
        for name in ("finance", "auditor", "platform", "viewer-of-acme")
    }
    assert seen == {"finance": 1, "auditor": 1, "platform": 0, "viewer-of-acme": 1}


def test_the_forms_want_their_token_against_forgery(books: Books, people: dict[str, User]) -> None:
    for name, path in (("viewer-of-acme", line_path(books)), ("finance", ACME)):
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(people[name])
        assert strict.post(path, {"deed": "dispute", "text": "no"}).status_code == 403
    assert not Dispute.objects.exists()


def test_finance_approves_a_draft_and_gives_a_credit_with_a_second_person(
    books: Books, people: dict[str, User]
) -> None:
    finance, auditor = client_of(people["finance"]), client_of(people["auditor"])
    sha256 = books.statement("acme").sha256
    assert finance.post(ACME, {"deed": "approve", "sha256": "0" * 64}).status_code == 422
    assert auditor.post(ACME, {"deed": "approve", "sha256": sha256}).status_code == 403
    finance.post(ACME, {"deed": "approve", "sha256": sha256})
    assert StatementApproval.objects.get().approved_by == "finance"
    assert "Approved as it is now by finance" in shown_text(finance.get(ACME))

    assert finance.post(ACME, {"deed": "credit", "amount": "5", "reason": " "}).status_code == 422
    finance.post(ACME, {"deed": "credit", "amount": "5", "reason": "outage"})
    approval = Approval.objects.get()
    assert (approval.payload["tenant"], approval.payload["amount_micro"]) == ("acme", "5000000")
    decision = {"deed": "decide", "approval": str(approval.pk), "decision": "approved"}
    own = finance.post(ACME, decision)
    assert own.status_code == 422 and "a second person has to agree" in shown_text(own)
    assert auditor.post(ACME, decision).status_code == 403
    assert "asked at" in shown_text(auditor.get(ACME))
    for name in ("platform", "viewer-of-acme"):
        assert client_of(people[name]).get(ACME).context["waiting_credits"] == []
    second = User.objects.create_user("bo")
    Membership.objects.create(user=second, role=Role.FINANCE)
    gamma = f"/months/{MONTH}/statements/gamma/"
    assert client_of(second).post(gamma, decision).status_code == 404
    assert not Credit.objects.exists()
    client_of(second).post(ACME, decision)
    assert (Credit.objects.get().requested_by, Approval.objects.get().decided_by) == ("finance", "bo")
    stale = client_of(second).post(ACME, decision)  # from a page that was open in another tab
    assert stale.status_code == 422 and "somebody has decided this already" in shown_text(stale)
    assert Credit.objects.count() == 1
    Ledger.objects.update(options={"approvals": False})
    granted = finance.post(ACME, {"deed": "credit", "amount": "2", "reason": "late"}, follow=True)
    assert "The credit is granted; the statement shows it" in said(granted)
    too_much = finance.post(ACME, {"deed": "credit", "amount": "99999999", "reason": "a slip"})
    assert too_much.status_code == 422 and "more than there is to give back" in shown_text(too_much)
    amounts = Credit.objects.order_by("granted_at").values_list("amount_micro", flat=True)
    assert list(amounts) == [5_000_000, 2_000_000]


def test_what_is_granted_for_a_closed_month_is_said_to_come_later(
    books: Books, people: dict[str, User]
) -> None:
    viewer, finance = client_of(people["viewer-of-acme"]), client_of(people["finance"])
    path = line_path(books)
    viewer.post(path, disputing(viewer, path, "we released it"))
    given = {"deed": "credit", "amount": "1", "reason": "outage"}
    finance.post(ACME, given)
    Period.objects.filter(month=MONTH).update(
        state=PeriodState.CLOSED, cut_sequence=0, closed_at=timezone.now()
    )
    second = User.objects.create_user("bo")
    Membership.objects.create(user=second, role=Role.FINANCE)
    decision = {"deed": "decide", "approval": str(Approval.objects.get().pk), "decision": "approved"}
    answers = [client_of(second).post(ACME, decision, follow=True)]
    Ledger.objects.update(options={"approvals": False})
    answers.append(finance.post(ACME, given, follow=True))
    adjusted = {"deed": "adjust", "text": "half", "amount": "1"}
    answers.append(finance.post(answer_path(), adjusted, follow=True))
    for answer in answers:
        assert "is granted. This statement is closed and stays as it is" in said(answer)
    assert Credit.objects.count() == 3


def test_a_line_is_told_by_its_codes_and_a_credit_by_the_reason_that_was_given(
    books: Books, people: dict[str, User]
) -> None:
    """The description is of the bill's file, which is in one language."""
    finance = client_of(people["finance"])
    finance.cookies["django_language"] = "zh-hans"
    tenant, month = books.statement("acme").tenant, Period.objects.get(month=MONTH)
    request_credit(tenant, month, MICRO_PER_UNIT, "a word of goodwill", Actor(people["finance"].username))
    approval = Approval.objects.get()
    decide(approval.pk, Decision.APPROVED, ANNA, "")
    compute_month(Month.parse(MONTH), horizon=timezone.now())
    lines = StatementLine.objects.filter(statement__period=MONTH).select_related("statement__tenant__holder")
    told = {}
    for line in lines:
        path = f"/months/{MONTH}/statements/{line.statement.tenant.slug}/lines/{line.position}/"
        told[line.category] = line.description in finance.get(path).content.decode()
    assert len(told) > 4
    assert {category for category, shown in told.items() if shown} == {"goodwill"}
