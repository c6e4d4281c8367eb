"""`usage.csv`: one row per slot, pool, service and category of a tenant's month, in exact GPU-microseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from billing.models import PoolSlot
from billing.sql.binary_copy import read_rows
from billing.sql.reports import TENANT_SLOT_COLUMNS, TENANT_SLOTS
from ledger.core.csv_stream import csv_line, csv_pieces
from ledger.core.instants import instant_text
from ledger.core.levels import changes_at
from ledger.core.periods import to_datetime, to_ms
from ledger.core.units import fixed_decimal, gpu_hours_text, round_half_even
from ledger.models import Account, Holder, HolderKind, Period, Pool, Tenant

COLUMNS = (
    "hour",
    "tenant",
    "pool",
    "gpu_model",
    "service",
    "category",
    "gpu_us",
    "gpu_hours",
    "share_of_capacity",
)
SHARE_PLACES = 6
# In the order of their names, which is the order of the rows.
CATEGORIES = (
    "borrowed",
    "excess",
    "lent",
    "on_demand",
    "oversold",
    "reserved_idle",
    "reserved_used",
    "undelivered",
)
_LINES_A_PIECE = 500
Int64s = NDArray[np.int64]
Rows = Mapping[str, NDArray[Any]]
Slot = tuple[str, str, str, str, str, int, int]


@dataclass(frozen=True)
class UsageOfMonth:
    """What the files of all tenants of a month share, read once.

    pools: pool id -> (place in order of slugs, slug, GPU model); services: holder id -> (place, slug); holders: holder
    id -> place; hours: (pool id, start of a slot in ms) -> (that start as text, the pool's capacity in gpu_us, the
    slot's end in ms).
    """

    period: Period
    accounts: Mapping[int, int]
    pools: Mapping[int, tuple[int, str, str]]
    services: Mapping[int, tuple[int, str]]
    holders: Mapping[int, int]
    hours: Mapping[tuple[int, int], tuple[str, int, int]]

    @classmethod
    def load(cls, period: Period) -> UsageOfMonth:
        pools = Pool.objects.order_by("slug").values_list("pk", "slug", "gpu_model")
        holders = list(Holder.objects.order_by("slug").values_list("pk", "slug", "kind"))
        services = [(pk, slug) for pk, slug, kind in holders if kind == HolderKind.SERVICE]
        accounts = Account.objects.filter(tenant__isnull=False).values_list("tenant_id", "pk")
        return cls(
            period,
            {tenant: pk for tenant, pk in accounts if tenant is not None},
            {pk: (place, slug, model) for place, (pk, slug, model) in enumerate(pools)},
            # Place 0 is a tenant's own work, which has no service.
            {pk: (place, slug) for place, (pk, slug) in enumerate(services, start=1)},
            {pk: place for place, (pk, _, _) in enumerate(holders)},
            _hours(period),
        )

    def rows(self, tenant: Tenant) -> Rows:
        """The allocations of a tenant's account, in any order. One query."""
        during = {"from": self.period.starts_at, "to": self.period.ends_at}
        account = self.accounts.get(tenant.pk, 0)  # 0: without an account, no rows
        return read_rows(TENANT_SLOTS, TENANT_SLOT_COLUMNS, {"account": account, **during})

    def slots(self, rows: Rows) -> Iterator[Slot]:
        """(hour, pool, GPU model, service, category, gpu_us, capacity in gpu_us), in that order."""
        sums = self._sums(rows)
        pools = {place: (pk, slug, model) for pk, (place, slug, model) in self.pools.items()}
        services = {0: ""} | dict(self.services.values())
        for at_ms, pool, service, category, gpu_us in zip(*(column.tolist() for column in sums), strict=True):
            pk, slug, model = pools[pool]
            hour, capacity, _ = self.hours.get((pk, at_ms)) or (instant_text(to_datetime(at_ms)), 0, 0)
            yield hour, slug, model, services[service], CATEGORIES[category], gpu_us, capacity

    def _sums(self, found: Rows) -> tuple[Int64s, ...]:
        """(slot, place of pool, place of service, place of category, gpu_us) of an account, in that order."""
        values = np.stack([found[name] for name in CATEGORIES])
        category, row = np.nonzero(values)
        places = np.array([self.pools[pk][0] for pk in found["pool"].tolist()], np.int64)
        serving = np.array([self.services.get(pk, (0,))[0] for pk in found["holder"].tolist()], np.int64)
        order = np.lexsort((category, serving[row], places[row], found["time_ms"][row]))
        category, row = category[order], row[order]
        keys = (found["time_ms"][row], places[row], serving[row], category)
        first = np.flatnonzero(changes_at(*keys))
        sums = np.add.reduceat(values[category, row], first) if len(first) else first
        return (*(key[first] for key in keys), sums)


def _hours(period: Period) -> dict[tuple[int, int], tuple[str, int, int]]:
    slots = PoolSlot.objects.filter(starts_at__gte=period.starts_at, starts_at__lt=period.ends_at)
    texts: dict[datetime, str] = {}
    hours = {}
    wanted = slots.values_list("pool_id", "starts_at", "ends_at", "capacity_gpu_us")
    for pool, starts_at, ends_at, capacity in wanted:
        if starts_at not in texts:
            texts[starts_at] = instant_text(starts_at)
        hours[pool, to_ms(starts_at)] = (texts[starts_at], capacity, to_ms(ends_at))
    return hours


def usage_rows(tenant: Tenant, period: Period) -> Iterator[tuple[str, ...]]:
    """Rows in the order of slot, pool, service, category."""
    slug, month = tenant.slug, UsageOfMonth.load(period)
    for hour, pool, model, service, category, gpu_us, capacity in month.slots(month.rows(tenant)):
        share = share_text(gpu_us, capacity)
        yield hour, slug, pool, model, service, category, str(gpu_us), gpu_hours_text(gpu_us), share


def usage_pieces(month: UsageOfMonth, tenant: Tenant, rows: Rows) -> Iterator[bytes]:
    """The file of these rows; rows: the tenant's, as read. What names a row is made a line once, not for every slot: a
    close writes many."""
    yield from csv_pieces(COLUMNS, ())
    slug, names, lines = tenant.slug, {}, []
    for hour, pool, model, service, category, gpu_us, capacity in month.slots(rows):
        name = pool, service, category
        if name not in names:
            names[name] = csv_line((slug, pool, model, service, category))
        share = share_text(gpu_us, capacity)
        lines.append(f"{hour},{names[name]},{gpu_us},{gpu_hours_text(gpu_us)},{share}\r\n")
        if len(lines) == _LINES_A_PIECE:
            yield "".join(lines).encode()
            lines.clear()
    yield "".join(lines).encode()


def share_text(gpu_us: int, capacity_gpu_us: int | None) -> str:
    """Share of capacity as a decimal of 6 places; empty where there was no capacity."""
    if not capacity_gpu_us:
        return ""
    return fixed_decimal(round_half_even(gpu_us * 10**SHARE_PLACES, int(capacity_gpu_us)), SHARE_PLACES)
