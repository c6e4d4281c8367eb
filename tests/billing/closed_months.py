"""A small ledger that can be closed: one pool, three tenants, a price list, everything complete and signed off."""

from __future__ import annotations

from datetime import UTC, datetime

from billing.checks import CHECKS
from billing.models import CloseRun, GpuPrice, Policy, RateCard
from billing.services.closing import run_close, start_close
from billing.services.periods import open_review
from ledger.core.periods import Month
from ledger.core.units import MICRO_PER_UNIT
from ledger.models import Booking, Pool, Source
from ledger.services.audit import Actor
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

OCTOBER, NOVEMBER = Month.parse(MONTH), Month.parse("2026-11")
# Tests never ask the clock what month it is.
NOVEMBER_5 = datetime(2026, 11, 5, tzinfo=UTC)
DECEMBER_5 = datetime(2026, 12, 5, tzinfo=UTC)
ANNA, BO = Actor("anna", "request-1"), Actor("bo")
PRICES = {"reserved_used": 2, "reserved_idle": 1, "on_demand": 3, "borrowed": 1, "unreserved_idle": 1}


def closable_ledger() -> Pool:
    """October: acme reserves 8 and holds 2, beta holds 4 on demand, gamma nothing, of 16 GPUs, for ten hours."""
    pool = make_pool()
    make_tenants("acme", "beta", "gamma")
    capacity(pool, hour(0), 16_000)
    reservation(pool, "acme", hour(0), 8_000)
    reservation(pool, "acme", hour(10), 0)
    hold(pool, "wl-1", "acme", 0, 10, 2_000)
    hold(pool, "wl-2", "beta", 0, 10, 4_000)
    card = RateCard.objects.create(name="2026", valid_from=hour(-1000))
    for category, price in PRICES.items():
        GpuPrice.objects.create(
            rate_card=card, pool=pool, category=category, price_micro=price * MICRO_PER_UNIT
        )
    Policy.objects.create(valid_from=hour(-1000))
    Source.objects.update(watermark_at=DECEMBER_5, complete_until=DECEMBER_5)
    return pool


def hold(pool: Pool, workload: str, tenant: str, from_hour: float, to_hour: float, milli: int) -> None:
    occupancy(pool, workload, identity(tenant), hour(from_hour), milli)
    occupancy(pool, workload, identity(tenant), hour(to_hour), 0)


def findings() -> list[str]:
    """What verify_ledger says. Facts are put into the record by hand here, so their receipts are as well."""
    for booking in Booking.objects.all():
        count = booking.events.count()
        Booking.objects.filter(pk=booking.pk).update(received=count, booked=count)
    return [str(finding) for check in CHECKS for finding in check(None)]


def booked(batch: int) -> None:
    """One more booking in the sequence, after which facts count as late."""
    Booking.objects.create(batch=batch, sequence=batch)


def close(month: Month = OCTOBER, now: datetime = NOVEMBER_5) -> CloseRun:
    """Review and close in one go."""
    open_review(month, ANNA, now=now)
    return run_close(start_close(month, ANNA).pk, now=now)
