"""Tables that can be sorted, filtered, paged and downloaded, all by their address.

How a page gets one:

    class QuotaPage(TablePage):
        template = "billing/quota.html"

        def tables(self, month: str) -> list[Table]:
            return [
                Table(
                    "quota",
                    lambda: quota_rows(self.access),             # read only if this table is asked for
                    [
                        Column("tenant", _("Tenant"), link=lambda row: row.url, filter=TEXT_FILTER),
                        Column("used_gpu_hours", _("Used"), GPU_HOURS, of="used_gpu_us", unit=_("GPU-hours")),
                        Column("amount", _("Amount"), minor_in(currency), of="amount_minor", unit=currency),
                    ],
                    label=_("Quota"),
                )
            ]

        def context(self, month: str) -> dict[str, Any]:
            return {"month": month}

and in the template, where the table belongs:  {% include "_table.html" with table=tables.quota %}

**Rows** come from a selector: a sequence, or a queryset where there may be many. Over a sequence a column sorts and
filters by its value (`of`: a dotted path, or a function of the row). Over a queryset it needs `field`, a path of the
ORM, and `present` turns the rows of one page into what `of` reads. Rows that compare equal keep the selector's order,
and what is unknown (None) stands last either way.

**Address**, for a table called "quota": `?quota.sort=-amount`, `?quota.tenant=acme`, `?quota.page=2`, and
`?csv=quota` for the file of all rows that match, in that order (`&excel=1`: with a byte-order mark and translated
headings). A table with `prefix=""` has the plain names (`?sort=`, `?tenant=`): for pages that are one table. What is
not understood is ignored. With JavaScript only the table is fetched and put in place; without it the page loads.

**Cells** are shown and exported by their `Kind`: exact figures in CSV, the same strings as from the API; typography on
the page. `html` draws a cell of its own; `partial` says of which rows a part is unknown, and marks them. `totals` gives
the last row, by column, of all rows (not of the shown ones). A column with `filter` offers one; it is drawn when there
are enough rows to need it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.db.models import F, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.utils.functional import Promise, cached_property
from django.utils.html import format_html
from django.utils.translation import gettext as _

from ledger.core import figures
from ledger.core.csv_stream import csv_pieces
from ledger.core.currency import minor_places
from ledger.core.instants import instant_text
from ledger.core.units import fixed_decimal, gpu_hours_text, micro_text, milli_gpus_text, seconds_text
from ledger.templatetags import figures as cells
from ledger.views.page import Page
from ledger.views.table_groups import Grouping, groups_of

ROWS_A_PAGE = 50
FILTERS_FROM_ROWS = 9  # fewer are seen at a glance
EXPORT_CHUNK = 500

Text = str | Promise


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _shown_plain(value: Any) -> str:
    return figures.DASH if value is None or value == "" else str(value)


@dataclass(frozen=True)
class Kind:
    """How a value is shown on the page and written into CSV. None is 'unknown' on the page and empty in CSV."""

    show: Callable[[Any], Any] = _shown_plain
    export: Callable[[Any], str] = _plain
    is_number: bool = False
    css: str = ""


def _known(text: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "" if value is None else text(value)


TEXT = Kind()
CODE = Kind(css="code")
NOWRAP = Kind(css="nowrap")
GPU_HOURS = Kind(cells.gpu_hours_cell, _known(lambda value: gpu_hours_text(int(value))), is_number=True)
GPU_US = Kind(cells.gpu_us, _known(lambda value: str(int(value))), is_number=True)
GPUS = Kind(cells.gpus_cell, _known(lambda value: milli_gpus_text(int(value))), is_number=True)
# What a fact says: 0 is a release, so no dash stands for it.
GPUS_TOLD = Kind(cells.gpus, GPUS.export, is_number=True)
COUNT = Kind(cells.count_cell, _plain, is_number=True)
M_TOKENS = Kind(cells.million_tokens, _known(lambda value: fixed_decimal(int(value), 6)), is_number=True)
PRICE = Kind(cells.price_cell, _known(micro_text), is_number=True)
# Text such as '12.5' that core worked out: a share, and a change with its sign.
PERCENT = Kind(
    lambda value: cells.percent_cell(value) if value is not None else figures.DASH, _plain, is_number=True
)
# Millionths of a whole: a percentage on the page, the fraction in CSV, as from the API.
SHARE = Kind(cells.share, _known(lambda ppm: fixed_decimal(int(ppm), 6)), is_number=True)
CHANGE = Kind(cells.signed_percent, _plain, is_number=True)
INSTANT = Kind(cells.second, _known(instant_text))
VALIDITY = Kind(cells.validity, _known(instant_text))
DAY = Kind(
    lambda day: figures.DASH if day is None else f"{day:%Y-%m-%d}", _known(lambda day: f"{day:%Y-%m-%d}")
)
DURATION = Kind(cells.duration, _known(lambda ms: seconds_text(int(ms) * 1000)), is_number=True)
CATEGORY = Kind(cells.category)


def minor_in(currency: str) -> Kind:
    """Amounts in the currency's minor unit, as printed on bills."""
    return Kind(
        lambda value: cells.money_minor(value, currency),
        _known(lambda value: fixed_decimal(int(value), minor_places(currency))),
        is_number=True,
    )


