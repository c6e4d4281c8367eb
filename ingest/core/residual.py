"""What engines counted and no request explains, per model and UTC day (inference.md rule 5, case C1).

A client that goes away leaves its tokens in the engine's counters and in no request. The difference is a line of its
own: never spread over the requests that were finished, and never forced to zero. It is negative where requests
say more than the engines: a counter's lost tail, missing samples, or two names for one model.

Engine totals are `ledger.usage.v1` events that name no tenant; requests, and usage that names one, explain them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ingest.core.adapters.base import Notice, instant_ms

KINDS = ("input_tokens", "cached_input_tokens", "output_tokens", "gpu_us")
"""Requests are not among them: engines leave those out whose clients went away, gateways do not."""

_MS_PER_DAY = 86_400_000

ABORTED = "unattributed_abort"
EXCEEDED = "requests_exceed_engine"
EXPLAINED = "explained"

Key = tuple[str, int]
"""(model, start of the UTC day in milliseconds)."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of what was stated, and how many rows stated nothing of a kind."""

    known: Mapping[Key, Mapping[str, int]]
    silent: Mapping[Key, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Residual:
    model: str
    day_ms: int
    kind: str
    engine: int
    explained: int
    silent_rows: int
    """Requests that stated no such count, the first place to look; nothing of the residual is given to them."""
    incomplete: bool
    """Notices say that the engine's own count has holes."""

    @property
    def unattributed(self) -> int:
        return self.engine - self.explained

    @property
    def reason(self) -> str:
        if self.unattributed == 0:
            return EXPLAINED
        return ABORTED if self.unattributed > 0 else EXCEEDED


def residuals(engine: Totals, explained: Totals, notices: Iterable[Notice] = ()) -> list[Residual]:
    """One line per model, day and kind that an engine counted, in that order.

    A kind that no engine counted has no total, so it has no line: missing is not 0.
    """
    holes = _holes(notices)
    return [
        Residual(
            model=key[0],
            day_ms=key[1],
            kind=kind,
            engine=engine.known[key][kind],
            explained=explained.known.get(key, {}).get(kind, 0),
            silent_rows=explained.silent.get(key, {}).get(kind, 0),
            incomplete=any(_is_about(subject, key[0]) for subject, day in holes if day == key[1]),
        )
        for key in sorted(engine.known)
        for kind in KINDS
        if kind in engine.known[key]
    ]


def engine_totals(events: Iterable[Mapping[str, Any]]) -> Totals:
    """Sums of the usage events that name no tenant, in the day of their `starts_at`."""
    return _sum(e for e in events if e["type"] == "ledger.usage.v1" and not _names_someone(e))


def explained_totals(events: Iterable[Mapping[str, Any]]) -> Totals:
    """Sums of requests, in the day they finished, and of usage that names a tenant."""
    return _sum(e for e in events if e["type"] == "ledger.request.v1" or _is_named_usage(e))


def _is_named_usage(event: Mapping[str, Any]) -> bool:
    return event["type"] == "ledger.usage.v1" and _names_someone(event)


def _names_someone(event: Mapping[str, Any]) -> bool:
    return "tenant" in event["data"] or "identity" in event["data"]


def _sum(events: Iterable[Mapping[str, Any]]) -> Totals:
    known: dict[Key, dict[str, int]] = {}
    silent: dict[Key, dict[str, int]] = {}
    for event in events:
        data = event["data"]
        day_ms = instant_ms(data.get("starts_at", event["time"])) // _MS_PER_DAY * _MS_PER_DAY
        key = (data["model"], day_ms)
        for kind in KINDS:
            value = _value(data, kind)
            target = silent if value is None else known
            counts = target.setdefault(key, {})
            counts[kind] = counts.get(kind, 0) + (1 if value is None else value)
    return Totals(known, silent)


def _value(data: Mapping[str, Any], kind: str) -> int | None:
    if kind == "gpu_us":
        seconds = data.get("gpu_seconds")
        return None if seconds is None else int(Decimal(str(seconds)) * 1_000_000)
    return None if data.get(kind) is None else int(data[kind])


def _is_about(subject: str, model: str) -> bool:
    """Whether a notice's subject, such as `instance/model/engine`, names the model, which may hold slashes."""
    return f"/{model}/" in f"/{subject}/"


def _holes(notices: Iterable[Notice]) -> set[tuple[str, int]]:
    """(subject, day) of every day that a notice touches."""
    holes: set[tuple[str, int]] = set()
    for notice in notices:
        if notice.starts_ms is not None and notice.ends_ms is not None:
            days = range(notice.starts_ms // _MS_PER_DAY, notice.ends_ms // _MS_PER_DAY + 1)
            holes.update((notice.subject, day * _MS_PER_DAY) for day in days)
    return holes
