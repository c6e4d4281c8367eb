"""Loads a simulated month through the doors that real data takes: a configuration file, then batches of events."""

from __future__ import annotations

import io
import tempfile
from argparse import ArgumentParser
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.models import Q
from django.utils import timezone

from ingest.core.demo import DemoMonth, DemoSize, batches, generate
from ingest.core.demo.calendar import Calendar
from ingest.core.demo.cast import LAUNCH_POOL
from ingest.core.demo.configuration import mark
from ingest.services.booking import book_batch
from ingest.services.inbox import Body, accept_batch
from ledger.core.periods import Month, to_datetime, to_ms
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_SECOND
from ledger.demo_logins import DEMO_PASSWORD
from ledger.management.base import BadInput, LedgerCommand
from ledger.models import Ledger, Role, Source, Tenant
from ledger.services.demo_users import DEMO_USERS, create_demo_users

DOOR = "load_demo_month"
DEFAULT_ZONE = "Asia/Shanghai"
BATCH_EVENTS = 20_000
COUNTS = ("received", "booked", "duplicate", "conflict", "quarantined")
SIZE = DemoSize()
VICTIM = next(user for user in DEMO_USERS if user.role == Role.TENANT_VIEWER)
DISPUTED = "on_demand"
LAUNCH_TIME = (10, 4)  # of its first surge, in the billing time zone
DISPUTE = (
    "On the launch day our training was stopped at 10:04 and waited. Please check that these hours end there."
)


