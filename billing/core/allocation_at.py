"""The split of a pool at one instant, in plain Python: section 4 line by line.

It answers questions about a moment (was the victim inside its reservation, what was idle elsewhere, what would give
way) and is the easiest place to read the rules. `split_pool` gives the same shares over time, vectorised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ledger.core.apportion import apportion


@dataclass(frozen=True, slots=True)
class Held:
    """A holder's levels at an instant, in milli-GPU. lendable: the lendable part of its reservation."""

    occupancy: int = 0
    reservation: int = 0
    lendable: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class HolderSplit:
    """A holder's categories at an instant, in milli-GPU."""

    reserved_used: int
    on_demand: int
    borrowed: int
    excess: int
    lent: int
    lent_waiting: int
    reserved_idle: int
    undelivered: int
    oversold: int


@dataclass(frozen=True, slots=True)
class InstantSplit:
    """lendable_idle: idle reservations that could still be lent. Both idle figures in milli-GPU."""

    holders: dict[str, HolderSplit]
    unreserved_idle: int
    lendable_idle: int
    over_reserved: int


def split_at(
    capacity: int, held: Mapping[str, Held], owners: Mapping[str, str] | None = None
) -> InstantSplit:
    """Split `capacity` milli-GPU among holders by slug. owners: service slug -> slug of the tenant that owns it."""
    held = cover_own_services(held, owners or {})
    slugs = sorted(held)
    used = {s: min(held[s].occupancy, held[s].reservation) for s in slugs}
    over = {s: held[s].occupancy - used[s] for s in slugs}
    gap = {s: held[s].reservation - used[s] for s in slugs}
    lendable_gap = {s: min(gap[s], held[s].lendable) for s in slugs}
    all_used, burst, idle, lendable = (sum(part.values()) for part in (used, over, gap, lendable_gap))

    free = capacity - all_used - idle
    on_demand = min(burst, max(free, 0))
    borrowed = min(burst - on_demand, lendable, max(capacity - all_used - on_demand, 0))
    oversold = min(max(-free, 0), idle - borrowed)

    on_demand_of = _shares(on_demand, over)
    borrowed_of = _shares(borrowed, _less(over, on_demand_of))
    lent_of = _shares(borrowed, lendable_gap)
    oversold_of = _shares(oversold, _less(gap, lent_of))
    splits = {}
    for s in slugs:
        left = gap[s] - lent_of[s] - oversold_of[s]
        undelivered = min(left, max(held[s].waiting - lent_of[s] - oversold_of[s], 0))
        splits[s] = HolderSplit(
            reserved_used=used[s],
            on_demand=on_demand_of[s],
            borrowed=borrowed_of[s],
            excess=over[s] - on_demand_of[s] - borrowed_of[s],
            lent=lent_of[s],
            lent_waiting=min(lent_of[s], held[s].waiting),
            reserved_idle=left - undelivered,
            undelivered=undelivered,
            oversold=oversold_of[s],
        )
    # What a shortage of capacity makes impossible cannot be lent either.
    backed = max(capacity - all_used - on_demand - borrowed, 0)
    return InstantSplit(
        splits, max(free, 0) - on_demand, min(lendable - borrowed, backed), max(all_used - capacity, 0)
    )


def cover_own_services(held: Mapping[str, Held], owners: Mapping[str, str]) -> dict[str, Held]:
    """An owner's unused reservation first covers its own services, in id order, as if it were theirs."""
    covered = dict(held)
    for service in sorted(owners):
        owner = owners[service]
        if service not in covered or owner not in covered:
            continue
        theirs, ours = covered[service], covered[owner]
        spare = max(ours.reservation - ours.occupancy, 0)
        cover = min(max(theirs.occupancy - theirs.reservation, 0), spare)
        covered[service] = replace(theirs, reservation=theirs.reservation + cover)
        covered[owner] = replace(ours, reservation=ours.reservation - cover)
    return covered


def _shares(total: int, weights: dict[str, int]) -> dict[str, int]:
    return dict(zip(weights, apportion(total, list(weights.values())), strict=True))


def _less(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {key: a[key] - b[key] for key in a}
