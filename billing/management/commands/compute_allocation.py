"""`manage.py compute_allocation MONTH`: bring a month's books up to date with the facts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.utils.dateparse import parse_datetime

from billing.services.months import ComputedMonth, MonthClosed, compute_month
from ledger.core.periods import Month
from ledger.core.units import MS_PER_DAY
from ledger.management.base import BadInput, LedgerCommand
from ledger.models import Pool


class Command(LedgerCommand):
    help = (
        "Split every pool's GPU time of a month among its holders, rate it, post what changed and draft the "
        "statements. Only days that changed are split again."
    )
    example = "manage.py compute_allocation 2026-10 --pool bj-h100"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("month", help="a month of the billing time zone, such as 2026-10")
        parser.add_argument("--pool", help="split only this pool's changed days")
        parser.add_argument(
            "--horizon", help="compute up to this instant (RFC 3339); default: the last whole hour"
        )
        parser.add_argument("--all", action="store_true", help="split every day again, changed or not")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            month = Month.parse(options["month"])
        except ValueError as error:
            raise BadInput(str(error)) from None
        try:
            done = compute_month(
                month,
                pool=self._pool(options["pool"]),
                horizon=self._horizon(options["horizon"]),
                everything=options["all"],
            )
        except MonthClosed as error:
            raise BadInput(str(error)) from None
        if options["verbosity"] > 0:
            self._report(done)

    @staticmethod
    def _pool(slug: str | None) -> Pool | None:
        if not slug:
            return None
        pool = Pool.objects.filter(slug=slug).first()
        if pool is None:
            raise BadInput(f"there is no pool {slug!r}")
        return pool

    @staticmethod
    def _horizon(text: str | None) -> datetime | None:
        if not text:
            return None
        horizon = parse_datetime(text)
        if horizon is None or horizon.tzinfo is None:
            raise BadInput(f"--horizon {text!r} is not an instant with an offset")
        return horizon

    def _report(self, done: ComputedMonth) -> None:
        split = done.allocation
        days = sum(-(-span.length_ms // MS_PER_DAY) for spans in split.spans.values() for span in spans)
        self.stdout.write(
            f"{done.month} up to {split.horizon:%Y-%m-%d %H:%M} UTC: {days} pool days computed, "
            f"{split.slots} slots, {split.rows} rows, {split.findings} findings; "
            f"{done.preemptions} preemptions, {done.lines} lines, {done.transfers} transfers, "
            f"{done.statements} statements changed"
        )
