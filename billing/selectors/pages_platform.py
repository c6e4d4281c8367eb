"""The platform's own side of a month: what it could not sell, what it took upon itself, cost against billed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, Sum
from django.db.models.functions import Coalesce

from billing.models import MonthLine, Statement
from billing.selectors.quantities import pool_costs, pool_quantities
from billing.selectors.terms import month_terms
from ledger.core.currency import minor_places
from ledger.core.periods import Month, Span, to_ms
from ledger.core.units import MICRO_PER_UNIT
from ledger.models import AccountKind, Period

# What of the platform's own lines belongs together; whatever else it carries is "own".
OWN_PARTS = {
    "unreserved_idle": "unsold",
    "undelivered": "undelivered",
    "cost_difference": "difference",
    "cost_unallocated": "difference",
    "preemption_lost": "absorbed",
    "preemption_recompute": "absorbed",
}
PARTS = ("tenants", "unsold", "undelivered", "own", "conversion", "suspense", "difference")
# From what tenants are billed in the pools to what their statements charge, in this order; kinds are those of lines.
BILLED, ROUNDING = "billed", "rounding"
CHARGED_STEPS = (BILLED, "usage", "shared", "tokens", "transfer", "credit", "adjustment", ROUNDING)


@dataclass
class PoolSide:
    """One pool's money, in micro units. cost: None where no cost is given. amounts: by PARTS, and `absorbed`, which is
    moved between accounts and so no part of the cost. gpu_us: of unsold, undelivered and absorbed time."""

    pool: str
    cost_micro: int | None = None
    capacity_gpu_us: int = 0
    amounts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    gpu_us: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    unpriced: int = 0

    @property
    def charged_micro(self) -> int:
        """Everything that somebody carries, the platform included; with `difference` it is the cost."""
        return sum(self.amounts[part] for part in PARTS if part != "difference")

    @property
    def margin_micro(self) -> int | None:
        """Billed to tenants less the cost: positive is a gain of the platform."""
        return None if self.cost_micro is None else self.amounts["tenants"] - self.cost_micro

    @property
    def adds_up(self) -> bool:
        """Tenants + platform + conversion (+ suspense) + difference = cost, exactly (domain.md 11.4)."""
        return self.cost_micro is None or self.charged_micro + self.amounts["difference"] == self.cost_micro


@dataclass(frozen=True)
class Conversion:
    """Token contracts: the rated value of the GPU time they replaced, and what the tokens brought; micro units."""

    value_micro: int
    revenue_micro: int

    @property
    def gain_micro(self) -> int:
        return self.revenue_micro - self.value_micro

    @property
    def is_used(self) -> bool:
        return bool(self.value_micro or self.revenue_micro)


@dataclass(frozen=True)
class ChargedStep:
    """`name` of CHARGED_STEPS."""

    name: str
    amount_micro: int


@dataclass(frozen=True)
class Charged:
    """What the statements of the month come to as printed, and the steps to it from what is billed in the pools."""

    steps: list[ChargedStep]
    total_minor: int
    total_micro: int  # the printed total, in micro units
    statements: int

    @property
    def adds_up(self) -> bool:
        """The lines of tenants and the rounding of their statements are what is charged, exactly."""
        return sum(step.amount_micro for step in self.steps) == self.total_micro


@dataclass(frozen=True)
class PlatformMonth:
    pools: list[PoolSide]
    whole: PoolSide
    conversion: Conversion
    charged: Charged


def platform_month(period: Period, zone: str, currency: str) -> PlatformMonth:
    """One query over the month's lines, one over its statements, and what the costs need (a few, over the pools'
    slots)."""
    rows: Iterable[Mapping[str, Any]] = (
        MonthLine.objects.filter(period=period)
        .values("pool", "account__kind", "kind", "category", "unit", "unit_price_micro")
        .annotate(amount=Sum("amount_micro"), quantity=Sum("quantity"))
        .order_by("pool")
    )
    sides: dict[str, PoolSide] = {}
    value = revenue = 0
    elsewhere: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        if row["account__kind"] == AccountKind.TENANT and (not row["pool"] or _part(row) != "tenants"):
            elsewhere[row["kind"]] += row["amount"] or 0
        if row["account__kind"] == AccountKind.CONVERSION:
            if row["kind"] == "tokens":
                revenue -= row["amount"] or 0
            else:
                value += row["amount"] or 0
        if row["pool"]:
            _add(sides.setdefault(row["pool"], PoolSide(row["pool"])), row)
    _add_costs(sides, period, zone)
    pools = [sides[slug] for slug in sorted(sides)]
    whole = _whole(pools)
    charged = _charged(period, {**elsewhere, BILLED: whole.amounts["tenants"]}, currency)
    return PlatformMonth(pools, whole, Conversion(value, revenue), charged)


def _charged(period: Period, amounts: Mapping[str, int], currency: str) -> Charged:
    """amounts: of the lines of tenants, by CHARGED_STEPS. The rounding is what the statements say of themselves, not
    what is missing to them, so that the sum proves something."""
    found = Statement.objects.filter(period=period).aggregate(
        exact=Coalesce(Sum("total_micro"), 0), printed=Coalesce(Sum("total_minor"), 0), count=Count("pk")
    )
    printed_micro = int(found["printed"]) * MICRO_PER_UNIT // 10 ** minor_places(currency)
    steps = {**amounts, ROUNDING: printed_micro - int(found["exact"])}
    return Charged(
        [ChargedStep(name, steps[name]) for name in CHARGED_STEPS if steps.get(name) or name == BILLED],
        total_minor=int(found["printed"]),
        total_micro=printed_micro,
        statements=found["count"],
    )


def _add(side: PoolSide, row: Mapping[str, Any]) -> None:
    part = _part(row)
    if part is None:
        return
    if row["amount"] is None:
        side.unpriced += 1
    side.amounts[part] += row["amount"] or 0
    if row["unit"] == "gpu_us":
        side.gpu_us[part] += int(row["quantity"])


def _part(row: Mapping[str, Any]) -> str | None:
    kind = row["account__kind"]
    if row["kind"] == "transfer":
        return "absorbed" if kind == AccountKind.PLATFORM else None
    if kind == AccountKind.TENANT:
        return "tenants"
    if kind == AccountKind.CONVERSION:
        return "conversion"
    if kind == AccountKind.SUSPENSE:
        return "suspense"
    return OWN_PARTS.get(row["category"], "own") if kind == AccountKind.PLATFORM else None


def _add_costs(sides: dict[str, PoolSide], period: Period, zone: str) -> None:
    terms = month_terms(Month.parse(period.month), zone)
    span = Span(to_ms(period.starts_at), to_ms(period.ends_at))
    _idle, capacity = pool_quantities(terms, span)
    for (pool, _version), gpu_us in capacity.items():
        sides.setdefault(pool, PoolSide(pool)).capacity_gpu_us += gpu_us
    for cost in pool_costs(capacity, terms.costs):
        side = sides[cost.pool]
        side.cost_micro = (side.cost_micro or 0) + cost.micro


def _whole(pools: list[PoolSide]) -> PoolSide:
    whole = PoolSide("")
    for side in pools:
        whole.capacity_gpu_us += side.capacity_gpu_us
        whole.unpriced += side.unpriced
        if side.cost_micro is not None:
            whole.cost_micro = (whole.cost_micro or 0) + side.cost_micro
        for name, amount in side.amounts.items():
            whole.amounts[name] += amount
        for name, gpu_us in side.gpu_us.items():
            whole.gpu_us[name] += gpu_us
    return whole
