"""`bill.csv`: one row per statement line, and a last row that is their total."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from billing.models import Statement, StatementLine
from ledger.core.currency import minor_places
from ledger.core.units import fixed_decimal, gpu_hours_text, micro_text

COLUMNS = (
    "statement",
    "month",
    "tenant",
    "line",
    "kind",
    "pool",
    "cluster",
    "gpu_model",
    "model",
    "category",
    "description",
    "quantity",
    "unit",
    "unit_price",
    "amount",
    "rounding",
    "currency",
    "concerns_month",
    "preemptions",
    "sha256",
)
_MILLION_PLACES = 6


def bill_rows(statement: Statement) -> Iterator[tuple[object, ...]]:
    """Rows of the bill in line order, total last. Amounts are the printed ones, which add up to the total."""
    for line in statement.lines.order_by("position").iterator(chunk_size=2000):
        row = line_row(statement, line)
        yield tuple(row[column] for column in COLUMNS)
    places = minor_places(statement.currency)
    total = {
        **_of_statement(statement),
        "kind": "total",
        "amount": fixed_decimal(statement.total_minor, places),
        "rounding": micro_text(statement.total_minor * 10 ** (6 - places) - statement.total_micro),
    }
    yield tuple(total.get(column, "") for column in COLUMNS)


def line_row(statement: Statement, line: StatementLine) -> dict[str, Any]:
    """One line as bill.csv, the API and the pages show it: strings, exact decimals."""
    quantity, unit = quantity_text(line)
    places = minor_places(statement.currency)
    return {
        **_of_statement(statement),
        "line": line.position,
        "kind": line.kind,
        "pool": line.pool,
        "cluster": line.cluster,
        "gpu_model": line.gpu_model,
        "model": line.model,
        "category": line.category,
        "description": line.description,
        "quantity": quantity,
        "unit": unit,
        "unit_price": "" if line.unit_price_micro is None else micro_text(line.unit_price_micro),
        "amount": "" if line.amount_minor is None else fixed_decimal(line.amount_minor, places),
        "rounding": micro_text(line.rounding_micro),
        "concerns_month": line.concerns_month,
        "preemptions": " ".join(line.preemptions),
    }


def quantity_text(line: StatementLine) -> tuple[str, str]:
    """Quantity and unit such that quantity x unit price is the amount: GPU-hours, or millions of tokens."""
    if line.unit == "gpu_us":
        return gpu_hours_text(int(line.quantity)), "GPU-hour"
    if line.unit == "tokens":
        return fixed_decimal(int(line.quantity), _MILLION_PLACES), "million tokens"
    return "", ""


def _of_statement(statement: Statement) -> dict[str, Any]:
    return {
        "statement": statement.number,
        "month": statement.period_id,
        "tenant": statement.tenant.slug,
        "currency": statement.currency,
        "sha256": statement.sha256,
    }