def micro_in(currency: str) -> Kind:
    """Exact amounts in micro units: rounded for the eye, exact in CSV and on hover."""
    return Kind(lambda value: cells.money_cell(value, currency), _known(micro_text), is_number=True)


def words(of: Callable[[Any], Text]) -> Kind:
    """A stored code: words on the page, the code itself in CSV."""
    return Kind(lambda value: _shown_plain(value if value in (None, "") else of(value)))


@dataclass(frozen=True)
class Filter:
    """`choices`: what can be picked, else text that the value has to contain.

    exact: the value has to equal what was typed. where: for querysets, how to narrow; else by the column's `field`.
    """

    choices: Callable[[], Iterable[tuple[str, Text]]] | None = None
    exact: bool = False
    where: Callable[[QuerySet[Any], str], QuerySet[Any]] | None = None


TEXT_FILTER = Filter()


@dataclass(frozen=True)
class Column:
    """`key` names the column in the address and in CSV; `of` is a dotted path or a function (default: the key)."""

    key: str
    title: Text
    kind: Kind = TEXT
    of: str | Callable[[Any], Any] = ""
    unit: Text = ""
    field: str = ""
    link: Callable[[Any], str | None] | None = None
    html: Callable[[Any], Any] | None = None
    filter: Filter | None = None
    can_sort: bool = True
    on_page: bool = True
    in_csv: bool = True
    help: Text = ""
    css: Callable[[Any], str] | None = None
    partial: Callable[[Any], bool] | None = None

    def value(self, row: Any) -> Any:
        if callable(self.of):
            return self.of(row)
        found = row
        for name in (self.of or self.key).split("."):
            found = found.get(name) if isinstance(found, Mapping) else getattr(found, name)
            if found is None:
                return None
        return found


Rows = Sequence[Any] | QuerySet[Any]


@dataclass(frozen=True)
class Table:
    """See the module. `rows` is called at most once. `empty`: what to say, and to do, when there are no rows."""

    name: str
    rows: Callable[[], Rows]
    columns: Sequence[Column]
    label: Text
    caption: Text = ""
    totals: Callable[[], Mapping[str, Any]] | None = None
    totals_label: Text = ""
    prefix: str | None = None
    rows_a_page: int = ROWS_A_PAGE
    sort: str = ""
    present: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    row_css: Callable[[Any], str] | None = None
    empty: Text = ""
    css: str = ""
    grouping: Grouping | None = None

    def parameter(self, key: str) -> str:
        prefix = self.name if self.prefix is None else self.prefix
        return f"{prefix}.{key}" if prefix else key


@dataclass(frozen=True)
class Head:
    """A column's head: `url` sorts by it, `direction` says how it is sorted now ('' if it is not)."""

    column: Column
    url: str
    direction: str

    @property
    def css(self) -> str:
        """A title of several words may stand in several lines; one word, hyphens and all, in one."""
        is_word = " " not in str(self.column.title)
        return " ".join(
            css for css, holds in (("number", self.column.kind.is_number), ("nowrap", is_word)) if holds
        )


