"""From a pool's split to rows of the books: who is charged for which slot (domain.md sections 4, 5).

A row is (slot, holder, account, class, purpose, service_idle). A tenant's occupied time goes by its groups; what it
reserved and did not use has neither class nor purpose. A shared service's occupied time goes to the tenants served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from billing.core.allocation import HOLDER_CATEGORIES, OCCUPIED, PoolSplit
from billing.core.allocation_levels import PLATFORM
from billing.core.allocation_within import GroupRows
from billing.core.services_split import IDLE, Served, ServiceTime, over_groups, split_services
from billing.services.allocation_facts import HolderIndex
from billing.services.allocation_usage import SlotUsage, Terms, fixed_shares
from billing.sql import computing
from billing.sql.binary_copy import write_rows
from ledger.core.levels import changes_at, sort_order
from ledger.core.periods import to_datetime
from ledger.models import Account, AccountKind, HolderKind

Int64s = NDArray[np.int64]

UNUSED = tuple(name for name in HOLDER_CATEGORIES if name not in OCCUPIED)
VALUES = (*HOLDER_CATEGORIES, "measured")
DAY_CATEGORIES = (*OCCUPIED, "lent", "reserved_idle", "undelivered", "oversold")
KEYS = ("slot", "holder", "account", "group", "idle")


@dataclass(frozen=True)
class Accounts:
    """of_holder[i]: the account that holder i's own rows are on; a service's is its owner's."""

    of_holder: Int64s
    platform: int

    @classmethod
    def load(cls, index: HolderIndex) -> Accounts:
        by_tenant: dict[int, int] = {}
        by_kind: dict[int, int] = {}
        for pk, kind, tenant in Account.objects.values_list("pk", "kind", "tenant_id"):
            by_kind[kind] = pk
            if tenant is not None:
                by_tenant[tenant] = pk
        platform = by_kind[AccountKind.PLATFORM]
        accounts = np.full(len(index.ids), platform, np.int64)
        for i, (holder, kind) in enumerate(zip(index.ids.tolist(), index.kinds.tolist(), strict=True)):
            if kind == HolderKind.TENANT:
                accounts[i] = by_tenant[holder]
            elif kind == HolderKind.UNATTRIBUTED:
                accounts[i] = by_kind[AccountKind.SUSPENSE]
            elif index.holders.owner[i] != PLATFORM:
                accounts[i] = by_tenant[int(index.ids[index.holders.owner[i]])]
        return cls(accounts, platform)


@dataclass
class Rows:
    """Rows of the allocation table before they are summed by key; holders are indexes, gpu_us throughout."""

    parts: list[dict[str, Int64s]] = field(default_factory=list)

    def add(self, **columns: Int64s) -> None:
        size = len(columns["slot"])
        nothing = np.zeros(size, np.int64)
        part = {name: np.asarray(columns.get(name, nothing), np.int64) for name in (*KEYS, *VALUES)}
        self.parts.append(part)

    def summed(self) -> dict[str, Int64s]:
        """One row per key, rows of zeros left out."""
        columns = {n: np.concatenate([part[n] for part in self.parts]) for n in (*KEYS, *VALUES)}
        order = sort_order(*(columns[name] for name in KEYS))
        keys = [columns[name][order] for name in KEYS]
        first = np.flatnonzero(changes_at(*keys))
        if not len(first):
            return columns
        rows = {name: key[first] for name, key in zip(KEYS, keys, strict=True)}
        rows |= {name: np.add.reduceat(columns[name][order], first) for name in VALUES}
        filled = np.flatnonzero(np.any([rows[name] != 0 for name in VALUES], axis=0))
        return {name: values[filled] for name, values in rows.items()}


@dataclass(frozen=True)
class ServiceFinding:
    """Something about a service's division in a slot: its code, the service's holder index, how much."""

    code: str
    slot: int
    holder: int
    quantity: int
    unit: str


def allocation_rows(
    split: PoolSplit,
    groups: GroupRows,
    usage: Mapping[tuple[int, int], SlotUsage],
    terms: Terms,
    index: HolderIndex,
    accounts: Accounts,
) -> tuple[dict[str, Int64s], list[ServiceFinding]]:
    """All rows of a pool, and what was noticed on the way."""
    rows = Rows()
    unused = np.flatnonzero(np.any([getattr(split.rows, name) != 0 for name in UNUSED], axis=0))
    holder = split.rows.holder[unused]
    rows.add(
        slot=split.rows.slot[unused],
        holder=holder,
        account=accounts.of_holder[holder],
        **{name: getattr(split.rows, name)[unused] for name in UNUSED},
    )
    serves = index.kinds[groups.holder] == HolderKind.SERVICE
    own = np.flatnonzero(~serves)
    rows.add(
        slot=groups.slot[own],
        holder=groups.holder[own],
        account=accounts.of_holder[groups.holder[own]],
        group=groups.group[own],
        **{name: getattr(groups, name)[own] for name in OCCUPIED},
    )
    findings = _add_services(rows, np.flatnonzero(serves), split, groups, usage, terms, index, accounts)
    return rows.summed(), findings


