"""Tries quarantined events again, after their cause was mended."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.core.management.base import CommandParser

from ingest.services.retrying import open_quarantine, retry_quarantine
from ledger.management.base import BadInput, LedgerCommand

COUNTS = ("received", "booked", "duplicate", "conflict", "quarantined")


class Command(LedgerCommand):
    help = "Try quarantined events again. Each line is booked once; what is still wrong stays in quarantine."
    example = "manage.py retry_quarantine --reason unknown_tenant"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--reason", action="append", default=[], help="only with this reason; can be repeated"
        )
        parser.add_argument("--batch", type=int, help="only of this batch")

    def handle(self, *args: Any, **options: Any) -> None:
        chosen: dict[str, Any] = {"reasons": options["reason"], "batch_id": options["batch"]}
        waiting = open_quarantine(**chosen).count()
        if not waiting and (options["reason"] or options["batch"] is not None):
            raise BadInput("nothing in quarantine fits that and can be tried again")
        totals: Counter[str] = Counter()
        receipts = retry_quarantine(**chosen, by="command line")
        for receipt in self.progress(receipts, f"Trying {waiting} events again", unit="batches"):
            totals.update({count: getattr(receipt, count) for count in COUNTS})
        self.stdout.write(", ".join(f"{count} {totals[count]}" for count in COUNTS))
