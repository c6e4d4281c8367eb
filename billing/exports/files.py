"""One door to every file of a statement or a month, shared by the command line, the API and the pages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext

from billing.core.focus_columns import (
    BILLING_PERIOD,
    COST_AND_USAGE,
    FOCUS_1_2,
    FOCUS_1_4,
    INVOICE_DETAIL,
)
from billing.exports import bill
from billing.exports.focus import cost_and_usage
from billing.exports.focus_invoices import billing_period_rows, invoice_detail_rows
from billing.models import Statement
from billing.selectors import preemption_rows, usage_rows
from billing.selectors.annexes import annex_of, annex_pieces
from billing.selectors.focus_lines import with_heading
from billing.selectors.names import Names
from billing.selectors.statements import statements_for
from ledger.access import Access
from ledger.core.csv_stream import csv_pieces, with_headings
from ledger.models import Period
from ledger.snapshots import in_snapshot

_STATEMENTS_A_FETCH = 50


@dataclass(frozen=True)
class Format:
    """A file format of a statement: its columns and its rows. standard: column names are a standard's, in no
    reader's language."""

    columns: Sequence[str]
    rows: Callable[[Statement, Access], Iterator[tuple[object, ...]]]
    standard: bool = False


@dataclass(frozen=True)
class MonthFormat:
    """A file format of all statements of a month that the asker may see."""

    columns: Sequence[str]
    rows: Callable[[Iterable[Statement], Names], Iterator[tuple[object, ...]]]


def _bill(statement: Statement, access: Access) -> Iterator[tuple[object, ...]]:
    return bill.bill_rows(statement)


def _usage(statement: Statement, access: Access) -> Iterator[tuple[object, ...]]:
    return usage_rows.usage_rows(statement.tenant, statement.period)


def _preemptions(statement: Statement, access: Access) -> Iterator[tuple[object, ...]]:
    names = Names(access, at=statement.period.starts_at)
    return preemption_rows.preemption_rows(statement.tenant, statement.period, names, statement.currency)


MONTH_FORMATS = {
    "focus-1.2": MonthFormat(
        COST_AND_USAGE[FOCUS_1_2], lambda rows, names: cost_and_usage(rows, names, FOCUS_1_2)
    ),
    "focus-1.4": MonthFormat(
        COST_AND_USAGE[FOCUS_1_4], lambda rows, names: cost_and_usage(rows, names, FOCUS_1_4)
    ),
    "focus-1.4-billing-period": MonthFormat(BILLING_PERIOD, lambda rows, names: billing_period_rows(rows)),
    "focus-1.4-invoice-detail": MonthFormat(INVOICE_DETAIL, lambda rows, names: invoice_detail_rows(rows)),
}


def _as_of_statement(chosen: MonthFormat) -> Format:
    def rows(statement: Statement, access: Access) -> Iterator[tuple[object, ...]]:
        one = with_heading(statements_for(access).filter(pk=statement.pk))
        return chosen.rows(one, Names(access, at=statement.period.starts_at))

    return Format(chosen.columns, rows, standard=True)


FORMATS = {
    "bill": Format(bill.COLUMNS, _bill),
    "usage": Format(usage_rows.COLUMNS, _usage),
    "preemptions": Format(preemption_rows.COLUMNS, _preemptions),
} | {name: _as_of_statement(chosen) for name, chosen in MONTH_FORMATS.items()}


def statement_file(
    statement: Statement, name: str, access: Access, *, excel: bool = False
) -> Iterator[bytes]:
    """The file `name` (a key of FORMATS) of a statement, in pieces. `excel` adds a byte-order mark and headings in
    the reader's language (a standard's keep their names). An issued statement's usage and preemptions are the files as
    it was issued with them."""
    chosen = FORMATS[name]
    headings = None
    if excel:
        headings = list(chosen.columns)
        if not chosen.standard:
            headings = [gettext(column.replace("_", " ")) for column in chosen.columns]
    annex = annex_of(statement, name, access)
    if annex is not None:
        return with_headings(annex_pieces(annex), headings)
    return in_snapshot(lambda: csv_pieces(chosen.columns, chosen.rows(statement, access), headings=headings))


def month_file(period: Period, name: str, access: Access, *, excel: bool = False) -> Iterator[bytes]:
    """The file `name` (a key of MONTH_FORMATS) of a month's statements, as far as the asker may see them."""
    chosen = MONTH_FORMATS[name]
    headings = list(chosen.columns) if excel else None

    def pieces() -> Iterator[bytes]:
        rows = with_heading(statements_for(access).filter(period=period)).order_by("tenant__holder__slug")
        streamed = rows.select_related("tenant__account").iterator(chunk_size=_STATEMENTS_A_FETCH)
        return csv_pieces(
            chosen.columns, chosen.rows(streamed, Names(access, at=period.starts_at)), headings=headings
        )

    return in_snapshot(pieces)


def checksum(pieces: Iterable[bytes], name: str) -> bytes:
    """What `sha256sum` prints of a file, so that `sha256sum -c` checks a download."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return f"{digest.hexdigest()}  {name}\n".encode()


def file_name(statement: Statement, name: str) -> str:
    return f"{statement.tenant.slug}-{statement.period_id}-{name}.csv"


def month_file_name(period: Period, name: str) -> str:
    return f"{period.month}-{name}.csv"
