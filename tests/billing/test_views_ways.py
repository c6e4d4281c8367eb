"""The ways between pages: from one sum to another of the same thing, down to what a figure is made of, and back."""

from __future__ import annotations

import pytest
from django.test import Client

from billing.models import Policy, Statement
from billing.services.months import compute_month
from ledger.core.periods import Month
from tests.billing.level_facts import MONTH, hour
from tests.billing.page_books import HOURS_OF_OCTOBER, Books
from tests.billing.test_views_pages import shown_text

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_what_the_platform_took_upon_itself_is_a_step_from_billed_to_charged(
    books: Books, finance: Client
) -> None:
    Policy.objects.update(preemption_charged_to="platform")
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER), everything=True)
    page = finance.get(f"/months/{MONTH}/platform/")
    side = page.context["side"]
    steps = {step.name: step.amount_micro for step in side.charged.steps}
    assert steps["transfer"] == -side.whole.amounts["absorbed"] < 0
    assert (steps["billed"], side.charged.adds_up) == (side.whole.amounts["tenants"], True)
    # The proof is of what stands there: a statement that says something else breaks it.
    Statement.objects.filter(tenant__holder__slug="beta").update(total_micro=1)
    assert "Not proved" in shown_text(finance.get(f"/months/{MONTH}/platform/"))


def test_an_episode_leads_to_its_preemptions(books: Books, finance: Client) -> None:
    page = finance.get(f"/months/{MONTH}/")
    links = [cell.url for line in page.context["tables"]["episodes"].lines for cell in line.cells if cell.url]
    assert links[0] == f"/preemptions/{books.record.pk}/"
    assert [finance.get(link).status_code for link in links] == [200, 200]
    assert finance.get(links[1]).context["tables"]["preemptions"].count == 1
    none = finance.get(links[1].replace("wl-4", "wl-5"))
    assert none.context["tables"]["preemptions"].count == 0
