"""`manage.py prune_requests`: raw requests past retention into an archive, and out of the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser
from django.utils import timezone

from ingest.services.memories import forget_memories
from ingest.services.pruning import ArchiveBroken, forget_bodies, prunable_days, prune_requests
from ledger.management.base import BadInput, CommandFailed, LedgerCommand


class Command(LedgerCommand):
    help = (
        "Archive and drop the raw requests of days past retention whose months are closed and can no longer be "
        "disputed, and forget bodies of old batches. Roll-ups, statements and proofs stay."
    )
    example = "manage.py prune_requests --archive /backup/requests --dry-run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--archive", type=Path, help="directory of the archive; default: archive/ in LEDGER_VAR"
        )
        parser.add_argument("--dry-run", action="store_true", help="say what would go, change nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        archive = options["archive"] or settings.VAR_DIR / "archive"
        days, kept = prunable_days(now)
        rows = 0
        if options["dry_run"]:
            for day in days:
                self.stdout.write(f"would prune {day.isoformat()}")
        else:
            try:
                for pruned in self.progress(prune_requests(days, archive), "Pruning", len(days), "days"):
                    rows += pruned.rows
            except OSError as error:
                raise BadInput(f"the archive {archive} cannot be written: {error}") from None
            except ArchiveBroken as error:
                raise CommandFailed(f"{error}; nothing of that day was dropped") from None
            bodies = forget_bodies(now)
            forget_memories()
            self.stdout.write(
                f"{len(days)} days with {rows} requests archived and dropped, {bodies} batch bodies forgotten"
            )
        if kept is not None:
            self.stdout.write(f"{kept.day.isoformat()} and later stay: {kept.why}")
