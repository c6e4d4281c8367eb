"""Mode `cost_recovery`: a pool's cost, no more and no less, on those who held it (domain.md section 8)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from billing.core.rating import Terms, gpu_line, payer_of, with_payer
from billing.core.rating_idle import idle_shares
from billing.core.rating_lines import CONVERSION, GPU_US, MONEY, PLATFORM, Line, Quantity, is_tenant
from ledger.core.apportion import largest_remainder
from ledger.core.units import GPU_US_PER_GPU_HOUR, round_half_even

# lent, oversold and excess weigh nothing: the same GPUs are somebody's borrowed, or were not there.
WEIGHTLESS = frozenset({"lent", "oversold", "excess"})


@dataclass(frozen=True, slots=True)
class PoolCost:
    """A dated cost of a pool's capacity in one month and price version."""

    pool: str
    version_from_ms: int
    price_micro_per_gpu_hour: int
    capacity_gpu_us: int

    @property
    def micro(self) -> int:
        return round_half_even(self.price_micro_per_gpu_hour * self.capacity_gpu_us, GPU_US_PER_GPU_HOUR)


def distribute_cost(
    costs: Sequence[PoolCost],
    quantities: Sequence[Quantity],
    unreserved_idle: Mapping[tuple[str, int], int],
    terms: Terms,
) -> list[Line]:
    """All lines of the month, whose amounts sum to the cost of each pool and price version exactly.

    Quantities and idle time whose pool has no cost at all are shown without an amount. A cost version holds for the
    quantities from its version_from_ms on, until the pool's next.
    """
    starts = _cost_versions(costs)
    lines: list[Line] = []
    groups: defaultdict[tuple[str, int], list[Line]] = defaultdict(list)
    for line, payer in (*_holders_lines(quantities, terms), *_idle_lines(unreserved_idle, quantities, terms)):
        version = max((at for at in starts.get(line.pool, ()) if at <= line.version_from_ms), default=None)
        if version is None or line.category in WEIGHTLESS:
            unpriced = None if version is None else 0
            lines.append(replace(line, amount_micro=unpriced, full_amount_micro=None))
            continue
        groups[line.pool, version].append(replace(line, counter_account=payer))
    for cost in costs:
        lines += _apportioned(cost, groups.pop((cost.pool, cost.version_from_ms), []))
    return sorted(lines, key=lambda line: (line.account, line.key))


def _cost_versions(costs: Sequence[PoolCost]) -> dict[str, list[int]]:
    starts: defaultdict[str, list[int]] = defaultdict(list)
    for cost in costs:
        starts[cost.pool].append(cost.version_from_ms)
    return starts


def _holders_lines(quantities: Sequence[Quantity], terms: Terms) -> list[tuple[Line, str]]:
    return [
        (gpu_line(quantity, None), payer_of(quantity, terms)) for quantity in quantities if quantity.gpu_us
    ]


def _idle_lines(
    unreserved_idle: Mapping[tuple[str, int], int], quantities: Sequence[Quantity], terms: Terms
) -> list[tuple[Line, str]]:
    found = []
    for (pool, version_ms), gpu_us in unreserved_idle.items():
        policy = terms.policy_at(version_ms).unreserved_idle
        for account, part in idle_shares(policy, pool, gpu_us, quantities).items():
            line = Line(
                account=account,
                kind="shared" if is_tenant(account) else "usage",
                category="unreserved_idle",
                quantity=part,
                unit=GPU_US,
                version_from_ms=version_ms,
                amount_micro=None,
                pool=pool,
            )
            found.append((line, account))
    return found


def _apportioned(cost: PoolCost, lines: list[Line]) -> list[Line]:
    """The cost over the lines by their GPU time; a cost that nothing can carry stays with the platform."""
    lines.sort(key=lambda line: (line.account, line.key))
    if not lines:
        return [platform_line(cost.pool, cost.version_from_ms, "cost_unallocated", cost.micro)]
    weights = [line.quantity for line in lines]
    amounts = largest_remainder(cost.micro, weights, [(line.account, line.key) for line in lines])
    found = []
    for line, amount in zip(lines, amounts, strict=True):
        charged = replace(line, counter_account="", amount_micro=amount, full_amount_micro=amount)
        found += with_payer(charged, line.counter_account)
    return found


def platform_line(pool: str, version_from_ms: int, category: str, amount_micro: int) -> Line:
    """An amount of the platform's own in a pool that no GPU time stands behind."""
    return Line(
        account=PLATFORM,
        kind="adjustment",
        category=category,
        quantity=amount_micro,
        unit=MONEY,
        version_from_ms=version_from_ms,
        amount_micro=amount_micro,
        pool=pool,
    )


def cost_difference_lines(costs: Sequence[PoolCost], lines: Sequence[Line]) -> list[Line]:
    """In mode rate_card: per pool, the given cost less everything charged, visible on the platform."""
    found = []
    for pool in sorted({cost.pool for cost in costs}):
        of_pool = [cost for cost in costs if cost.pool == pool]
        charged = sum(line.amount_micro or 0 for line in lines if line.pool == pool)
        difference = sum(cost.micro for cost in of_pool) - charged
        first = min(cost.version_from_ms for cost in of_pool)
        found.append(platform_line(pool, first, "cost_difference", difference))
    return [line for line in found if line.amount_micro]


def derived_price(cost: PoolCost, weighed_gpu_us: int) -> Fraction | None:
    """Micro units per GPU-hour that the month's cost came to: what preemptions are priced by in this mode."""
    if weighed_gpu_us == 0:
        return None
    return Fraction(cost.micro * GPU_US_PER_GPU_HOUR, weighed_gpu_us)


# Invariant of section 11.4, where a cost is given; returns findings.


def everything_equals_the_cost(costs: Sequence[PoolCost], lines: Sequence[Line]) -> list[str]:
    """Tenants + platform + conversion = cost, exactly, per pool (token revenue nets to zero and has no pool)."""
    problems = []
    for pool in sorted({cost.pool for cost in costs}):
        cost_micro = sum(cost.micro for cost in costs if cost.pool == pool)
        charged = sum(line.amount_micro or 0 for line in lines if line.pool == pool)
        if charged != cost_micro:
            problems.append(f"{pool}: charged {charged} of a cost of {cost_micro}")
    revenue = sum(line.amount_micro or 0 for line in lines if line.kind == "tokens")
    if revenue and any(line.account == CONVERSION for line in lines):
        problems.append(f"token revenue and conversion differ by {revenue}")
    return problems
