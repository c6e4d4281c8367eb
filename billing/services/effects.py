"""Previews of changed terms, and comparisons of policies, as jobs of any worker: they take longer than a page may."""

from __future__ import annotations

import logging
from dataclasses import astuple
from datetime import timedelta
from typing import Any

from django.db import Error
from django.db.models import F
from django.utils import timezone

from billing.core.configuration import ConfigurationError
from billing.core.sentences import sentence
from billing.models import ATTEMPTS, Approval, EffectRun, RunState
from billing.services.policy_comparison import (
    Compared,
    ComparisonError,
    change_of,
    compare_change,
    compare_policies,
    policies_of,
)
from ledger.locks import Lock, held_by_session
from ledger.models import Period
from ledger.services.audit import Actor

KEPT = timedelta(days=30)
WORKER_DIED = "worker_died"
logger = logging.getLogger(__name__)


def start_effect(
    period: Period,
    asked: dict[str, Any],
    by: Actor,
    *,
    typed: dict[str, str] | None = None,
    approval: Approval | None = None,
) -> EffectRun:
    """A preview to be computed; what cannot be compared at all has ended at once and says why.

    Previews that are older than a month are forgotten: they say how the books stood then.
    """
    EffectRun.objects.filter(started_at__lt=timezone.now() - KEPT).delete()
    run = EffectRun.objects.create(
        period=period, asked=asked, typed=typed or {}, approval=approval, requested_by=by.name
    )
    try:
        if "policies" in asked:
            policies_of(period, asked["policies"])
        else:
            change_of(period, asked)
    except (ComparisonError, ConfigurationError) as error:
        _end(run.pk, problem=_code_of(error), detail=error.told.kept())
    run.refresh_from_db()
    return run


def run_effects() -> None:
    """Compute what was asked for, in order. Safe to kill, and to run twice at once: the second one does nothing.

    While the books are being computed the rest waits for the next call.
    """
    with held_by_session(Lock.EFFECTS) as is_alone:
        while is_alone:
            run = (
                EffectRun.objects.select_related("period")
                .filter(state=RunState.RUNNING)
                .order_by("pk")
                .first()
            )
            if run is None or not _carry_out(run):
                return


def _carry_out(run: EffectRun) -> bool:
    """False: the books are being computed, so that it waits."""
    if run.attempts >= ATTEMPTS:
        # No error was caught: whoever computed it was killed, for want of memory most likely, and would be again.
        _end(run.pk, problem=WORKER_DIED, detail=sentence("worker_killed", count=run.attempts).kept())
        return True
    try:
        rows = _compared(run)
    except (ComparisonError, ConfigurationError) as error:
        if _code_of(error) == "busy":
            return False
        _end(run.pk, problem=_code_of(error), detail=error.told.kept())
    except Error as error:
        # One that the database cannot answer must not hold up the others.
        logger.exception("effect %s failed", run.pk)
        _end(run.pk, problem="failed", detail=sentence("database_error", error=type(error).__name__).kept())
    else:
        _end(run.pk, rows=[list(astuple(row)) for row in rows])
    return True


def _compared(run: EffectRun) -> list[Compared]:
    def say(step: str) -> None:
        if step == EffectRun.STEPS[0]:  # it has the books: from here on a worker that vanishes was at it
            EffectRun.objects.filter(pk=run.pk).update(attempts=F("attempts") + 1)
        _note(run.pk, step)

    if "policies" in run.asked:
        return compare_policies(run.period, *policies_of(run.period, run.asked["policies"]), say)
    return compare_change(run.period, run.asked, say)


def compared_rows(run: EffectRun) -> list[Compared]:
    return [Compared(*row) for row in run.rows]


def _code_of(error: Exception) -> str:
    return getattr(error, "code", "unusable")


def _note(run_id: int, step: str) -> None:
    """Progress for whoever watches."""
    EffectRun.objects.filter(pk=run_id, state=RunState.RUNNING).update(step=step)


def _end(run_id: int, **result: Any) -> None:
    running = EffectRun.objects.filter(pk=run_id, state=RunState.RUNNING)
    running.update(state=RunState.DONE, ended_at=timezone.now(), step="", **result)
