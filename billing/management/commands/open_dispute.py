"""`manage.py open_dispute MONTH TENANT`: say that a line of a statement is wrong."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.utils.dateparse import parse_datetime

from billing.management.commands.open_review import operator
from billing.models import Statement, StatementLine
from billing.services.disputes import DisputeError, open_dispute
from ledger.management.base import BadInput, LedgerCommand
from ledger.services.audit import Actor


class Command(LedgerCommand):
    help = "Dispute a line of a tenant's statement, as the tenant could on its page; finance answers there."
    example = 'manage.py open_dispute 2026-10 acme --line 4 --reason "These hours are not ours"'

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("month", help="such as 2026-10")
        parser.add_argument("tenant", help="slug of the tenant whose statement it is")
        parser.add_argument("--line", type=int, help="number of the line; the dearest one if left out")
        parser.add_argument("--category", help="the dearest line of this category, such as on_demand")
        parser.add_argument("--pool", help="the dearest line of this pool")
        parser.add_argument(
            "--at", help="of lines at several versions of the terms those in force at this instant (RFC 3339)"
        )
        parser.add_argument("--reason", required=True, help="what is wrong with it; stays on record")
        parser.add_argument("--by", help="who disputes it; whoever sits at the command line if left out")

    def handle(self, *args: Any, **options: Any) -> None:
        statement = Statement.objects.filter(
            period=options["month"], tenant__holder__slug=options["tenant"]
        ).first()
        if statement is None:
            raise BadInput(f"there is no statement of {options['tenant']} for {options['month']}")
        lines = StatementLine.objects.filter(statement=statement).select_related("statement")
        if options["line"] is not None:
            lines = lines.filter(position=options["line"])
        for name in ("category", "pool"):
            if options[name]:
                lines = lines.filter(**{name: options[name]})
        order = ["-amount_micro", "position"]
        if options["at"]:
            lines = lines.filter(version_from__lte=instant(options["at"]))
            order.insert(0, "-version_from")
        line = lines.order_by(*order).first()
        if line is None:
            raise BadInput(f"there is no such line on {statement.number}")
        by = Actor(options["by"]) if options["by"] else operator()
        try:
            open_dispute(line, options["reason"], by)
        except DisputeError as error:
            raise BadInput(str(error)) from None
        if options["verbosity"] > 0:
            self.stdout.write(f"Line {line.position} of {statement.number} is in dispute")


def instant(text: str) -> datetime:
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadInput(f"--at {text!r} is not an instant with an offset")
    return found
