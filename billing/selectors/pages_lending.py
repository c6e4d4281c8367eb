"""Reads of who lent to whom, and of reservations that lay idle, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from billing.models import AllocationDay, MonthLine
from billing.selectors.names import Names
from billing.selectors.pages_months import gpu_us_of
from billing.selectors.pages_preemptions import in_words, span_of
from billing.selectors.reservations import lending
from ledger.access import Access
from ledger.core.figures import percentages
from ledger.models import Holder, Period, Pool
from ledger.querysets import visible_to

RESERVED = ("reserved_used", "lent", "reserved_idle", "undelivered", "oversold")


@dataclass(frozen=True)
class LentPair:
    """What one lender's idle reservation ran of one borrower, by pool; amounts None where a price is missing."""

    pool: str
    lender: str
    borrower: str
    gpu_us: int
    paid_micro: int | None
    credit_micro: int | None


def lent_pairs_of(period: Period, names: Names, access: Access) -> list[LentPair]:
    """Largest first; a tenant sees the pairs it is part of, others by their alias. A handful of queries."""
    tenant_ids = None if access.sees_all_tenants else access.tenant_ids
    pairs = [
        LentPair(
            row.pool,
            in_words(names.shown(row.lender_id)),
            in_words(names.shown(row.borrower_id)),
            row.gpu_us,
            row.amount_micro,
            row.credit_micro,
        )
        for row in lending(span_of(period), tenant_ids=tenant_ids)
    ]
    return sorted(pairs, key=lambda pair: (-pair.gpu_us, pair.pool, pair.lender, pair.borrower))


@dataclass(frozen=True)
class IdleReservation:
    """A tenant's reservation in one pool over the month: `gpu_us` by RESERVED adds up to what it reserved.

    amount_micro: what the idle part was charged; None where a price is missing.
    """

    tenant: str
    pool: str
    gpu_us: Mapping[str, int]
    amount_micro: int | None

    @property
    def reserved_gpu_us(self) -> int:
        return sum(self.gpu_us.values())

    @property
    def idle_percent(self) -> str:
        """Of the reservation."""
        idle = self.gpu_us["reserved_idle"]
        return percentages([idle, self.reserved_gpu_us - idle])[0]


def idle_reservations(period: Period, access: Access) -> list[IdleReservation]:
    """Most idle first; those without any reservation are left out. Four queries."""
    rows: Iterable[tuple[int, ...]] = (
        visible_to(AllocationDay.objects.all(), access)
        .filter(starts_at__gte=period.starts_at, starts_at__lt=period.ends_at, account__tenant__isnull=False)
        .values_list("account__tenant", "pool")
        .annotate(**{name: gpu_us_of(name) for name in RESERVED})
        .order_by()
    )
    charged = _charged(period, access)
    pools, tenants = (
        dict(Pool.objects.values_list("pk", "slug")),
        dict(Holder.objects.values_list("pk", "slug")),
    )
    found = []
    for tenant, pool, *parts in rows:
        if any(parts):
            key = (tenants[tenant], pools[pool])
            gpu_us = dict(zip(RESERVED, parts, strict=True))
            found.append(IdleReservation(*key, gpu_us, charged.get(key, 0)))
    return sorted(found, key=lambda one: (-one.gpu_us["reserved_idle"], one.tenant, one.pool))


def _charged(period: Period, access: Access) -> dict[tuple[str, str], int | None]:
    rows = (
        visible_to(MonthLine.objects.filter(period=period, category="reserved_idle"), access)
        .filter(account__tenant__isnull=False)
        .order_by()
        .values_list("account__tenant__holder__slug", "pool", "amount_micro")
    )
    sums: dict[tuple[str, str], int | None] = {}
    for tenant, pool, amount in rows:
        before = sums.get((tenant, pool), 0)
        sums[tenant, pool] = None if amount is None or before is None else before + amount
    return sums
