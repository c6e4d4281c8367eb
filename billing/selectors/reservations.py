"""Reservations, what became of them, and lending between holders (domain.md sections 4 and 9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from django.db import connection

from billing.core.reservations import Reserved, Use, use_of_reservations
from billing.selectors.prices import price_segments
from billing.selectors.terms import rating_policies
from billing.services.allocation_facts import void_events
from billing.sql.reservations import LENT, RESERVATIONS, UTILIZATION
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import GPU_US_PER_GPU_HOUR, round_half_even
from ledger.models import Holder, HolderKind, ServiceClass


@dataclass(frozen=True)
class ReservationRow:
    """A reservation's level from starts_at until ends_at (None: open). holder_id None: nobody is known by that name."""

    pool: str
    reservation: str
    holder_id: int | None
    tenant_id: int | None
    milli_gpus: int
    lendable: bool
    starts_at: datetime
    ends_at: datetime | None


def reservations(
    at: datetime,
    *,
    until: datetime | None = None,
    pools: Collection[str] | None = None,
    tenant_ids: frozenset[int] | None = None,
) -> list[ReservationRow]:
    """Reservations in force at an instant or beginning after it (before `until`), by pool, id and start.

    A tenant sees its own and those of services that it owns.
    """
    parameters: dict[str, Any] = {
        "at": at,
        "from": until,
        "void": void_events(),
        "pool": None if pools is None else list(pools),
        "tenant_ids": _ids(tenant_ids),
    }
    with connection.cursor() as cursor:
        cursor.execute(RESERVATIONS, parameters)
        return [ReservationRow(*row) for row in cursor.fetchall()]


@dataclass(frozen=True)
class Utilization:
    """What became of a holder's reserved GPU time in a pool and step. tenant: who reserved it (a service's owner);
    reservation: empty unless asked for by reservation."""

    starts_at: datetime
    pool: str
    tenant: str
    service: str
    reservation: str
    use: Use


UTILIZATION_STEPS = ("hour", "day", "month", "all")


def utilization(
    window: Span,
    zone: str,
    *,
    step: str = "all",
    by_reservation: bool = False,
    pools: Collection[str] | None = None,
    tenant_ids: frozenset[int] | None = None,
) -> list[Utilization]:
    """Rows by step, pool and holder, from the stored slots; by reservation, a holder's figures are divided over its
    reservations by what each reserved in the step. Two queries (four by reservation)."""
    parameters: dict[str, Any] = {
        "from": to_datetime(window.start_ms),
        "to": to_datetime(window.end_ms),
        "zone": zone,
        "step": step,
        "pool": None if pools is None else list(pools),
        "tenant_ids": _ids(tenant_ids),
    }
    slugs = dict(Holder.objects.values_list("pk", "slug"))
    rows = []
    with connection.cursor() as cursor:
        cursor.execute(UTILIZATION, parameters)
        for bucket, pool, holder, kind, tenant_id, *sums in cursor.fetchall():
            service = holder if kind == HolderKind.SERVICE else ""
            tenant = slugs[tenant_id] if tenant_id else ("platform" if service else holder)
            use = Use(*(int(value) for value in sums))
            rows.append(Utilization(bucket, pool, tenant, service, "", use))
    return _by_reservation(rows, window, pools, tenant_ids) if by_reservation else rows


def _by_reservation(
    rows: list[Utilization],
    window: Span,
    pools: Collection[str] | None,
    tenant_ids: frozenset[int] | None,
) -> list[Utilization]:
    if not rows:
        return []
    starts = sorted({to_ms(row.starts_at) for row in rows})
    ends = dict(zip(starts, [*starts[1:], window.end_ms], strict=True))
    slugs = dict(Holder.objects.values_list("pk", "slug"))
    levels = reservations(
        to_datetime(window.start_ms), until=to_datetime(window.end_ms), pools=pools, tenant_ids=tenant_ids
    )
    stretches: defaultdict[tuple[str, str], list[ReservationRow]] = defaultdict(list)
    for level in levels:
        if level.holder_id is not None:
            stretches[level.pool, slugs[level.holder_id]].append(level)
    found = []
    for row in rows:
        step = Span(to_ms(row.starts_at), ends[to_ms(row.starts_at)])
        reserved = _reserved(stretches[row.pool, row.service or row.tenant], step)
        if not reserved:
            found.append(row)
        for one, use in zip(reserved, use_of_reservations(reserved, row.use), strict=True):
            found.append(Utilization(row.starts_at, row.pool, row.tenant, row.service, one.reservation, use))
    return found