class Command(LedgerCommand):
    help = (
        "Load a simulated month of a GPU cluster (by default the last complete one) through the ordinary ingest "
        "path, compute it, and make one demo account per role. The same arguments give the same month, to the byte. "
        "Several months can be loaded one after another; a ledger with data of its own is left alone."
    )
    example = "manage.py load_demo_month 2026-10 --seed 7 --gpus 2000"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("month", nargs="?", help="such as 2026-10; the last complete one if left out")
        parser.add_argument("--seed", type=int, default=1, help="another seed, another month (%(default)s)")
        parser.add_argument("--tenants", type=int, default=SIZE.tenants, help="how many (%(default)s)")
        parser.add_argument("--gpus", type=int, default=SIZE.gpus, help="about how many (%(default)s)")
        parser.add_argument(
            "--requests", type=int, default=SIZE.requests, help="reported one by one (%(default)s)"
        )
        parser.add_argument(
            "--running",
            action="store_true",
            help="the running month as well, up to now, so that something runs",
        )
        parser.add_argument("--time-zone", help=f"billing time zone of the ledger ({DEFAULT_ZONE})")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        zone = billing_zone(options["time_zone"])
        months = [wanted_month(options["month"], zone, now)]
        running = Month.containing(to_ms(now), zone)
        if (
            options["running"]
            and running.starts_ms(zone) + MS_PER_HOUR <= to_ms(now)
            and running not in months
        ):
            months.append(running)
        size = DemoSize(options["tenants"], options["gpus"], options["requests"])
        for month in months:
            refuse_another(month, size, options["seed"])
        launches = [self.load(month, zone, size, options["seed"], to_ms(now)) for month in months]
        if self.make_accounts():
            self.dispute(months[0], launches[0])

    def load(self, month: Month, zone: str, size: DemoSize, seed: int, now_ms: int) -> datetime:
        """Returns when the month's launch begins."""
        self.say(f"Simulating {month} in {zone}: {size.tenants} tenants, about {size.gpus} GPUs")
        try:
            demo = generate(month, zone, size, seed)
        except ValueError as error:
            raise BadInput(str(error)) from None
        self.apply(demo)
        self.book(demo, now_ms)
        self.say(f"Computing {month}")
        call_command("compute_allocation", str(month), stdout=self.stdout, stderr=self.stderr)
        analyze()
        self.look_for_alerts(demo, now_ms)
        return to_datetime(Calendar(month, zone).at(demo.launch_day, *LAUNCH_TIME))

    def look_for_alerts(self, demo: DemoMonth, now_ms: int) -> None:
        """What the alert rules would have said in the course of the month; by the command's name, too.

        Budgets belong to the month that the clock shows: they are looked at in its last second, too.
        """
        span = demo.month.span(demo.zone)
        ends_ms = min(span.end_ms, now_ms)
        for at_ms, since_ms in ((ends_ms - MS_PER_SECOND, span.start_ms), (ends_ms, ends_ms - MS_PER_DAY)):
            at, since = to_datetime(at_ms).isoformat(), to_datetime(since_ms).isoformat()
            call_command("evaluate_alerts", at=at, since=since, stdout=self.stdout, stderr=self.stderr)

    def apply(self, demo: DemoMonth) -> None:
        """By the command's name: prices are billing's business."""
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "ledger.toml"
            file.write_text(demo.configuration, encoding="utf-8")
            # Its terms begin with the month, and so in the past.
            call_command("apply_config", str(file), retroactive=True, stdout=said, stderr=self.stderr)
        self.say(f"Configuration: {said.getvalue().splitlines()[-1]}")

    def book(self, demo: DemoMonth, now_ms: int) -> None:
        """Hand over what was sent by now: of a month that still runs, the part so far, and what is planned."""
        happened = [event for event in demo.events if event.sent_ms <= now_ms]
        count = -(-len(happened) // BATCH_EVENTS)
        counts: Counter[str] = Counter()
        for content in self.progress(batches(happened, BATCH_EVENTS), "Booking", count, "batches"):
            body = Body(content, "application/x-ndjson")
            batch, _ = accept_batch(body, door=DOOR, submitted_by=DOOR)
            book_batch(batch.pk, wait=True)
            batch.refresh_from_db(fields=COUNTS)
            counts.update({name: getattr(batch, name) for name in COUNTS})
        self.say("Events: " + ", ".join(f"{counts[name]} {name}" for name in COUNTS))
        analyze()
        ends_ms = demo.month.span(demo.zone).end_ms
        if ends_ms <= now_ms:
            self.sign_off(demo, to_datetime(ends_ms))

    def sign_off(self, demo: DemoMonth, ends_at: datetime) -> None:
        """Every emitter says that nothing more is to come of its month, so that the month can be closed."""
        signed_off = Q(complete_until__gte=ends_at)
        Source.objects.filter(uri__in=demo.sources).exclude(signed_off).update(complete_until=ends_at)

    def dispute(self, month: Month, launch: datetime) -> None:
        """The launch's victim disputes its dearest line of what the launch took, for finance to answer; by the
        command's name, too. Once.
        """
        of = {"category": DISPUTED, "pool": LAUNCH_POOL, "at": launch.isoformat()}
        said = {**of, "reason": DISPUTE, "by": VICTIM.username}
        try:
            call_command(
                "open_dispute", str(month), VICTIM.tenant, **said, stdout=self.stdout, stderr=self.stderr
            )
        except BadInput as none:
            self.say(f"No dispute: {none}")  # loaded again, or a seed by which it has no such line

    def make_accounts(self) -> bool:
        if not create_demo_users():
            self.say("This ledger has accounts already; no demo accounts are made")
            return False
        self.say(f"Demo accounts, all with the password {DEMO_PASSWORD}:")
        for demo in DEMO_USERS:
            of = f" of {demo.tenant}" if demo.tenant else ""
            self.say(f"  {demo.username:<12} {demo.role.label}{of}")
        return True

    def say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def analyze() -> None:
    """Of tables that were empty a minute ago the planner believes that they still are, and loops over them."""
    with connection.cursor() as cursor:
        # Only ours: with the catalogues that all databases share it would wait for whoever analyses those.
        tables = sorted({connection.ops.quote_name(model._meta.db_table) for model in apps.get_models()})
        cursor.execute(f"ANALYZE {', '.join(tables)}")


def billing_zone(asked: str | None) -> str:
    """The zone of a ledger that has tenants; of an empty one whatever is asked for.

    Raises:
        BadInput: the ledger counts its months in another zone, or the zone does not exist.
    """
    ledger = Ledger.objects.first()
    if ledger is None or not Tenant.objects.exists():
        return checked_zone(asked or DEFAULT_ZONE)
    if asked and asked != ledger.billing_time_zone:
        raise BadInput(f"--time-zone {asked}: this ledger counts its months in {ledger.billing_time_zone}")
    return ledger.billing_time_zone


def checked_zone(name: str) -> str:
    try:
        Month(2026, 1).starts_ms(name)
    except (KeyError, ValueError, OSError):
        raise BadInput(f"--time-zone: {name!r} is not an IANA time zone") from None
    return name


def wanted_month(text: str | None, zone: str, now: datetime) -> Month:
    """The month that is asked for, or the last one that is over.

    Raises:
        BadInput: no month, or one that has not begun.
    """
    running = Month.containing(to_ms(now), zone)
    if text is None:
        return running.previous()
    try:
        month = Month.parse(text)
    except ValueError as error:
        raise BadInput(str(error)) from None
    if month > running:
        raise BadInput(f"{month} has not begun")
    return month


def refuse_another(month: Month, size: DemoSize, seed: int) -> None:
    """A demo month is never mixed with real data, nor with another version of itself.

    Raises:
        BadInput: with what is there already.
    """
    ledger = Ledger.objects.first()
    options = ledger.options if ledger is not None else {}
    if Tenant.objects.exists() and not any(option.startswith(mark("")) for option in options):
        raise BadInput("this ledger holds data of its own; load the demo month into an empty database")
    before = options.get(mark(str(month)))
    if before is not None and before != size.signature(seed):
        raise BadInput(f"{month} is loaded already, with {before}")
