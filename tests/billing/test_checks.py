"""verify_ledger: a clean ledger has no findings, and whatever is changed behind its back is named."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from billing.checks import CHECKS
from billing.models import Policy, PoolSlot
from billing.services.months import compute_month
from ledger.checks import run_checks
from ledger.core.periods import Month
from ledger.management.base import BadInput, CommandFailed
from ledger.models import Booking, Event, Period, PeriodState, Pool
from tests.billing.level_facts import (
    MONTH,
    capacity,
    hour,
    identity,
    make_pool,
    make_tenants,
    occupancy,
    reservation,
)
from tests.billing.preemption_facts import preemption
from tests.billing.tampering import unguarded
from tests.billing.test_months import PRICES, rate_card
from tests.fixtures.made_once import made_once

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@made_once
def month() -> None:
    """A month with lending, a preemption that the platform pays for, and all that follows."""
    pool = make_pool()
    make_tenants("acme", "gamma")
    capacity(pool, hour(-1), 8_000)
    reservation(pool, "acme", hour(0), 8_000)
    occupancy(pool, "wl-1", identity("gamma"), hour(0), 6_000)
    preemption(pool, hour(2), "wl-1", identity("gamma"), 6_000, disposition="stopped")
    occupancy(pool, "wl-1", identity("gamma"), hour(2), 0)
    rate_card(hour(-1000), PRICES, pool)
    Policy.objects.create(valid_from=hour(-1000), preemption_charged_to="platform")
    Booking.objects.update(received=Event.objects.count(), booked=Event.objects.count())
    compute_month(Month.parse(MONTH), horizon=hour(6))


@pytest.fixture
def books(month: None) -> Pool:
    return Pool.objects.get()


def findings() -> list[str]:
    return [str(finding) for finding in run_checks(CHECKS)]


def tamper(statement: str, table: str | None = None) -> None:
    """Change a row as somebody with the database's password could."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        if table:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER append_only")
        cursor.execute(statement)
        assert cursor.rowcount > 0
        if table:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER append_only")


def test_clean_books_have_no_findings(books: Pool) -> None:
    assert findings() == []


def test_a_pool_whose_nodes_are_all_gone_has_slots_of_nothing(books: Pool) -> None:
    """However the days come to be computed: a capacity of 0 is known, unlike none at all."""
    capacity(books, hour(6), 0)
    Booking.objects.update(received=Event.objects.count(), booked=Event.objects.count())
    for hours in (30, 60, 100):
        compute_month(Month.parse(MONTH), horizon=hour(hours))
    assert PoolSlot.objects.count() == 100
    assert findings() == []


def test_checking_changes_nothing(books: Pool) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(computed_at) FROM billing_statement")
        before = cursor.fetchone()
        findings()
        cursor.execute("SELECT max(computed_at) FROM billing_statement")
        assert cursor.fetchone() == before


