"""`manage.py verify_ledger`: everything that must always hold, computed again from the facts."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from billing.checks import CHECKS
from ledger.core.periods import Month
from ledger.management.base import BadInput, CommandFailed, LedgerCommand
from ledger.models import Period


class Command(LedgerCommand):
    help = (
        "Check the invariants of the books: conservation, posted = target, statements and their hashes, the "
        "books against the facts. Exit 1 and one line for each deviation; nothing is changed."
    )
    example = "manage.py verify_ledger --month 2026-10"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--month", help="only this month, such as 2026-10")

    def handle(self, *args: Any, **options: Any) -> None:
        month = self._month(options["month"])
        findings = 0
        for check in self.progress(CHECKS, "Checking"):
            for finding in check(month):
                findings += 1
                self.stdout.write(str(finding))
        if findings:
            raise CommandFailed(f"{findings} deviations")
        self.stdout.write(f"{len(CHECKS)} invariants hold")

    @staticmethod
    def _month(text: str | None) -> str | None:
        if text is None:
            return None
        try:
            month = str(Month.parse(text))
        except ValueError as error:
            raise BadInput(str(error)) from None
        if not Period.objects.filter(month=month).exists():
            raise BadInput(f"there are no books of {month}")
        return month
