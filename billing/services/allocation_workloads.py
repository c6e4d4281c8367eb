"""The drill-down below a line: each workload's share of its holder's time, per UTC day (domain.md section 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from billing import sql
from billing.binary_copy import write_rows
from billing.core.allocation import OCCUPIED, PoolSplit
from billing.core.allocation_within import split_within_holders
from billing.services.allocation_facts import HolderIndex, PoolFacts
from ledger.core.levels import Kind, Levels, changes_at, sort_order
from ledger.core.periods import Span, utc_days
from ledger.models import ServiceClass

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class ByWorkload:
    """Levels whose `group` numbers (workload, attempt, class and purpose); subject_id and kind_of: of each group."""

    levels: Levels
    subject_id: Int64s
    kind_of: Int64s

    @property
    def preemptible(self) -> NDArray[np.bool_]:
        preemptible: NDArray[np.bool_] = self.kind_of // 8 == ServiceClass.PREEMPTIBLE
        return preemptible


def by_workload(levels: Levels, facts: PoolFacts) -> ByWorkload:
    """Number the workloads of a pool's levels."""
    occupies = np.flatnonzero(levels.kind == Kind.OCCUPANCY)
    keys = (levels.subject[occupies], levels.attempt[occupies], levels.group[occupies])
    order = sort_order(*keys)
    subject, attempt, kind_of = (key[order] for key in keys)
    first = changes_at(subject, attempt, kind_of)
    group = np.zeros(len(levels), np.int64)
    group[occupies[order]] = np.cumsum(first) - 1
    subject_id = facts.subject_ids(subject[first], attempt[first])
    return ByWorkload(replace(levels, group=group), subject_id, kind_of[first])


def stage_workload_days(
    pool_id: int, span: Span, split: PoolSplit, workloads: ByWorkload, index: HolderIndex
) -> None:
    """Put one row per day and workload into the staging table; `write_workload_days` unfolds them all at the end."""
    days = np.array([day.start_ms for day in utc_days(span)] + [span.end_ms], np.int64)
    rows = split_within_holders(split, workloads.levels, workloads.preemptible, days)
    write_rows(
        "workload_day",
        {
            "pool_id": ("bigint", np.full(len(rows.slot), pool_id)),
            "starts_at": ("timestamptz", days[rows.slot]),
            "ends_at": ("timestamptz", days[rows.slot + 1]),
            "holder_id": ("bigint", index.ids[rows.holder]),
            "subject_id": ("bigint", workloads.subject_id[rows.group]),
            "kind_of": ("smallint", workloads.kind_of[rows.group]),
            **{name: ("bigint", getattr(rows, name)) for name in OCCUPIED},
        },
    )


def open_stage() -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql.CREATE_WORKLOAD_STAGE)


def write_workload_days() -> None:
    """Name the staged workloads and move them into the table."""
    with connection.cursor() as cursor:
        cursor.execute(sql.WRITE_WORKLOAD_DAYS)
