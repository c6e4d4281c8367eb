"""Keeps the translations complete: finds the texts, updates the .po files, compiles them."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings

from ledger.management.base import CommandFailed, LedgerCommand
from ledger.management.catalogue import compiled, read_catalogue, texts_in, updated, write_catalogue


class Command(LedgerCommand):
    needs_tables = False
    help = (
        "Find every text of the pages, bring the .po files up to date and compile them to .mo; needs no gettext "
        "tools. With --check change nothing, and fail if a text is not translated or a compiled file is old."
    )
    example = "manage.py update_catalogue --check"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="only say what is missing; exit 1 if anything is"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        wanted = texts_in(settings.BASE_DIR)
        problems: list[str] = []
        for path in sorted((settings.BASE_DIR / "locale").glob("*/LC_MESSAGES/django.po")):
            problems += self.treat(path, wanted, only_check=options["check"])
        for problem in problems:
            self.stdout.write(problem)
        if problems and options["check"]:
            raise CommandFailed(f"{len(problems)} texts to see to; run manage.py update_catalogue")

    def treat(self, path: Path, wanted: list[Any], *, only_check: bool) -> list[str]:
        """What is wrong with one language's catalogue, after mending what can be mended."""
        language = path.parent.parent.name
        catalogue = updated(read_catalogue(path), wanted)
        binary = path.with_suffix(".mo")
        problems = [f"{language}: not translated: {text.singular!r}" for text in catalogue.missing(wanted)]
        if not only_check:
            write_catalogue(path, catalogue)
            binary.write_bytes(compiled(catalogue))
        elif not binary.exists() or binary.read_bytes() != compiled(catalogue):
            problems.append(f"{language}: {binary.name} is older than {path.name} or than the texts")
        return problems
