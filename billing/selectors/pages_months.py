"""Reads of months: the list, and where every GPU-hour of one month went. A constant number of queries each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import BigIntegerField, Count, Q, Sum
from django.db.models.functions import Cast

from billing.models import AllocationDay, BillingFinding, PoolSlot, Statement
from billing.sql.pages import CAPACITY_BY_MONTH
from ledger.access import Access
from ledger.core.figures import percent_change, percentages
from ledger.models import Period, Pool
from ledger.querysets import visible_to

# What fills a pool's capacity, in the order of domain.md section 4.
PARTS_OF_CAPACITY = (
    "reserved_used",
    "on_demand",
    "borrowed",
    "reserved_idle",
    "undelivered",
    "unreserved_idle",
)
OUTSIDE_CAPACITY = ("over_reserved", "excess", "oversold")
OCCUPIED = ("reserved_used", "on_demand", "borrowed", "excess")
HOLDER_CATEGORIES = (
    "reserved_used",
    "on_demand",
    "borrowed",
    "lent",
    "reserved_idle",
    "undelivered",
    "oversold",
    "excess",
)


@dataclass(frozen=True)
class MonthRow:
    """A month in the list. Amounts are over the statements the asker may see."""

    period: Period
    capacity_gpu_us: int | None
    total_minor: int | None
    currency: str
    statements: int
    exceptions: int
    blocking: int


def month_rows(access: Access) -> list[MonthRow]:
    """Newest first. Five queries however many months and tenants there are."""
    charged: dict[str, Mapping[str, Any]] = {
        row["period"]: row
        for row in visible_to(Statement.objects.all(), access)
        .values("period", "currency")
        .annotate(total=Sum("total_minor"), count=Count("pk"))
        .order_by()
    }
    periods = Period.objects.order_by("-month")
    if not access.sees_all_tenants:
        periods = periods.filter(month__in=charged)
    capacity = _capacity_by_month() if access.sees_all_tenants else {}
    findings = _findings_by_month() if access.sees_all_tenants else {}
    rows = []
    for period in periods:
        bill = charged.get(period.month, {})
        exceptions, blocking = findings.get(period.month, (0, 0))
        rows.append(
            MonthRow(
                period=period,
                capacity_gpu_us=capacity.get(period.month),
                total_minor=bill.get("total"),
                currency=bill.get("currency", ""),
                statements=bill.get("count", 0),
                exceptions=exceptions,
                blocking=blocking,
            )
        )
    return rows


def _capacity_by_month() -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute(CAPACITY_BY_MONTH)
        return {month: int(gpu_us) for month, gpu_us in cursor.fetchall()}


def _findings_by_month() -> dict[str, tuple[int, int]]:
    """Month -> (exceptions, those that block the close), of the computation; facts' own are on the month's page."""
    rows = BillingFinding.objects.values("month").annotate(
        count=Count("pk"), blocking=Count("pk", filter=Q(blocks_close=True))
    )
    return {row["month"]: (row["count"], row["blocking"]) for row in rows.order_by()}


@dataclass(frozen=True)
class Part:
    """One category of a pool's month."""

    category: str
    gpu_us: int
    percent: str


@dataclass(frozen=True)
class PoolMonth:
    """A pool's capacity and all of where it went. `parts` cover capacity + over-reserved exactly."""

    pool: Pool
    capacity_gpu_us: int
    parts: list[Part]
    over_reserved_gpu_us: int
    excess_gpu_us: int
    oversold_gpu_us: int

    @property
    def difference_gpu_us(self) -> int:
        """0 by the law of conservation."""
        filled = sum(part.gpu_us for part in self.parts)
        return self.capacity_gpu_us - filled + self.over_reserved_gpu_us


def pool_months(period: Period) -> list[PoolMonth]:
    """Pools by slug. Two queries."""
    columns = ("capacity", *PARTS_OF_CAPACITY, *OUTSIDE_CAPACITY)
    sums = (
        PoolSlot.objects.filter(starts_at__gte=period.starts_at, starts_at__lt=period.ends_at)
        .values("pool")
        .annotate(**{name: Sum(f"{name}_gpu_us") for name in columns})
        .order_by("pool__slug")
    )
    pools = Pool.objects.in_bulk()
    return [_pool_month(pools[row["pool"]], row) for row in sums]


def _pool_month(pool: Pool, row: Mapping[str, Any]) -> PoolMonth:
    gpu_us = [int(row[name]) for name in PARTS_OF_CAPACITY]
    shares = percentages(gpu_us)
    return PoolMonth(
        pool=pool,
        capacity_gpu_us=int(row["capacity"]),
        parts=[Part(*part) for part in zip(PARTS_OF_CAPACITY, gpu_us, shares, strict=True)],
        over_reserved_gpu_us=int(row["over_reserved"]),
        excess_gpu_us=int(row["excess"]),
        oversold_gpu_us=int(row["oversold"]),
    )


