"""Makes tenants, pools, rates, policies and sources what a TOML file says."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from billing.core.configuration import ConfigurationError, parse
from billing.services.configuration import apply_configuration
from ledger.management.base import LedgerCommand


class Command(LedgerCommand):
    help = "Apply a declarative TOML file: tenants, identities, pools, services, rates, policies, sources."
    example = "manage.py apply_config ledger.toml --dry-run"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="the TOML file")
        parser.add_argument("--dry-run", action="store_true", help="print the diff, change nothing")
        parser.add_argument(
            "--retroactive", action="store_true", help="allow versions of terms that begin in the past"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        file: Path = options["file"]
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CommandError(f"{file}: {error}") from None
        try:
            diff = apply_configuration(
                parse(text), by="apply_config", retroactive=options["retroactive"], dry_run=options["dry_run"]
            )
        except ConfigurationError as error:
            raise CommandError(f"{file}: {error}") from None
        for line in diff:
            self.stdout.write(str(line))
        ended = "would change" if options["dry_run"] else "changed"
        self.stdout.write(f"{len(diff)} {ended}" if diff else "nothing to change")
