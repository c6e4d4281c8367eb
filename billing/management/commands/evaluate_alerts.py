"""`manage.py evaluate_alerts`: look at the alert rules now, or as of an instant, over a stretch of time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from billing.services.alerts import evaluate_alerts
from ledger.management.base import BadInput, LedgerCommand


class Command(LedgerCommand):
    help = (
        "Look at the alert rules as beat does every minute. With --since, what is over is found from there on, "
        "budgets apart: after an import of old facts, or to see what a new rule would have said."
    )
    example = "manage.py evaluate_alerts --since 2026-10-01T00:00:00Z"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--at", help="as of this instant (RFC 3339); default: now")
        parser.add_argument(
            "--since", help="how far back to look (RFC 3339); default: 2 hours, once an hour 26"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        at = self._instant(options["at"], "--at") or timezone.now()
        since = self._instant(options["since"], "--since")
        if since is not None and since > at:
            raise BadInput("--since lies behind --at")
        counts = evaluate_alerts(at, since)
        if options["verbosity"] > 0:
            self.stdout.write(
                f"{counts['opened']} alerts opened, {counts['seen']} seen again, {counts['resolved']} resolved"
            )

    @staticmethod
    def _instant(text: str | None, option: str) -> datetime | None:
        if not text:
            return None
        try:
            found = parse_datetime(text)
        except ValueError:
            found = None
        if found is None or found.tzinfo is None:
            raise BadInput(f"{option} {text!r} is not an instant with an offset")
        return found
