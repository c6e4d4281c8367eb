"""What a change of terms would do, seen before it is proposed and before it is approved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client

from billing import tasks
from billing.models import Approval, Contract, EffectRun, Policy, RateCard, RunState
from billing.services import effects, policy_comparison
from ledger.locks import NAMESPACE, Lock
from ledger.models import Ledger, User
from tests.billing.page_books import client_of
from tests.billing.page_text import shown_text
from tests.billing.test_policy_comparison import everything_kept

pytestmark = [pytest.mark.django_db, pytest.mark.postgres, pytest.mark.usefixtures("no_broker")]

PAGE = "/settings/effect/"
LATER = "2100-01-01T00:00:00+08:00"
POLICY = {
    "deed": "policy",
    "preemption_charged_to": "platform",
    "unreserved_idle": "platform",
    "valid_from": LATER,
    "month": "2026-10",
}
DEAR = """
[[rate_card]]
name = "twice"
valid_from = 2026-10-01T00:00:00+08:00
[[rate_card.gpu_hour]]
pool = "bj-h100"
reserved_used = "4"
"""


def _asked(client: Client, path: str = PAGE, **form: str) -> str:
    """The address of the preview that a worker has to compute."""
    response = client.post(path, form)
    assert response.status_code == 303, response.content.decode()[-3000:]
    return str(response["Location"])


def _try(client: Client, path: str = PAGE, **form: str) -> Any:
    place = _asked(client, path, **form)
    tasks.go_on_comparing()
    return client.get(place)


def _differences(response: Any) -> dict[str, int]:
    rows = response.context["tables"]["effect"].matching
    return {row.account: row.difference_micro for row in rows if row.difference_micro}


def test_a_policy_is_tried_out_and_nothing_is_touched(people: dict[str, User]) -> None:
    auditor = client_of(people["auditor"])
    before = everything_kept()
    page = _try(auditor, **POLICY)
    moved = _differences(page)
    assert set(moved) == {"tenant:gamma", "platform"}
    assert moved["platform"] == -moved["tenant:gamma"] > 0
    assert everything_kept() == before
    assert "2 accounts change." in page.content.decode()
    assert 'value="propose"' not in page.content.decode()
    run = EffectRun.objects.get()
    csv = auditor.get(f"{PAGE}?run={run.pk}&csv=effect&effect.account=gamma")
    assert len(csv.getvalue().decode().splitlines()) == 2


def test_what_was_tried_out_is_proposed_and_seen_again_by_the_second_person(people: dict[str, User]) -> None:
    finance = client_of(people["finance"])
    tried = _differences(_try(finance, **POLICY))
    address = f"{PAGE}?run={EffectRun.objects.get().pk}"
    assert finance.post(address, {"deed": "propose", "reason": ""}).status_code == 422
    assert finance.post(address, {"deed": "propose", "reason": "fairer"}).status_code == 303
    approval = Approval.objects.get()
    assert (approval.reason, Policy.objects.count()) == ("fairer", 1)
    assert f"{PAGE}?approval={approval.pk}" in finance.get("/settings/").content.decode()
    auditor, waiting = client_of(people["auditor"]), f"{PAGE}?approval={approval.pk}"
    assert "fairer" in auditor.get(waiting).content.decode()
    seen = _try(auditor, waiting, deed="approval", month="2026-10")
    assert _differences(seen) == _differences(auditor.get(waiting)) == tried
    assert "fairer" in seen.content.decode() and 'value="propose"' not in seen.content.decode()


def test_rates_and_contracts_are_tried_out_as_the_file_says_them(people: dict[str, User]) -> None:
    finance = client_of(people["finance"])
    cards, contracts = RateCard.objects.count(), Contract.objects.count()
    differences = _differences(_try(finance, deed="document", document=DEAR, month="2026-10"))
    assert differences["tenant:acme"] > 0
    contract = '[[contract]]\ntenant = "acme"\nvalid_from = 2100-01-01T00:00:00Z\ndelay_credit = "0.5"\n'
    page = _try(finance, deed="document", document=contract, month="2026-10")
    assert page.context["is_compared"]
    assert (RateCard.objects.count(), Contract.objects.count()) == (cards, contracts)
    proposal = {"deed": "propose", "reason": "x"}
    assert finance.post(f"{PAGE}?run={EffectRun.objects.latest('pk').pk}", proposal).status_code == 303


@pytest.mark.parametrize(
    "form",
    [
        {"deed": "policy", "preemption_charged_to": "nobody", "unreserved_idle": "even", "valid_from": LATER},
        {**POLICY, "valid_from": ""},
        {**POLICY, "valid_from": "soon"},
        {**POLICY, "lend_credit": "a lot"},
        {**POLICY, "lend_credit": "share"},
        {**POLICY, "lend_credit": "share", "lend_share": "1.5"},
        {"deed": "document", "document": ""},
        {"deed": "document", "document": "[[contract"},
        {"deed": "document", "document": "x = " + "[" * 5000},
        {"deed": "document", "document": "[[tenant]]\nslug = 'new'"},
        {"deed": "document", "document": "[[contract]]\ntenant = 'acme'\n[[contract]]\ntenant = 'beta'"},
        {"deed": "document", "document": "contract = 'x'"},
        {"deed": "document", "document": f'[[contract]]\ntenant = "a\\u0000"\nvalid_from = {LATER}'},
        {
            "deed": "document",
            "document": f'[[contract]]\ntenant = "acme"\nvalid_from = {LATER}\ntoken_quota = 99999999999999999999',
        },
        {"deed": "propose", "reason": "because"},
    ],
)
def test_what_says_nothing_usable_is_refused_with_a_reason(
    people: dict[str, User], form: dict[str, str]
) -> None:
    response = client_of(people["finance"]).post(PAGE, form)
    assert response.status_code == 422
    assert 'role="alert"' in response.content.decode()
    assert Approval.objects.count() == 0


def test_a_policy_is_chosen_in_words_and_from_a_day(people: dict[str, User]) -> None:
    """No code is read or typed; a share of the reserved rate and the day it holds from stay in the form."""
    client = client_of(people["finance"])

    def chosen(body: str) -> list[str]:
        return re.findall(r"<option [^>]*selected>([^<]*)</option>", body)

    page = client.get(PAGE).content.decode()
    assert "what the borrower paid" in chosen(page)
    assert "borrower_paid" not in shown_text(client.get(PAGE))
    response = client.get(PAGE, headers={"Accept-Language": "zh-hans"})
    assert "借用方所付金额" in chosen(response.content.decode())
    Ledger.objects.update(billing_time_zone="Asia/Shanghai")
    form = {**POLICY, "lend_credit": "share", "lend_share": "0.5", "valid_from": "2100-01-01"}
    tried = client.get(_asked(client, **form)).content.decode()
    assert "a share of the reserved rate" in chosen(tried)
    assert 'name="lend_share" inputmode="decimal" size="6" maxlength="20" value="0.5"' in tried
    assert 'value="2100-01-01"' in tried
    row = EffectRun.objects.get().asked["row"]
    assert (row["lend_credit"], row["valid_from"]) == ("0.5", "2099-12-31T16:00:00+00:00")
    Policy.objects.update(lend_credit="0.25")
    page = client.get(PAGE).content.decode()
    assert "a share of the reserved rate" in chosen(page) and 'value="0.25"' in page


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00+08:00", "9999-12-31T23:59:59-08:00"])
def test_instants_out_of_reach_break_no_page(people: dict[str, User], when: str) -> None:
    client = client_of(people["finance"])
    response = client.post(PAGE, {**POLICY, "valid_from": when})
    assert response.status_code in (303, 422)
    if response.status_code == 303:
        tasks.go_on_comparing()
        assert client.get(response["Location"]).status_code == 200
        assert client.post(response["Location"], {"deed": "propose", "reason": "x"}).status_code in (303, 422)


def test_what_cannot_be_compared_says_why(people: dict[str, User]) -> None:
    finance = client_of(people["finance"])
    calibration = (
        '[[calibration]]\nmodel = "m"\ngpu_model = "H100"\nvalid_from = 2100-01-01T00:00:00Z\n'
        "input_gpu_us_per_1k = 1\ncached_input_gpu_us_per_1k = 1\noutput_gpu_us_per_1k = 1\nload_test = 'x'\n"
    )
    page = _try(finance, deed="document", document=calibration).content.decode()
    assert "its effect cannot be shown" in page
    nobody = f'[[contract]]\ntenant = "nobody"\nvalid_from = {LATER}\n'
    assert "That cannot be used" in _try(finance, deed="document", document=nobody).content.decode()


def test_only_finance_proposes_and_tenants_have_no_such_page(people: dict[str, User]) -> None:
    platform = client_of(people["platform"])
    _try(platform, **POLICY)
    run = f"{PAGE}?run={EffectRun.objects.get().pk}"
    assert platform.post(run, {"deed": "propose", "reason": "x"}).status_code == 403
    assert client_of(people["admin-of-acme"]).post(PAGE, POLICY).status_code == 404
    assert client_of(people["admin-of-acme"]).get(run).status_code == 404
    for address in (
        *(f"{PAGE}?approval=x", f"{PAGE}?approval=00000000-0000-0000-0000-000000000000"),
        *(f"{PAGE}?run=x", f"{PAGE}?run=0", f"{PAGE}?run={10**30}"),
    ):
        assert platform.get(address).status_code == 404
    assert platform.post(PAGE, {"deed": "x"}).status_code == 404


def _progress(client: Client, place: str) -> Any:
    return client.get(place, headers={"HX-Request": "true", "HX-Target": "effect-progress"})


def test_a_page_computes_nothing_itself_and_shows_how_far_a_worker_is(
    people: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    auditor = client_of(people["auditor"])
    place = _asked(auditor, **POLICY)
    assert not auditor.get(place).context["is_compared"]
    waiting = _progress(auditor, place)
    assert "Waiting for a worker" in waiting.content.decode()
    assert 'hx-trigger="every 1s"' in waiting.content.decode() and "HX-Refresh" not in waiting.headers
    seen = []
    note = effects._note

    def watched(run_id: int, step: str) -> None:
        note(run_id, step)
        seen.append(_progress(auditor, place).content.decode())

    monkeypatch.setattr(effects, "_note", watched)
    tasks.go_on_comparing()
    assert [("0 of 2" in text, "1 of 2" in text) for text in seen] == [(True, False), (False, True)]
    assert _progress(auditor, place)["HX-Refresh"] == "true"
    assert "as the books stood" in auditor.get(place).content.decode()


def test_while_another_worker_is_at_it_nothing_happens(people: dict[str, User]) -> None:
    _asked(client_of(people["auditor"]), **POLICY)
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s, %s)", [NAMESPACE, int(Lock.EFFECTS)])
            tasks.go_on_comparing()
            assert EffectRun.objects.get().state == RunState.RUNNING
            cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [NAMESPACE, int(Lock.EFFECTS)])
    finally:
        other.close()
    tasks.go_on_comparing()
    assert EffectRun.objects.get().state == RunState.DONE


def test_while_the_books_are_computed_a_preview_waits(
    people: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The books' lock is the test's own here, since it has just computed them: somebody else's is a refusal."""

    @contextmanager
    def of_somebody_else(lock: Lock) -> Iterator[bool]:
        assert lock == Lock.COMPUTE
        yield False

    _asked(client_of(people["auditor"]), **POLICY)
    with monkeypatch.context() as busy:
        busy.setattr(policy_comparison, "held_by_session", of_somebody_else)
        tasks.go_on_comparing()
        assert EffectRun.objects.get().state == RunState.RUNNING
    tasks.go_on_comparing()
    assert EffectRun.objects.get().state == RunState.DONE


