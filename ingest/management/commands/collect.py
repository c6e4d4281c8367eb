"""Collects one source now, or a window of its past, and books what came; needs no worker."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from ingest.collectors.configured import present_ms
from ingest.collectors.contract import CollectorError, NotConfigured, Window
from ingest.collectors.running import Step, collect
from ingest.core.adapters.base import Notice, rfc3339
from ingest.services.booking import book_batch
from ledger.core.periods import to_ms
from ledger.management.base import BadInput, CommandFailed, LedgerCommand
from ledger.models import Source

COUNTS = ("received", "booked", "duplicate", "conflict", "quarantined")


class Command(LedgerCommand):
    help = (
        "Collect a configured source: on from where it was left, or a window of its past. "
        "Instants are RFC 3339 with an offset, or dates, which begin in UTC."
    )
    example = "manage.py collect bj-vllm --since 2026-09-01 --until 2026-09-02"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="of the source, as in the configuration")
        parser.add_argument("--since", help="start of the window")
        parser.add_argument("--until", help="its end; now if left out")

    def handle(self, *args: Any, **options: Any) -> None:
        source = configured_source(options["name"])
        window = wanted_window(options["since"], options["until"])
        totals: Counter[str] = Counter()
        notices: Counter[str] = Counter()
        problems: list[str] = []
        try:
            for step in collect(source, window):
                totals += self.book(step)
                notices += Counter(notice.reason for notice in step.notices)
                problems = step.problems
                if options["verbosity"] > 1:
                    self.show(step)
        except NotConfigured as error:
            raise BadInput(str(error)) from None
        except CollectorError as error:
            raise CommandFailed(str(error)) from None
        self.stdout.write(", ".join(f"{count} {totals[count]}" for count in COUNTS))
        for reason, count in sorted(notices.items()):
            self.stdout.write(f"  {reason}: {count}")
        if problems:
            raise CommandFailed("; ".join(problems))

    def book(self, step: Step) -> Counter[str]:
        counts: Counter[str] = Counter()
        for batch_id in step.batches:
            receipt = book_batch(batch_id, wait=True)
            if receipt is not None:  # else a worker was faster
                counts.update({count: getattr(receipt, count) for count in COUNTS})
        return counts

    def show(self, step: Step) -> None:
        self.stdout.write(f"up to {rfc3339(step.reached_ms)}: {step.events} events, {step.refused} refused")
        for notice in step.notices:
            self.stdout.write(f"  {notice.reason}: {said(notice)}")


def said(notice: Notice) -> str:
    if notice.starts_ms is None or notice.ends_ms is None:
        return notice.detail
    return f"{notice.detail} ({rfc3339(notice.starts_ms)} to {rfc3339(notice.ends_ms)})"


def configured_source(name: str) -> Source:
    """Raises `BadInput`."""
    source = Source.objects.filter(name=name).first()
    if source is None:
        raise BadInput(
            f"no source is called {name!r}; apply_config reads sources from the configuration file"
        )
    return source


def wanted_window(since: str | None, until: str | None) -> Window | None:
    """Raises `BadInput`."""
    if since is None:
        if until is not None:
            raise BadInput("--until needs --since")
        return None
    starts_ms = instant(since, "--since")
    ends_ms = present_ms() if until is None else instant(until, "--until")
    if starts_ms >= ends_ms:
        raise BadInput(f"the window from {since} to {until or 'now'} is empty")
    return Window(starts_ms, ends_ms)


def instant(text: str, option: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"{option} {text!r} is neither an instant such as 2026-09-01T08:00:00Z nor a date"
        ) from None
    if moment.tzinfo is None:
        if len(text) > len("2026-09-01"):
            raise BadInput(f"{option} {text!r} has no offset from UTC")
        moment = moment.replace(tzinfo=UTC)
    return to_ms(moment)
