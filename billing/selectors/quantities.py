"""A month's quantities for rating: GPU time, idle time, lending, tokens, per version of the terms."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from django.db import connection

from billing.core.contracts import TokenUse
from billing.core.cost_recovery import PoolCost
from billing.core.rating_credits import LentPair
from billing.core.rating_lines import Quantity, tenant_account
from billing.selectors.accounts import Accounts
from billing.selectors.terms import CostVersion, MonthTerms
from billing.sql.months import LENDING, POOL_QUANTITIES, QUANTITIES, SERVICE_TOKENS, TENANT_TOKENS
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import HolderKind, Pool, Purpose, ServiceClass

TOKEN_COUNTS = ("requests", "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
CATEGORIES = (
    "reserved_used",
    "on_demand",
    "borrowed",
    "excess",
    "lent",
    "reserved_idle",
    "undelivered",
    "oversold",
)


def _parameters(terms: MonthTerms, span: Span) -> dict[str, Any]:
    """The stretches of the versions of every pool, as parallel arrays."""
    ids = dict(Pool.objects.values_list("slug", "pk"))
    stretches = [
        (ids[slug], to_datetime(start), to_datetime(end))
        for slug, starts in terms.versions.items()
        for start, end in pairwise([*starts, span.end_ms])
    ]
    return {
        "pools": [stretch[0] for stretch in stretches],
        "starts": [stretch[1] for stretch in stretches],
        "ends": [stretch[2] for stretch in stretches],
        "from": to_datetime(span.start_ms),
        "to": to_datetime(span.end_ms),
    }


def gpu_quantities(terms: MonthTerms, span: Span, accounts: Accounts) -> list[Quantity]:
    """One row per pool, holder, account, class, purpose, category and version that has any GPU time."""
    with connection.cursor() as cursor:
        cursor.execute(QUANTITIES, _parameters(terms, span))
        return [quantity for row in cursor.fetchall() for quantity in _quantities(row, accounts)]


def _quantities(row: tuple[Any, ...], accounts: Accounts) -> Iterator[Quantity]:
    pool, holder, kind, account_id, service_class, purpose, service_idle, version_from, *sums = row
    *by_category, waiting = (int(value) for value in sums)
    for category, gpu_us in zip(CATEGORIES, by_category, strict=True):
        if gpu_us:
            yield Quantity(
                account=accounts.names[account_id],
                holder=holder,
                pool=pool,
                category=category,
                gpu_us=gpu_us,
                version_from_ms=to_ms(version_from),
                service=holder if kind == HolderKind.SERVICE else "",
                service_class=str(ServiceClass(service_class).label),
                purpose=str(Purpose(purpose).label),
                service_idle=service_idle,
                waiting_gpu_us=waiting if category == "lent" else 0,
            )


def pool_quantities(
    terms: MonthTerms, span: Span
) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """(unreserved idle, capacity), each (pool, version_from_ms) -> gpu_us."""
    with connection.cursor() as cursor:
        cursor.execute(POOL_QUANTITIES, _parameters(terms, span))
        rows = cursor.fetchall()
    idle = {(pool, to_ms(version)): int(gpu_us) for pool, version, gpu_us, _ in rows if gpu_us}
    return idle, {(pool, to_ms(version)): int(capacity) for pool, version, _, capacity in rows}


def lent_pairs(terms: MonthTerms, span: Span) -> list[LentPair]:
    """Who lent to whom, per version of the rate card: finer terms do not cut the pairs."""
    edges = _rate_card_edges(terms, span)
    with connection.cursor() as cursor:
        pools = Pool.objects.filter(slug__in=terms.versions).values_list("pk", flat=True)
        cursor.execute(LENDING, {**_stretches(edges, span), "pools": list(pools)})
        return [
            LentPair(pool, to_ms(version), lender, borrower, int(gpu_us))
            for pool, version, lender, borrower, gpu_us in cursor.fetchall()
        ]


def _rate_card_edges(terms: MonthTerms, span: Span) -> list[int]:
    cards = terms.rating.prices.cards
    cuts = {card.valid_from_ms for card in cards} | {card.ended_ms for card in cards if card.ended_ms}
    return sorted({span.start_ms, *(cut for cut in cuts if span.start_ms < cut < span.end_ms)})


def _stretches(edges: list[int], span: Span) -> dict[str, Any]:
    return {
        "starts": [to_datetime(edge) for edge in edges],
        "ends": [to_datetime(edge) for edge in (*edges[1:], span.end_ms)],
        "from": to_datetime(span.start_ms),
        "to": to_datetime(span.end_ms),
    }


def pool_costs(capacity: dict[tuple[str, int], int], costs: list[CostVersion]) -> list[PoolCost]:
    """The cost of each pool's capacity per version of its price; pools without a cost are left out."""
    # All stretches of one price are one version of the cost, named by its first stretch in the month.
    stretches: dict[tuple[str, int], list[tuple[int, int]]] = {}
    prices: dict[tuple[str, int], int] = {}
    for (pool, version_ms), gpu_us in sorted(capacity.items()):
        cost = _cost_at(costs, pool, version_ms)
        if cost is not None and cost.price_micro_per_gpu_hour is not None:
            name = (pool, cost.valid_from_ms)
            prices[name] = cost.price_micro_per_gpu_hour
            stretches.setdefault(name, []).append((version_ms, gpu_us))
    return [
        PoolCost(name[0], parts[0][0], prices[name], sum(gpu_us for _, gpu_us in parts))
        for name, parts in stretches.items()
    ]


def _cost_at(costs: list[CostVersion], pool: str, instant_ms: int) -> CostVersion | None:
    return next(
        (cost for cost in reversed(costs) if cost.pool == pool and cost.valid_from_ms <= instant_ms), None
    )


def token_use(terms: MonthTerms, span: Span) -> list[TokenUse]:
    """Tokens from shared services per tenant, model and version of the rate card."""
    edges = _rate_card_edges(terms, span)
    with connection.cursor() as cursor:
        cursor.execute(SERVICE_TOKENS, _stretches(edges, span))
        return [
            TokenUse(tenant_account(tenant), model, to_ms(version), *(int(value) for value in counts))
            for tenant, model, version, *counts in cursor.fetchall()
        ]


def tenant_tokens(span: Span) -> dict[str, dict[str, int]]:
    """Tenant's slug -> what its requests of the month counted, by name of TOKEN_COUNTS, as the days were computed."""
    with connection.cursor() as cursor:
        cursor.execute(TENANT_TOKENS, {"from": to_datetime(span.start_ms), "to": to_datetime(span.end_ms)})
        return {
            slug: dict(zip(TOKEN_COUNTS, map(int, counts), strict=True))
            for slug, *counts in cursor.fetchall()
        }
