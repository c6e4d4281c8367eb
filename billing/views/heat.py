"""A matrix as a heat map: each cell shaded by its value, which stands in it, and leading on to what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from billing.core.matrix import REST, fold_matrix

NAMES_SHOWN = 14

Show = Callable[[int], Any]
Link = Callable[[str, str], str]


@dataclass(frozen=True)
class HeatCell:
    shown: Any
    step: int
    url: str


@dataclass(frozen=True)
class HeatRow:
    name: str
    cells: list[HeatCell]
    total: Any


@dataclass(frozen=True)
class HeatMap:
    """For `billing/_matrix.html`. corner: what rows and columns are, such as 'Preemptor ↓ Victim →'."""

    label: str
    caption: str
    corner: str
    css: str
    columns: list[str]
    rows: list[HeatRow]
    totals: list[Any]
    total: Any


def heat_map(
    cells: Iterable[tuple[str, str, int]],
    show: Show,
    *,
    label: str,
    caption: str,
    corner: str,
    css: str,
    link: Link | None = None,
    nameless: str = "",
) -> HeatMap:
    """cells: (row, column, value). A row or column called '' is shown as `nameless`."""
    hidden = "\x00"  # stands for the nameless, as the fold's own rest has no name either
    named = [(row or hidden, column or hidden, value) for row, column, value in cells]
    matrix = fold_matrix(named, NAMES_SHOWN)

    def in_words(name: str) -> str:
        return _("all others") if name == REST else nameless if name == hidden else name

    def url(row: str, column: str, value: int) -> str:
        if link is None or not value or REST in (row, column):
            return ""
        return link(row.replace(hidden, ""), column.replace(hidden, ""))

    return HeatMap(
        label,
        caption,
        corner,
        css,
        [in_words(name) for name in matrix.columns],
        [
            HeatRow(
                in_words(row.name),
                [
                    HeatCell(show(cell.value), cell.step, url(row.name, column, cell.value))
                    for column, cell in zip(matrix.columns, row.cells, strict=True)
                ],
                show(row.total),
            )
            for row in matrix.rows
        ],
        [show(total) for total in matrix.column_totals],
        show(matrix.total),
    )


@dataclass(frozen=True)
class Choice:
    """One of several ways to look at the same; `url` keeps the rest of the address."""

    name: str
    url: str
    is_chosen: bool


def choose(request: HttpRequest, parameter: str, names: dict[str, str]) -> tuple[str, list[Choice]]:
    """The one asked for (else the first), and all of them as links."""
    wanted = request.GET.get(parameter, "")
    chosen = wanted if wanted in names else next(iter(names))
    choices = []
    for key, name in names.items():
        query = request.GET.copy()
        query[parameter] = key
        choices.append(Choice(name, f"?{query.urlencode()}", key == chosen))
    return chosen, choices
