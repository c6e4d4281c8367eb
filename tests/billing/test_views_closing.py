"""Closing a month through its page: each step as a button, a second person, and progress that is polled."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils.translation import override

from billing.core.sentences import Sentence, sentence
from billing.models import Approval, CloseRun, Decision, Statement, StatementApproval
from billing.services import closing, periods
from billing.services.closing import run_close
from billing.views.closing_words import REFUSALS, REMEDIES, STEPS
from ingest.core.reasons import REASONS
from ledger.models import AuditEntry, FactFinding, Membership, Period, PeriodState, Pool, Role, User
from ledger.wording_sentences import in_words
from tests.billing.closed_months import NOVEMBER_5, closable_ledger
from tests.billing.level_facts import MONTH, hour
from tests.billing.page_books import client_of

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]
MONTH_PAGE, CLOSING = f"/months/{MONTH}/", f"/months/{MONTH}/closing/"


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
    found = closable_ledger()
    periods.ensure_period(closing.Month.parse(MONTH))
    return found


def person(name: str, role: Role) -> Client:
    user, _ = User.objects.get_or_create(username=name)
    Membership.objects.get_or_create(user=user, role=role)
    return client_of(user)


def take(client: Client, step: str, **fields: str) -> str:
    """Press a step's button; what the page says to it."""
    response = client.post(CLOSING, {"step": step, **fields}, follow=True)
    assert response.status_code == 200
    return " ".join(str(message) for message in response.context["messages"])


def seen(client: Client) -> Any:
    return client.get(CLOSING).context["closing"]


def test_a_month_is_reviewed_approved_and_closed_by_its_buttons(pool: Pool) -> None:
    anna = person("anna", Role.FINANCE)
    assert "has to be in review first" in take(anna, "close")
    assert "in review" in take(anna, "review")
    assert (seen(anna).drafts, seen(anna).approved, seen(anna).blocked) == (3, 0, [])
    unapproved = "Not every draft is approved: the close issues all of them."
    page = anna.get(CLOSING).content.decode()
    assert unapproved in page
    assert "3 of 3 are not approved" in page and "does not block" in page
    assert take(anna, "approve", digest=seen(anna).digest) == "3 drafts are approved as they are now."
    assert (seen(anna).approved, StatementApproval.objects.count()) == (3, 3)
    page = anna.get(CLOSING).content.decode()
    assert unapproved not in page and "does not block" not in page
    assert "The close has begun" in take(anna, "close")
    run = CloseRun.objects.get()

    waiting = anna.get(CLOSING, headers={"HX-Request": "true", "HX-Target": "close-progress"})
    assert "waiting for a worker" in waiting.content.decode()
    assert 'hx-trigger="every 1s"' in waiting.content.decode()
    assert "HX-Refresh" not in waiting.headers
    closing._note_start(run.pk, "compute")
    closing._do_step(run.pk, "compute", NOVEMBER_5)
    half = anna.get(CLOSING, headers={"HX-Request": "true", "HX-Target": "close-progress"})
    assert "Closing: 1 of 4 steps done" in half.content.decode()
    assert 'max="4" value="1"' in half.content.decode()

    run_close(run.pk, now=NOVEMBER_5)
    ended = anna.get(CLOSING, headers={"HX-Request": "true", "HX-Target": "close-progress"})
    assert ended.headers["HX-Refresh"] == "true"
    page = anna.get(CLOSING).content.decode()
    assert "Closed at" in page
    assert CloseRun.objects.get().chain_head in page
    assert '<button name="step"' not in page
    assert "the month is closed" in take(anna, "review")
    assert Period.objects.get(pk=MONTH).state == PeriodState.CLOSED


def test_drafts_that_changed_are_not_approved_unseen(pool: Pool) -> None:
    anna = person("anna", Role.FINANCE)
    take(anna, "review")
    digest = seen(anna).digest
    Statement.objects.filter(tenant__holder__slug="acme").update(sha256="f" * 64)
    assert "a draft has changed since you looked" in take(anna, "approve", digest=digest)
    assert StatementApproval.objects.count() == 0


def test_what_blocks_is_overridden_by_two_people_only(pool: Pool) -> None:
    anna, bo = person("anna", Role.FINANCE), person("bo", Role.FINANCE)
    take(anna, "review")
    FactFinding.objects.create(code="level_conflict", occurred_at=hour(1), pool=pool, blocks_close=True)
    (shown,) = [one for one in anna.get(CLOSING).context["items"] if one.item.state == "blocked"]
    assert (shown.item.code, shown.url) == ("exceptions", f"/months/{MONTH}/#exceptions")
    assert "needs a reason" in take(anna, "override", reason=" ")
    assert "second person" in take(anna, "override", reason="agreed with acme")
    approval = str(Approval.objects.get().pk)
    assert "Whoever asked can only withdraw" in take(anna, "decide", approval=approval, decision="approved")
    body = bo.get(CLOSING).content.decode()
    assert "anna asked at" in body
    assert "agreed with acme" in body
    assert "does not block any more" in take(bo, "decide", approval=approval, decision="approved")
    assert seen(bo).blocked == []
    assert "somebody has decided this already" in take(bo, "decide", approval=approval, decision="rejected")
    take(anna, "close")
    assert run_close(CloseRun.objects.get().pk, now=NOVEMBER_5).state == "done"


