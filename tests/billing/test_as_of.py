"""What the ledger knew at an instant: the same computation over what had been committed by then (domain.md 10)."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from billing.models import Allocation, GpuPrice, Policy, PoolSlot, RateCard, Statement, StatementLine
from billing.services.adjustments import adjust_closed_months
from billing.services.as_of import month_as_of
from billing.services.months import compute_month
from billing.sql import as_of, computing
from ledger.core.units import MICRO_PER_UNIT
from ledger.models import Booking, Event, Pool, Tenant, Transfer
from ledger.services.masters import map_identity
from ledger.services.tokens import create_api_token
from tests.billing.closed_months import NOVEMBER_5, OCTOBER, closable_ledger, close, findings, hold
from tests.billing.level_facts import hour, identity, occupancy
from tests.billing.tampering import unguarded
from tests.ingest.feeding import all_facts, deliver, request, small_world
from tests.ingest.feeding import occupancy as occupancy_event
from tests.ingest.test_corrections import correction

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]
END = hour(31 * 24)


@pytest.fixture
def pool() -> Pool:
    return closable_ledger()


_lines: dict[str, int] = {}


def known() -> datetime:
    """Everything so far is known from here on."""
    Booking.objects.filter(booked_at=None).update(booked_at=timezone.now())
    _lines["last"] = max(Event.objects.values_list("line", flat=True))
    return timezone.now()


def test_computing_as_of_an_instant_writes_into_tables_of_its_own() -> None:
    """Every table of which a computation takes rows away before it writes; else it would be locked and bloated."""
    taken = " ".join((*computing.DELETE_SLOTS, computing.DELETE_DAYS, computing.DELETE_TENANT_MONTHS))
    written = " ".join(as_of.WRITTEN)
    tables = set(re.findall(r"DELETE FROM (\w+)", taken))
    assert len(tables) >= 7
    assert {table for table in tables if f"TABLE {table} " not in written} == set()


def late(batch: int) -> None:
    booking = Booking.objects.create(batch=batch, sequence=batch, booked_at=timezone.now())
    with unguarded("ledger_event"):
        Event.objects.filter(line__gt=_lines["last"], booking__batch=1).update(booking=booking)


def books() -> list[Any]:
    """Slots, rows, statements and lines as they read now."""
    slots = list(PoolSlot.objects.order_by("pool", "starts_at").values())
    rows = sorted(Allocation.objects.values_list(), key=str)
    statements = list(
        Statement.objects.order_by("number").values("number", "total_micro", "totals", "content")
    )
    lines = StatementLine.objects.order_by("statement__number", "position").values(
        "key", "quantity", "amount_micro"
    )
    return [slots, rows, statements, list(lines)]


def totals() -> dict[str, float]:
    rows = Statement.objects.filter(period="2026-10")
    return {row.tenant.slug: row.total_micro / MICRO_PER_UNIT for row in rows}


@hypothesis_settings(max_examples=3)
@given(
    facts=st.lists(st.tuples(st.sampled_from("abg"), st.integers(0, 30), st.integers(1, 9)), max_size=5),
    more=st.lists(
        st.tuples(st.sampled_from("abg"), st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=5
    ),
)
def test_as_of_now_is_the_present_and_as_of_then_the_past(
    facts: list[tuple[str, int, int]], more: list[tuple[str, int, int]]
) -> None:
    from django.db import transaction

    names = {"a": "acme", "b": "beta", "g": "gamma"}
    with transaction.atomic():
        pool = closable_ledger()
        for number, (who, start, length) in enumerate(facts):
            hold(pool, f"early-{number}", names[who], start, start + length, 1_000)
        compute_month(OCTOBER, horizon=END)
        then, past = known(), books()
        for number, (who, start, length) in enumerate(more):
            # Some of it is a level of a workload that was known already.
            hold(pool, f"early-{number}", names[who], start + length, start + 2 * length, 2_000)
        late(2)
        compute_month(OCTOBER, horizon=END)
        now, transfers = books(), Transfer.objects.count()
        with month_as_of(OCTOBER, timezone.now()):
            assert books() == now
        with month_as_of(OCTOBER, then, cut=1):
            assert books() == past
        assert (books(), Transfer.objects.count()) == (now, transfers)
        transaction.set_rollback(True)


def test_as_of_the_cut_is_the_closed_statement(pool: Pool) -> None:
    known()
    close()
    issued = {row.number: {**row.content} for row in Statement.objects.filter(period="2026-10")}
    hold(pool, "wl-9", "beta", 1, 3, 1_000)
    late(2)
    adjust_closed_months(NOVEMBER_5)
    with month_as_of(OCTOBER, timezone.now(), cut=1):
        drafts = {row.number: row.content for row in Statement.objects.all()}
    for number, content in issued.items():
        for name in ("version", "annexes", "borne_for_others", "shares_of_capacity"):
            content.pop(name)  # what a statement is issued with beside its lines
        assert drafts[number] == content
    with month_as_of(OCTOBER, timezone.now()):
        assert totals()["beta"] == 126
    assert totals()["beta"] == 120
    assert findings() == []


def test_terms_and_mappings_count_from_when_they_were_recorded(pool: Pool) -> None:
    occupancy(pool, "wl-7", identity("u-7", "user"), hour(2), 1_000)
    occupancy(pool, "wl-7", identity("u-7", "user"), hour(4), 0)
    beta, gamma = (Tenant.objects.get(holder__slug=slug) for slug in ("beta", "gamma"))
    map_identity("user", "u-7", beta)
    first = known()
    map_identity("user", "u-7", gamma, valid_from=hour(3))
    second = known()
    card = RateCard.objects.create(name="corrected", valid_from=hour(-500))
    for price in RateCard.objects.get(name="2026").gpu_prices.all():
        GpuPrice.objects.create(
            rate_card=card, pool=pool, category=price.category, price_micro=2 * price.price_micro
        )
    found = []
    for instant in (first, second, timezone.now()):
        with month_as_of(OCTOBER, instant):
            found.append(totals())
    assert found == [
        # beta: 40 + 2 GPU-hours at 3; then one of them is gamma's; then everything at twice the price.
        {"acme": 100, "beta": 126, "gamma": 0},
        {"acme": 100, "beta": 123, "gamma": 3},
        {"acme": 200, "beta": 246, "gamma": 6},
    ]


def test_the_horizon_is_the_instant(pool: Pool) -> None:
    known()
    RateCard.objects.update(recorded_at=hour(-1))
    Policy.objects.update(recorded_at=hour(-1))
    compute_month(OCTOBER, horizon=END)
    with month_as_of(OCTOBER, hour(5), cut=1) as period:
        assert period.horizon_at == hour(5)
        assert totals() == {"acme": 50, "beta": 60, "gamma": 0}


def get(path: str, role: str = "finance", tenants: tuple[str, ...] = ()) -> Any:
    client = APIClient()
    rows = list(Tenant.objects.filter(holder__slug__in=tenants))
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_api_token('t', role, tenants=rows)[1]}")
    return client.get(f"/api/v1/{path}")


def test_over_the_api(pool: Pool) -> None:
    compute_month(OCTOBER, horizon=END)
    then = (
        (known() + timedelta(milliseconds=2)).isoformat().replace("+00:00", "Z")
    )  # asked in whole milliseconds
    time.sleep(0.005)
    hold(pool, "wl-9", "beta", 1, 3, 1_000)
    late(2)
    compute_month(OCTOBER, horizon=END)
    path = "allocations/?window=2026-10&tenant=beta"
    assert get(path).json()["results"][0]["gpu_hours"] == "42"
    (row,) = get(f"{path}&as_of={then}").json()["results"]
    assert (row["gpu_hours"], row["amount"]) == ("40", "120")
    results = get(f"periods/2026-10/as-of/?as_of={then}").json()["results"]
    assert [(row["tenant"], row["total"]) for row in results] == [
        ("acme", "100.00"),
        ("beta", "120.00"),
        ("gamma", "0.00"),
    ]
    own = get(f"periods/2026-10/as-of/?as_of={then}", "tenant_viewer", ("beta",)).json()["results"]
    assert [(row["tenant"], row["lines"][0]["amount"]) for row in own] == [("beta", "120.00")]
    for bad, status, code in (
        ("periods/2026-10/as-of/", 400, "missing_parameter"),
        ("periods/2026-10/as-of/?as_of=yesterday", 400, "bad_as_of"),
        (f"allocations/?window=2026-10-01T00:00:00Z,2026-12-01T00:00:00Z&as_of={then}", 422, "bad_as_of"),
        ("periods/2026-10/as-of/?as_of=2050-01-01T00:00:00Z", 422, "bad_as_of"),
    ):
        response = get(bad)
        assert (response.status_code, response.json()["code"]) == (status, code), response.content
    assert get(f"periods/2031-01/as-of/?as_of={then}").status_code == 404


def test_requests_and_corrections_count_from_when_they_came() -> None:
    """The tables of facts read as they did, the hourly sums of requests included."""
    small_world()
    chat = {"service": "chat", "gpu_seconds": "1.5", "input_tokens": 10}
    deliver(
        occupancy_event("o-1", "2026-10-01T00:00:00Z", 4),
        occupancy_event("o-2", "2026-10-01T05:00:00Z", 0),
        request("r-1", "2026-10-01T02:10:00Z", "2026-10-01T00:50:00Z", **chat),
        request("r-2", "2026-10-01T03:10:00Z", "2026-10-01T02:50:00Z", **chat),
        correction("c-1", "2026-10-02T00:00:00Z", "r-2"),
    )
    before, then = all_facts(), timezone.now()
    deliver(
        occupancy_event("o-3", "2026-10-01T06:00:00Z", 2),
        request("r-3", "2026-10-01T02:20:00Z", "2026-10-01T01:50:00Z", **chat),
        correction("c-2", "2026-10-02T00:00:00Z", "r-1"),
        correction("c-3", "2026-10-02T00:00:00Z", "o-2"),
    )
    after = all_facts()
    with month_as_of(OCTOBER, then):
        read = all_facts()
    for table in ("ledger_event", "ledger_level", "ledger_request", "ledger_correction"):
        assert before[table] == read[table] != after[table]
    # An hour whose requests do not count may stand with zeros or not at all.
    hours = [[row for row in facts["ledger_usagehour"] if any(row[5:])] for facts in (before, read, after)]
    assert hours[0] == hours[1] != hours[2]
