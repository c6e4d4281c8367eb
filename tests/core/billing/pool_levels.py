"""A pool's levels from a few steps."""

from __future__ import annotations

import numpy as np

from billing.core.released import PoolUse
from ledger.core.levels import Kind, Levels

BEFORE_MS = -(10**9)


def pool_levels(*rows: tuple[Kind, str, int, int, int]) -> Levels:
    """rows: (kind, subject, attempt, from_ms, milli-GPU), put in the order of effective_levels."""
    number = {name: place for place, name in enumerate(sorted({row[1] for row in rows}))}
    columns = np.array(sorted((kind, number[name], *rest) for kind, name, *rest in rows), np.int64)
    kind, subject, attempt, time_ms, milli = columns.reshape(-1, 5).T
    nothing = np.zeros(len(kind), np.int64)
    return Levels(kind, subject, attempt, time_ms, milli, nothing, nothing.astype(bool), nothing)


def pool_use(capacity: int, *steps: tuple[str, int, int]) -> PoolUse:
    """capacity: milli-GPU, all the time. steps: (workload, from_ms, milli-GPU)."""
    held = [(Kind.OCCUPANCY, name, 0, at_ms, milli) for name, at_ms, milli in steps]
    return PoolUse.of(pool_levels((Kind.CAPACITY, "", 0, BEFORE_MS, capacity), *held))
