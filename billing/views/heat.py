"""A matrix as a heat map: each cell shaded by its value, which stands in it, and leading on to what it is made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from billing.core.matrix import REST, STEPS, fold_matrix

NAMES_SHOWN = 11
SLANTED_FROM = 6  # columns; fewer have room for their names

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
    """For `billing/_matrix.html`. corner: what rows and columns are, such as 'Preemptor ↓ Victim →'. chart: the same
    for plotly, as in `billing.charts`. largest: (row, column, shown) of the cell with the most; None without any."""

    label: str
    caption: str
    corner: str
    css: str
    columns: list[str]
    rows: list[HeatRow]
    totals: list[Any]
    total: Any
    chart: dict[str, Any]
    largest: tuple[str, str, Any] | None


def heat_map(
    cells: Iterable[tuple[str, str, int]],
    show: Show,
    *,
    label: str,
    caption: str,
    corner: str,
    css: str,
    shade: str,
    link: Link | None = None,
    nameless: str = "",
) -> HeatMap:
    """cells: (row, column, value). A row or column called '' is shown as `nameless`. shade: the category in whose
    colour the chart is shaded."""
    hidden = "\x00"  # stands for the nameless, as the fold's own rest has no name either
    named = [(row or hidden, column or hidden, value) for row, column, value in cells]
    matrix = fold_matrix(named, NAMES_SHOWN)

    def in_words(name: str) -> str:
        return _("all others") if name == REST else nameless if name == hidden else name

    def url(row: str, column: str, value: int) -> str:
        if link is None or not value or REST in (row, column):
            return ""
        return link(row.replace(hidden, ""), column.replace(hidden, ""))

    columns = [in_words(name) for name in matrix.columns]
    rows = [
        HeatRow(
            in_words(row.name),
            [
                HeatCell(show(cell.value), cell.step, url(row.name, column, cell.value))
                for column, cell in zip(matrix.columns, row.cells, strict=True)
            ],
            show(row.total),
        )
        for row in matrix.rows
    ]
    return HeatMap(
        label,
        caption,
        corner,
        css,
        columns,
        rows,
        [show(total) for total in matrix.column_totals],
        show(matrix.total),
        _chart(columns, rows, caption, shade),
        _largest(columns, rows),
    )


# Of figures (ledger.templatetags.figures), which hold no other markup: reading them as HTML takes ten times as long.
_TAGS = re.compile("<[^>]*>")


def _chart(columns: list[str], rows: list[HeatRow], caption: str, shade: str) -> dict[str, Any]:
    """Shaded by the same steps as the table behind it. Names are numbered: two may be alike."""
    texts = [[_TAGS.sub("", str(cell.shown)) for cell in row.cells] for row in rows]
    return {
        "data": [
            {
                "type": "heatmap",
                "meta": {"shade": shade},
                "x": list(range(len(columns))),
                "y": list(range(len(rows))),
                "z": [[cell.step for cell in row.cells] for row in rows],
                "zmin": 0,
                "zmax": STEPS,
                "showscale": False,
                "xgap": 1,
                "ygap": 1,
                "text": texts,
                "texttemplate": "%{text}",
                "customdata": [[[row.name, column] for column in columns] for row in rows],
                "hovertemplate": "%{customdata[0]} → %{customdata[1]}<br>%{text}<extra>"
                + caption
                + "</extra>",
            }
        ],
        "layout": {
            "margin": {"r": 64, "b": 8},  # a slanted name leans out
            "xaxis": {
                "zeroline": False,
                "side": "top",
                "tickvals": list(range(len(columns))),
                "ticktext": columns,
                "tickangle": 0 if len(columns) <= SLANTED_FROM else -45,
            },
            "yaxis": {
                "zeroline": False,
                "autorange": "reversed",
                "tickvals": list(range(len(rows))),
                "ticktext": [row.name for row in rows],
                "showgrid": False,
            },
        },
        "urls": [[cell.url for cell in row.cells] for row in rows],
        "least": {"width": 150 + 64 * len(columns), "height": 90 + 30 * len(rows)},
    }


def _largest(columns: list[str], rows: list[HeatRow]) -> tuple[str, str, Any] | None:
    cells = [
        (cell.step, row.name, column, cell.shown)
        for row in rows
        for column, cell in zip(columns, row.cells, strict=True)
        if cell.step
    ]
    return max(cells, key=lambda cell: cell[0])[1:] if cells else None


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