def test_one_that_breaks_holds_up_no_other(people: dict[str, User], monkeypatch: pytest.MonkeyPatch) -> None:
    auditor = client_of(people["auditor"])
    broken, good = (_asked(auditor, **POLICY) for _time in range(2))
    first = EffectRun.objects.earliest("pk").pk
    compare = effects.compare_change

    def cannot_be_answered(period: Any, asked: Any, say: Any) -> Any:
        if EffectRun.objects.get(pk=first).state == RunState.RUNNING:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT 1 / 0")
        return compare(period, asked, say)

    monkeypatch.setattr(effects, "compare_change", cannot_be_answered)
    tasks.go_on_comparing()
    assert "could not be computed" in auditor.get(broken).content.decode()
    assert auditor.get(good).context["is_compared"]


class Killed(BaseException):
    """What no computation can catch, as when the kernel ends its process."""


def test_one_that_kills_its_workers_is_given_up_and_the_page_says_why(
    people: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the books are busy is no attempt; every beginning is, whoever begins."""
    auditor = client_of(people["auditor"])
    deadly, good = (_asked(auditor, **POLICY) for _time in range(2))
    first = EffectRun.objects.earliest("pk").pk
    compare = effects.compare_change
    begun: list[str] = []

    def kill(period: Any, asked: Any, say: Any) -> Any:
        if EffectRun.objects.get(pk=first).state != RunState.RUNNING:
            return compare(period, asked, say)
        if not begun:
            begun.append("busy")
            raise policy_comparison.ComparisonError("busy", "the books are being computed")
        say("now")
        begun.append("now")
        raise Killed

    monkeypatch.setattr(effects, "compare_change", kill)
    tasks.go_on_comparing()
    for _time in range(3):
        with pytest.raises(Killed):
            tasks.go_on_comparing()
    assert "given up" not in auditor.get(deadly).content.decode()
    tasks.go_on_comparing()
    assert begun == ["busy", "now", "now", "now"]
    assert "It is given up" in auditor.get(deadly).content.decode()
    chinese = auditor.get(deadly, headers={"Accept-Language": "zh-hans"}).content.decode()
    assert "已放弃" in chinese and "It is given up" not in chinese
    assert auditor.get(good).context["is_compared"]


def test_a_comparison_asked_for_by_a_program_is_no_preview_of_a_page(people: dict[str, User]) -> None:
    run = EffectRun.objects.create(
        period_id="2026-10", asked={"policies": {"change": {}}}, requested_by="token"
    )
    assert client_of(people["auditor"]).get(f"{PAGE}?run={run.pk}").status_code == 404


def test_the_end_of_a_version_has_its_effect_shown_to_the_second_person(people: dict[str, User]) -> None:
    """Without a price list every priced account is at 0; a policy that ends leaves what is usual."""
    finance, auditor = client_of(people["finance"]), client_of(people["auditor"])
    for table, model, changes in (("rate_card", RateCard, True), ("policy", Policy, False)):
        version = model.objects.latest("valid_from")
        ends = {"deed": "end", "ended_at": "2027-01-01", "reason": "over"}
        assert finance.post(f"/settings/?end={table}-{version.pk}", ends).status_code == 303
        approval = Approval.objects.latest("requested_at")
        seen = _try(auditor, f"{PAGE}?approval={approval.pk}", deed="approval", month="2026-10")
        rows = seen.context["tables"]["effect"].matching
        assert rows and bool(_differences(seen)) is changes
        if changes:
            assert {row.other_micro for row in rows} == {0}
        version.refresh_from_db()
        assert version.ended_at is None
