"""`manage.py open_review MONTH`: from open to review."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import CommandParser

from billing.services.periods import PeriodError, open_review
from ledger.core.periods import Month
from ledger.management.base import BadInput, LedgerCommand
from ledger.services.audit import Actor


def operator() -> Actor:
    """Whoever sits at the command line, by the name the machine knows."""
    return Actor(f"command line: {getpass.getuser()}")


class Command(LedgerCommand):
    help = (
        "Compute a month to its end and put it into review: its statements are drafts for people to look at."
    )
    example = "manage.py open_review 2026-10"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("month", help="a month that is over, such as 2026-10")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            period = open_review(Month.parse(options["month"]), operator())
        except (ValueError, PeriodError) as error:
            raise BadInput(str(error)) from None
        if options["verbosity"] > 0:
            self.stdout.write(f"{period.month} is in review")
