"""`GET allocations/?step=minute`: a day at most, divided over its minutes when asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from django.db.models import Q, QuerySet

from billing.models import Allocation
from billing.selectors.allocations import AllocationQuestion, AllocationRow
from billing.selectors.minutes import LONGEST_BY_MINUTE_MS, MinutePart, TooLong, minutes_of_rows
from billing.selectors.prices import PriceSegment
from ledger.core.periods import to_datetime, to_ms
from ledger.core.units import GPU_US_PER_GPU_HOUR, MS_PER_HOUR, round_half_even
from ledger.models import AccountKind, HolderKind, Pool

_FREE = ("undelivered", "oversold")
_Key = tuple[int, tuple[Any, ...]]


def allocations_by_minute(
    question: AllocationQuestion, prices: Iterable[PriceSegment], *, offset: int = 0, limit: int | None = None
) -> list[AllocationRow]:
    """As `allocations`, by the minute. A few queries per pool; the minutes of a slot add up to the slot's row.

    Raises:
        TooLong: the window is longer than a day.
    """
    if question.window.length_ms > LONGEST_BY_MINUTE_MS:
        raise TooLong("by the minute a day at most")
    price_of = _Prices(prices)
    sums: dict[_Key, int] = defaultdict(int)
    products: dict[_Key, int] = defaultdict(int)
    unpriced: set[_Key] = set()
    capacity: dict[_Key, int] = defaultdict(int)
    for pool in _pools(question):
        minutes = minutes_of_rows(
            pool, list(_rows(question, pool)), question.window, include_idle=question.include_idle
        )
        for minute_ms, gpu_us in minutes.capacity.items():
            capacity[minute_ms, _pool_names(question, pool)] += gpu_us
        for part in minutes.parts:
            named = _named(part)
            if not _is_wanted(question, named):
                continue
            key = (part.starts_ms, tuple(named[name] for name in question.by))
            sums[key] += part.gpu_us
            price = price_of(part)
            if price is not None:
                products[key] += part.gpu_us * price
            elif part.category not in _FREE:
                unpriced.add(key)
    places = [place for place, name in enumerate(question.by) if name in _OF_POOLS]
    keys = sorted(sums, key=lambda key: (key[0], tuple(str(value) for value in key[1])))
    return [
        AllocationRow(
            starts_at=to_datetime(key[0]),
            dimensions=dict(zip(question.by, key[1], strict=True)),
            gpu_us=sums[key],
            capacity_gpu_us=capacity.get((key[0], tuple(key[1][place] for place in places))),
            amount_micro=None if key in unpriced else round_half_even(products[key], GPU_US_PER_GPU_HOUR),
        )
        for key in keys[offset : None if limit is None else offset + limit]
    ]


_OF_POOLS = ("pool", "cluster", "gpu_model")


def _pools(question: AllocationQuestion) -> QuerySet[Pool]:
    filters = question.filters
    found = Pool.objects.order_by("slug")
    for name, field in (("pool", "slug"), ("cluster", "cluster"), ("gpu_model", "gpu_model")):
        if name in filters:
            found = found.filter(**{f"{field}__in": filters[name]})
    return found


def _rows(question: AllocationQuestion, pool: Pool) -> QuerySet[Allocation]:
    """Rows of the slots that touch the window: a slot is an hour at most."""
    window = question.window
    mine = Q() if question.tenant_ids is None else Q(account__tenant_id__in=sorted(question.tenant_ids))
    return Allocation.objects.filter(
        mine,
        pool=pool,
        starts_at__gt=to_datetime(window.start_ms - MS_PER_HOUR),
        starts_at__lt=to_datetime(window.end_ms),
    ).select_related("holder", "account__tenant__holder")


def _pool_names(question: AllocationQuestion, pool: Pool) -> tuple[Any, ...]:
    of_pool = {"pool": pool.slug, "cluster": pool.cluster, "gpu_model": pool.gpu_model}
    return tuple(of_pool[name] for name in question.by if name in _OF_POOLS)


def _named(part: MinutePart) -> dict[str, Any]:
    pool, row = part.pool, part.row
    tenant, service, service_class = "platform", "", 0
    if row is not None:
        if row.account.tenant is not None:
            tenant = row.account.tenant.slug
        elif row.account.kind == AccountKind.SUSPENSE:
            tenant = "unattributed"
        service = row.holder.slug if row.holder.kind == HolderKind.SERVICE else ""
        service_class = row.service_class
    return {
        "pool": pool.slug,
        "cluster": pool.cluster,
        "gpu_model": pool.gpu_model,
        "tenant": tenant,
        "service": service,
        "category": part.category,
        "service_class": service_class,
    }


def _is_wanted(question: AllocationQuestion, named: dict[str, Any]) -> bool:
    return all(str(named[name]) in values for name, values in question.filters.items())


class _Prices:
    """The price of a part at its minute."""

    def __init__(self, segments: Iterable[PriceSegment]) -> None:
        self._segments: dict[tuple[int, str, int], list[tuple[int, int, int]]] = defaultdict(list)
        for one in segments:
            key = (one.pool_id, one.category, one.service_class)
            self._segments[key].append((to_ms(one.starts_at), to_ms(one.ends_at), one.price_micro))

    def __call__(self, part: MinutePart) -> int | None:
        service_class = 0 if part.row is None else part.row.service_class
        # The slot's start decides: slots are cut where prices change, minutes need not be.
        at_ms = part.starts_ms if part.row is None else to_ms(part.row.starts_at)
        for start_ms, end_ms, price_micro in self._segments[part.pool.pk, part.category, service_class]:
            if start_ms <= at_ms < end_ms:
                return price_micro
        return None
