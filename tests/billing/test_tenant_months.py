"""What is kept of tenants' days is what their sums by day and the rate cards come to (domain.md section 9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from django.db import connection, transaction
from django.db.models import Sum

from billing.core.forecast import DayToCome, Seen
from billing.core.forecast import forecasts as core_forecasts
from billing.models import GpuPrice, MonthLine, Policy, RateCard, Statement, TenantMonth
from billing.selectors.daily_figures import daily_figures
from billing.selectors.forecast import forecasts
from billing.selectors.periods import horizon_of
from billing.selectors.prices import price_segments
from billing.selectors.tenant_months import days_of_tenants
from billing.services.months import compute_month
from ledger.access import Access
from ledger.core.periods import Month, Span, to_datetime, to_ms
from ledger.models import Ledger, Level, Period, Pool, Role, Tenant
from ledger.services.masters import ensure_books, mark_pools_dirty
from tests.billing.level_facts import MONTH, capacity, hour, identity, make_pool, occupancy
from tests.billing.page_books import HOURS_OF_OCTOBER, make_books
from tests.billing.tampering import unguarded

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

# Its midnight is at 4 o'clock UTC, and at 5 from the 1st of November on.
ZONE = "America/New_York"
NOVEMBER = HOURS_OF_OCTOBER + 4
MONTHS = [Month.parse(MONTH), Month.parse(MONTH).next()]


@pytest.fixture(scope="module", autouse=True)
def _books(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Held by acme, beta and gamma on the first day, by beta and gamma in two pools over days of both months."""
    with django_db_blocker.unblock(), transaction.atomic():
        ensure_books()
        Ledger.objects.update(billing_time_zone=ZONE)
        near = make_books().pool
        far = make_pool("sh-h100")
        for number, (pool, who) in enumerate([(near, "beta"), (far, "beta"), (far, "gamma")]):
            capacity(pool, hour(20), 16_000)
            for begin, end in (
                (20 + 7 * number, 61 + number),
                (NOVEMBER + 1 + 30 * number, NOVEMBER + 50 + 20 * number),
            ):
                occupancy(pool, f"wl-{number}-{begin}", identity(who), hour(begin + 0.3), 1_500 + number)
                occupancy(pool, f"wl-{number}-{begin}", identity(who), hour(end + 0.1), 0)
        compute(everything=True)
        yield
        transaction.set_rollback(True)


def dearer_from(at: float, missing: str = "") -> RateCard:
    """The price changes in the middle of a day, to one that does not divide evenly; a category may lose it."""
    before = RateCard.objects.get()
    RateCard.objects.update(ended_at=hour(at))
    after = RateCard.objects.create(name="dearer", valid_from=hour(at))
    for price in before.gpu_prices.exclude(category=missing):
        price.pk, price.rate_card, price.price_micro = None, after, price.price_micro * 7 // 3
        price.save()
    mark_pools_dirty(None, hour(at))
    return after


def compute(*, november: float = NOVEMBER + 200, everything: bool = False) -> None:
    compute_month(MONTHS[0], horizon=hour(NOVEMBER), everything=everything)
    compute_month(MONTHS[1], horizon=hour(november), everything=everything)


def as_derived(months: list[Month], end_ms: int, tenants: list[int]) -> dict[str, dict[int, dict[date, int]]]:
    """Kind -> tenant -> every day from its first one to the last of all: from the sums by day and the rate cards."""
    window = Span(months[0].starts_ms(ZONE), end_ms)
    figures = daily_figures(window, ZONE, price_segments(window), None)
    last = to_datetime(end_ms - 1).astimezone(ZoneInfo(ZONE)).date()

    def filled(days: Mapping[date, int]) -> dict[date, int]:
        first = min(days)
        every = (first + timedelta(days=number) for number in range((last - first).days + 1))
        return {day: days.get(day, 0) for day in every}

    kinds = {"amounts": figures.amount, "held": figures.gpu_us}
    return {
        kind: {tenant: filled(of[tenant]) for tenant in tenants if of.get(tenant)}
        for kind, of in kinds.items()
    }


def as_kept(months: list[Month], end_ms: int, tenants: list[int]) -> dict[str, dict[int, dict[date, int]]]:
    days = days_of_tenants(months, ZONE, end_ms, tenants, of_all=False)
    return {
        kind: {
            tenant: {
                of.first + timedelta(days=column): int(of.figures[row, column])
                for column in range(of.since[row], of.figures.shape[1])
            }
            for row, tenant in enumerate(tenants)
            if of.since[row] < of.figures.shape[1]
        }
        for kind, of in (("amounts", days.amounts), ("held", days.held))
    }


def tenant_of(slug: str) -> int:
    return Tenant.objects.get(holder__slug=slug).pk


def assert_kept_as_derived(*, tenants_with_days: int) -> None:
    """All tenants, at every horizon that there is, and each tenant alone."""
    everybody = sorted(Tenant.objects.values_list("pk", flat=True))
    for months in (MONTHS[:1], MONTHS[1:], MONTHS):
        end_ms = to_ms(horizon_of(months[-1].span(ZONE), to_ms(hour(NOVEMBER + 200))))
        derived = as_derived(months, end_ms, everybody)
        assert as_kept(months, end_ms, everybody) == derived
        for tenant in everybody:
            assert as_kept(months, end_ms, [tenant]) == as_derived(months, end_ms, [tenant])
        if months == MONTHS:
            assert len(derived["amounts"]) == tenants_with_days


