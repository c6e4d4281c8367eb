"""Beat follows late facts and moves the horizon of every month that is not closed."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.utils import timezone

from billing.models import MonthLine, Statement
from billing.services import months
from billing.services.months import compute_month, is_up_to_date, months_to_compute
from billing.tasks import compute_one_month, recompute_open_months
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import Period, PeriodState, Pool, Tenant
from ledger.services.masters import ensure_books
from tests.billing.level_facts import MONTH, capacity, hour, identity, make_pool, make_tenants, occupancy

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]
NOVEMBER = 31 * 24


@pytest.fixture
def pool() -> Pool:
    pool = make_pool()
    make_tenants("acme")
    capacity(pool, hour(0), 4_000)
    occupancy(pool, "wl-1", identity("acme"), hour(0), 1_000)
    return pool


def at(monkeypatch: pytest.MonkeyPatch, instant: datetime) -> None:
    monkeypatch.setattr(timezone, "now", lambda: instant)


def hours_held(month: str) -> int:
    return sum(
        int(line.quantity) for line in MonthLine.objects.filter(period=month, category="on_demand")
    ) // (GPU_US_PER_GPU_HOUR)


def test_every_open_month_from_the_first_fact_to_the_running_one(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, hour(NOVEMBER + 5.5))
    recompute_open_months()
    assert (hours_held(MONTH), hours_held("2026-11")) == (NOVEMBER, 5)
    assert {period.month: period.horizon_at for period in Period.objects.all()} == {
        MONTH: hour(NOVEMBER),
        "2026-11": hour(NOVEMBER + 5),
    }
    assert Statement.objects.count() == 2


def test_what_is_up_to_date_is_left_alone(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, hour(5.5))
    october = Month.parse(MONTH)
    assert not is_up_to_date(october, hour(5.5))
    recompute_open_months()
    assert is_up_to_date(october, hour(5.9))
    assert not is_up_to_date(october, hour(6))

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("computed a month that was up to date")

    monkeypatch.setattr("billing.tasks.compute_month", refuse)
    recompute_open_months()


def test_a_late_fact_is_followed(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, hour(5.5))
    recompute_open_months()
    occupancy(pool, "wl-1", identity("acme"), hour(3), 0)
    recompute_open_months()
    assert hours_held(MONTH) == 3


def test_a_closed_month_is_left_alone(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, hour(NOVEMBER + 1))
    recompute_open_months()
    Period.objects.filter(month=MONTH).update(
        state=PeriodState.CLOSED, cut_sequence=1, closed_at=hour(NOVEMBER + 1)
    )
    occupancy(pool, "wl-1", identity("acme"), hour(3), 0)
    recompute_open_months()
    compute_one_month(MONTH)
    assert hours_held(MONTH) == NOVEMBER
    assert [str(month) for month in months_to_compute(hour(NOVEMBER + 1))] == ["2026-11"]
    with pytest.raises(months.MonthClosed):
        compute_month(Month.parse(MONTH))


def test_a_month_is_billed_in_its_own_time_zone(pool: Pool) -> None:
    """Kathmandu is 5:45 ahead: its October starts at 18:15 UTC of September 30, off the hour."""

    ledger = ensure_books()
    ledger.billing_time_zone = "Asia/Kathmandu"
    ledger.save()
    capacity(pool, hour(-100), 4_000)
    occupancy(pool, "wl-0", identity("acme"), hour(-100), 1_000)
    occupancy(pool, "wl-0", identity("acme"), hour(0), 0)
    done = compute_month(Month.parse(MONTH), horizon=hour(NOVEMBER))
    assert Period.objects.get().starts_at == hour(-5.75)
    quantity = sum(int(line.quantity) for line in MonthLine.objects.filter(category="on_demand"))
    # 5.75 hours of wl-0, then wl-1 until the month's end at 18:15 on the 31st.
    assert quantity == NOVEMBER * GPU_US_PER_GPU_HOUR
    assert done.allocation.horizon == hour(NOVEMBER - 5.75)


def test_without_any_fact_there_is_nothing_to_compute(db: None) -> None:
    assert months_to_compute(hour(0)) == []


def test_a_tenant_that_is_renamed_gets_its_draft_anew(pool: Pool) -> None:
    compute_month(Month.parse(MONTH), horizon=hour(5))
    Tenant.objects.update(name="Acme Ltd")
    done = compute_month(Month.parse(MONTH), horizon=hour(5))
    assert (done.statements, done.transfers) == (1, 0)
    assert Statement.objects.get().content["name"] == "Acme Ltd"


def test_only_touched_pools_are_rated_again_and_the_rest_stands(pool: Pool) -> None:
    """The month after a late fact in one of two pools is the month computed as a whole."""
    other = make_pool("bj-a100")
    make_tenants("beta")
    capacity(other, hour(0), 4_000)
    occupancy(other, "wl-2", identity("beta"), hour(0), 2_000)
    compute_month(Month.parse(MONTH), horizon=hour(30))
    kept = set(MonthLine.objects.filter(pool="bj-a100").values_list("pk", "quantity"))
    occupancy(pool, "wl-3", identity("beta"), hour(29), 1_000)
    done = compute_month(Month.parse(MONTH), horizon=hour(30))
    assert done.allocation.spans.keys() == {pool.pk}
    assert set(MonthLine.objects.filter(pool="bj-a100").values_list("pk", "quantity")) == kept
    # beta has a line in each pool now; acme's bill is what it was.
    assert done.statements == 1
    again = compute_month(Month.parse(MONTH), horizon=hour(30), everything=True)
    assert (again.transfers, again.statements) == (0, 0)
