"""FOCUS Cost and Usage of statements, streamed: a month of any size needs the memory of one statement's lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from billing.core.focus import (
    BilledLine,
    Invoice,
    Row,
    charge_columns,
    invoice_columns,
    line_columns,
    preemption_columns,
)
from billing.core.focus_columns import COST_AND_USAGE
from billing.core.focus_periods import Spread, charge_span
from billing.models import Statement
from billing.selectors.detail import VICTIM, Hit, SaidLenders, detail_of
from billing.selectors.focus_lines import billed_lines, invoice_of
from billing.selectors.names import Names
from ledger.core.periods import Span, to_ms
from ledger.core.units import MS_PER_HOUR
from ledger.models import Period


def cost_and_usage(
    statements: Iterable[Statement], names: Names, version: str
) -> Iterator[tuple[object, ...]]:
    """Rows by statement: its GPU time by the slot, preemptions that hit it, then everything else by line.

    statements: read through `with_heading`.
    """
    months: dict[str, Span] = {}
    for statement in statements:
        yield from _of_statement(statement, names, version, months)


_PLACES = {
    version: {column: place for place, column in enumerate(columns)}
    for version, columns in COST_AND_USAGE.items()
}


class _Same:
    """What charges have in common, laid out once; each fills in what sets it apart."""

    __slots__ = ("_places", "_row")

    def __init__(self, row: Row, version: str) -> None:
        self._places = _PLACES[version]
        self._row = [row.get(column, "") for column in COST_AND_USAGE[version]]

    def with_(self, apart: Row) -> tuple[str, ...]:
        row = self._row.copy()
        for column, value in apart.items():
            row[self._places[column]] = value
        return tuple(row)


def _of_statement(
    statement: Statement, names: Names, version: str, months: dict[str, Span]
) -> Iterator[tuple[str, ...]]:
    invoice, lines = invoice_of(statement), billed_lines(statement)
    yield from _by_slot(statement, invoice, lines, names, version)
    month = Span(invoice.starts_ms, invoice.ends_ms)
    for line in lines:
        if not line.is_of_slots:
            concerned = _month(line.concerns_month, months) if line.concerns_month else month
            span = charge_span(line, concerned, lines)
            billed = line.billed_micro or 0
            charge = charge_columns(line, line.quantity, billed, span.start_ms, span.end_ms)
            yield _Same(line_columns(line, invoice, version), version).with_(charge)


def _by_slot(
    statement: Statement, invoice: Invoice, lines: Sequence[BilledLine], names: Names, version: str
) -> Iterator[tuple[str, ...]]:
    of_position = {line.position: line for line in lines if line.is_of_slots}
    same = {
        position: _Same(line_columns(line, invoice, version), version)
        for position, line in of_position.items()
    }
    spread = {
        position: Spread(line.billed_micro or 0, line.quantity) for position, line in of_position.items()
    }
    of_any, said = _Same(invoice_columns(invoice), version), SaidLenders(names)
    for one in detail_of(statement, lines):
        if isinstance(one, Hit):
            if one.role == VICTIM:
                yield of_any.with_(_preempted(one))
            continue
        line, billed = of_position[one.position], spread[one.position].take(one.gpu_us)
        charge = charge_columns(line, one.gpu_us, billed, one.starts_ms, one.ends_ms)
        if one.lenders:
            charge["x_Lender"] = said.of(one)
        yield same[one.position].with_(charge)


def _preempted(hit: Hit) -> Row:
    start_ms = hit.decided_ms - hit.decided_ms % MS_PER_HOUR
    return preemption_columns(
        hit.preemption,
        hit.pool,
        hit.requeued_gpu_us,
        hit.waiting_gpu_us,
        start_ms,
        start_ms + MS_PER_HOUR,
    )


def _month(month: str, known: dict[str, Span]) -> Span:
    if month not in known:
        period = Period.objects.get(month=month)
        known[month] = Span(to_ms(period.starts_at), to_ms(period.ends_at))
    return known[month]
