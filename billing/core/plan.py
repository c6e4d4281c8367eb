"""What months would have cost at another reservation size: the same facts split and rated again (section 9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from billing.core.allocation import OCCUPIED, PoolSplit, split_pool
from billing.core.allocation_levels import PLATFORM, Holders
from billing.core.allocation_within import GroupRows, mixed_holders, split_within_holders
from billing.core.rating import Terms, rate_gpu_time
from billing.core.rating_credits import LentPair
from billing.core.rating_lines import Quantity, tenant_account
from ledger.core.levels import Kind, Levels, sort_order

Int64s = NDArray[np.int64]

_OF_RESERVATIONS = ("lent", "reserved_idle", "undelivered", "oversold")
CATEGORIES = (*OCCUPIED, *_OF_RESERVATIONS)


def with_reservation(levels: Levels, holder: int, milli: int, from_ms: int) -> Levels:
    """The same facts, but `holder` reserves `milli` (lendable) from `from_ms` on and nothing else.

    levels: as `effective_levels` returns them, holders resolved; the result is in the same order.
    """
    own = (levels.kind == Kind.RESERVATION) & (levels.who == holder)
    subjects = levels.subject[levels.kind == Kind.RESERVATION]
    new = {
        "kind": int(Kind.RESERVATION),
        "subject": int(subjects.max()) + 1 if len(subjects) else 1,
        "attempt": 0,
        "time_ms": from_ms,
        "milli": milli,
        "who": holder,
        "lendable": True,
        "group": 0,
    }
    changed = replace(levels, milli=np.where(own, 0, levels.milli))
    together = Levels(
        *(np.append(getattr(changed, name), new[name]).astype(getattr(changed, name).dtype) for name in new)
    )
    order = sort_order(together.kind, together.subject, together.attempt, together.time_ms)
    return together.take(order)


@dataclass(frozen=True, slots=True)
class Rerated:
    """A tenant's part of a pool's month. gpu_us: by category. amount_micro: usage less lend credits, None where a
    price is missing."""

    gpu_us: dict[str, int]
    amount_micro: int | None


@dataclass(frozen=True, slots=True)
class Share:
    """What every holder had of a pool over some time, as far as rating needs it."""

    quantities: list[Quantity]
    pairs: list[LentPair]


@dataclass(frozen=True)
class PoolMonth:
    """What a pool's month is split and rated by.

    edges: its slots. versions: instants at which a stretch of one version of the terms begins, the first being the
    first edge. class_names, purpose_names, preemptible: by the levels' group, class x 8 + purpose.
    """

    pool: str
    holders: Holders
    edges: Int64s
    capacity_from_ms: int | None
    versions: Sequence[int]
    class_names: Sequence[str]
    purpose_names: Sequence[str]
    preemptible: NDArray[np.bool_]


def share_out(levels: Levels, month: PoolMonth) -> Share:
    """Split the pool over `month.edges`, as the books do."""
    mixed = mixed_holders(levels, int(month.edges[0]), int(month.edges[-1]))
    cuts = [version for version in month.versions if month.edges[0] < version < month.edges[-1]]
    split = split_pool(levels, month.holders, month.edges, month.capacity_from_ms, cuts, mixed)
    groups = split_within_holders(split, levels, month.preemptible)
    return Share(list(_quantities(split, groups, month)), _pairs(split, month))


def rerate(shares: Iterable[Share], tenant: str, terms: Terms) -> Rerated:
    """Rate what is charged to a tenant for its own holding in a pool, each line of the month rounded once. Its use of
    shared services and transfers for preemption are no part of it: they do not follow from a reservation's size alone.
    """
    sums: defaultdict[Quantity, list[int]] = defaultdict(lambda: [0, 0])
    pairs = []
    for share in shares:
        pairs += share.pairs
        for quantity in share.quantities:
            of = sums[replace(quantity, gpu_us=0, waiting_gpu_us=0)]
            of[0] += quantity.gpu_us
            of[1] += quantity.waiting_gpu_us
    quantities = [replace(one, gpu_us=of[0], waiting_gpu_us=of[1]) for one, of in sums.items()]
    account = tenant_account(tenant)
    # Oversold time is nobody's to pay, undelivered is the platform's: neither has a price that could be missing.
    amounts = [
        line.amount_micro
        for line in rate_gpu_time(quantities, {}, pairs, terms)
        if line.account == account and line.category not in ("oversold", "undelivered")
    ]
    gpu_us = dict.fromkeys(CATEGORIES, 0)
    for quantity in quantities:
        if quantity.account == account:
            gpu_us[quantity.category] += quantity.gpu_us
    total = None if None in amounts else sum(amount for amount in amounts if amount is not None)
    return Rerated(gpu_us, total)


def _quantities(split: PoolSplit, groups: GroupRows, month: PoolMonth) -> Iterator[Quantity]:
    sums: defaultdict[tuple[int, int, int, str], int] = defaultdict(int)
    waiting: defaultdict[tuple[int, int], int] = defaultdict(int)
    starts = np.array(month.versions, np.int64)

    def versions_of(slots: Int64s) -> list[int]:
        places = np.searchsorted(starts, split.edges[slots], "right") - 1
        found: list[int] = starts[np.maximum(places, 0)].tolist()
        return found

    of_slot = versions_of(groups.slot)
    for category in OCCUPIED:
        columns = (groups.holder.tolist(), groups.group.tolist(), of_slot, getattr(groups, category).tolist())
        for holder, group, version, gpu_us in zip(*columns, strict=True):
            sums[holder, group, version, category] += gpu_us
    rows = split.rows
    of_slot = versions_of(rows.slot)
    for category in _OF_RESERVATIONS:
        for holder, version, gpu_us in zip(
            rows.holder.tolist(), of_slot, getattr(rows, category).tolist(), strict=True
        ):
            sums[holder, 0, version, category] += gpu_us
    for holder, version, gpu_us in zip(
        rows.holder.tolist(), of_slot, rows.lent_waiting.tolist(), strict=True
    ):
        waiting[holder, version] += gpu_us
    for (holder, group, version, category), gpu_us in sorted(sums.items()):
        if gpu_us:
            owner = int(month.holders.owner[holder])
            slug = month.holders.slugs[holder]
            yield Quantity(
                account=tenant_account(month.holders.slugs[owner] if owner != PLATFORM else slug),
                holder=slug,
                pool=month.pool,
                category=category,
                gpu_us=gpu_us,
                version_from_ms=version,
                service_class=month.class_names[group],
                purpose=month.purpose_names[group],
                waiting_gpu_us=waiting[holder, version] if category == "lent" else 0,
            )


def _pairs(split: PoolSplit, month: PoolMonth) -> list[LentPair]:
    pairs, slugs = split.lending, month.holders.slugs
    columns = (pairs.start_ms.tolist(), pairs.lender.tolist(), pairs.borrower.tolist(), pairs.gpu_us.tolist())
    return [
        LentPair(month.pool, start_ms, slugs[lender], slugs[borrower], gpu_us)
        for start_ms, lender, borrower, gpu_us in zip(*columns, strict=True)
    ]