@dataclass(frozen=True)
class Cell:
    """`span`: how many columns the label of sums takes."""

    shown: Any
    url: str | None
    css: str
    span: int = 1


@dataclass(frozen=True)
class ShownRow:
    cells: list[Cell]
    css: str


@dataclass(frozen=True)
class ShownGroup:
    """`head` and `sums` are empty where the table has no groups, or is sorted by a column."""

    head: Any
    lines: list[ShownRow]
    sums: list[Cell]


@dataclass(frozen=True)
class FilterField:
    name: str
    title: Text
    value: str
    choices: list[tuple[str, Text]] | None


@dataclass
class BoundTable:
    """A table as one request asks for it; the template reads it, nothing is read before."""

    table: Table
    query: QueryDict
    path: str = ""
    _sort: tuple[Column, bool] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        wanted = self.query.get(self.table.parameter("sort"), "") or self.table.sort
        column = next(
            (c for c in self.table.columns if c.key == wanted.removeprefix("-") and c.can_sort), None
        )
        self._sort = None if column is None else (column, wanted.startswith("-"))

    @property
    def id(self) -> str:
        return f"table-{self.table.name}"

    @cached_property
    def _all(self) -> Rows:
        return self.table.rows()

    @cached_property
    def chosen(self) -> dict[str, str]:
        """Column key -> what to filter by; only what is asked for."""
        asked = {
            column.key: self.query.get(self.table.parameter(column.key), "").strip()
            for column in self.table.columns
            if column.filter is not None
        }
        return {key: value for key, value in asked.items() if value}

    @cached_property
    def matching(self) -> Rows:
        """All rows that pass the filters, in order."""
        rows = self._all
        for column in self.table.columns:
            if column.key in self.chosen:
                rows = _narrowed(rows, column, self.chosen[column.key])
        if self._sort is not None:
            rows = _sorted(rows, *self._sort)
        return rows

    @cached_property
    def page(self) -> Any:
        paginator = Paginator(self.matching, self.table.rows_a_page)
        return paginator.get_page(self.query.get(self.table.parameter("page")))

    @property
    def count(self) -> int:
        return int(self.page.paginator.count)

    @cached_property
    def shown(self) -> list[Any]:
        """The rows of this page, as `of` reads them."""
        rows = list(self.page.object_list)
        return rows if self.table.present is None else list(self.table.present(rows))

    @cached_property
    def columns(self) -> list[Column]:
        hidden = self._grouping.instead_of if self._grouping else ()
        return [column for column in self.table.columns if column.on_page and column.key not in hidden]

    @property
    def _grouping(self) -> Grouping | None:
        return self.table.grouping if self._sort is None else None

    @property
    def heads(self) -> list[Head]:
        return [self._head(column) for column in self.columns]

    def _head(self, column: Column) -> Head:
        can_sort = column.can_sort and (bool(column.field) or not isinstance(self._all, QuerySet))
        is_sorted = self._sort is not None and self._sort[0] is column
        falls = is_sorted and self._sort is not None and self._sort[1]
        # Figures are wanted largest first, names from A on.
        next_falls = not falls if is_sorted else column.kind.is_number
        url = self._url(sort=f"{'-' if next_falls else ''}{column.key}") if can_sort else ""
        return Head(column, url, ("descending" if falls else "ascending") if is_sorted else "")

    @property
    def lines(self) -> Iterator[ShownRow]:
        return map(self._line, self.shown)

    def _line(self, row: Any) -> ShownRow:
        css = self.table.row_css(row) if self.table.row_css else ""
        return ShownRow([_cell(column, row) for column in self.columns], css)

    @property
    def groups(self) -> Iterator[ShownGroup]:
        if self._grouping is None:
            yield ShownGroup("", list(self.lines), [])
            return
        for group in groups_of(self.shown, list(self.matching), self._grouping):
            sums = self._sums(group.sums, _("Subtotal"))
            yield ShownGroup(group.head, [self._line(row) for row in group.rows], sums)

    @cached_property
    def footer(self) -> list[Cell]:
        """The totals under their columns; none while only a part of the rows is looked at."""
        if self.table.totals is None or self.chosen or not self.shown:
            return []
        return self._sums(self.table.totals(), self.table.totals_label or _("Total"))

    def _sums(self, sums: Mapping[str, Any], label: Text) -> list[Cell]:
        """The label takes the numbers that its rows begin with, too: they are as narrow as a number."""
        columns = self.columns
        numbers = takewhile(lambda column: column.kind.is_number and column.key not in sums, columns)
        span = min(1 + len(list(numbers)), len(columns))
        of_sums = [
            Cell(_total(column, sums), None, "number" if column.kind.is_number else "")
            for column in columns[span:]
        ]
        return [Cell(label, None, "", span), *of_sums]

    @property
    def filters(self) -> list[FilterField]:
        if not self.chosen and self.count < FILTERS_FROM_ROWS:
            return []
        return [
            FilterField(
                self.table.parameter(column.key),
                column.title,
                self.chosen.get(column.key, ""),
                None if column.filter.choices is None else list(column.filter.choices()),
            )
            for column in self.table.columns
            if column.filter is not None
        ]

    @property
    def kept(self) -> list[tuple[str, str]]:
        """Parameters that a filter form has to carry on: all but its own filters and page."""
        own = {self.table.parameter(c.key) for c in self.table.columns if c.filter is not None}
        own |= {self.table.parameter("page"), "csv", "excel"}
        return [(key, value) for key, values in self.query.lists() if key not in own for value in values]

    @property
    def url_without_filters(self) -> str:
        return f"?{urlencode(self.kept)}#{self.id}" if self.kept else f"{self.path}#{self.id}"

    @property
    def csv_url(self) -> str:
        return self._url(page=None, csv=self.table.name, anchor=False)

    @property
    def previous_url(self) -> str:
        return self._url(page=str(self.page.previous_page_number())) if self.page.has_previous() else ""

    @property
    def next_url(self) -> str:
        return self._url(page=str(self.page.next_page_number())) if self.page.has_next() else ""

    def _url(self, *, anchor: bool = True, csv: str = "", **changes: str | None) -> str:
        query = self.query.copy()
        for key in ("csv", "excel", self.table.parameter("page")):
            query.pop(key, None)
        for key, value in changes.items():
            query.pop(self.table.parameter(key), None)
            if value is not None:
                query[self.table.parameter(key)] = value
        if csv:
            query["csv"] = csv
        return f"?{query.urlencode()}" + (f"#{self.id}" if anchor else "")

    def csv_rows(self) -> Iterator[list[str]]:
        """Every row that matches, as text; a queryset is read a piece at a time."""
        columns = [column for column in self.table.columns if column.in_csv]
        for piece in self._pieces():
            for row in piece if self.table.present is None else self.table.present(piece):
                yield [column.kind.export(column.value(row)) for column in columns]

    def _pieces(self) -> Iterator[Sequence[Any]]:
        rows = self.matching
        if not isinstance(rows, QuerySet):
            yield rows
            return
        piece: list[Any] = []
        for row in rows.iterator(chunk_size=EXPORT_CHUNK):
            piece.append(row)
            if len(piece) == EXPORT_CHUNK:
                yield piece
                piece = []
        yield piece


