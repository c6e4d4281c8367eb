"""`manage.py export_evidence MONTH`: everything that proves a closed month, checkable without the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from billing.exports.evidence import SAMPLE_LINES, evidence_zip
from ledger.management.base import BadInput, LedgerCommand
from ledger.models import Period, PeriodState


class Command(LedgerCommand):
    help = (
        "Write statements, policies, rates, checklist, approvals, hashes and a random sample traced to raw bytes into "
        "one archive, with a script (check.py) that checks it with nothing but Python."
    )
    example = "manage.py export_evidence 2026-10 -o evidence-2026-10.zip"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("month", help="such as 2026-10; it has to be closed")
        parser.add_argument(
            "-o", "--output", type=Path, help="the file to write; default: evidence-MONTH.zip"
        )
        parser.add_argument(
            "--seed", type=int, default=1, help="of the random sample; the same seed, the same sample"
        )
        parser.add_argument("--lines", type=int, default=SAMPLE_LINES, help="slots in the sample")

    def handle(self, *args: Any, **options: Any) -> None:
        period = Period.objects.filter(month=options["month"]).first()
        if period is None or period.state != PeriodState.CLOSED:
            raise BadInput(f"{options['month']} is not closed; only a closed month can be proved")
        if options["lines"] < 0:
            raise BadInput("--lines cannot be negative")
        output: Path = options["output"] or Path(f"evidence-{period.month}.zip")
        with output.open("wb") as file:
            file.writelines(evidence_zip(period, options["seed"], options["lines"]))
        self.stdout.write(f"{output}: unpack it and run python3 check.py")
