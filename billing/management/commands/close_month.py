"""`manage.py close_month MONTH`: close a month in review, in this process."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from billing.management.commands.open_review import operator
from billing.models import RunState
from billing.services.approvals import ApprovalError
from billing.services.closing import run_close, start_close
from billing.services.overrides import request_override
from billing.services.periods import PeriodError
from ledger.core.periods import Month
from ledger.management.base import BadInput, CommandFailed, LedgerCommand
from ledger.models import Period


class Command(LedgerCommand):
    help = (
        "Close a month that is in review: issue its statements for good. What blocks it can be overridden with a "
        "reason; by default a second person has to approve that before the month closes."
    )
    example = 'manage.py close_month 2026-10 --override "the lost batch was re-sent by hand"'

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("month", help="a month in review, such as 2026-10")
        parser.add_argument("--override", metavar="REASON", help="why to close over what blocks")

    def handle(self, *args: Any, **options: Any) -> None:
        by = operator()
        try:
            month = Month.parse(options["month"])
            if options["override"] is not None:
                self._override(month, options["override"])
            started = start_close(month, by)
        except (ValueError, PeriodError, ApprovalError) as error:
            raise BadInput(str(error)) from None
        run = run_close(started.pk, say=self._say if options["verbosity"] > 0 else lambda step: None)
        if run.state != RunState.DONE:
            raise CommandFailed(f"{month} is not closed: {run.message}")
        if options["verbosity"] > 0:
            self.stdout.write(f"{run.message}; head of the chain {run.chain_head}")

    def _override(self, month: Month, reason: str) -> None:
        period = Period.objects.filter(month=str(month)).first()
        if period is None:
            raise BadInput(f"{month} was never computed")
        approval = request_override(period, reason, operator())
        if approval is not None:
            raise CommandFailed(f"the override waits for a second person's approval ({approval.pk})")

    def _say(self, step: str) -> None:
        self.stdout.write(f"{step} ...")