def _cell(column: Column, row: Any) -> Cell:
    value = column.value(row)
    shown = column.html(row) if column.html is not None else column.kind.show(value)
    if column.partial is not None and column.partial(row):
        shown = format_html(
            '{}<sup><abbr title="{}">*</abbr></sup>', shown, _("A part is unknown and not in this figure.")
        )
    names = [column.kind.css, column.css(row) if column.css is not None else ""]
    if column.kind.is_number:
        names.insert(0, "number")
    css = " ".join(filter(None, names))
    return Cell(shown, column.link(row) if column.link is not None else None, css)


def _total(column: Column, totals: Mapping[str, Any]) -> Any:
    return column.kind.show(totals[column.key]) if column.key in totals else ""


def _narrowed(rows: Rows, column: Column, wanted: str) -> Rows:
    how = column.filter
    if how is None:
        return rows
    if isinstance(rows, QuerySet):
        if how.where is not None:
            return how.where(rows, wanted)
        is_exact = how.exact or how.choices is not None
        return rows.filter(**{column.field if is_exact else f"{column.field}__icontains": wanted})
    if how.exact or how.choices is not None:
        return [row for row in rows if _plain(column.value(row)) == wanted]
    return [row for row in rows if wanted.casefold() in _plain(column.value(row)).casefold()]


