"""Verifying the books from the audit page: a job with progress, and results that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from billing import tasks
from billing.core.sentences import sentence
from billing.models import Deviation, RunState, StatementLine, VerificationRun
from billing.services import verification
from billing.services.verification import BY_NAME, run_verification
from billing.views.verification import CHECK_WORDS
from ledger.checks import Finding
from ledger.locks import NAMESPACE, Lock
from ledger.models import AuditEntry, User
from tests.billing.closed_months import NOVEMBER_5, OCTOBER, closable_ledger, close, findings
from tests.billing.level_facts import make_tenants
from tests.billing.page_books import client_of, make_people
from tests.billing.tampering import unguarded
from tests.fixtures.made_once import made_once

pytestmark = [pytest.mark.django_db, pytest.mark.postgres, pytest.mark.usefixtures("no_broker")]
AUDIT = "/audit/"


@made_once
def closed_october() -> None:
    closable_ledger()
    make_tenants("delta")
    close(OCTOBER, NOVEMBER_5)
    assert findings() == []
    make_people()


@pytest.fixture
def people(closed_october: None) -> dict[str, User]:
    return {user.username: user for user in User.objects.order_by("pk")}


def _page(run: VerificationRun) -> str:
    return f"{AUDIT}verifications/{run.pk}/"


def _progress(client: Any, run: VerificationRun) -> Any:
    return client.get(_page(run), headers={"HX-Request": "true", "HX-Target": "verification-progress"})


def test_the_books_are_verified_with_progress_and_the_result_stays(people: dict[str, User]) -> None:
    auditor = client_of(people["auditor"])
    response = auditor.post(AUDIT)
    run = VerificationRun.objects.get()
    assert (response.status_code, response["Location"]) == (303, _page(run))
    assert auditor.post(AUDIT)["Location"] == _page(run)  # one at a time: pressed again it is the same
    waiting = _progress(auditor, run)
    assert "waiting for a worker" in waiting.content.decode()
    assert 'hx-trigger="every 1s"' in waiting.content.decode()
    assert "HX-Refresh" not in waiting.headers

    verification._carry_out(run.pk, "transfers_net_to_zero")
    assert f'max="{len(BY_NAME)}" value="1"' in _progress(auditor, run).content.decode()
    tasks.go_on_verifying()
    assert _progress(auditor, run)["HX-Refresh"] == "true"
    page = auditor.get(_page(run)).content.decode()
    assert "Everything holds." in page
    assert "Capacity is conserved" in page
    run.refresh_from_db()
    assert (run.state, run.deviations, run.failed, run.requested_by) == (RunState.DONE, 0, 0, "auditor")
    assert "everything holds" in client_of(people["finance"]).get(AUDIT).content.decode()
    deeds = (
        AuditEntry.objects.filter(object_type="verification").order_by("pk").values_list("actor", "action")
    )
    assert list(deeds) == [("auditor", "verify_ledger"), ("auditor", "end_verification")]


def test_what_deviates_is_named_and_kept(people: dict[str, User]) -> None:
    line = StatementLine.objects.filter(statement__state="issued", amount_micro__gt=0).first()
    assert line is not None
    with unguarded("billing_statementline"):
        StatementLine.objects.filter(pk=line.pk).update(amount_micro=line.amount_micro + 1_000_000)
    finance = client_of(people["finance"])
    finance.post(AUDIT, {"month": str(OCTOBER)})
    run = run_verification(VerificationRun.objects.get().pk)
    assert (run.state, run.deviations > 0) == (RunState.DONE, True)
    assert "statements_are_what_was_sealed" in set(run.found.values_list("check_name", flat=True))
    page = finance.get(_page(run)).content.decode()
    assert line.statement.number in page
    statement = f"/months/{OCTOBER}/statements/{line.statement.tenant.slug}/"
    assert f'<a href="{statement}">{line.statement.number}</a>' in page
    assert "Everything holds." not in page
    assert "deviates" in finance.get(AUDIT).content.decode()
    # Once mended the books hold again, and what was found before stays on record.
    with unguarded("billing_statementline"):
        StatementLine.objects.filter(pk=line.pk).update(amount_micro=line.amount_micro)
    finance.post(AUDIT)
    assert run_verification(VerificationRun.objects.order_by("pk").last().pk).deviations == 0  # type: ignore[union-attr]
    assert Deviation.objects.filter(run=run).count() == run.deviations


def _cannot_be_answered(month: str | None) -> Iterator[Finding]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")
    yield Finding("slots_meet", "", sentence("rows_without_slot"))


def _finds_too_much(month: str | None) -> Iterator[Finding]:
    problem = sentence("rows_without_slot")
    yield from (Finding("posted_is_target", str(number), problem) for number in range(1_000))


def test_a_check_that_breaks_hides_nothing_and_says_so(
    people: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BY_NAME, "slots_meet", _cannot_be_answered)
    monkeypatch.setitem(BY_NAME, "posted_is_target", _finds_too_much)
    finance = client_of(people["finance"])
    finance.post(AUDIT)
    run = run_verification(VerificationRun.objects.get().pk)
    assert (run.state, run.failed, run.deviations, run.found.count()) == (RunState.DONE, 1, 1_000, 200)
    assert run.ended_at is not None
    assert "could not be checked" in finance.get(_page(run)).content.decode()


class Killed(BaseException):
    """What no check can catch, as when the kernel ends its process."""


def test_a_check_that_kills_its_workers_is_given_up_and_the_others_are_carried_out(
    people: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def kill(month: str | None) -> Iterator[Finding]:
        begun.append(1)
        raise Killed
        yield

    for name in BY_NAME:
        monkeypatch.setitem(BY_NAME, name, kill if name == "slots_meet" else lambda month: [])
    finance = client_of(people["finance"])
    finance.post(AUDIT)
    run = VerificationRun.objects.get()
    for _time in range(3):
        with pytest.raises(Killed):
            tasks.go_on_verifying()
    tasks.go_on_verifying()
    run.refresh_from_db()
    assert (run.state, run.failed, run.deviations, len(begun)) == (RunState.DONE, 1, 0, 3)
    assert {step["state"] for step in run.steps if step["name"] != "slots_meet"} == {"done"}
    assert "each worker that began it was killed" in finance.get(_page(run)).content.decode()
    chinese = finance.get(_page(run), headers={"Accept-Language": "zh-hans"}).content.decode()
    assert "worker_died" not in chinese and "each worker" not in chinese


def test_while_one_worker_is_at_work_another_does_nothing(people: dict[str, User]) -> None:
    client_of(people["finance"]).post(AUDIT)
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s, %s)", [NAMESPACE, int(Lock.VERIFICATION)])
            tasks.go_on_verifying()
            assert {step["state"] for step in VerificationRun.objects.get().steps} == {"waiting"}
            cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [NAMESPACE, int(Lock.VERIFICATION)])
    finally:
        other.close()
    tasks.go_on_verifying()
    assert VerificationRun.objects.get().state == RunState.DONE


@pytest.mark.parametrize("month", ["x", "2031-01", "2026-10' OR 1=1", "\x00"])
def test_only_months_with_books_are_verified(people: dict[str, User], month: str) -> None:
    answer = client_of(people["finance"]).post(AUDIT, {"month": month})
    assert (answer.status_code, VerificationRun.objects.count()) == (422, 0)


def test_a_tenant_verifies_nothing_and_sees_nothing_of_it(people: dict[str, User]) -> None:
    client_of(people["finance"]).post(AUDIT)
    tenant = client_of(people["admin-of-acme"])
    assert tenant.post(AUDIT).status_code == 404
    assert tenant.get(_page(VerificationRun.objects.get())).status_code == 404
    assert client_of(people["finance"]).get(f"{AUDIT}verifications/987654/").status_code == 404


def test_every_check_has_words() -> None:
    assert set(CHECK_WORDS) == set(BY_NAME)
