"""What must hold of every split (domain.md sections 4 and 11), as functions that return what they find.

Shared by tests, `manage.py verify_ledger` and the page of proofs. Each takes a split and returns findings; an empty
list is the proof. `ALL` is the list to run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from billing.core.allocation import OCCUPIED, PoolSplit
from billing.core.allocation_within import GroupRows

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken identity: its name, the slot's (or segment's) start, the holder or None, and by how much."""

    identity: str
    starts_ms: int
    holder: int | None
    difference_gpu_us: int


def check(split: PoolSplit) -> list[Finding]:
    """Every invariant of a pool's split."""
    return [finding for invariant in ALL for finding in invariant(split)]


def capacity_is_conserved(split: PoolSplit) -> list[Finding]:
    rows, pool = split.rows, split.pool
    parts = (rows.reserved_used, rows.on_demand, rows.borrowed, rows.reserved_idle, rows.undelivered)
    held = sum(_per_slot(split, part) for part in parts)
    return _differences(split, "capacity", pool.capacity - held - pool.unreserved_idle + pool.over_reserved)


def lent_is_borrowed(split: PoolSplit) -> list[Finding]:
    difference = _per_slot(split, split.rows.lent) - _per_slot(split, split.rows.borrowed)
    return _differences(split, "lent", difference)


def occupancy_is_accounted_for(split: PoolSplit) -> list[Finding]:
    rows = split.rows
    parts = rows.reserved_used + rows.on_demand + rows.borrowed + rows.excess
    return _row_differences(split, "occupancy", rows.occupancy - parts)


def reservation_is_accounted_for(split: PoolSplit) -> list[Finding]:
    rows = split.rows
    parts = rows.reserved_used + rows.lent + rows.reserved_idle + rows.undelivered + rows.oversold
    return _row_differences(split, "reservation", rows.reservation - parts)


def nothing_is_negative(split: PoolSplit) -> list[Finding]:
    findings = []
    for name in split.rows.__slots__:
        findings += _row_differences(split, f"negative {name}", np.minimum(getattr(split.rows, name), 0))
    for name in split.pool.__slots__:
        findings += _differences(split, f"negative {name}", np.minimum(getattr(split.pool, name), 0))
    return findings


def waiting_credit_is_part_of_lent(split: PoolSplit) -> list[Finding]:
    return _row_differences(split, "lent_waiting", np.minimum(split.rows.lent - split.rows.lent_waiting, 0))


def pending_is_part_of_undelivered(split: PoolSplit) -> list[Finding]:
    over = np.minimum(split.rows.undelivered - split.rows.undelivered_pending, 0)
    return _row_differences(split, "undelivered_pending", over)


def pairs_add_up(split: PoolSplit) -> list[Finding]:
    """Rows of lender x borrower equal lent, columns equal borrowed, over the whole of the split."""
    findings = []
    start = int(split.edges[0])
    for name, side in (("lent", split.lending.lender), ("borrowed", split.lending.borrower)):
        size = int(max([*split.rows.holder, *side, -1])) + 1
        difference = np.zeros(size, np.int64)
        np.add.at(difference, split.rows.holder, getattr(split.rows, name))
        np.subtract.at(difference, side, split.lending.gpu_us)
        findings += [
            Finding(f"pairs {name}", start, int(h), int(difference[h])) for h in np.flatnonzero(difference)
        ]
    return findings


ALL: tuple[Callable[[PoolSplit], list[Finding]], ...] = (
    capacity_is_conserved,
    lent_is_borrowed,
    occupancy_is_accounted_for,
    reservation_is_accounted_for,
    nothing_is_negative,
    waiting_credit_is_part_of_lent,
    pending_is_part_of_undelivered,
    pairs_add_up,
)


def groups_add_up(split: PoolSplit, groups: GroupRows) -> list[Finding]:
    """A holder's groups add up to its categories in each of the split's slots."""
    size = int(max([*split.rows.holder, *groups.holder, -1])) + 1
    findings = []
    for name in OCCUPIED:
        difference = np.zeros((len(split.edges) - 1, size), np.int64)
        np.add.at(difference, (split.rows.slot, split.rows.holder), getattr(split.rows, name))
        np.subtract.at(difference, (groups.slot, groups.holder), getattr(groups, name))
        for slot, holder in np.argwhere(difference):
            found = int(difference[slot, holder])
            findings.append(Finding(f"groups {name}", int(split.edges[slot]), int(holder), found))
    return findings


def _per_slot(split: PoolSplit, values: Int64s) -> Int64s:
    total = np.zeros(len(split.edges) - 1, np.int64)
    np.add.at(total, split.rows.slot, values)
    return total


def _differences(split: PoolSplit, identity: str, difference: Int64s) -> list[Finding]:
    return [
        Finding(identity, int(split.edges[slot]), None, int(difference[slot]))
        for slot in np.flatnonzero(difference)
    ]


def _row_differences(split: PoolSplit, identity: str, difference: Int64s) -> list[Finding]:
    rows = split.rows
    return [
        Finding(identity, int(split.edges[rows.slot[i]]), int(rows.holder[i]), int(difference[i]))
        for i in np.flatnonzero(difference)
    ]
