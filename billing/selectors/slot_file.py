"""The file of a statement's slots, as `detail.slot_rows` tells them, from rows as arrays: a close writes hundreds of
thousands of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from billing.core.focus import BilledLine
from billing.models import Statement
from billing.selectors.detail import SLOT_COLUMNS, Lenders, SaidLenders, line_versions
from billing.selectors.names import Names
from billing.selectors.usage_rows import Rows, UsageOfMonth
from ledger.core.csv_stream import csv_line, csv_pieces
from ledger.core.levels import changes_at
from ledger.models import Purpose, ServiceClass

# In the order in which a slot's parts stand.
_CATEGORIES = (
    "reserved_used",
    "on_demand",
    "borrowed",
    "excess",
    "lent",
    "reserved_idle",
    "undelivered",
    "oversold",
)
_BORROWED = _CATEGORIES.index("borrowed")
Int64s = NDArray[np.int64]


def slot_pieces(
    month: UsageOfMonth, statement: Statement, rows: Rows, lines: Sequence[BilledLine], names: Names
) -> Iterator[bytes]:
    """rows: of the statement's tenant. lines: as billed. names: as the tenant sees them. One query, where it borrowed.

    What rows of one pool, holder, class, purpose and category have in common is looked up once.
    """
    yield from csv_pieces(SLOT_COLUMNS, ())
    amounts = np.stack([rows[name] for name in _CATEGORIES])
    category, row = np.nonzero(amounts)
    pool, holder = rows["pool"][row], rows["holder"][row]
    keys = (
        *(rows[name][row] for name in ("service_class", "purpose")),
        rows["service_idle"][row].astype(np.int64),
        category,
    )
    starts_ms = rows["time_ms"][row]
    places = _places(pool, {pk: place for pk, (place, _, _) in month.pools.items()})
    order = np.lexsort((*keys[::-1], _places(holder, month.holders), places, starts_ms))
    position, lenders = np.zeros(len(row), np.int64), np.full(len(row), ",", object)
    versions, lent = line_versions(lines), Lenders(statement, lines)
    said = SaidLenders(names)
    for members in _alike(pool, holder, *keys):
        kind = tuple(int(column[members[0]]) for column in (pool, holder, *keys))
        _, slug, _ = month.pools[kind[0]]
        _, service = month.services.get(kind[1], (0, ""))
        classed = str(ServiceClass(kind[2]).label), str(Purpose(kind[3]).label)
        froms, positions = versions[slug, service, *classed, bool(kind[4]), _CATEGORIES[kind[5]]]
        version = np.searchsorted(froms, starts_ms[members], "right") - 1
        position[members] = np.array(positions, np.int64)[version]
        segments = lent.segments(slug, service) if kind[5] == _BORROWED else []
        if segments:
            # Before the first of them nobody is known to have lent.
            texts = [",", *(csv_line((",".join(slugs), said.all(slugs))) for _, slugs in segments)]
            place = np.searchsorted([from_ms for from_ms, _ in segments], starts_ms[members], "right")
            lenders[members] = np.array(texts, object)[place]
    ends = [
        (month.hours.get(slot) or (None, None, None))[2]
        for slot in zip(pool[order].tolist(), starts_ms[order].tolist(), strict=True)
    ]
    columns = (position, starts_ms, amounts[category, row], lenders)
    yield "".join(
        f"{at},{starts},{until},{gpu_us},{by}\r\n"
        for (at, starts, gpu_us, by), until in zip(
            zip(*(column[order].tolist() for column in columns), strict=True), ends, strict=True
        )
        if until is not None  # a row without its slot is no time that a pool had; `verify_ledger` names it
    ).encode()


def _places(keys: Int64s, place_of: Mapping[int, int]) -> Int64s:
    return np.array([place_of[key] for key in keys.tolist()], np.int64)


def _alike(*columns: Int64s) -> Iterator[Int64s]:
    """Positions of rows that are alike in all columns, group by group."""
    order = np.lexsort(columns[::-1])
    first = np.flatnonzero(changes_at(*(column[order] for column in columns)))
    if len(first):
        yield from np.split(order, first[1:])
