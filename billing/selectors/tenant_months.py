"""Tenants' days, as computing their months keeps them: of hundreds of tenants at once, for forecasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import numpy as np
from django.db import connection
from numpy.typing import NDArray
from psycopg import Connection, Cursor

from ledger.core.periods import Month, to_datetime

Int64s = NDArray[np.int64]

# Leans on the primary key. In binary, as there are hundreds of lists.
_LISTS = """
SELECT tenant_id, amounts_from, amounts, held_from, held FROM billing_tenantmonth
WHERE period_id = ANY(%(months)s) AND (%(tenants)s::bigint[] IS NULL OR tenant_id = ANY(%(tenants)s))
"""


@dataclass(frozen=True)
class DayFigures:
    """A row per tenant asked for, a column per day from `first` on. since: the column of a tenant's first day with a
    figure, or the number of columns. A day without one after that is a day of 0, not an unknown one."""

    first: date
    figures: Int64s
    since: Int64s

    def add(self, begins: date, lists: Sequence[tuple[int, bytes]]) -> None:
        """(row, its days from `begins` on), all as long; what lies beyond the last column is left out."""
        column = (begins - self.first).days
        rows = np.array([row for row, _days in lists])
        days = np.frombuffer(b"".join(days for _row, days in lists), ">i8").reshape(len(lists), -1)
        days = days[:, : max(self.figures.shape[1] - column, 0)]
        if days.size:
            self.figures[rows, column : column + days.shape[1]] += days
            self.since[rows] = np.minimum(self.since[rows], column)


@dataclass(frozen=True)
class TenantDays:
    """What days came to at the rate card (micro units), and GPU time held (gpu_us)."""

    amounts: DayFigures
    held: DayFigures


def days_of_tenants(
    months: Sequence[Month], zone: str, end_ms: int, tenants: Sequence[int], *, of_all: bool
) -> TenantDays:
    """Days of these months up to `end_ms`. months: in a row, in order; zone: the billing zone; of_all: the tenants
    are all there are. One query."""
    # Where a clock that shows the 1st goes back, a month has a stretch of the day before.
    first = date(months[0].year, months[0].number, 1) - timedelta(days=1)
    last = to_datetime(end_ms - 1).astimezone(ZoneInfo(zone)).date()
    shape = len(tenants), max((last - first).days + 1, 0)
    amounts, held = (
        DayFigures(first, np.zeros(shape, np.int64), np.full(shape[0], shape[1]))
        for _kind in ("amounts", "held")
    )
    parameters: dict[str, Any] = {
        "months": [str(month) for month in months],
        "tenants": None if of_all else sorted(tenants),
    }
    row_of = {tenant: row for row, tenant in enumerate(tenants)}
    # Those that begin on the same day and are as long are put in place at once: of hundreds of tenants a few.
    alike: defaultdict[tuple[bool, date, int], list[tuple[int, bytes]]] = defaultdict(list)
    for tenant, amounts_from, of_amounts, held_from, of_held in _lists(parameters):
        row = row_of.get(tenant)
        if row is not None:
            alike[False, amounts_from, len(of_amounts)].append((row, of_amounts))
            if held_from is not None:
                alike[True, held_from, len(of_held)].append((row, of_held))
    for (is_held, begins, _length), lists in alike.items():
        (held if is_held else amounts).add(begins, lists)
    return TenantDays(amounts, held)


def _lists(parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    connection.ensure_connection()
    with Cursor(cast("Connection[Any]", connection.connection)) as cursor:
        return cursor.execute(_LISTS, parameters, binary=True, prepare=False).fetchall()
