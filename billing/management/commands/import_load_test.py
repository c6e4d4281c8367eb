"""`manage.py import_load_test FILE`: load tests in, candidates for calibrations out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from billing.core.load_tests import LoadTestError, as_toml, read_runs
from billing.services.load_tests import calibration_candidates, keep_runs
from ledger.management.base import BadInput, LedgerCommand
from ledger.services.audit import Actor


class Command(LedgerCommand):
    help = (
        "Keep the runs of load tests (CSV, or JSON lines) and print the calibrations that follow from all runs kept "
        "so far, as TOML for apply_config, with how much single runs deviate. Nothing is put in force."
    )
    example = "manage.py import_load_test qwen-h100.csv > calibration.toml"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--valid-from", help="RFC 3339; default: the next month's start in UTC")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            runs = read_runs(options["file"].read_text())
            kept = keep_runs(runs, Actor("command line"))
        except UnicodeDecodeError as error:
            raise BadInput(f"{options['file']}: {error}") from None
        except LoadTestError as error:
            raise BadInput(f"{options['file']}: {error}") from None
        found, undetermined = calibration_candidates({(run.model, run.gpu_model) for run in runs})
        self.stderr.write(f"{kept} new runs of {len(runs)} kept")
        for model, gpu_model in undetermined:
            self.stderr.write(
                f"{model} on {gpu_model}: the runs do not determine its costs; vary input and output tokens more"
            )
        for candidate in found:
            self.stdout.write(as_toml(candidate, options["valid_from"] or _next_month()))


def _next_month() -> str:
    today = timezone.now()
    year, month = (today.year + 1, 1) if today.month == 12 else (today.year, today.month + 1)
    return f"{year:04d}-{month:02d}-01T00:00:00Z"