def whole_of(pools: Iterable[PoolMonth]) -> PoolMonth | None:
    """All pools added up, as one more row; None if there are none."""
    rows = list(pools)
    if not rows:
        return None
    sums: dict[str, Any] = {
        name: sum(next(part.gpu_us for part in row.parts if part.category == name) for row in rows)
        for name in PARTS_OF_CAPACITY
    }
    for name in ("capacity", *OUTSIDE_CAPACITY):
        sums[name] = sum(getattr(row, f"{name}_gpu_us") for row in rows)
    return _pool_month(Pool(slug=""), sums)


@dataclass(frozen=True)
class TenantMonth:
    """A tenant's statement in the month's table, and what was held. before_minor: of the month before, if any."""

    tenant: str
    tenant_id: int
    statement_id: UUID
    month: str
    state: str
    total_micro: int
    total_minor: int
    before_minor: int | None
    gpu_us: Mapping[str, int]

    @property
    def occupied_gpu_us(self) -> int:
        return sum(self.gpu_us.get(name, 0) for name in OCCUPIED)

    @property
    def difference_minor(self) -> int | None:
        return None if self.before_minor is None else self.total_minor - self.before_minor

    @property
    def change(self) -> str | None:
        """Against the month before, in percent."""
        return None if self.before_minor is None else percent_change(self.total_minor, self.before_minor)


def tenant_months(
    period: Period, before: Period | None, access: Access, held: Mapping[int | None, Mapping[str, int]]
) -> list[TenantMonth]:
    """Tenants by slug, each with its statement; two queries. held: of gpu_us_by_tenant.

    Of hundreds of tenants only a page is shown, so what only shown rows need is worked out by the row.
    """
    statements = (
        visible_to(Statement.objects.filter(period=period), access)
        .order_by("tenant__holder__slug")
        .values_list("tenant__holder__slug", "tenant_id", "pk", "state", "total_micro", "total_minor")
    )
    earlier = {} if before is None else _totals_of(before, access)
    return [
        TenantMonth(
            slug, tenant, pk, period.month, state, micro, minor, earlier.get(tenant), held.get(tenant, {})
        )
        for slug, tenant, pk, state, micro, minor in statements
    ]


def _totals_of(period: Period, access: Access) -> dict[int, int]:
    rows = visible_to(Statement.objects.filter(period=period), access)
    return dict(rows.values_list("tenant_id", "total_minor"))


def gpu_us_by_tenant(period: Period, access: Access) -> dict[int | None, dict[str, int]]:
    """Tenant id (None: the platform and suspense) -> category -> gpu_us of the month. One query, over the sums by
    day."""
    rows: Iterable[tuple[Any, ...]] = (
        visible_to(AllocationDay.objects.all(), access)
        .filter(starts_at__gte=period.starts_at, starts_at__lt=period.ends_at)
        .values_list("account__tenant")
        .annotate(**{name: gpu_us_of(name) for name in HOLDER_CATEGORIES})
        .order_by()
    )
    return {tenant: dict(zip(HOLDER_CATEGORIES, parts, strict=True)) for tenant, *parts in rows}


def gpu_us_of(category: str) -> Cast:
    """The sum of a category as an integer: PostgreSQL's own are numerics, slow to read by the thousand."""
    return Cast(Sum(f"{category}_gpu_us"), BigIntegerField())


@dataclass(frozen=True)
class WhoseTime:
    """What tenants held of the month, or all others together: services of the platform's own, and suspense."""

    of_tenants: bool
    gpu_us: Mapping[str, int]

    @property
    def occupied_gpu_us(self) -> int:
        return sum(self.gpu_us.get(name, 0) for name in OCCUPIED)


def whose_time(held: Mapping[int | None, Mapping[str, int]]) -> list[WhoseTime]:
    """The two add up to what the pools say of holders, lent to what they say is borrowed. held: of
    gpu_us_by_tenant, for somebody who sees all tenants."""
    sums = [dict.fromkeys(HOLDER_CATEGORIES, 0) for _whose in range(2)]
    for tenant, parts in held.items():
        for name, gpu_us in parts.items():
            sums[tenant is None][name] += gpu_us
    return [WhoseTime(of_tenants=True, gpu_us=sums[0]), WhoseTime(of_tenants=False, gpu_us=sums[1])]


def neighbour_before(period: Period) -> Period | None:
    return Period.objects.filter(starts_at__lt=period.starts_at).order_by("-starts_at").first()