def _reserved(levels: list[ReservationRow], step: Span) -> list[Reserved]:
    sums: defaultdict[tuple[str, bool], int] = defaultdict(int)
    for level in levels:
        end_ms = step.end_ms if level.ends_at is None else to_ms(level.ends_at)
        inside = step.overlap(Span(to_ms(level.starts_at), end_ms))
        if inside:
            sums[level.reservation, level.lendable] += level.milli_gpus * inside.length_ms
    return [Reserved(name, gpu_us, lendable) for (name, lendable), gpu_us in sorted(sums.items())]


@dataclass(frozen=True)
class LendingRow:
    """What one holder's idle reservation gave to another's burst. amount: at the borrowed rate; credit: at the
    policy's lend credit. None where a price is missing."""

    pool: str
    lender_id: int
    borrower_id: int
    gpu_us: int
    amount_micro: int | None
    credit_micro: int | None


def lending(
    window: Span,
    *,
    pools: Collection[str] | None = None,
    tenant_ids: frozenset[int] | None = None,
) -> list[LendingRow]:
    """Lender x borrower per pool, from the stored pairs, by pool, lender and borrower. A tenant sees the pairs that it
    (or a service of its own) is part of. Statements are exact where class prices or a lender's own waiting work
    matter; here the unclassed price holds."""
    parameters: dict[str, Any] = {
        "from": to_datetime(window.start_ms),
        "to": to_datetime(window.end_ms),
        "pool": None if pools is None else list(pools),
        "tenant_ids": _ids(tenant_ids),
        **_lending_prices(window),
    }
    with connection.cursor() as cursor:
        cursor.execute(LENT, parameters)
        return [
            LendingRow(
                pool,
                lender,
                borrower,
                int(gpu_us),
                _amount(None if unpriced else paid),
                _amount(None if unpriced else credit),
            )
            for pool, lender, borrower, gpu_us, paid, credit, unpriced in cursor.fetchall()
        ]


_EVER = datetime(1970, 1, 1, tzinfo=UTC)


def _lending_prices(window: Span) -> dict[str, list[Any]]:
    segments = [one for one in price_segments(window) if one.service_class == ServiceClass.NONE]
    reserved = {
        (one.pool_id, one.starts_at): one.price_micro for one in segments if one.category == "reserved_used"
    }
    borrowed = [one for one in segments if one.category == "borrowed"]
    policies = rating_policies()
    shares = []
    for one in borrowed:
        at_ms = max(to_ms(one.starts_at), window.start_ms)
        in_force = [policy for policy in policies if policy.valid_from_ms <= at_ms]
        share = in_force[-1].lend_credit_share if in_force else None
        rate = reserved.get((one.pool_id, one.starts_at), one.price_micro)
        shares.append(min(one.price_micro, rate) if share is None else _of(rate, share))
    return {
        "price_pool": [one.pool_id for one in borrowed],
        "price_from": [one.starts_at for one in borrowed],
        "price_to": [one.ends_at for one in borrowed],
        "price_changes": sorted({at for one in borrowed for at in (one.starts_at, one.ends_at)}) or [_EVER],
        "borrowed": [one.price_micro for one in borrowed],
        "credit": shares,
    }


def _of(rate_micro: int, share: Fraction) -> int:
    return round_half_even(rate_micro * share.numerator, share.denominator)


def _amount(product: Any) -> int | None:
    return None if product is None else round_half_even(int(product), GPU_US_PER_GPU_HOUR)


def _ids(tenant_ids: frozenset[int] | None) -> list[int] | None:
    return None if tenant_ids is None else sorted(tenant_ids)