def _add_services(
    rows: Rows,
    served_rows: Int64s,
    split: PoolSplit,
    groups: GroupRows,
    usage: Mapping[tuple[int, int], SlotUsage],
    terms: Terms,
    index: HolderIndex,
    accounts: Accounts,
) -> list[ServiceFinding]:
    """Divide the time of shared services over the tenants they served."""
    if not len(served_rows):
        return []
    slot, holder = groups.slot[served_rows], groups.holder[served_rows]
    by_group = np.stack([getattr(groups, name)[served_rows] for name in OCCUPIED], axis=1)
    first = np.append(np.flatnonzero(changes_at(slot, holder)), len(slot))
    starts_ms = split.edges[slot[first[:-1]]]
    used = [
        _usage_of(int(t), int(index.ids[h]), usage, terms, index)
        for t, h in zip(starts_ms, holder[first[:-1]], strict=True)
    ]
    policies = [
        terms.policy(int(index.ids[h]), int(t)) for t, h in zip(starts_ms, holder[first[:-1]], strict=True)
    ]
    served = _served(used)
    time = split_services(
        ServiceTime(
            np.add.reduceat(by_group, first[:-1], axis=0),
            np.array([policy is not None and policy.basis == "measured" for policy in policies], bool),
        ),
        served,
    )
    bounds = np.searchsorted(time.row, np.arange(len(used) + 1))
    for row in range(len(used)):
        here = slice(int(bounds[row]), int(bounds[row + 1]))
        members = slice(int(first[row]), int(first[row + 1]))
        service = int(holder[members.start])
        parts = over_groups(time.gpu_us[here], by_group[members])
        _add_service_slot(
            rows, int(slot[members.start]), service, time.tenant[here], parts,
            groups.group[served_rows[members]], used[row], accounts,
        )  # fmt: skip
    return _service_findings(used, time.exceeded, served, slot[first[:-1]], holder[first[:-1]])


def _add_service_slot(
    rows: Rows,
    slot: int,
    service: int,
    tenants: Int64s,
    parts: Int64s,
    group: Int64s,
    used: SlotUsage,
    accounts: Accounts,
) -> None:
    """Rows of one service and slot: parts is [tenant, group, category]; measured time goes on the first group."""
    idle = tenants == IDLE
    account = np.where(idle, accounts.of_holder[service], accounts.of_holder[np.where(idle, 0, tenants)])
    size, count = len(tenants), len(group)
    measured = np.zeros((size, count), np.int64)
    measured[:, 0] = [
        0 if tenant == IDLE else used.measured_gpu_us.get(tenant, 0) for tenant in tenants.tolist()
    ]
    rows.add(
        slot=np.full(size * count, slot),
        holder=np.full(size * count, service),
        account=np.repeat(account, count),
        group=np.tile(group, size),
        idle=np.repeat(idle, count),
        measured=measured.ravel(),
        **{name: parts[:, :, place].ravel() for place, name in enumerate(OCCUPIED)},
    )


def _usage_of(
    start_ms: int,
    service_id: int,
    usage: Mapping[tuple[int, int], SlotUsage],
    terms: Terms,
    index: HolderIndex,
) -> SlotUsage:
    used = usage.get((start_ms, service_id))
    return used or fixed_shares(service_id, start_ms, terms, index) or SlotUsage()


def _served(used: list[SlotUsage]) -> Served:
    tenants = [sorted(slot.weight.keys() | slot.measured_gpu_us.keys()) for slot in used]
    starts = np.append(0, np.cumsum([len(one) for one in tenants]))
    pairs = [(slot, tenant) for slot, one in zip(used, tenants, strict=True) for tenant in one]
    return Served(
        starts.astype(np.int64),
        np.array([tenant for _, tenant in pairs], np.int64),
        np.array([slot.weight.get(tenant, 0) for slot, tenant in pairs], np.int64),
        np.array([slot.measured_gpu_us.get(tenant, 0) for slot, tenant in pairs], np.int64),
    )


