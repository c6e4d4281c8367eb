"""Computes a month's books from the facts: allocation, rating, transfers, draft statements."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from billing.services.months import MonthClosed, compute_month
from ledger.core.periods import Month
from ledger.management.base import BadInput, LedgerCommand
from ledger.models import Pool


class Command(LedgerCommand):
    help = "Bring a month's books up to date with the facts. Doing it twice changes nothing."
    example = "manage.py compute_allocation 2026-10 --pool bj-h100"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("month", help="such as 2026-10")
        parser.add_argument("--pool", help="allocate only this pool's changed days")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            month = Month.parse(options["month"])
        except ValueError as error:
            raise BadInput(str(error)) from None
        loud = options["verbosity"] > 0
        try:
            done = compute_month(month, pool=self._pool(options["pool"]), say=self._say if loud else _quiet)
        except MonthClosed as error:
            raise BadInput(f"{error}; later facts are posted to the next open month") from None
        if loud:
            self.stdout.write(
                f"{month} up to {done.horizon.isoformat()}: {done.pool_days} stretches of days, "
                f"{done.preemptions} preemptions, {done.lines} lines, {done.transfers} transfers, "
                f"{done.statements} statements changed"
            )

    def _say(self, step: str) -> None:
        self.stderr.write(f"{step} ...")

    @staticmethod
    def _pool(slug: str | None) -> Pool | None:
        if slug is None:
            return None
        pool = Pool.objects.filter(slug=slug).first()
        if pool is None:
            raise BadInput(f"unknown pool {slug!r}")
        return pool


def _quiet(step: str) -> None:
    """For callers that print nothing."""
