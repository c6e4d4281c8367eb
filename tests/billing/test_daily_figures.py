"""Sums by tenant and day, priced afterwards, are what pricing every slot comes to (domain.md section 9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction

from billing.selectors.allocations import AllocationQuestion, allocations
from billing.selectors.daily_figures import daily_figures
from billing.selectors.prices import PriceSegment, price_segments
from ledger.core.periods import Span, to_ms
from ledger.models import Tenant
from tests.billing.level_facts import hour
from tests.billing.page_books import make_books

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

WINDOW = Span(to_ms(hour(-30)), to_ms(hour(80)))
ZONE = "Asia/Shanghai"


@pytest.fixture(scope="module", autouse=True)
def _books(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), transaction.atomic():
        make_books()
        yield
        transaction.set_rollback(True)


def dearer_from_the_fifth_hour(segments: list[PriceSegment], missing: str = "") -> list[PriceSegment]:
    """The price changes in the middle of a day, to one that does not divide evenly; a category may lose it."""
    cut = hour(5)
    before = [replace(one, ends_at=cut) for one in segments]
    after = [replace(one, starts_at=cut, price_micro=one.price_micro * 7 // 3) for one in segments]
    return before + [one for one in after if one.category != missing]


@pytest.mark.parametrize("missing", ["", "reserved_used", "on_demand"])
def test_a_day_cut_by_a_new_price_is_the_sum_of_its_slots(missing: str) -> None:
    prices = dearer_from_the_fifth_hour(price_segments(WINDOW), missing)
    figures = daily_figures(WINDOW, ZONE, prices, None)
    rows = allocations(AllocationQuestion(WINDOW, ZONE, ("tenant",), "day"), prices)
    tenants = set(Tenant.objects.values_list("holder__slug", flat=True))
    compared = 0
    for row in rows:
        if (tenant := row.dimensions["tenant"]) in tenants:
            day = row.starts_at.astimezone(ZoneInfo(ZONE)).date()
            assert figures.amount[tenant][day] == (row.amount_micro or 0), (tenant, day)
            compared += 1
    assert compared >= 3
    assert any(row.amount_micro is None for row in rows) is bool(missing)


def test_only_the_tenants_asked_for_are_added_up() -> None:
    acme = Tenant.objects.get(holder__slug="acme")
    figures = daily_figures(WINDOW, ZONE, price_segments(WINDOW), [acme.pk])
    assert set(figures.amount) == set(figures.gpu_us) == {"acme"}
    assert sum(figures.gpu_us["acme"].values()) == 44 * 3_600_000_000
