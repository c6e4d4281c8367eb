"""Keeps load tests, and proposes the calibrations that follow from all that are kept (domain.md section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from django.db import transaction

from billing.core.load_tests import Candidate, LoadTestError, Run, candidates
from billing.models import LoadTestRun
from ledger.services.audit import Actor, record

_NAMES = [field.name for field in fields(Run)]


@transaction.atomic
def keep_runs(runs: Sequence[Run], by: Actor) -> int:
    """Keep the runs that are not known yet; returns how many.

    Raises:
        LoadTestError: a run of that name is kept with other numbers.
    """
    tests = {run.load_test for run in runs}
    known = {
        (run.load_test, run.model, run.gpu_model, run.run): run
        for run in map(_stored, LoadTestRun.objects.filter(load_test__in=tests))
    }
    new = []
    for run in runs:
        kept = known.get((run.load_test, run.model, run.gpu_model, run.run))
        if kept is None:
            new.append(LoadTestRun(**asdict(run)))
        elif kept != run:
            raise LoadTestError(f"run {run.run!r} of {run.load_test!r} is kept with other numbers")
    LoadTestRun.objects.bulk_create(new)
    if new:
        record(by, "import_load_test", "load_test", ", ".join(sorted(tests)), after={"runs": len(new)})
    return len(new)


def calibration_candidates(
    pairs: set[tuple[str, str]],
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Of these (model, GPU model), fitted over every run that is kept; see `core.load_tests.candidates`."""
    wanted = LoadTestRun.objects.filter(model__in={model for model, _ in pairs}).order_by("pk")
    return candidates(run for run in map(_stored, wanted) if (run.model, run.gpu_model) in pairs)


def _stored(row: LoadTestRun) -> Run:
    return Run(**{name: getattr(row, name) for name in _NAMES})