@pytest.mark.parametrize(
    ("statement", "table", "invariants"),
    [
        (
            "UPDATE billing_allocation SET borrowed_gpu_us = borrowed_gpu_us + 1 WHERE borrowed_gpu_us > 0",
            None,
            {
                "capacity is conserved",
                "pairs equal lending",
                "days equal slots",
                "posted is target",
                "books follow from facts",
            },
        ),
        (
            "DELETE FROM billing_poolslot WHERE starts_at = '2026-10-01T01:00Z'",
            None,
            {"capacity is conserved", "slots meet", "books follow from facts"},
        ),
        (
            "UPDATE billing_lendingday SET gpu_us = gpu_us - 1",
            None,
            {"pairs equal lending", "books follow from facts"},
        ),
        (
            "UPDATE billing_allocationday SET borrowed_gpu_us = borrowed_gpu_us + 1 WHERE borrowed_gpu_us > 0",
            None,
            {"days equal slots", "tenants' days equal those of pools", "books follow from facts"},
        ),
        (
            "DELETE FROM billing_allocationday WHERE borrowed_gpu_us > 0",
            None,
            {"days equal slots", "tenants' days equal those of pools", "books follow from facts"},
        ),
        (
            "UPDATE billing_tenantmonth SET held = held || int8send(1)",
            None,
            {"tenants' days equal those of pools", "books follow from facts"},
        ),
        (
            "UPDATE billing_tenantmonth SET amounts = overlay(amounts PLACING int8send(1) FROM 1)",
            None,
            {"tenants' days equal those of pools", "books follow from facts"},
        ),
        (
            "INSERT INTO billing_tokenday (pool_id, starts_at, tenant_id, model_id, served, requests, input_tokens, "
            "cached_input_tokens, output_tokens, reasoning_tokens) "
            "SELECT pool.id, '2026-10-01T00:00Z', tenant.holder_id, 0, true, 1, 1, 0, 0, 0 "
            "FROM ledger_pool pool, ledger_tenant tenant",
            None,
            {"days equal slots", "books follow from facts"},
        ),
        (
            "UPDATE billing_statement SET total_micro = total_micro + 1 WHERE number = '2026-10-acme'",
            None,
            {"statements add up", "statements are what was sealed"},
        ),
        (
            "UPDATE billing_statementline SET amount_micro = amount_micro - 1 WHERE category = 'lent'",
            None,
            {"statements add up", "statements are what was sealed"},
        ),
        (
            "UPDATE billing_statement SET content = jsonb_set(content, '{name}', '\"Acme Ltd\"')",
            None,
            {"statements are what was sealed"},
        ),
        (
            "UPDATE ledger_transfer SET quantity = quantity + 1 WHERE unit = 2 AND reason = 'borrowed'",
            "ledger_transfer",
            {
                "transfers are what was posted",
                "posted is target",
                "statements add up",
                "books follow from facts",
            },
        ),
        (
            "DELETE FROM ledger_transfer WHERE unit = 1 AND reason = 'borrowed'",
            "ledger_transfer",
            {"posted is target", "books follow from facts"},
        ),
        (
            "UPDATE ledger_level SET milli_gpus = 5000 WHERE milli_gpus = 6000",
            "ledger_level",
            {"books follow from facts"},
        ),
        (
            "UPDATE billing_preemptionrecord SET lost_gpu_us = 1",
            None,
            {"books follow from facts"},
        ),
        (
            "UPDATE billing_preemptionshare SET lost_gpu_us = lost_gpu_us / 2",
            None,
            {"posted is target", "books follow from facts"},
        ),
    ],
)
def test_tampering_is_found(books: Pool, statement: str, table: str | None, invariants: set[str]) -> None:
    tamper(statement, table)
    found = {finding.partition(":")[0] for finding in findings()}
    assert found == invariants


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE billing_allocationday SET borrowed_gpu_us = borrowed_gpu_us + 1 WHERE borrowed_gpu_us > 0",
        "UPDATE billing_tenantmonth SET held = overlay(held PLACING int8send(1) FROM 1)",
        "UPDATE billing_tenantmonth SET amounts = overlay(amounts PLACING int8send(1) FROM 1)",
        "DELETE FROM billing_tenantmonth",
        "INSERT INTO billing_tokenday (pool_id, starts_at, tenant_id, model_id, served, requests, input_tokens, "
        "cached_input_tokens, output_tokens, reasoning_tokens) "
        "SELECT pool.id, '2026-10-01T00:00Z', tenant.holder_id, 0, true, 1, 1, 0, 0, 0 "
        "FROM ledger_pool pool, ledger_tenant tenant",
        "WITH day AS (INSERT INTO billing_countedday (pool_id, starts_at) "
        "SELECT id, '2026-10-01T00:00Z' FROM ledger_pool RETURNING pool_id, starts_at) INSERT INTO "
        "billing_countedtokens (pool_id, starts_at, source_id, tenant, input_tokens, output_tokens) "
        "SELECT pool_id, starts_at, source.id, 'acme', 1, 0 "
        "FROM day, ledger_source source",
        "UPDATE billing_poolslot SET capacity_gpu_us = capacity_gpu_us + 1, "
        "unreserved_idle_gpu_us = unreserved_idle_gpu_us + 1",
        "UPDATE billing_preemptionrecord SET lost_gpu_us = 1",
        "UPDATE billing_preemptionshare SET lost_gpu_us = lost_gpu_us / 2",
    ],
)
def test_what_is_derived_of_a_closed_month_is_proved_too(books: Pool, statement: str) -> None:
    """Nobody computes it again, and forecasts, budgets and bills of the months after it go by it."""
    with unguarded("ledger_period"):
        Period.objects.update(state=PeriodState.CLOSED, cut_sequence=1, closed_at=hour(1000))
    assert findings() == []
    tamper(statement)
    assert {finding.partition(":")[2].split()[0].rstrip(":") for finding in findings()} == {MONTH}


def test_a_fact_of_a_closed_month_that_was_changed_is_found_before_anything_is_posted_for_it(
    books: Pool,
) -> None:
    """The next late fact would have had somebody pay for it."""
    with unguarded("ledger_period"):
        Period.objects.update(state=PeriodState.CLOSED, cut_sequence=1, closed_at=hour(1000))
    assert findings() == []
    tamper("UPDATE ledger_level SET milli_gpus = 5000 WHERE milli_gpus = 6000", "ledger_level")
    found = {finding.partition(":")[0] for finding in findings()}
    assert found == {"books follow from facts"}


def test_a_trigger_that_was_switched_off_is_found(books: Pool) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE ledger_event DISABLE TRIGGER append_only")
    assert findings() == [
        "facts are append-only: ledger_event: its trigger is missing or has been switched off"
    ]


def test_a_lost_event_is_found(books: Pool) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE ledger_booking SET received = received + 1, booked = booked + 1")
    assert any(finding.startswith("no event is lost: batch 1: ") for finding in findings())


def test_the_command_exits_with_one_line_per_deviation(books: Pool, capsys: Any) -> None:
    tamper("UPDATE billing_lendingday SET gpu_us = gpu_us - 1")
    with pytest.raises(CommandFailed, match="3 deviations"):
        call_command("verify_ledger")
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in out] == [
        "pairs equal lending",
        "pairs equal lending",
        "books follow from facts",
    ]


def test_the_command_says_that_all_is_well_and_refuses_nonsense(books: Pool, capsys: Any) -> None:
    call_command("verify_ledger", month=MONTH)
    assert capsys.readouterr().out.strip() == f"{len(CHECKS)} invariants hold"
    for month in ("2026-13", "1999-01"):
        with pytest.raises(BadInput):
            call_command("verify_ledger", month=month)
