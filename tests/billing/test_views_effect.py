"""What a change of terms would do, seen before it is proposed and before it is approved."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from billing.models import Approval, Contract, Policy, RateCard
from ledger.models import User
from tests.billing.page_books import client_of
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


def _try(client: Client, **form: str) -> Any:
    response = client.post(PAGE, form)
    assert response.status_code == 303, response.content.decode()[-3000:]
    return client.get(response["Location"])


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
    csv = auditor.get(f"{PAGE}?typed=1&month=2026-10&csv=effect&effect.account=gamma")
    assert len(csv.getvalue().decode().splitlines()) == 2


def test_what_was_tried_out_is_proposed_and_seen_again_by_the_second_person(people: dict[str, User]) -> None:
    finance = client_of(people["finance"])
    tried = _differences(_try(finance, **POLICY))
    address = f"{PAGE}?typed=1&month=2026-10"
    assert finance.post(address, {"deed": "propose", "reason": ""}).status_code == 422
    assert finance.post(address, {"deed": "propose", "reason": "fairer"}).status_code == 303
    approval = Approval.objects.get()
    assert (approval.reason, Policy.objects.count()) == ("fairer", 1)
    assert f"{PAGE}?approval={approval.pk}" in finance.get("/settings/").content.decode()
    seen = client_of(people["auditor"]).get(f"{PAGE}?approval={approval.pk}&month=2026-10")
    assert _differences(seen) == tried
    assert "fairer" in seen.content.decode()


def test_rates_and_contracts_are_tried_out_as_the_file_says_them(people: dict[str, User]) -> None:
    finance = client_of(people["finance"])
    cards, contracts = RateCard.objects.count(), Contract.objects.count()
    differences = _differences(_try(finance, deed="document", document=DEAR, month="2026-10"))
    assert differences["tenant:acme"] > 0
    contract = f'[[contract]]\ntenant = "acme"\nvalid_from = {LATER}\ndelay_credit = "0.5"\n'
    page = _try(finance, deed="document", document=contract, month="2026-10")
    assert page.context["is_compared"]
    assert (RateCard.objects.count(), Contract.objects.count()) == (cards, contracts)
    assert finance.post(
        page.request["PATH_INFO"] + "?typed=1", {"deed": "propose", "reason": "x"}
    ).status_code in (
        303,
        422,
    )


@pytest.mark.parametrize(
    "form",
    [
        {"deed": "policy", "preemption_charged_to": "nobody", "unreserved_idle": "even", "valid_from": LATER},
        {**POLICY, "valid_from": ""},
        {**POLICY, "valid_from": "soon"},
        {**POLICY, "lend_credit": "a lot"},
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


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00+08:00", "9999-12-31T23:59:59-08:00"])
def test_instants_out_of_reach_break_no_page(people: dict[str, User], when: str) -> None:
    client = client_of(people["finance"])
    response = client.post(PAGE, {**POLICY, "valid_from": when})
    assert response.status_code in (303, 422)
    if response.status_code == 303:
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
    assert platform.post(f"{PAGE}?typed=1", {"deed": "propose", "reason": "x"}).status_code == 403
    assert client_of(people["admin-of-acme"]).post(PAGE, POLICY).status_code == 404
    for address in (f"{PAGE}?approval=x", f"{PAGE}?approval=00000000-0000-0000-0000-000000000000"):
        assert platform.get(address).status_code == 404
    assert platform.post(PAGE, {"deed": "x"}).status_code == 404
