"""Says whether a source can be read, what is switched off there that is needed, and what would be read."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ingest.collectors.configured import collector_for, source_config
from ingest.collectors.contract import CollectorError, NotConfigured
from ingest.management.commands.collect import configured_source
from ledger.management.base import BadInput, CommandFailed, LedgerCommand


class Command(LedgerCommand):
    help = (
        "Ask a configured source whether it can be read, what is switched off there that is needed, and what would "
        "be read. Changes nothing. Exit 1 if something is missing."
    )
    example = "manage.py check_source bj-vllm"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="of the source, as in the configuration")

    def handle(self, *args: Any, **options: Any) -> None:
        source = configured_source(options["name"])
        missing = 0
        try:
            for finding in collector_for(source, source_config(source)).check():
                self.stdout.write(
                    f"{'ok     ' if finding.ok else 'MISSING'}  {finding.subject}: {finding.detail}"
                )
                missing += not finding.ok
        except NotConfigured as error:
            raise BadInput(str(error)) from None
        except CollectorError as error:
            raise CommandFailed(str(error)) from None
        if missing:
            raise CommandFailed(f"{missing} of what source {options['name']!r} needs is missing")