def _sorted(rows: Rows, column: Column, falls: bool) -> Rows:
    if isinstance(rows, QuerySet):
        if not column.field:
            return rows
        order = F(column.field).desc(nulls_last=True) if falls else F(column.field).asc(nulls_last=True)
        return rows.order_by(order, *(rows.query.order_by or rows.model._meta.ordering), "pk")
    known = [row for row in rows if column.value(row) is not None]
    unknown = [row for row in rows if column.value(row) is None]
    return sorted(known, key=lambda row: _rank(column, row), reverse=falls) + unknown


def _rank(column: Column, row: Any) -> Any:
    """Figures that come as text compare as numbers."""
    value = column.value(row)
    if column.kind.is_number and isinstance(value, str):
        return float(value)
    return value if not isinstance(value, str) else value.casefold()


class TablePage(Page):
    """A page with tables: `tables(**kwargs)` names them, `context` all else. See the module."""

    tables_template: ClassVar[str] = "_table.html"

    @abstractmethod
    def tables(self, *args: Any, **kwargs: Any) -> Sequence[Table]:
        """The page's tables, for the arguments of the address."""

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if "csv" in request.GET:
            return self._file(request, request.GET["csv"], **kwargs)
        bound = self.bound(**kwargs)
        target = request.headers.get("HX-Target", "") if _wants_a_part(request) else ""
        for table in bound.values():
            if table.id == target:
                return self._part(request, table)
        response = self.answer(request, {**self.context(**kwargs), "tables": bound})
        response["Vary"] = ", ".join(filter(None, (response.get("Vary"), "HX-Request")))
        return response

    def bound(self, **kwargs: Any) -> dict[str, BoundTable]:
        """The tables by name, for the template and for tests."""
        return {
            table.name: BoundTable(table, self.request.GET, self.request.path)
            for table in self.tables(**kwargs)
        }

    def _part(self, request: HttpRequest, table: BoundTable) -> HttpResponse:
        response = render(request, self.tables_template, {"table": table, "access": self.access})
        response["Cache-Control"] = "private, no-store"
        response["Vary"] = "HX-Request"
        return response

    def _file(self, request: HttpRequest, name: str, **kwargs: Any) -> HttpResponseBase:
        bound = self.bound(**kwargs).get(name)
        if bound is None:
            raise Http404
        columns = [column for column in bound.table.columns if column.in_csv]
        headings = [_heading(column) for column in columns] if request.GET.get("excel") == "1" else None
        pieces = csv_pieces([column.key for column in columns], bound.csv_rows(), headings=headings)
        response = StreamingHttpResponse(pieces, content_type="text/csv; charset=utf-8")
        parts = [str(kwargs[key]) for key in ("month", "tenant", "pool") if key in kwargs]
        response["Content-Disposition"] = f'attachment; filename="{"-".join([name, *parts])}.csv"'
        response["Cache-Control"] = "private, no-cache"
        return response


def _wants_a_part(request: HttpRequest) -> bool:
    return request.headers.get("HX-Request") == "true" and "HX-History-Restore-Request" not in request.headers


def _heading(column: Column) -> str:
    return f"{column.title} ({column.unit})" if column.unit else str(column.title)


def choices_of(values: Iterable[str], shown: Callable[[str], Text] = str) -> Filter:
    """A filter with these values to pick from."""
    return Filter(choices=lambda: [(value, shown(value)) for value in values])


__all__ = [
    "CATEGORY",
    "CHANGE",
    "CODE",
    "COUNT",
    "DAY",
    "DURATION",
    "GPUS",
    "GPU_HOURS",
    "GPU_US",
    "INSTANT",
    "M_TOKENS",
    "NOWRAP",
    "PERCENT",
    "PRICE",
    "SHARE",
    "TEXT",
    "TEXT_FILTER",
    "VALIDITY",
    "BoundTable",
    "Column",
    "Filter",
    "Kind",
    "Table",
    "TablePage",
    "choices_of",
    "micro_in",
    "minor_in",
    "words",
]