def kept_rows() -> list[tuple[Any, ...]]:
    return list(TenantMonth.objects.order_by("pk").values_list())


def everything_again_changes_nothing() -> None:
    before = kept_rows()
    compute(everything=True)
    assert kept_rows() == before


def test_days_follow_late_facts_prices_and_policies() -> None:
    """Of whom they tell and in whatever month, as though all had been computed again."""
    assert_kept_as_derived(tenants_with_days=3)
    # Of a tenant that had held nothing for weeks: in between are days of 0.
    occupancy(Pool.objects.get(slug="bj-h100"), "wl-late", identity("beta"), hour(400), 1_000)
    occupancy(Pool.objects.get(slug="bj-h100"), "wl-late", identity("beta"), hour(430), 0)
    compute()
    assert_kept_as_derived(tenants_with_days=3)
    beta = tenant_of("beta")
    held = as_kept(MONTHS, to_ms(hour(NOVEMBER)), [beta])["held"][beta]
    assert [held[date(2026, 10, 10)], held[date(2026, 10, 18)]] == [0, 18 * 3_600_000_000]
    # A category loses its price in the middle of a day, others get another one.
    before = kept_rows()
    dearer_from(30, "on_demand")
    compute()
    assert_kept_as_derived(tenants_with_days=3)
    assert kept_rows() != before
    Policy.objects.create(valid_from=hour(7.5), undelivered_counts_pending=True, lend_credit="0.25")
    mark_pools_dirty(None, hour(7.5), hour(60))
    # A tenant that has nothing left has no days.
    with unguarded("ledger_level"):
        Level.objects.filter(identity=identity("gamma")).delete()
    mark_pools_dirty(None, hour(0))
    compute()
    assert_kept_as_derived(tenants_with_days=2)
    assert not TenantMonth.objects.filter(tenant=tenant_of("gamma")).exists()
    before = kept_rows()
    compute(everything=True)
    assert kept_rows() == before


def test_days_grow_with_the_horizon_and_a_pool_that_is_ahead_does_not_count() -> None:
    Period.objects.filter(month=str(MONTHS[1])).update(horizon_at=None)
    for end in (6, 31, 68):
        compute_month(MONTHS[1], horizon=hour(NOVEMBER + end), everything=end == 6)
        assert_kept_as_derived(tenants_with_days=3)
    before = kept_rows()
    compute_month(MONTHS[1], pool=Pool.objects.get(slug="sh-h100"), horizon=hour(NOVEMBER + 200))
    assert kept_rows() == before
    assert_kept_as_derived(tenants_with_days=3)
    compute_month(MONTHS[1], horizon=hour(NOVEMBER + 200))
    assert kept_rows() != before
    assert_kept_as_derived(tenants_with_days=3)


def test_days_that_are_not_computed_yet_are_unknown_to_the_forecast_of_a_month_to_come() -> None:
    """They are not days on which nobody held anything."""
    december = MONTHS[1].next()
    seen_to = to_datetime(to_ms(hour(NOVEMBER + 200))).astimezone(ZoneInfo(ZONE)).date()
    now_ms = to_ms(hour(NOVEMBER + 200))
    everybody = Access(roles=frozenset({Role.FINANCE}))
    made = {row.tenant: row for row in forecasts(december, Ledger.objects.get(), now_ms, everybody)}
    held = as_derived(MONTHS, now_ms, [tenant_of("gamma")])["held"][tenant_of("gamma")]
    known = {day: gpu_us for day, gpu_us in held.items() if day < seen_to}
    figures = np.array([[known[day] for day in sorted(known)]])
    to_come = [DayToCome(date(2026, 12, day)) for day in range(1, 32)]
    (expected,) = core_forecasts([0], Seen(min(known), figures, np.zeros(1, int)), to_come)
    assert made["gamma"].gpu_us == expected
    assert expected.high
    # Of a month so far ahead that no day is known to go by, nothing is known.
    far = forecasts(december.plus(3), Ledger.objects.get(), now_ms, everybody)
    assert {row.gpu_us.expected for row in far} == {row.amount.expected for row in far} == {None}


def test_what_the_books_say_of_a_month_is_the_total_of_its_bill() -> None:
    """Forecasts go by totals of bills, not by lines."""
    lines = MonthLine.objects.filter(account__tenant__isnull=False).values_list("account__tenant", "period")
    of_lines = {
        (tenant, month): total or 0 for tenant, month, total in lines.annotate(total=Sum("amount_micro"))
    }
    bills = Statement.objects.values_list("tenant", "period", "total_micro")
    assert len(of_lines) >= 3
    assert {
        (tenant, month): total for tenant, month, total in bills if (tenant, month) in of_lines
    } == of_lines
    assert not any(total for tenant, month, total in bills if (tenant, month) not in of_lines)


def test_months_that_were_computed_before_get_the_days_that_computing_keeps() -> None:
    card = dearer_from(30.5, "on_demand")
    card.gpu_prices.filter(category="borrowed").delete()
    for category, service_class, price in (
        ("reserved_used", 1, 1_234_567),
        ("excess", 0, 7_654_321),
        ("excess", 2, 11),
    ):
        GpuPrice.objects.create(
            rate_card=card,
            gpu_model="H100",
            category=category,
            service_class=service_class,
            price_micro=price,
        )
    compute(everything=True)
    computed = kept_rows()
    assert len(computed) == 5
    TenantMonth.objects.all().delete()
    fill = import_module("billing.migrations.0027_tenant_months").FILL
    with connection.cursor() as cursor:
        cursor.execute(fill)
    assert kept_rows() == computed
