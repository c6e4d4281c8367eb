"""One door to every file of a statement, shared by the command line, the API and the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext

from billing.exports import bill, preemptions, usage
from billing.models import Statement
from billing.selectors.names import Names
from ledger.access import Access
from ledger.core.csv_stream import csv_pieces


@dataclass(frozen=True)
class Format:
    """A file format of a statement: its columns, its rows, and how the file is called."""

    columns: Sequence[str]
    rows: Callable[[Statement, Access], Iterator[tuple[object, ...]]]


def _bill(statement: Statement, access: Access) -> Iterator[tuple[object, ...]]:
    return bill.bill_rows(statement)


def _usage(statement: Statement, access: Access) -> Iterator[tuple[object, ...]]:
    return usage.usage_rows(statement.tenant, statement.period)


def _preemptions(statement: Statement, access: Access) -> Iterator[tuple[object, ...]]:
    names = Names(access, at=statement.period.starts_at)
    return preemptions.preemption_rows(statement.tenant, statement.period, names, statement.currency)


FORMATS = {
    "bill": Format(bill.COLUMNS, _bill),
    "usage": Format(usage.COLUMNS, _usage),
    "preemptions": Format(preemptions.COLUMNS, _preemptions),
}


def statement_file(
    statement: Statement, name: str, access: Access, *, excel: bool = False
) -> Iterator[bytes]:
    """The file `name` (a key of FORMATS) of a statement, in pieces. `excel` adds a byte-order mark and headings in
    the reader's language."""
    chosen = FORMATS[name]
    headings = [gettext(column.replace("_", " ")) for column in chosen.columns] if excel else None
    return csv_pieces(chosen.columns, chosen.rows(statement, access), headings=headings)


def file_name(statement: Statement, name: str) -> str:
    return f"{statement.tenant.slug}-{statement.period_id}-{name}.csv"
