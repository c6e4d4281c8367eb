"""A difference from what others counted is explained on the month's page, for exactly what was seen."""

from __future__ import annotations

import pytest

from billing.models import DifferenceExplanation, ReconciliationLine
from billing.selectors.reconciliation import unexplained_differences
from ledger.models import AuditEntry, Period, PeriodState, User
from tests.billing.level_facts import MONTH, hour
from tests.billing.page_books import client_of, make_books, make_people
from tests.fixtures.made_once import made_once

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

PAGE = f"/months/{MONTH}/"
KEY = "source_total kueue-bj wl 7"
FORM = {"deed": "explain", "difference": f"1 {KEY}", "reason": "a restart of the scheduler"}


@made_once
def difference() -> None:
    make_books()
    ReconciliationLine.objects.create(
        period_id=MONTH,
        kind="source_total",
        key=KEY,
        measure="preemptions",
        unit="count",
        source="kueue-bj",
        subject="wl-7",
        stated=3,
        booked=2,
        reconciled_at=hour(800),
    )
    make_people()


@pytest.fixture
def people(difference: None) -> dict[str, User]:
    return {user.username: user for user in User.objects.order_by("pk")}


@pytest.mark.parametrize("name", ["finance", "platform"])
def test_a_difference_is_explained_where_it_stands(people: dict[str, User], name: str) -> None:
    client = client_of(people[name])
    page = client.get(PAGE).content.decode()
    assert f'<option value="1 {KEY}">kueue-bj wl-7 Preemptions: 1 count</option>' in page
    response = client.post(PAGE, FORM)
    assert (response.status_code, response["Location"]) == (303, f"{PAGE}#reconciliation")
    assert unexplained_differences(Period.objects.get(pk=MONTH)) == []
    assert "a restart of the scheduler" in client.get(PAGE).content.decode()
    assert AuditEntry.objects.get(action="explain_difference").actor == name


@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": " "},
        {"difference": f"2 {KEY}"},
        {"difference": "1 another"},
        {"difference": KEY},
        {"difference": ""},
        {"difference": "\x00"},
    ],
)
def test_what_was_not_seen_is_not_explained(people: dict[str, User], wrong: dict[str, str]) -> None:
    response = client_of(people["finance"]).post(PAGE, {**FORM, **wrong})
    assert response.status_code == 422
    assert 'role="alert"' in response.content.decode()
    assert DifferenceExplanation.objects.count() == 0


def test_auditors_tenants_and_closed_months_have_no_such_form(people: dict[str, User]) -> None:
    auditor = client_of(people["auditor"])
    assert 'value="explain"' not in auditor.get(PAGE).content.decode()
    assert auditor.post(PAGE, FORM).status_code == 403
    assert client_of(people["admin-of-acme"]).post(PAGE, FORM).status_code == 403
    assert client_of(people["finance"]).post(PAGE, {"deed": "x"}).status_code == 404
    Period.objects.filter(pk=MONTH).update(state=PeriodState.CLOSED, cut_sequence=1, closed_at=hour(900))
    finance = client_of(people["finance"])
    assert 'value="explain"' not in finance.get(PAGE).content.decode()
    assert finance.post(PAGE, FORM).status_code == 422
    assert DifferenceExplanation.objects.count() == 0
