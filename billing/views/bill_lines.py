"""The lines of a bill as its page shows them: grouped by pool, or sorted and filtered like any other table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from billing.exports.bill import quantity_text
from billing.models import PreemptionRecord, Statement, StatementLine
from billing.selectors.pages_statements import Lines
from ledger.templatetags.figures import gpu_hours_cell, line_kind, million_tokens, money
from ledger.templatetags.figures import price_cell as shown_price
from ledger.views.table_groups import Grouping
from ledger.views.tables import (
    CATEGORY,
    COUNT,
    PRICE,
    TEXT,
    Column,
    Filter,
    Kind,
    Table,
    choices_of,
    minor_in,
    words,
)
from ledger.wording import category_name

LINES_A_PAGE = 100
MEMO = ("lent", "oversold")  # told, and charged to nobody
WITHOUT_PRICE = ("credit", "transfer", "adjustment")  # their amounts are of other lines
QUANTITY = Kind(is_number=True)


def lines_table(
    statement: Statement, lines: Callable[[], Lines], records: Callable[[], Mapping[str, PreemptionRecord]]
) -> Table:
    currency = statement.currency
    slug, month = statement.tenant.slug, statement.period_id

    def rows() -> list[StatementLine]:
        return [line for group in lines().groups for line in group.lines]

    def details(line: StatementLine) -> SafeString:
        values = {"line": line, "statement": statement, "records": records()}
        return render_to_string("billing/_line_details.html", values)

    def pools() -> Sequence[tuple[str, str]]:
        return [(slug, slug) for slug in sorted({line.pool for line in rows() if line.pool})]

    def categories() -> Sequence[tuple[str, Any]]:
        return [(name, category_name(name)) for name in sorted({line.category for line in rows()})]

    return Table(
        "lines",
        rows,
        [
            Column("line", _("Line"), COUNT, of="position"),
            Column(
                "category",
                _("What"),
                CATEGORY,
                css=lambda line: "name",
                link=lambda line: reverse("billing:statement-line", args=[month, slug, line.position]),
                filter=Filter(choices=categories),
            ),
            Column("details", _("Details"), of="description", html=details, in_csv=False, can_sort=False),
            Column("pool", _("Pool"), filter=Filter(choices=pools)),
            Column(
                "quantity", _("Quantity"), QUANTITY, of=_quantity, html=_shown_quantity, unit=_("GPU-hours")
            ),
            Column("unit", _("Unit"), of=lambda line: quantity_text(line)[1], on_page=False),
            Column(
                "unit_price", _("Unit price"), PRICE, of="unit_price_micro", html=_shown_price, unit=currency
            ),
            Column(
                "amount",
                _("Amount"),
                minor_in(currency),
                of="amount_minor",
                html=_amount(currency),
                unit=currency,
            ),
            Column("kind", _("Kind"), words(line_kind), filter=choices_of(_KINDS, line_kind), on_page=False),
            *[
                Column(name, title, TEXT, on_page=False)
                for name, title in (
                    ("cluster", _("Cluster")),
                    ("gpu_model", _("GPU model")),
                    ("service", _("Service")),
                    ("model", _("Model")),
                    ("service_class", _("Class")),
                    ("concerns_month", _("Month concerned")),
                )
            ],
        ],
        label=_("Lines"),
        css="lines",
        totals=lambda: {"amount": statement.total_minor},
        grouping=Grouping(_group_of, _head, _sums, frozenset({"pool"})),
        row_css=lambda line: "memo" if line.category in MEMO else "",
        rows_a_page=LINES_A_PAGE,
        empty=_("Nothing was held, reserved or used in this month."),
    )


_KINDS = ("usage", "shared", "tokens", "credit", "transfer", "adjustment")


def _group_of(line: StatementLine) -> tuple[str, str]:
    """As `lines_by_group` has them."""
    in_pool = line.pool and line.kind in ("usage", "shared", "credit")
    return (line.pool, "") if in_pool else ("", line.kind)


def _head(line: StatementLine) -> Any:
    pool, kind = _group_of(line)
    if not pool:
        return line_kind(kind)
    return format_html('{} <span class="muted">{} · {}</span>', pool, line.gpu_model, line.cluster)


def _sums(lines: Sequence[StatementLine]) -> dict[str, Any]:
    """GPU time that was held or reserved (credits move money, not time), and the amount: unknown without a price."""
    gpu_us = sum(
        int(line.quantity) for line in lines if line.unit == "gpu_us" and line.kind in ("usage", "shared")
    )
    amounts = [line.amount_minor for line in lines]
    amount = None if None in amounts else sum(amount or 0 for amount in amounts)
    return {"amount": amount, **({"quantity": gpu_hours_cell(gpu_us)} if gpu_us else {})}


def _quantity(line: StatementLine) -> str | None:
    return quantity_text(line)[0] or None


def _shown_quantity(line: StatementLine) -> Any:
    if line.unit == "gpu_us":
        return gpu_hours_cell(line.quantity)
    if line.unit == "tokens":
        tokens = million_tokens(line.quantity)
        return format_html('{} <span class="muted">{}</span>', tokens, _("M tokens"))
    return ""


def _shown_price(line: StatementLine) -> Any:
    if line.unit_price_micro is None and line.kind in WITHOUT_PRICE:
        return ""
    return shown_price(line.unit_price_micro)


def _amount(currency: str) -> Callable[[StatementLine], Any]:
    printed = minor_in(currency)

    def shown(line: StatementLine) -> Any:
        amount = printed.show(line.amount_minor)
        if line.full_amount_micro is None or line.full_amount_micro == line.amount_micro:
            return amount
        title = _("Full amount, of which this account is charged a part")
        full = money(line.full_amount_micro, currency)
        return format_html('<span class="muted" title="{}">({})</span> {}', title, full, amount)

    return shown
