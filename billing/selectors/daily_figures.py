"""Per tenant and local day: the amount at the rate card and the GPU time held, added up in one query.

What computing a month keeps added up by pool, payer and day is read, not the slots: of hundreds of tenants there are
ten times fewer sums. A day is cut where a price changes, so the amounts are the same to the last micro unit. `zone` is
the billing zone, by whose days the sums are cut too. This is how a month's days are made when it is computed; what is
kept of them is read by `billing.selectors.tenant_months`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db import connection

from billing.core.allocation import OCCUPIED
from billing.selectors.prices import PriceSegment
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import GPU_US_PER_GPU_HOUR, round_half_even

# Leans on allocation_day_when, or on allocation_day_of_account where tenants are named. `product` is micro units x
# gpu_us per hour: divided and rounded once per day, outside. Prices stand side by side before a row meets them: it
# meets one row of them instead of one per category. What is undelivered or oversold has no price.
_PRICED = ("reserved_used", "on_demand", "borrowed", "excess", "lent", "reserved_idle")
_FREE = ("undelivered", "oversold")
_SUMS = f"""
WITH price AS (
    SELECT * FROM unnest(
        %(price_pool)s::bigint[], %(price_class)s::smallint[], %(price_from)s::timestamptz[],
        %(price_to)s::timestamptz[], {", ".join(f"%({one})s::bigint[]" for one in _PRICED)}
    ) AS p(pool_id, service_class, valid_from, valid_to, {", ".join(_PRICED)})
), cut AS (
    SELECT * FROM unnest(%(cuts)s::timestamptz[]) WITH ORDINALITY AS c(starts_at, number)
), rate AS MATERIALIZED (
    SELECT cut.number, price.pool_id, price.service_class, {", ".join(f"max({one}) AS {one}" for one in _PRICED)}
    FROM cut JOIN price ON cut.starts_at >= price.valid_from AND cut.starts_at < price.valid_to
    GROUP BY 1, 2, 3
), part AS (
    SELECT *, width_bucket(starts_at, %(cuts)s::timestamptz[]) AS number FROM billing_allocationday
    WHERE starts_at >= %(from)s AND starts_at < %(to)s AND (%(tenant_ids)s::bigint[] IS NULL OR account_id IN (
        SELECT id FROM ledger_account WHERE tenant_id = ANY(%(tenant_ids)s)))
), summed AS (
    SELECT part.account_id, part.number,
           sum({" + ".join(f"coalesce(part.{one}_gpu_us * rate.{one}::numeric, 0)" for one in _PRICED)}) AS product,
           bool_or({" OR ".join(f"(part.{one}_gpu_us <> 0 AND rate.{one} IS NULL)" for one in _PRICED)}) AS unpriced,
           sum({" + ".join(f"part.{one}_gpu_us" for one in OCCUPIED)}) AS held_gpu_us
    FROM part
    LEFT JOIN rate ON rate.number = part.number AND rate.pool_id = part.pool_id
        AND rate.service_class = part.service_class
    WHERE {" OR ".join(f"part.{one}_gpu_us <> 0" for one in (*_PRICED, *_FREE))}
    GROUP BY 1, 2
)
SELECT account.tenant_id, summed.number, product, unpriced, nullif(held_gpu_us, 0)
FROM summed
JOIN ledger_account account ON account.id = summed.account_id AND account.tenant_id IS NOT NULL
"""

Days = Mapping[date, int]


@dataclass(frozen=True)
class DailyFigures:
    """tenant id -> local day -> amount (micro units; 0 where a price is missing), and GPU time held (gpu_us). Days
    without any are left out; of held also those on which nothing was."""

    amount: Mapping[int, Days]
    gpu_us: Mapping[int, Days]


def daily_figures(
    window: Span, zone: str, prices: Iterable[PriceSegment], tenant_ids: Collection[int] | None
) -> DailyFigures:
    """tenant_ids: None for every tenant. One query; none of a window without length."""
    product: defaultdict[int, dict[date, int]] = defaultdict(dict)
    held: defaultdict[int, dict[date, int]] = defaultdict(dict)
    unpriced: set[tuple[int, date]] = set()
    if window.length_ms <= 0:
        return DailyFigures({}, {})
    tz, segments = ZoneInfo(zone), list(prices)
    cuts = _cuts(window, zone, segments)
    days = [cut.astimezone(tz).date() for cut in cuts]
    for tenant, number, amount, is_unpriced, gpu_us in _sums(window, cuts, segments, tenant_ids):
        day = days[number - 1]
        product[tenant][day] = product[tenant].get(day, 0) + int(amount or 0)
        if is_unpriced:
            unpriced.add((tenant, day))
        if gpu_us is not None:
            held[tenant][day] = held[tenant].get(day, 0) + int(gpu_us)
    amounts = {
        tenant: {
            day: 0 if (tenant, day) in unpriced else round_half_even(value, GPU_US_PER_GPU_HOUR)
            for day, value in of.items()
        }
        for tenant, of in product.items()
    }
    return DailyFigures(amounts, held)


def _sums(
    window: Span, cuts: list[datetime], segments: list[PriceSegment], tenant_ids: Collection[int] | None
) -> list[tuple[int, int, int | None, bool, int | None]]:
    """tenant id, number of the cut from 1, product, whether a price is missing, GPU time held."""
    parameters: dict[str, Any] = {
        "from": to_datetime(window.start_ms),
        "to": to_datetime(window.end_ms),
        "cuts": cuts,
        "tenant_ids": None if tenant_ids is None else sorted(tenant_ids),
        **_side_by_side(segments),
    }
    with connection.cursor() as cursor:
        cursor.execute(_SUMS, parameters)
        return cursor.fetchall()


def _side_by_side(segments: Iterable[PriceSegment]) -> dict[str, list[Any]]:
    """Arrays of a row per pool, class and validity, with the prices of all categories: there are few of them."""
    rows: defaultdict[tuple[int, int, datetime, datetime], dict[str, int]] = defaultdict(dict)
    for one in segments:
        rows[one.pool_id, one.service_class, one.starts_at, one.ends_at][one.category] = one.price_micro
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    return {
        **dict(zip(("price_pool", "price_class", "price_from", "price_to"), columns, strict=True)),
        **{category: [prices.get(category) for prices in rows.values()] for category in _PRICED},
    }


def _cuts(window: Span, zone: str, segments: Iterable[PriceSegment]) -> list[datetime]:
    """Where the window's local days begin and where a price changes, in order; the window's start is the first."""
    starts_at, ends_at, tz = to_datetime(window.start_ms), to_datetime(window.end_ms), ZoneInfo(zone)
    cuts = {moment for one in segments for moment in (one.starts_at, one.ends_at)}
    day = starts_at.astimezone(tz).date()
    while (begins := _begins(day, tz)) < ends_at:
        cuts.add(begins)
        day += timedelta(days=1)
    return [starts_at, *sorted(moment for moment in cuts if starts_at < moment < ends_at)]


def _begins(day: date, tz: ZoneInfo) -> datetime:
    return to_datetime(to_ms(datetime(day.year, day.month, day.day, tzinfo=tz).astimezone(UTC)))
