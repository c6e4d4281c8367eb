"""The same thing is the same string on a page, in CSV and from the API, over a whole demo month.

On a page the exact value of a figure stands in `value` of its `<data>`, whatever is shown of it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models

from ledger.core.units import gpu_hours_text, micro_text, parse_micro
from tests.fixtures.demo_month import MONTH, DemoMonth

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

IN = f"?window={MONTH}"
AT_MONTH = f"/months/{MONTH}/"
OF_CAPACITY = ("reserved_used", "on_demand", "borrowed", "reserved_idle", "undelivered", "unreserved_idle")
WRITTEN = Decimal("0.000001")  # GPU-hours: sums of figures with ten decimals
OCCUPIED = ("reserved_used", "on_demand", "borrowed", "excess")


class Tables(HTMLParser):
    """Each table of a page by what holds it (`table-...`, or its class): rows of cells, of each cell its figures."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: defaultdict[str, list[list[list[str]]]] = defaultdict(list)
        self.links: defaultdict[str, list[str]] = defaultdict(list)
        self._holder = self._name = self._name_of_row = ""
        self._in_body = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if (given.get("id") or "").startswith("table-"):
            self._holder = given["id"] or ""
        if tag == "table":
            self._name = self._holder or given.get("class") or ""
            self._holder = ""
        elif tag in ("tbody", "thead", "tfoot"):
            self._in_body = tag == "tbody"
        elif not (self._name and self._in_body):
            return
        elif tag == "tr":
            # Heads and sums of groups are no rows.
            self._name_of_row = "" if given.get("class") in ("group", "subtotal") else self._name
            self.found[self._name_of_row].append([])
        elif tag in ("th", "td"):
            self.found[self._name_of_row][-1].append([])
        elif tag == "data":
            self.found[self._name_of_row][-1][-1].append(given["value"] or "")
        elif tag == "a":
            self.links[self._name].append(given["href"] or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._name = ""


def pages(demo: DemoMonth) -> list[str]:
    """Every page of the month with tables of its own."""
    tenants = [statement.tenant.slug for statement in demo.statements]
    pools = sorted(row["slug"] for row in demo.listed("pools/"))
    return [
        "/months/",
        AT_MONTH,
        *[f"{AT_MONTH}{name}/" for name in ("platform", "lending", "preemptions")],
        *[f"{AT_MONTH}statements/{tenant}/" for tenant in tenants],
        *[f"/pools/{pool}/?zoom=month&at={MONTH}-10T00:00:00Z" for pool in pools],
        *[f"/{name}/{IN}" for name in ("quota", "demand", "calibration")],
        f"/budgets/?month={MONTH}",
        "/cluster/",
        "/alerts/",
        "/settings/",
        "/ingest/",
    ]


def test_what_a_table_shows_is_what_its_csv_says(demo_month: DemoMonth) -> None:
    compared, wrong = 0, []
    for path in pages(demo_month):
        answer = demo_month.get(path)
        shown = Tables(answer.content.decode()).found
        for name, table in answer.context["tables"].items():
            if not table.count:
                continue
            file = demo_month.table(path, name)
            assert len(file) == table.count, (path, name)
            columns = [column for column in table.columns if column.in_csv]
            for cells, row in zip(shown[f"table-{name}"], file, strict=False):
                for column, figures in zip(table.columns, cells, strict=True):
                    if column not in columns or column.kind.css == "code":
                        continue
                    if len(figures) == 1:
                        compared += 1
                        if figures[0] != row[column.key]:
                            wrong.append((path, name, column.key, figures[0], row[column.key]))
    assert wrong == []
    assert compared > 2000


def test_a_bill_is_the_same_on_its_page_in_its_file_and_from_the_api(demo_month: DemoMonth) -> None:
    listed = {row["tenant"]: row for row in demo_month.listed(f"statements/?month={MONTH}")}
    of_month = {row["tenant"]: row for row in demo_month.table(AT_MONTH, "tenants")}
    assert len(listed) >= 6 and listed.keys() == of_month.keys()
    for statement in demo_month.statements:
        tenant = statement.tenant.slug
        path = f"{AT_MONTH}statements/{tenant}/"
        page = demo_month.page(path)
        bill = demo_month.file(f"{path}bill.csv")
        api = demo_month.listed(f"statements/{statement.pk}/lines/")
        columns = set(api[0]) & set(bill[0])
        assert {"quantity", "unit_price", "amount", "rounding", "description"} <= columns
        assert [{name: str(line[name]) for name in columns} for line in api] == [
            {name: line[name] for name in columns} for line in bill[:-1]
        ], tenant
        assert lines_on_page(page) == {
            line["line"]: (line["quantity"], line["unit_price"], line["amount"]) for line in bill[:-1]
        }, tenant
        total = bill[-1]["amount"]
        assert {listed[tenant]["total"], of_month[tenant]["amount"]} == {total}, tenant
        assert f'<p class="total"><data class="figure" value="{total}"' in page


def lines_on_page(page: str) -> dict[str, tuple[str, str, str]]:
    """Number -> exact quantity, unit price and printed amount. The number is shown, and the link leads to its line."""
    tables = Tables(page)
    rows = tables.found["table-lines"]
    links = tables.links["table-lines"]
    positions = [link.rstrip("/").split("/")[-1] for link in links if "/lines/" in link]
    assert [figure(cells[0]) for cells in rows] == positions
    return {figure(cells[0]): (figure(cells[3]), figure(cells[4]), cells[5][-1]) for cells in rows}


def figure(cell: list[str]) -> str:
    return cell[0] if cell else ""


def test_gpu_time_is_the_same_in_statements_usage_files_and_allocations(demo_month: DemoMonth) -> None:
    """Of tenants: what the books hold, what their statement totals say, and what the slots of usage.csv add up to."""
    listed = {row["tenant"]: row for row in demo_month.listed(f"statements/?month={MONTH}")}
    allocated: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for row in demo_month.listed(f"allocations/{IN}&by=tenant,category"):
        allocated[row["tenant"]][row["category"]] = row["gpu_us"]
        assert row["gpu_hours"] == gpu_hours_text(int(row["gpu_us"]))
    for tenant, statement in listed.items():
        of_slots: defaultdict[str, int] = defaultdict(int)
        for slot in demo_month.file(f"{AT_MONTH}statements/{tenant}/usage.csv"):
            of_slots[slot["category"]] += int(slot["gpu_us"])
        in_statement = {
            name.removesuffix("_gpu_us"): text
            for name, text in statement["totals"].items()
            if name.removesuffix("_gpu_us") in (*OF_CAPACITY, "excess", "lent", "oversold") and text != "0"
        }
        assert in_statement == {name: str(total) for name, total in of_slots.items() if total}, tenant
        assert in_statement == {name: text for name, text in allocated[tenant].items() if text != "0"}


def test_the_month_s_tables_are_the_allocations_of_the_api(demo_month: DemoMonth) -> None:
    by_pool = {
        (row["pool"], row["category"]): row["gpu_hours"]
        for row in demo_month.listed(f"allocations/{IN}&by=pool,category&include=idle")
    }
    pools = demo_month.table(AT_MONTH, "pools")
    assert len(pools) == 5
    for row in pools:
        for name in (*OF_CAPACITY, "excess"):
            assert row[f"{name}_gpu_hours"] == by_pool.get((row["pool"], name), "0"), (row["pool"], name)
    for row in demo_month.table(f"{AT_MONTH}platform/", "losses"):
        assert row["unsold_gpu_hours"] == by_pool[row["pool"], "unreserved_idle"]
        assert row["undelivered_gpu_hours"] == by_pool.get((row["pool"], "undelivered"), "0")
    by_tenant = {
        (row["tenant"], row["category"]): int(row["gpu_us"])
        for row in demo_month.listed(f"allocations/{IN}&by=tenant,category")
    }
    again = {row["tenant"]: row for row in demo_month.listed(f"requeued/{IN}")}
    for row in demo_month.table(AT_MONTH, "tenants"):
        tenant = row["tenant"]
        occupied = sum(by_tenant.get((tenant, name), 0) for name in OCCUPIED)
        assert row["occupied_gpu_hours"] == gpu_hours_text(occupied)
        for name in ("reserved_idle", "lent", "undelivered"):
            assert row[f"{name}_gpu_hours"] == gpu_hours_text(by_tenant.get((tenant, name), 0)), tenant
        for name in ("requeued_gpu_hours", "waiting_gpu_hours"):
            assert row[name] == again.get(tenant, {}).get(name, "0"), tenant


Key = Callable[[dict[str, Any]], tuple[str, ...]]


def keyed(rows: Iterable[dict[str, Any]], *names: str) -> dict[tuple[str, ...], dict[str, Any]]:
    return {tuple(str(row[name]) for name in names): row for row in rows}


# A page's table, its key, the API's list, its key, and the columns that say the same: theirs -> the API's.
PAIRS: dict[str, tuple[str, str, tuple[str, ...], str, tuple[str, ...], dict[str, str]]] = {
    "lending": (
        f"{AT_MONTH}lending/", "pairs", ("lender", "borrower", "pool"),
        f"lending/{IN}", ("lender", "borrower", "pool"),
        {"gpu_hours": "gpu_hours", "paid": "amount", "credited": "credit"},
    ),
    "matrix": (
        AT_MONTH, "pairs", ("preemptor", "victim"), f"preemptions/matrix/{IN}", ("preemptor", "victim"),
        {"count": "preemptions", "requeued_gpu_hours": "requeued_gpu_hours"},
    ),
    "balance": (
        AT_MONTH, "balance", ("pool",), f"preemptions/balance/{IN}", ("pool",),
        {
            **{name: f"{name}_gpu_hours" for name in ("gained", "lost", "recomputed", "drained", "unused", "net")},
            "undelivered": "undelivered_gpu_hours",
            "net_amount": "net_amount",
        },
    ),
    "episodes": (
        AT_MONTH, "episodes", ("starts_at", "preemptor_workload"),
        f"episodes/{IN}", ("starts_at", "preemptor_workload"),
        {"count": "preemptions", "needed": "needed_gpus", "taken": "taken_gpus", "unused": "unused_gpu_hours"},
    ),
    "preemptions": (
        f"{AT_MONTH}preemptions/", "preemptions", ("preemption",), f"preemptions/{IN}", ("id",),
        {"gpus": "gpus", "entitled_gpus": "entitled_gpus", "decided_at": "decided_at"},
    ),
    "demand": (
        f"/demand/{IN}", "funnel", ("tenant", "model"), f"demand/{IN}", ("tenant", "model"),
        {
            **{name: name for name in ("asked", "completed", "rejected", "preempted", "timed_out", "aborted")},
            "explicit_share": "explicit_share",
        },
    ),
    "refused": (
        f"/demand/{IN}", "refusing", ("tenant", "model"), f"demand/{IN}", ("tenant", "model"),
        {
            "tokens": "declined_tokens", "gpu_hours": "declined_gpu_hours", "declined": "declined_amount",
            "killing_gpu_hours": "killing_gpu_hours", "killing": "killing_amount",
        },
    ),
    "rejections": (
        f"/demand/{IN}", "reasons", ("tenant", "reason", "status"), f"rejections/{IN}", ("tenant", "reason", "status"),
        {
            "rejections": "rejections", "explicit": "explicit", "tokens": "requested_tokens",
            "gpus": "requested_gpus", "least_wait": "least_retry_after_seconds",
            "greatest_wait": "greatest_retry_after_seconds", "last": "last_at",
        },
    ),
    "forecast": (
        f"/budgets/?month={MONTH}", "forecast", ("tenant",), f"forecast/?month={MONTH}", ("tenant",),
        {
            name: name
            for what in ("amount", "gpu_hours")
            for name in (f"{what}_to_date", f"{what}_low", f"{what}_expected", f"{what}_high")
        },
    ),
    "calibration": (
        f"/calibration/{IN}", "days", ("day", "model", "gpu_model"),
        f"calibrations/deviation/{IN}", ("day", "model", "gpu_model"),
        {name: name for name in ("input_tokens", "cached_input_tokens", "output_tokens")},
    ),
    "months": (
        "/months/", "months", ("month",), "periods/", ("month",), {"computed_up_to": "horizon_at"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PAIRS)
def test_a_page_s_table_and_the_api_s_list_say_the_same(what: str, demo_month: DemoMonth) -> None:
    path, name, key, url, api_key, columns = PAIRS[what]
    shown = keyed(demo_month.table(path, name), *key)
    listed = keyed(demo_month.listed(url), *api_key)
    assert shown, f"{path} has no rows to compare"
    assert shown.keys() <= listed.keys()
    # A table may leave out what is nothing, or the lesser ones; what it shows is what the API says.
    said = {k: {column: row[column] for column in columns} for k, row in shown.items()}
    assert said == {k: {column: text(listed[k][theirs]) for column, theirs in columns.items()} for k in shown}


def text(value: Any) -> str:
    return "" if value is None else str(value)


def test_every_measure_of_a_preemption_is_the_same_on_pages_and_from_the_api(demo_month: DemoMonth) -> None:
    """The month's table, the API's list and both sides' preemptions.csv, in hours there and in microseconds here."""
    shown = keyed(demo_month.table(f"{AT_MONTH}preemptions/", "preemptions"), "preemption")
    listed = keyed(demo_month.listed(f"preemptions/{IN}"), "id")
    assert shown.keys() == listed.keys() and len(shown) > 10
    measures = ("lost", "recompute", "requeued", "waiting")
    for key, row in shown.items():
        for name in measures:
            exact = listed[key][f"{name}_gpu_us"]
            hours = gpu_hours_text(int(exact)) if exact != "" else ""
            assert row[f"{name}_gpu_hours"] == hours, (key, name)
    of_api = {(row["preemption"], row["role"]): row for row in listed.values()}
    sides = 0
    for statement in demo_month.statements:
        file = demo_month.file(f"{AT_MONTH}statements/{statement.tenant.slug}/preemptions.csv")
        api = demo_month.listed(f"statements/{statement.pk}/preemptions/")
        assert [{name: text(value) for name, value in row.items()} for row in api] == file
        for row in file:
            # Money stands on the side of whom it concerns; time is the same from every side.
            other = of_api.get((row["preemption"], "victim"))
            if other is not None and row["role"] == "victim":
                sides += 1
                names = [name for name in row if name.endswith(("_gpu_us", "_gpus", "gpus"))]
                assert {n: row[n] for n in names} == {n: text(other[n]) for n in names}
    assert sides > 10


def test_the_platform_s_side_is_what_the_journal_says(demo_month: DemoMonth) -> None:
    """What is posted from each pool, and for what, adds up to the page: who bears it, to the millionth."""
    posted: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row in demo_month.file(f"/api/v1/periods/{MONTH}/journal.csv"):
        if row["unit"] == "GPU-US" or not row["reason"] or row["reason"].startswith("preemption"):
            continue
        for side, other, sign in (("debit", "credit", 1), ("credit", "debit", -1)):
            if row[other].startswith("pool:"):
                who = "tenants" if row[side].startswith("tenant:") else f"{row[side]} {row['reason']}"
                posted[row[other].removeprefix("pool:"), who] += sign * parse_micro(row["quantity"])
    pools = {row["pool"]: row for row in demo_month.table(AT_MONTH, "pools")}
    cost = demo_month.table(f"{AT_MONTH}platform/", "cost")
    losses = {row["pool"]: row for row in demo_month.table(f"{AT_MONTH}platform/", "losses")}
    assert len(cost) == 5
    for row in cost:
        pool = row["pool"]
        assert row["capacity_gpu_hours"] == pools[pool]["capacity_gpu_hours"]
        for name, of in (
            ("tenants", "tenants"),
            ("unsold", "platform unreserved_idle"),
            ("undelivered", "platform undelivered"),
        ):
            assert row[name] == micro_text(posted[pool, of]), (pool, name)
        assert (losses[pool]["unsold"], losses[pool]["undelivered"]) == (row["unsold"], row["undelivered"])


def test_what_is_billed_in_pools_leads_to_what_is_charged_and_to_the_months_totals(
    demo_month: DemoMonth,
) -> None:
    """Two pages that show different sums of one thing show the steps between them, and the steps add up."""
    cost = demo_month.table(f"{AT_MONTH}platform/", "cost")
    steps = {
        row["step"]: Decimal(row["amount"]) for row in demo_month.table(f"{AT_MONTH}platform/", "charged")
    }
    assert steps["billed"] == sum(Decimal(row["tenants"]) for row in cost)
    assert {"tokens", "rounding"} <= steps.keys()
    assert abs(steps["rounding"]) <= Decimal("0.005") * len(demo_month.statements)
    charged = sum(Decimal(row["amount"]) for row in demo_month.table(AT_MONTH, "tenants"))
    assert charged == sum(steps.values())
    of_month = next(row for row in demo_month.table("/months/", "months") if row["month"] == MONTH)
    assert Decimal(of_month["charged"]) == charged
    page = demo_month.get(f"{AT_MONTH}platform/")
    assert page.context["side"].charged.adds_up
    assert [cell.shown for cell in page.context["tables"]["charged"].footer] != []


def test_what_tenants_held_and_what_the_platform_held_are_what_the_pools_held(demo_month: DemoMonth) -> None:
    whose = demo_month.table(AT_MONTH, "whose")
    tenants = demo_month.table(AT_MONTH, "tenants")
    pools = demo_month.table(AT_MONTH, "pools")
    lent = demo_month.table(f"{AT_MONTH}lending/", "pairs")
    assert [row["whose"] for row in whose] == ["tenants", "platform"]

    def total(rows: list[dict[str, str]], *names: str) -> Decimal:
        return sum((Decimal(row[f"{name}_gpu_hours"]) for row in rows for name in names), Decimal())

    for name in ("occupied", "reserved_idle", "lent", "undelivered"):
        of_tenants = [row for row in whose if row["whose"] == "tenants"]
        assert total(of_tenants, name) == pytest.approx(total(tenants, name), abs=WRITTEN), name
    assert total(whose, "occupied") == pytest.approx(total(pools, *OCCUPIED), abs=WRITTEN)
    assert total(whose, "reserved_idle") == pytest.approx(total(pools, "reserved_idle"), abs=WRITTEN)
    of_pairs = sum(Decimal(row["gpu_hours"]) for row in lent)
    assert total(whose, "lent") == pytest.approx(of_pairs, abs=WRITTEN)
    page = demo_month.get(f"{AT_MONTH}lending/").context
    assert page["lent_by_tenants_gpu_us"] + page["lent_by_others_gpu_us"] == page["lent_gpu_us"]
    assert page["lent_by_others_gpu_us"] > 0


LISTS = (
    f"allocations/{IN}&by=tenant,pool,category",
    f"requeued/{IN}",
    f"preemptions/{IN}",
    f"preemptions/matrix/{IN}",
    f"preemptions/balance/{IN}",
    f"lending/{IN}",
    f"reservations/utilization/{IN}",
    f"demand/{IN}",
    f"rejections/{IN}",
    f"usage/tokens/{IN}",
    f"forecast/?month={MONTH}",
    f"shortages/{IN}",
    f"calibrations/deviation/{IN}",
    "statements/",
    "periods/",
    "batches/",
)


@pytest.mark.parametrize("path", LISTS)
def test_a_list_says_the_same_as_json_and_as_csv(path: str, demo_month: DemoMonth) -> None:
    plain = [
        {name: text(value) for name, value in row.items() if not isinstance(value, bool | list | dict)}
        for row in demo_month.listed(path)
    ]
    file = demo_month.file(f"/api/v1/{path}{'&' if '?' in path else '?'}format=csv&page_size=10000")
    assert plain
    assert plain == [{name: row[name] for name in plain[0]} for row in file]


# What people and sources said is kept as they said it.
SAID = {
    "billing_disputeevent.text",
    "ledger_auditentry.reason",
    "ledger_event.body",
    "ledger_pool.name",
    "ledger_rejection.reason",
}
# A bill is made out in one language; pages tell its lines by their codes. What is wrong with a refused line has a code
# (`reason`) with words, and beside it what the reader of that line found, for whoever runs the source.
IN_ONE_LANGUAGE = {
    "billing_monthline.description",
    "billing_statementline.description",
    "ingest_quarantinedevent.detail",
}


def test_no_finished_sentence_is_kept(demo_month: DemoMonth) -> None:
    """The ledger itself keeps codes with values (ledger.core.sentences), which pages tell in the reader's language."""
    assert demo_month.month
    found = {}
    for model in (
        one for app in ("ledger", "billing", "ingest") for one in apps.get_app_config(app).get_models()
    ):
        for field in model._meta.concrete_fields:
            name = f"{model._meta.db_table}.{field.column}"
            if name in SAID | IN_ONE_LANGUAGE or not isinstance(
                field, models.CharField | models.TextField | models.JSONField
            ):
                continue
            with connection.cursor() as cursor:
                column, table = connection.ops.quote_name(field.column), model._meta.db_table
                prose = "[A-Za-z]{3,} [a-z]{2,} [a-z]{2,}"
                cursor.execute(
                    f"SELECT {column}::text FROM {table} WHERE {column}::text ~ %s LIMIT 1", [prose]
                )
                if row := cursor.fetchone():
                    found[name] = row[0][:200]
    assert not found, json.dumps(found, indent=1)