def test_whoever_asked_may_withdraw(pool: Pool) -> None:
    anna = person("anna", Role.FINANCE)
    take(anna, "review")
    FactFinding.objects.create(code="level_conflict", occurred_at=hour(1), pool=pool, blocks_close=True)
    take(anna, "override", reason="x")
    assert "still blocks" in take(
        anna, "decide", approval=str(Approval.objects.get().pk), decision="rejected"
    )
    assert Approval.objects.get().decision == Decision.REJECTED


def test_only_finance_takes_steps_and_only_for_what_exists(pool: Pool) -> None:
    anna = person("anna", Role.FINANCE)
    take(anna, "review")
    entries = AuditEntry.objects.count()
    for name, role in (("pia", Role.PLATFORM), ("aud", Role.AUDITOR)):
        client = person(name, role)
        assert client.get(CLOSING).status_code == 200
        assert '<button name="step"' not in client.get(CLOSING).content.decode()
        assert client.post(CLOSING, {"step": "close"}).status_code == 404
    for fields in ({}, {"step": "x"}, {"step": "decide"}, {"step": "decide", "approval": "1" * 32}):
        assert anna.post(CLOSING, fields).status_code == 404
    assert anna.post("/months/2031-01/closing/", {"step": "close"}).status_code == 404
    assert (CloseRun.objects.count(), AuditEntry.objects.count()) == (0, entries)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="anna"))
    assert strict.post(CLOSING, {"step": "close"}).status_code == 403


def test_everything_the_services_may_say_has_words(pool: Pool) -> None:
    anna = person("anna", Role.FINANCE)
    assert {item.code for item in seen(anna).items} == set(REMEDIES)
    assert set(closing.STEPS) == set(STEPS)
    assert {"closed", "not_over", "out_of_order", "not_in_review", "cannot_be_waived"} <= set(REFUSALS)


def test_evidence_and_steps_are_in_the_readers_language(pool: Pool) -> None:
    anna = person("anna", Role.FINANCE)
    take(anna, "review")
    FactFinding.objects.create(code="level_conflict", occurred_at=hour(1), pool=pool, blocks_close=True)
    done = sentence("statements_issued", statements=3, cut=7)
    run = CloseRun.objects.create(
        period_id=MONTH,
        requested_by="anna",
        state="done",
        steps=[
            {"name": "compute", "state": "done", "detail": "as it was told before there were codes"},
            {"name": "issue", "state": "done", "detail": [done.kept()]},
        ],
    )
    assert run.pk
    for language, what, did in (
        ("en", "Two facts contradict each other, bj-h100: 1", "statements issued: 3, up to booking 7"),
        ("zh-hans", "两个事实相互矛盾", "已出具对账单 3 份，截至入账序号 7"),
    ):
        anna.cookies["django_language"] = language
        page = anna.get(CLOSING).content.decode()
        assert what in page
        assert did in page and "as it was told before" in page
        assert "level_conflict" not in page


@pytest.mark.parametrize(
    ("told", "chinese"),
    [
        (sentence("month_not_closed", month="2026-09"), "2026年9月"),
        (sentence("never_computed"), "从未计算"),
        (sentence("computed_up_to", at="2026-10-31T15:00:00+00:00"), "已计算至 2026-10-31 15:00:00"),
        (sentence("pool_not_computed", pool="bj-h100"), "bj-h100 的事实尚未计算"),
        (sentence("headings_not_drafted"), "对账单中除数字以外的内容有变更，草稿尚未更新"),
        (sentence("batch_waits", number=12), "批次 12"),
        (
            sentence("unattributed_hours", pool="bj-h100", hours="1234.5"),
            "bj-h100：1\u202f234.5 GPU 卡时",
        ),
        (
            sentence("differs", what="kueue-bj wl-7", measure="preemptions", amount=-2, unit="count"),
            "kueue-bj wl-7：抢占相差 \u22122 次",
        ),
        (
            sentence("unattributed_in_month", month="2026-09", pool="bj-h100", hours="3"),
            "2026年9月（已关账）：bj-h100：3 GPU 卡时",
        ),
        (
            sentence(
                "exceptions_of_closed_month", month="2026-09", exception="level_conflict", pool="bj", count=2
            ),
            "2026年9月（已关账）：两个事实相互矛盾，bj：2",
        ),
        (sentence("source_to_see_to", source="a source: of a name"), "a source: of a name"),
        (sentence("drafts_not_approved", count=2, all=30), "30 份中有 2 份未经审批"),
        (
            sentence("credit_asked_for", tenant="acme", amount="1234.5", who="anna"),
            "给 acme 的抵扣 1\u202f234.5，由 anna 提出",
        ),
        (sentence("override_asked_for", who="anna"), "豁免本检查清单的申请，由 anna 提出"),
        (
            sentence("terms_asked_for", table="rate_card", who="anna, of x"),
            "一项变更（价目表），由 anna, of x 提出",
        ),
    ],
)
def test_evidence_is_told_in_chinese(told: Sentence, chinese: str) -> None:
    with override("zh-hans"):
        assert in_words(told) == chinese


def test_reasons_of_quarantine_are_told_in_the_checklist() -> None:
    with override("zh-hans"):
        told = {code: in_words(sentence("quarantined", reason=code, count=3)) for code in REASONS}
    assert [code for code, words in told.items() if code in words or not words.endswith(": 3")] == []
