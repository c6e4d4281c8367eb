"""A matrix of who and whom, folded to what fits on a page: the largest rows and columns, the rest as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STEPS = 9  # of shading; 0 is nothing
REST = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """`step`: 0 (nothing) to STEPS (the largest cell), for shading."""

    value: int
    step: int


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    cells: Sequence[Cell]
    total: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """rows x columns, largest totals first; REST stands for all that were folded. Totals are over everything."""

    columns: Sequence[str]
    rows: Sequence[Row]
    column_totals: Sequence[int]
    total: int


def fold_matrix(cells: Iterable[tuple[str, str, int]], limit: int) -> Matrix:
    """cells: (row, column, value >= 0); equal places are added. At most `limit` rows and columns and the rest."""
    values: defaultdict[tuple[str, str], int] = defaultdict(int)
    of_row: defaultdict[str, int] = defaultdict(int)
    of_column: defaultdict[str, int] = defaultdict(int)
    for row, column, value in cells:
        values[row, column] += value
        of_row[row] += value
        of_column[column] += value
    kept_rows, kept_columns = _largest(of_row, limit), _largest(of_column, limit)
    folded: defaultdict[tuple[str, str], int] = defaultdict(int)
    for (row, column), value in values.items():
        folded[row if row in kept_rows else REST, column if column in kept_columns else REST] += value
    rows = kept_rows + ([REST] if len(of_row) > len(kept_rows) else [])
    columns = kept_columns + ([REST] if len(of_column) > len(kept_columns) else [])
    largest = max(folded.values(), default=0)
    return Matrix(
        columns,
        [
            Row(
                row,
                [Cell(folded[row, column], _step(folded[row, column], largest)) for column in columns],
                sum(folded[row, column] for column in columns),
            )
            for row in rows
        ],
        [sum(folded[row, column] for row in rows) for column in columns],
        sum(values.values()),
    )


def _largest(totals: dict[str, int], limit: int) -> list[str]:
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    return ordered if len(ordered) <= limit + 1 else ordered[:limit]


def _step(value: int, largest: int) -> int:
    """Rounded up, so that what is there is never shown as nothing."""
    return -(-value * STEPS // largest) if largest else 0
