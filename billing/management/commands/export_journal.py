"""`manage.py export_journal MONTH`: the transfers of a month for other books."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from billing.exports.journal import FORMATS, journal
from ledger.management.base import BadInput, LedgerCommand
from ledger.models import Period


class Command(LedgerCommand):
    help = "Write every transfer posted in a month, as CSV or as a file that bean-check accepts."
    example = "manage.py export_journal 2026-10 --format beancount -o 2026-10.beancount"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("month", help="such as 2026-10")
        parser.add_argument("--format", choices=FORMATS, default="csv")
        parser.add_argument("-o", "--output", type=Path, help="the file to write; standard output without it")

    def handle(self, *args: Any, **options: Any) -> None:
        period = Period.objects.filter(month=options["month"]).first()
        if period is None:
            raise BadInput(f"nothing was ever computed for {options['month']}")
        pieces = journal(period, options["format"])
        output: Path | None = options["output"]
        if output is not None:
            with output.open("wb") as file:
                file.writelines(pieces)
            return
        out = self.stdout._out  # type: ignore[attr-defined]
        if out is sys.stdout:  # bytes, so that line ends stay as they are
            out.buffer.writelines(pieces)
            return
        for piece in pieces:
            self.stdout.write(piece.decode(), ending="")
