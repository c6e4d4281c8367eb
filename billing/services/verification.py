"""Verifying the books as a job that any worker can go on with; what it found is kept (domain.md section 11)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.db import Error, IntegrityError, transaction
from django.utils import timezone

from billing.checks import CHECKS
from billing.models import ATTEMPTS, Deviation, RunState, VerificationRun
from ledger.checks import Check, Finding
from ledger.core.instants import instant_text
from ledger.locks import Lock, held_by_session
from ledger.services.audit import Actor, record

KEPT_PER_CHECK = 200
WORKER_DIED = "worker_died"
BY_NAME: dict[str, Check] = {check.__name__: check for check in CHECKS}  # type: ignore[attr-defined]
logger = logging.getLogger(__name__)


def start_verification(by: Actor, month: str = "") -> tuple[VerificationRun, bool]:
    """A run of all checks, of one month or of everything; the one that is under way if there is one (then False)."""
    steps = [{"name": name, "state": "waiting"} for name in BY_NAME]
    try:
        with transaction.atomic():
            run = VerificationRun.objects.create(
                month=month, steps=steps, requested_by=by.name, request_id=by.request_id
            )
            record(by, "verify_ledger", "verification", run.pk, after={"month": month})
            return run, True
    except IntegrityError:
        return VerificationRun.objects.get(state=RunState.RUNNING), False


def run_verification(run_id: int) -> VerificationRun:
    """Carry out the checks that are not done. Safe to kill and to run twice at once: the second one does nothing.

    A check at which the worker was killed `ATTEMPTS` times is given up, so that the others are still carried out.
    The lock is the session's: the checks take and release other locks, each in a transaction of its own.
    """
    with held_by_session(Lock.VERIFICATION) as is_alone:
        if is_alone:
            for name in BY_NAME:
                _carry_out(run_id, name)
            _end(run_id)
    return VerificationRun.objects.get(pk=run_id)


def unfinished_verifications() -> list[int]:
    return list(VerificationRun.objects.filter(state=RunState.RUNNING).values_list("pk", flat=True))


def _carry_out(run_id: int, name: str) -> None:
    run = VerificationRun.objects.get(pk=run_id)
    step = _step_of(run, name)
    if run.state != RunState.RUNNING or step is None or step["state"] in ("done", "failed"):
        return
    attempt = step.get("attempts", 0) + 1
    if attempt > ATTEMPTS:
        _finish(run_id, name, [], 0, failed=WORKER_DIED)
        return
    begun = {"state": "running", "started_at": instant_text(timezone.now()), "attempts": attempt}
    _note(run_id, name, lambda step: step.update(begun))
    try:
        findings, count = _first(BY_NAME[name](run.month or None))
    except Error as error:
        # One check that the database cannot answer now must not hide what the others say.
        logger.exception("verification %s: %s failed", run_id, name)
        _finish(run_id, name, [], 0, failed=type(error).__name__)
    else:
        _finish(run_id, name, findings, count)


def _first(found: Any) -> tuple[list[Finding], int]:
    kept: list[Finding] = []
    count = 0
    for finding in found:
        count += 1
        if count <= KEPT_PER_CHECK:
            kept.append(finding)
    return kept, count


@transaction.atomic
def _finish(run_id: int, name: str, findings: list[Finding], count: int, failed: str = "") -> None:
    """The step's result and what it found, together: a step done twice is noted once."""
    run = VerificationRun.objects.select_for_update().get(pk=run_id)
    step = _step_of(run, name)
    if step is None or step["state"] in ("done", "failed"):
        return
    step.update(
        state="failed" if failed else "done",
        deviations=count,
        detail=failed,
        ended_at=instant_text(timezone.now()),
    )
    run.deviations += count
    run.failed += bool(failed)
    run.save(update_fields=["steps", "deviations", "failed"])
    Deviation.objects.bulk_create(
        Deviation(run=run, check_name=name, invariant=one.invariant, where=one.where, **one.problem.kept())
        for one in findings
    )


@transaction.atomic
def _note(run_id: int, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Progress for whoever watches."""
    run = VerificationRun.objects.select_for_update().get(pk=run_id)
    step = _step_of(run, name)
    if step is not None:
        change(step)
        run.save(update_fields=["steps"])


@transaction.atomic
def _end(run_id: int) -> None:
    run = VerificationRun.objects.select_for_update().get(pk=run_id)
    if run.state == RunState.RUNNING:
        run.state, run.ended_at = RunState.DONE, timezone.now()
        run.save(update_fields=["state", "ended_at"])
        after = {"deviations": run.deviations, "failed": run.failed}
        record(
            Actor(run.requested_by, run.request_id), "end_verification", "verification", run.pk, after=after
        )


def _step_of(run: VerificationRun, name: str) -> dict[str, Any] | None:
    """None: the run was begun by a version that did not have this check."""
    return next((step for step in run.steps if step["name"] == name), None)
