"""Reads of what engines counted and no request explains (inference.md rule 5; `GET usage/residuals/`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from billing.sql.reconciliation import RESIDUALS
from ledger.core.periods import Span, to_datetime
from ledger.models import FactFinding

KINDS = ("input_tokens", "cached_input_tokens", "output_tokens", "gpu_us")
GAPS = ("counter_reset", "counter_unknown_start", "missed_samples", "missed_steps")
"""Notices that say an engine's own count has holes."""


@dataclass(frozen=True)
class ResidualRow:
    """One UTC day, pool, model and kind that an engine counted. `unattributed` may be negative: requests say more.

    silent_requests: requests that stated no such count, the first place to look; nothing is given to them.
    incomplete: the engine's own count has holes on that day.
    """

    day: datetime
    pool: str
    model: str
    kind: str
    engine: int
    explained: int
    silent_requests: int
    incomplete: bool

    @property
    def unattributed(self) -> int:
        return self.engine - self.explained

    @property
    def unit(self) -> str:
        return "gpu_us" if self.kind == "gpu_us" else "tokens"


def residuals(
    window: Span, *, pools: list[str] | None = None, models: list[str] | None = None
) -> list[ResidualRow]:
    """By day, pool, model, kind. A kind that no engine counted has no total, so no row. Two queries."""
    parameters = {
        "from": to_datetime(window.start_ms),
        "to": to_datetime(window.end_ms),
        "pool": pools,
        "model": models,
    }
    with connection.cursor() as cursor:
        cursor.execute(RESIDUALS, parameters)
        found = cursor.fetchall()
    holes = _holes(window)
    rows = []
    for day, pool, model, *numbers in found:
        for place, kind in enumerate(KINDS):
            engine, explained, engine_silent, silent = map(int, numbers[4 * place : 4 * place + 4])
            if engine == 0 and engine_silent:
                continue  # the engine did not count this kind
            incomplete = any(f"/{model}/" in subject for subject in holes.get(day, ()))
            rows.append(ResidualRow(day, pool, model, kind, engine, explained, silent, incomplete))
    return rows


def _holes(window: Span) -> dict[datetime, list[str]]:
    """UTC day -> what has holes in that day, each as `/source/instance/model/`."""
    found: dict[datetime, list[str]] = {}
    starts, ends = to_datetime(window.start_ms), to_datetime(window.end_ms)
    notes = FactFinding.objects.filter(code__in=GAPS, occurred_at__lt=ends)
    for occurred_at, subject, detail in notes.values_list("occurred_at", "subject", "detail"):
        ends_ms = detail.get("ends_ms")
        last = occurred_at if ends_ms is None else to_datetime(ends_ms)
        day = occurred_at.replace(hour=0, minute=0, second=0, microsecond=0)
        if last < starts:
            continue
        while day <= last and day < ends:
            found.setdefault(day, []).append(f"/{subject.rpartition(': ')[2]}/")
            day += timedelta(days=1)
    return found
