"""`manage.py compute_allocation MONTH`: bring a month's allocation up to date with the facts."""

from typing import Any

from django.core.management.base import CommandParser
from django.utils.dateparse import parse_datetime

from billing.services.allocation import MonthClosed, compute_allocation
from ledger.core.periods import Month
from ledger.core.units import MS_PER_DAY
from ledger.management.base import BadInput, LedgerCommand
from ledger.models import Pool


class Command(LedgerCommand):
    help = "Split every pool's GPU time of a month among its holders. Only what changed is computed again."
    example = "manage.py compute_allocation 2026-10 --pool bj-h100"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("month", help="a month of the billing time zone, such as 2026-10")
        parser.add_argument("--pool", help="only this pool")
        parser.add_argument(
            "--horizon", help="compute up to this instant (RFC 3339); default: the last whole hour"
        )
        parser.add_argument("--all", action="store_true", help="compute every day again, changed or not")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            month = Month.parse(options["month"])
        except ValueError as error:
            raise BadInput(str(error)) from None
        pool = None
        if options["pool"]:
            pool = Pool.objects.filter(slug=options["pool"]).first()
            if pool is None:
                raise BadInput(f"there is no pool {options['pool']!r}")
        horizon = None
        if options["horizon"]:
            horizon = parse_datetime(options["horizon"])
            if horizon is None or horizon.tzinfo is None:
                raise BadInput(f"--horizon {options['horizon']!r} is not an instant with an offset")
        try:
            done = compute_allocation(month, pool, horizon, everything=options["all"])
        except MonthClosed as error:
            raise BadInput(str(error)) from None
        days = sum(-(-span.length_ms // MS_PER_DAY) for spans in done.spans.values() for span in spans)
        self.stdout.write(
            f"{month} up to {done.horizon:%Y-%m-%d %H:%M} UTC: {days} pool days computed, {done.slots} slots, "
            f"{done.rows} rows, {done.findings} findings"
        )