def _service_findings(
    used: list[SlotUsage], exceeded: Int64s, served: Served, slot: Int64s, holder: Int64s
) -> list[ServiceFinding]:
    findings = []
    for row in exceeded.tolist():
        total = int(served.measured_gpu_us[served.starts[row] : served.starts[row + 1]].sum())
        findings.append(
            ServiceFinding("measured_exceeds_occupancy", int(slot[row]), int(holder[row]), total, "gpu_us")
        )
    for row, one in enumerate(used):
        where = int(slot[row]), int(holder[row])
        if one.unweighed_requests:
            findings.append(ServiceFinding("usage_without_key", *where, one.unweighed_requests, "requests"))
        if one.uncalibrated:
            findings.append(ServiceFinding("calibration_missing", *where, 0, ""))
    return findings


def write_pool_slots(pool_id: int, split: PoolSplit) -> int:
    """One row per slot in which anything could be split."""
    known = np.flatnonzero(
        split.edges[1:] > (split.edges[-1] if split.split_from_ms is None else split.split_from_ms)
    )
    sums = {}
    for name in (*OCCUPIED, "reserved_idle", "undelivered", "oversold"):
        sums[name] = np.zeros(len(split.edges) - 1, np.int64)
        np.add.at(sums[name], split.rows.slot, getattr(split.rows, name))
    sums |= {name: getattr(split.pool, name) for name in split.pool.__slots__}
    return write_rows(
        "billing_poolslot",
        {
            "pool_id": ("bigint", np.full(len(known), pool_id)),
            "starts_at": ("timestamptz", split.edges[known]),
            "ends_at": ("timestamptz", split.edges[known + 1]),
            **{f"{name}_gpu_us": ("bigint", values[known]) for name, values in sums.items()},
        },
    )


def write_allocations(pool_id: int, edges: Int64s, rows: dict[str, Int64s], index: HolderIndex) -> int:
    return write_rows(
        "billing_allocation",
        {
            "pool_id": ("bigint", np.full(len(rows["slot"]), pool_id)),
            "starts_at": ("timestamptz", edges[rows["slot"]]),
            "holder_id": ("bigint", index.ids[rows["holder"]]),
            "account_id": ("bigint", rows["account"]),
            "service_class": ("smallint", rows["group"] // 8),
            "purpose": ("smallint", rows["group"] % 8),
            "service_idle": ("boolean", rows["idle"]),
            **{f"{name}_gpu_us": ("bigint", rows[name]) for name in VALUES},
        },
    )


def write_allocation_days(pool_id: int, edges: Int64s, rows: dict[str, Int64s], cuts: list[int]) -> int:
    """The same, added up by the segments that begin at `cuts` (in order, the first at or before the first slot)."""
    segment = np.searchsorted(np.array(cuts, np.int64), edges[rows["slot"]], side="right") - 1
    service_class = rows["group"] // 8
    order = sort_order(segment, rows["account"], service_class)
    keys = [values[order] for values in (segment, rows["account"], service_class)]
    first = np.flatnonzero(changes_at(*keys))
    if not len(first):
        return 0
    segments, accounts, classes = (key[first] for key in keys)
    return write_rows(
        "billing_allocationday",
        {
            "pool_id": ("bigint", np.full(len(first), pool_id)),
            "starts_at": ("timestamptz", np.array(cuts, np.int64)[segments]),
            "account_id": ("bigint", accounts),
            "service_class": ("smallint", classes),
            **{
                f"{name}_gpu_us": ("bigint", np.add.reduceat(rows[name][order], first))
                for name in DAY_CATEGORIES
            },
        },
    )


def write_token_days(pool_id: int, segments: list[int], end_ms: int) -> None:
    """Requests and tokens of the segments that begin at `segments` (in order), the last of which ends at `end_ms`."""
    params: dict[str, Any] = {
        "pool": pool_id,
        "starts": [to_datetime(start_ms) for start_ms in segments],
        "ends": [to_datetime(next_ms) for next_ms in (*segments[1:], end_ms)],
    }
    with connection.cursor() as cursor:
        cursor.execute(computing.WRITE_TOKEN_DAYS, params)


def write_lending(pool_id: int, split: PoolSplit, index: HolderIndex) -> int:
    pairs = split.lending
    return write_rows(
        "billing_lendingday",
        {
            "pool_id": ("bigint", np.full(len(pairs.gpu_us), pool_id)),
            "starts_at": ("timestamptz", pairs.start_ms),
            "lender_id": ("bigint", index.ids[pairs.lender]),
            "borrower_id": ("bigint", index.ids[pairs.borrower]),
            "gpu_us": ("bigint", pairs.gpu_us),
        },
    )
