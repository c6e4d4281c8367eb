"""How far a job in steps is, for the pages that watch one: a close, a verification."""

from __future__ import annotations

from typing import Any

from billing.models import CloseRun, RunState, VerificationRun


def how_far(run: CloseRun | VerificationRun) -> dict[str, Any]:
    """Steps that ended of all; `has_begun`: a worker took it."""
    states = [step["state"] for step in run.steps]
    return {
        "run": run,
        "is_running": run.state == RunState.RUNNING,
        "done": sum(state in ("done", "failed") for state in states),
        "all": len(states),
        "has_begun": any(state != "waiting" for state in states),
    }
