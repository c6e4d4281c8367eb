"""Writes one file of one tenant's month."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from billing.exports.files import FORMATS, statement_file
from billing.models import Statement
from billing.selectors.statements import statement_of
from ledger.access import Access
from ledger.management.base import BadInput, LedgerCommand
from ledger.models import Role

# Whoever reaches the command line of the server reads the books as an auditor does.
OPERATOR = Access(name="command line", roles=frozenset({Role.AUDITOR}))


class Command(LedgerCommand):
    help = (
        "Write a tenant's month as CSV: the bill, its usage by the hour, its preemptions, or FOCUS datasets."
    )
    example = "manage.py export_statement 2026-10 acme --format bill -o acme.csv"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("month", help="such as 2026-10")
        parser.add_argument("tenant", help="the tenant's slug")
        parser.add_argument("--format", choices=sorted(FORMATS), default="bill")
        parser.add_argument("-o", "--output", type=Path, help="the file to write; standard output without it")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            statement = statement_of(options["month"], options["tenant"], OPERATOR)
        except Statement.DoesNotExist:
            raise BadInput(
                f"there is no statement of {options['tenant']} for {options['month']}; "
                f"has `manage.py compute_allocation {options['month']}` run?"
            ) from None
        pieces = statement_file(statement, options["format"], OPERATOR)
        output: Path | None = options["output"]
        if output is None:
            self._to_standard_output(pieces)
            return
        with output.open("wb") as file:
            file.writelines(pieces)

    def _to_standard_output(self, pieces: Any) -> None:
        out = self.stdout._out  # type: ignore[attr-defined]
        if out is sys.stdout:  # bytes, so that line ends stay as they are
            out.buffer.writelines(pieces)
            return
        for piece in pieces:
            self.stdout.write(piece.decode(), ending="")
