"""Sums by tenant and day, priced afterwards, are what pricing every slot comes to (domain.md section 9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, transaction

from billing.models import AllocationDay, LendingDay, RateCard
from billing.selectors.allocations import AllocationQuestion, allocations
from billing.selectors.daily_figures import daily_figures
from billing.selectors.prices import price_segments
from billing.selectors.reservations import lending
from billing.services.months import compute_month
from ledger.core.periods import Month, Span, to_ms
from ledger.core.units import GPU_US_PER_GPU_HOUR, round_half_even
from ledger.models import Ledger, Tenant
from tests.billing.level_facts import MONTH, hour
from tests.billing.page_books import HOURS_OF_OCTOBER, make_books

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

WINDOW = Span(to_ms(hour(-30)), to_ms(hour(80)))
# Its midnight is at 4 o'clock UTC: in the middle of what the books hold.
ZONE = "America/New_York"


@pytest.fixture(scope="module", autouse=True)
def _books(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), transaction.atomic():
        make_books()
        Ledger.objects.update(billing_time_zone=ZONE)
        yield
        transaction.set_rollback(True)


def dearer_from_the_fifth_hour(missing: str = "") -> None:
    """The price changes in the middle of a day, to one that does not divide evenly; a category may lose it."""
    before = RateCard.objects.get()
    RateCard.objects.update(ended_at=hour(5))
    after = RateCard.objects.create(name="dearer", valid_from=hour(5))
    for price in before.gpu_prices.exclude(category=missing):
        price.pk, price.rate_card, price.price_micro = None, after, price.price_micro * 7 // 3
        price.save()


@pytest.mark.parametrize("missing", ["", "reserved_used", "on_demand"])
def test_a_day_cut_by_a_new_price_is_the_sum_of_its_slots(missing: str) -> None:
    dearer_from_the_fifth_hour(missing)
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER), everything=True)
    prices = price_segments(WINDOW)
    figures = daily_figures(WINDOW, ZONE, prices, None)
    rows = allocations(AllocationQuestion(WINDOW, ZONE, ("tenant",), "day"), prices)
    tenants = dict(Tenant.objects.values_list("holder__slug", "pk"))
    compared = 0
    for row in rows:
        if (tenant := row.dimensions["tenant"]) in tenants:
            day = row.starts_at.astimezone(ZoneInfo(ZONE)).date()
            assert figures.amount[tenants[tenant]].get(day, 0) == (row.amount_micro or 0), (tenant, day)
            compared += 1
    assert compared >= 6  # three tenants on both sides of midnight
    assert any(row.amount_micro is None for row in rows) is bool(missing)


def test_only_the_tenants_asked_for_are_added_up() -> None:
    acme = Tenant.objects.get(holder__slug="acme")
    figures = daily_figures(WINDOW, ZONE, price_segments(WINDOW), [acme.pk])
    assert set(figures.amount) == set(figures.gpu_us) == {acme.pk}
    assert sum(figures.gpu_us[acme.pk].values()) == 44 * 3_600_000_000


@pytest.mark.parametrize("missing", ["", "borrowed"])
def test_what_is_lent_while_a_price_changes_is_the_sum_of_its_days(missing: str) -> None:
    dearer_from_the_fifth_hour(missing)
    RateCard.objects.get(name="dearer").gpu_prices.filter(category="on_demand" if missing else "").delete()
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER), everything=True)
    prices = [one for one in price_segments(WINDOW) if (one.category, one.service_class) == ("borrowed", 0)]
    of_pairs: defaultdict[tuple[int, int], list[tuple[int, int | None]]] = defaultdict(list)
    for day in LendingDay.objects.order_by("starts_at"):
        price = [one.price_micro for one in prices if one.starts_at <= day.starts_at < one.ends_at]
        of_pairs[day.lender_id, day.borrower_id].append((day.gpu_us, price[0] if price else None))
    expected = {
        pair: (
            sum(gpu_us for gpu_us, _price in days),
            None
            if any(price is None for _gpu_us, price in days)
            else round_half_even(sum(gpu_us * (price or 0) for gpu_us, price in days), GPU_US_PER_GPU_HOUR),
        )
        for pair, days in of_pairs.items()
    }
    assert max(len(days) for days in of_pairs.values()) >= 2
    rows = lending(Month.parse(MONTH).span("UTC"))
    assert {(row.lender_id, row.borrower_id): (row.gpu_us, row.amount_micro) for row in rows} == expected


def test_months_that_were_computed_before_get_the_sums_that_computing_makes() -> None:
    dearer_from_the_fifth_hour()
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER), everything=True)
    computed = list(AllocationDay.objects.order_by("pk").values())
    assert len({row["starts_at"] for row in computed}) == 3  # at midnight of both zones, and at the new price
    AllocationDay.objects.all().delete()
    fill = import_module("billing.migrations.0020_allocation_days").FILL
    with connection.cursor() as cursor:
        cursor.execute(fill)
    assert list(AllocationDay.objects.order_by("pk").values()) == computed
