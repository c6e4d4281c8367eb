"""The drill-down below a line: each workload's share of its holder's time, per UTC day (domain.md section 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from billing.core.allocation import OCCUPIED, PoolSplit
from billing.core.allocation_within import split_within_holders
from billing.services.allocation_facts import HolderIndex, Subjects
from billing.sql import computing
from billing.sql.binary_copy import write_rows
from ledger.core.levels import Kind, Levels, changes_at, sort_order
from ledger.core.periods import Span, utc_days
from ledger.models import ServiceClass

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class ByWorkload:
    """Levels whose `group` numbers (workload, attempt, class and purpose), in this order; the columns name each."""

    levels: Levels
    subject: Int64s
    attempt: Int64s
    kind_of: Int64s

    @classmethod
    def of(cls, levels: Levels) -> ByWorkload:
        """Number the workloads of a pool's levels."""
        occupies = np.flatnonzero(levels.kind == Kind.OCCUPANCY)
        keys = (levels.subject[occupies], levels.attempt[occupies], levels.group[occupies])
        order = sort_order(*keys)
        subject, attempt, kind_of = (key[order] for key in keys)
        first = changes_at(subject, attempt, kind_of)
        group = np.zeros(len(levels), np.int64)
        group[occupies[order]] = np.cumsum(first) - 1
        return cls(replace(levels, group=group), subject[first], attempt[first], kind_of[first])

    @property
    def preemptible(self) -> NDArray[np.bool_]:
        preemptible: NDArray[np.bool_] = self.kind_of // 8 == ServiceClass.PREEMPTIBLE
        return preemptible


@dataclass(frozen=True)
class WorkloadDays:
    """One row per day, holder and workload, as they are staged. holder: its index; event_id: see `Subjects`."""

    start_ms: Int64s
    holder: Int64s
    subject_id: Int64s
    event_id: Int64s
    kind_of: Int64s
    gpu_us: dict[str, Int64s]


def workload_days(span: Span, split: PoolSplit, workloads: ByWorkload, subjects: Subjects) -> WorkloadDays:
    days = np.array([day.start_ms for day in utc_days(span)] + [span.end_ms], np.int64)
    rows = split_within_holders(split, workloads.levels, workloads.preemptible, days)
    subject, attempt = workloads.subject[rows.group], workloads.attempt[rows.group]
    kind_of = workloads.kind_of[rows.group]
    values = {name: getattr(rows, name) for name in OCCUPIED}
    # A workload whose class or purpose changed within a day has one row, with the greater one.
    first = np.flatnonzero(changes_at(rows.slot, rows.holder, subject, attempt))
    if len(first):
        kind_of = np.maximum.reduceat(kind_of, first)
        values = {name: np.add.reduceat(column, first) for name, column in values.items()}
    slot, subject, attempt = rows.slot[first], subject[first], attempt[first]
    return WorkloadDays(
        days[slot],
        rows.holder[first],
        subjects.row_ids(subject, attempt),
        subjects.described_by(subject, attempt, days[slot + 1]),
        kind_of,
        values,
    )


def write_workload_days(pool_id: int, rows: WorkloadDays, index: HolderIndex) -> None:
    """Staged, then named and moved into the table in one statement."""
    with connection.cursor() as cursor:
        cursor.execute(computing.EMPTY_WORKLOAD_STAGE)
    write_rows(
        "workload_day",
        {
            "pool_id": ("bigint", np.full(len(rows.holder), pool_id)),
            "starts_at": ("timestamptz", rows.start_ms),
            "holder_id": ("bigint", index.ids[rows.holder]),
            "subject_id": ("bigint", rows.subject_id),
            "event_id": ("bigint", rows.event_id),
            "kind_of": ("smallint", rows.kind_of),
            **{name: ("bigint", column) for name, column in rows.gpu_us.items()},
        },
    )
    with connection.cursor() as cursor:
        cursor.execute(computing.WRITE_WORKLOAD_DAYS)


def open_stage() -> None:
    """Make the staging table, which lasts as long as the transaction."""
    with connection.cursor() as cursor:
        cursor.execute(computing.CREATE_WORKLOAD_STAGE)
