"""Months and statements as they were known on a day: the page says so, and offers no deed."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags

from billing.models import Policy, RateCard, Statement
from ledger.models import Booking, Membership, Role, Tenant
from tests.ledger.people import make_user
from tests.scenarios.golden import compute, holds, tell, world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

NOW = timezone.now()
THEN = f"{NOW - timedelta(days=2):%Y-%m-%d}"
MONTH, ACME = "/months/2026-10/", "/months/2026-10/statements/acme/"
BANNER = f"As known on {THEN}. These are not the books of today."


@pytest.fixture(autouse=True)
def books() -> None:
    """Three days ago acme was known to hold 2 for 10 hours at 3; since today, 5 from hour 5 on."""
    world(8, "acme", "beta")
    tell(holds("acme", 0, 2))
    long_ago = NOW - timedelta(days=3)
    Booking.objects.update(booked_at=long_ago)
    for model in (RateCard, Policy):
        model.objects.update(recorded_at=long_ago)
    tell(holds("acme", 5, 5), holds("acme", 10, 0))
    compute(744)


def signed_in(role: Role, tenant: str = "") -> Client:
    user = make_user(f"{role}-{tenant}")
    of = Tenant.objects.get(holder__slug=tenant) if tenant else None
    Membership.objects.create(user=user, role=role, tenant=of)
    client = Client()
    client.force_login(user)
    return client


def text(client: Client, path: str, status: int = 200) -> str:
    response = client.get(path)
    assert response.status_code == status
    plain = " ".join(strip_tags(response.content.decode()).split())
    return re.sub(r"(?<=\d)[ ,](?=\d{3}\b)", "", plain)


def test_a_statement_as_it_was_known_on_a_day() -> None:
    finance = signed_in(Role.FINANCE)
    before = list(Statement.objects.order_by("pk").values())
    now, then = text(finance, ACME), text(finance, f"{ACME}?as_of={THEN}")
    # 2 x 5 + 5 x 5 GPU-hours at 3; as it was known, 2 for all of the 744 hours.
    assert "105.00" in now
    assert "4464.00" in then and "4464.00" not in now
    assert BANNER in then and "These are not the books of today" not in now
    assert "Approve this draft as it is" in now and "Approve this draft as it is" not in then
    assert "Give a credit" in now and "Give a credit" not in then
    assert list(Statement.objects.order_by("pk").values()) == before


def test_a_month_as_it_was_known_on_a_day_and_its_tables_as_files() -> None:
    auditor = signed_in(Role.AUDITOR)
    now, then = text(auditor, MONTH), text(auditor, f"{MONTH}?as_of={THEN}")
    assert BANNER in then
    assert "4464" in then
    assert "These are not the books of today" not in now and "4464" not in now

    def of_acme(query: str) -> str:
        response = auditor.get(f"{MONTH}?csv=tenants{query}")
        rows = b"".join(response.streaming_content).decode().splitlines()  # type: ignore[attr-defined]
        return next(row for row in rows if row.startswith("acme"))

    assert "4464.00" in of_acme(f"&as_of={THEN}")
    assert "105.00" in of_acme("")


def test_a_tenant_sees_its_own_past_and_no_others() -> None:
    viewer = signed_in(Role.TENANT_VIEWER, "acme")
    assert BANNER in text(viewer, f"{ACME}?as_of={THEN}")
    text(viewer, f"/months/2026-10/statements/beta/?as_of={THEN}", 404)


@pytest.mark.parametrize(
    ("asked", "said"),
    [("yesterday", "is no day"), ("2999-12-31", "still to come"), ("2026-02-30", "is no day")],
)
def test_a_day_that_is_none_shows_the_books_of_today(asked: str, said: str) -> None:
    shown = text(signed_in(Role.AUDITOR), f"{ACME}?as_of={asked}")
    assert said in shown and "105.00" in shown and "not the books of today" not in shown
