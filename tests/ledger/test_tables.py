"""Tables by their address: sorted, filtered, paged, downloaded; over rows in memory and over querysets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.http import QueryDict
from django.template import engines
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from ledger.models import Pool
from ledger.views.tables import (
    CHANGE,
    CODE,
    GPU_HOURS,
    INSTANT,
    TEXT_FILTER,
    BoundTable,
    Cell,
    Column,
    Filter,
    Table,
    choices_of,
    micro_in,
    minor_in,
)

HOUR = 3_600_000_000


@dataclass(frozen=True)
class Row:
    name: str
    gpu_us: int | None
    change: str | None = None
    minor: int = 0
    state: str = "open"


ROWS = [
    Row("beta", 2 * HOUR, "9.5", 1_250, "closed"),
    Row("acme", None, "-10.0", -3),
    Row("Delta", 10 * HOUR + 1, None, 0),
    Row("gamma", 2 * HOUR, "100.0", 7),
]
COLUMNS = [
    Column("name", "Name", filter=TEXT_FILTER, link=lambda row: f"/{row.name}/"),
    Column("gpu_hours", "Held", GPU_HOURS, of="gpu_us", unit="GPU-hours"),
    Column("change", "Change", CHANGE),
    Column("amount", "Amount", minor_in("CNY"), of="minor", unit="CNY"),
    Column("state", "State", filter=choices_of(["open", "closed"])),
]


def bound(query: str = "", rows: Any = ROWS, columns: Any = None, **more: Any) -> BoundTable:
    table = Table("t", lambda: rows, columns or COLUMNS, label="Things", **more)
    return BoundTable(table, QueryDict(query), "/things/")


def names(table: BoundTable) -> list[str]:
    return [row.name for row in table.shown]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["beta", "acme", "Delta", "gamma"]),
        ("t.sort=name", ["acme", "beta", "Delta", "gamma"]),
        ("t.sort=-name", ["gamma", "Delta", "beta", "acme"]),
        # What is unknown is last either way, and equal ones keep the order they came in.
        ("t.sort=gpu_hours", ["beta", "gamma", "Delta", "acme"]),
        ("t.sort=-gpu_hours", ["Delta", "beta", "gamma", "acme"]),
        # Text of figures is compared as figures: 9.5 is less than 100.
        ("t.sort=change", ["acme", "beta", "gamma", "Delta"]),
        ("t.sort=-change", ["gamma", "beta", "acme", "Delta"]),
        ("t.name=A", ["beta", "acme", "Delta", "gamma"]),
        ("t.name=ACM", ["acme"]),
        ("t.state=closed", ["beta"]),
        ("t.state=close", []),
        ("t.state=open&t.name=m&t.sort=-name", ["gamma", "acme"]),
        # What is not understood, or another table's, is ignored.
        ("t.sort=nothing&sort=name&other.name=x&t.page=x", ["beta", "acme", "Delta", "gamma"]),
    ],
)
def test_rows_by_the_address(query: str, expected: list[str]) -> None:
    assert names(bound(query)) == expected


def test_sorting_turns_round_and_starts_with_the_largest_figure() -> None:
    def urls(query: str) -> dict[str, tuple[str, str]]:
        return {head.column.key: (head.url, head.direction) for head in bound(query).heads}

    assert urls("")["name"] == ("?t.sort=name#table-t", "")
    assert urls("")["gpu_hours"] == ("?t.sort=-gpu_hours#table-t", "")
    falling = urls("t.sort=-gpu_hours&t.page=3&o.page=2&t.name=a")
    assert falling["gpu_hours"] == ("?o.page=2&t.name=a&t.sort=gpu_hours#table-t", "descending")
    assert urls("t.sort=name")["name"] == ("?t.sort=-name#table-t", "ascending")


def test_pages_keep_filters_and_the_other_tables() -> None:
    rows = [Row(f"n{number:03}", number) for number in range(120)]
    table = bound("o.sort=x&t.page=2&t.sort=-gpu_hours", rows)
    assert (names(table)[0], names(table)[-1], table.count) == ("n069", "n020", 120)
    assert table.previous_url == "?o.sort=x&t.sort=-gpu_hours&t.page=1#table-t"
    assert table.next_url == "?o.sort=x&t.sort=-gpu_hours&t.page=3#table-t"
    assert names(bound("t.page=99", rows))[-1] == "n119"
    assert bound("t.page=3", rows).next_url == ""


def test_filters_are_drawn_when_there_is_something_to_look_through() -> None:
    assert bound().filters == []
    many = [*ROWS, *[Row(f"n{number}", number) for number in range(9)]]
    assert [(one.name, one.value) for one in bound("", many).filters] == [("t.name", ""), ("t.state", "")]
    # A filter in use can be taken back, however few rows it left.
    chosen = bound("t.name=zzz&o.name=x&t.page=2&t.sort=name")
    assert [(one.name, one.value) for one in chosen.filters] == [("t.name", "zzz"), ("t.state", "")]
    assert chosen.kept == [("o.name", "x"), ("t.sort", "name")]
    assert chosen.url_without_filters == "?o.name=x&t.sort=name#table-t"


def test_the_file_has_every_row_that_matches_exactly() -> None:
    many = [*ROWS, *[Row(f"n{number}", number, state="closed") for number in range(90)]]
    table = bound("t.sort=name&t.state=open&t.page=2", many)
    assert list(table.csv_rows()) == [
        ["acme", "", "-10.0", "-0.03", "open"],
        ["Delta", "10.0000000003", "", "0.00", "open"],
        ["gamma", "2", "100.0", "0.07", "open"],
    ]
    assert table.csv_url == "?t.sort=name&t.state=open&csv=t"
    exact = Column("at", "At", INSTANT), Column("x", "X", micro_in("CNY"))
    row = {"at": datetime(2026, 10, 1, 8, 0, 0, 5_000, tzinfo=UTC), "x": 1_234_567}
    assert list(bound("", [row, {"at": None, "x": None}], exact).csv_rows()) == [
        ["2026-10-01T08:00:00.005Z", "1.234567"],
        ["", ""],
    ]


def test_totals_stand_under_whole_tables_only() -> None:
    def totals() -> dict[str, Any]:
        return {"gpu_hours": 14 * HOUR + 1}

    footer = bound("", totals=totals, totals_label="All").footer
    assert [str(cell.shown) for cell in footer[:1]] == ["All"]
    assert 'value="14.0000000003"' in str(footer[1].shown)
    assert bound("t.state=open", totals=totals).footer == []


def test_the_markup_names_what_it_sorts_and_whence_it_comes() -> None:
    page = render_to_string("_table.html", {"table": bound("t.sort=-gpu_hours")})
    assert 'aria-sort="descending"' in page
    assert page.count('<th scope="col"') == 5
    assert '<th scope="row"><a href="/beta/">beta</a></th>' in page
    assert 'href="?t.sort=-gpu_hours&amp;csv=t"' in page
    assert 'id="table-t"' in page
    empty = render_to_string("_table.html", {"table": bound("", [], empty="Nothing yet.")})
    assert "Nothing yet." in empty
    assert "<table" not in empty
    nothing = render_to_string("_table.html", {"table": bound("t.name=zzz")})
    assert "No row matches these filters." in nothing


@pytest.mark.parametrize("language", ["en", "zh-hans", "de"])
@pytest.mark.parametrize("url", [None, "/a?b=1&c=2"])
@pytest.mark.parametrize(
    "value",
    ["plain", "<b>&\"'", mark_safe("<b>1</b>"), gettext_lazy("Month"), None, 0, 1234567, 1.5, Decimal("1234.50"),
     datetime(2026, 10, 31, 23, 30, tzinfo=UTC), date(2026, 10, 31), True, ""],
)  # fmt: skip
def test_a_cell_is_drawn_as_the_template_would_show_it(value: Any, url: str | None, language: str) -> None:
    row = [Cell(value, url, "a&b"), Cell(value, None, ""), Cell(value, url, "number code")]
    loop = """{% for cell in row %}{% if forloop.first %}<th scope="row"{% else %}<td{% endif %}
{% if cell.css %} class="{{ cell.css }}"{% endif %}>
{% if cell.url %}<a href="{{ cell.url }}">{{ cell.shown }}</a>{% else %}{{ cell.shown }}{% endif %}
{% if forloop.first %}</th>{% else %}</td>{% endif %}{% endfor %}"""
    with translation.override(language):
        drawn = engines["django"].from_string("{% load rows %}{% cells row %}").render({"row": row})
        assert drawn == engines["django"].from_string(loop.replace("\n", "")).render({"row": row})


@pytest.mark.django_db
@pytest.mark.postgres
def test_over_a_queryset_the_database_does_it() -> None:
    for slug, model in (("a", "H100"), ("b", "A100"), ("c", "H100"), ("d", "")):
        Pool.objects.create(slug=slug, cluster="x", gpu_model=model)
    columns = [
        Column("pool", "Pool", CODE, of="slug", field="slug", filter=TEXT_FILTER),
        Column("model", "Model", of="gpu_model", field="gpu_model", filter=choices_of(["H100", "A100"])),
        Column("odd", "Odd", filter=Filter(where=lambda rows, value: rows.filter(slug__gt=value))),
    ]

    def present(pools: Any) -> list[dict[str, Any]]:
        return [{"slug": pool.slug, "gpu_model": pool.gpu_model, "odd": ord(pool.slug) % 2} for pool in pools]

    def slugs(query: str, **more: Any) -> list[str]:
        table = bound(query, Pool.objects.order_by("slug"), columns, present=present, **more)
        return [row["slug"] for row in table.shown]

    assert slugs("") == ["a", "b", "c", "d"]
    assert slugs("t.sort=-model") == ["a", "c", "b", "d"]
    assert slugs("t.sort=model", rows_a_page=2) == ["d", "b"]
    assert slugs("t.model=H100") == ["a", "c"]
    assert slugs("t.pool=B") == ["b"]
    assert slugs("t.odd=b") == ["c", "d"]
    assert slugs("t.sort=odd") == ["a", "b", "c", "d"]  # cannot be sorted by: no field of the database
    table = bound("t.sort=-pool&t.model=H100", Pool.objects.order_by("slug"), columns, present=present)
    assert list(table.csv_rows()) == [["c", "H100", "1"], ["a", "H100", "1"]]
