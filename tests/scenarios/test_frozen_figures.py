"""What an issued statement says beside its lines stays what it was issued with (domain.md section 10).

chat holds 4 of 8 GPUs on demand for 4 hours and serves acme and beta 3 : 1, measured 3600 and 1200 seconds an hour:
acme is charged 12 GPU-hours for 4 measured, beta 4 for 4/3. Later gamma turns out to have been served as well, and acme
to have held 2 GPUs of its own for an hour.
"""

from __future__ import annotations

import json

import pytest
from django.db import connection, transaction
from django.test import Client
from django.utils.html import strip_tags

from billing.checks import CHECKS
from billing.models import Statement
from billing.selectors.borne import Borne, borne_for_others, borne_of
from billing.selectors.capacity_shares import shares_of, shares_of_capacity
from ledger.checks import run_checks
from ledger.core.units import GPU_US_PER_GPU_HOUR, MICRO_PER_UNIT
from ledger.models import Membership, Role, User
from tests.billing.tampering import issued_as_before_version_2, unguarded
from tests.ledger.people import make_user
from tests.scenarios.golden import adjust, close, holds, served, tell, terms, world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

HOUR = GPU_US_PER_GPU_HOUR


@pytest.fixture
def issued() -> None:
    world(8, "acme", "beta", "gamma")
    terms(service=[{"slug": "chat", "pool": "h100"}])
    tell(
        holds("chat", 0, 4, workload="chat-0", service="chat"),
        *(served("chat", "acme", hour, gpu_seconds=3600) for hour in range(4)),
        *(served("chat", "beta", hour, gpu_seconds=1200) for hour in range(4)),
        holds("chat", 4, 0, workload="chat-0", service="chat"),
    )
    close()


def statement(tenant: str = "acme") -> Statement:
    return Statement.objects.get(number=f"2026-10-{tenant}")


def later() -> None:
    tell(
        served("chat", "gamma", 1, gpu_seconds=4800),
        holds("acme", 1, 2, workload="own"),
        holds("acme", 2, 0, workload="own"),
    )
    adjust()


ACME = Borne("h100", "chat", 12 * HOUR, 4 * HOUR, 36 * MICRO_PER_UNIT)


def test_what_was_borne_for_others_and_shares_of_capacity_are_frozen(issued: None) -> None:
    one = statement()
    assert borne_for_others(one) == borne_of([one])[one.pk] == [ACME]
    assert (ACME.borne_gpu_us, ACME.borne_micro) == (8 * HOUR, 24 * MICRO_PER_UNIT)
    (share,) = shares_of_capacity(one)
    # 12 of 8 GPUs for the 744 hours of October.
    assert (share.pool, share.gpu_us, share.capacity_gpu_us) == ("h100", 12 * HOUR, 8 * 744 * HOUR)
    later()
    one = statement()
    assert borne_for_others(one) == [ACME]
    assert shares_of_capacity(one) == [share]
    # In hour 1 acme's part of the 4 GPUs is 3600 of 9600 seconds now; and it held 2 more.
    assert borne_of([one])[one.pk][0].charged_gpu_us == (9 * HOUR) + 4 * HOUR * 3 // 8
    assert shares_of([one])[one.pk][0].gpu_us == (11 * HOUR) + 4 * HOUR * 3 // 8


def test_a_figure_that_is_changed_in_the_database_is_found(issued: None) -> None:
    one = statement()
    for name, value in (
        ("borne_for_others", []),
        ("shares_of_capacity", [{**one.content["shares_of_capacity"][0], "gpu_us": "1"}]),
        ("version", "1"),
    ):
        with transaction.atomic():
            with unguarded("billing_statement"), connection.cursor() as cursor:
                content = json.dumps({**one.content, name: value})
                cursor.execute("UPDATE billing_statement SET content = %s WHERE id = %s", [content, one.pk])
            found = [str(finding) for finding in run_checks(CHECKS)]
            assert any("the content does not give its hash" in text for text in found), (name, found)
            transaction.set_rollback(True)


@pytest.mark.parametrize("is_adjusted", [False, True], ids=["as issued", "adjusted"])
@pytest.mark.parametrize(
    ("table", "statement", "invariant"),
    [
        ("ledger_level", "SET milli_gpus = milli_gpus + 1000 WHERE kind = 3", "books follow from facts"),
        ("ledger_request", "SET input_tokens = coalesce(input_tokens, 0) + 1", "hours equal requests"),
        ("ledger_request", "SET gpu_us = gpu_us + 1", "hours equal requests"),
        ("ledger_usagehour", "SET gpu_us = gpu_us + 1", "hours equal requests"),
    ],
)
def test_a_fact_of_a_closed_month_that_is_changed_in_the_database_is_found(
    issued: None, is_adjusted: bool, table: str, statement: str, invariant: str
) -> None:
    """Else the next late event would have somebody pay for it."""
    if is_adjusted:
        later()
    assert run_checks(CHECKS) == []
    with unguarded(table), connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} {statement}")
        assert cursor.rowcount
    found = [str(finding) for finding in run_checks(CHECKS)]
    assert any(text.startswith(invariant) and "2026-10" in text for text in found), found


def page(client: Client) -> str:
    reader = User.objects.filter(username="fin").first() or make_user("fin")
    Membership.objects.get_or_create(user=reader, role=Role.FINANCE, tenant=None)
    client.force_login(reader)
    return client.get("/months/2026-10/statements/acme/").content.decode()


def test_the_page_says_what_follows_the_books_as_they_stand(issued: None, client: Client) -> None:
    assert "as they stand now" not in page(client)
    later()
    said = page(client)
    # 12 GPU-hours were issued; the parts are 9 + 1.5 + 2 now.
    plain = " ".join(strip_tags(said).split())
    assert "as they stand now, 12.50 GPU-hours; this statement was issued with 12.00." in plain
    assert "issued without this figure" not in said


def test_a_statement_issued_without_the_figures_shows_them_as_the_books_stand(
    issued: None, client: Client
) -> None:
    issued_as_before_version_2()
    assert run_checks(CHECKS) == []
    assert borne_for_others(statement()) == [ACME]
    assert page(client).count("issued without this figure") == 2
