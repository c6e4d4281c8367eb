"""What a tenant occupied of each pool's capacity in a month: frozen with its statement (domain.md section 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from billing.models import Statement
from billing.selectors.allocations import AllocationQuestion, allocations
from billing.selectors.borne import says
from ledger.core.periods import Span, to_ms
from ledger.core.units import round_half_even

OCCUPIED = ["reserved_used", "on_demand", "borrowed", "excess"]
SHARES = "shares_of_capacity"
"""What the sealed content of an issued statement calls it."""


@dataclass(frozen=True)
class PoolShare:
    """What the tenant occupied of a pool's capacity."""

    pool: str
    gpu_model: str
    gpu_us: int
    capacity_gpu_us: int

    @property
    def ppm(self) -> int | None:
        """The share in millionths; None of a pool without capacity."""
        capacity = self.capacity_gpu_us
        return round_half_even(self.gpu_us * 1_000_000, capacity) if capacity else None


def shares_of_capacity(statement: Statement) -> list[PoolShare]:
    """By pool in which the tenant occupied anything, own or through services: as an issued statement says it, else as
    the books stand."""
    if says(statement, SHARES):
        return [
            PoolShare(said["pool"], said["gpu_model"], int(said["gpu_us"]), int(said["capacity_gpu_us"]))
            for said in statement.content[SHARES]
        ]
    return shares_of([statement])[statement.pk]


def shares_of(statements: Sequence[Statement]) -> dict[UUID, list[PoolShare]]:
    """Of statements of one month. One query, however many they are."""
    found: dict[UUID, list[PoolShare]] = {statement.pk: [] for statement in statements}
    if not statements:
        return found
    period = statements[0].period
    by_slug = {statement.tenant.slug: statement.pk for statement in statements}
    question = AllocationQuestion(
        Span(to_ms(period.starts_at), to_ms(period.ends_at)),
        "UTC",
        ("tenant", "pool", "gpu_model"),
        "all",
        {"category": OCCUPIED},
        tenant_ids=frozenset(statement.tenant_id for statement in statements),
    )
    for row in allocations(question, []):
        of = row.dimensions
        share = PoolShare(of["pool"], of["gpu_model"], row.gpu_us, int(row.capacity_gpu_us or 0))
        found[by_slug[of["tenant"]]].append(share)
    return found


def said_of_share(one: PoolShare) -> Mapping[str, Any]:
    """As the sealed content says it: strings, so that no number can be misread."""
    return {
        "pool": one.pool,
        "gpu_model": one.gpu_model,
        "gpu_us": str(one.gpu_us),
        "capacity_gpu_us": str(one.capacity_gpu_us),
    }
