"""Running a collector: what a step brought and where the next one goes on, kept in one transaction.

`Source.state` holds `position` (the collector's), `adapter` (the adapter's), `settled_ms` (nothing older will come),
`spans` (what was read), `refused` (hashes of records refused lately), `retried` (records that were tried again since,
for the adapter's memory), `claim` and `claimed_until_ms` (who runs it now) and `last` (how it went).
"""

from __future__ import annotations

import copy
import hashlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from ingest.collectors.configured import collector_for, present_ms, source_config
from ingest.collectors.contract import Clock, Collector, CollectorError, Harvest, NotConfigured, Window
from ingest.collectors.inbox import keep_events
from ingest.core.adapters import load
from ingest.core.adapters.base import (
    ConfigError,
    Event,
    Notice,
    Outcome,
    Refused,
    SourceConfig,
    State,
    instant_ms,
    rfc3339,
)
from ingest.services.memories import remember_retried
from ingest.services.native_records import keep_notices
from ledger.models import Source

MS_PER_HOUR = 3_600_000
KEEPING_MS = 60_000
"""For adapting and keeping a step. A runner that kept nothing for this and its longest step is taken for dead."""
REFUSED_KEPT = 5_000


class Busy(CollectorError):
    """Another process collects this source right now."""


@dataclass(slots=True)
class Step:
    """One step, kept."""

    reached_ms: int
    batches: list[int] = field(default_factory=list)
    events: int = 0
    refused: int = 0
    notices: list[Notice] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def collect(source: Source, window: Window | None = None, clock: Clock = present_ms) -> Iterator[Step]:
    """Collect on from where the source was left, or a window of its past; every step given is committed.

    Raises:
        NotConfigured: the source's table, or the window, cannot be used.
        Busy: somebody else is at it.
        CollectorError: the source cannot be read; steps before that stay.
    """
    config = source_config(source)
    collector = collector_for(source, config, clock)
    claim_ms = collector.longest_step_ms + KEEPING_MS
    claim, state = _claim(source, clock(), claim_ms)
    try:
        plan = _plan(config, collector, state, window, clock())
        for harvest in collector.steps(plan.position, plan.window):
            yield _keep(source, config, Claim(claim, clock() + claim_ms), plan, harvest, clock())
        _release(source, claim, clock(), "")
    except CollectorError as error:
        _release(source, claim, clock(), str(error))
        raise
    except ConfigError as error:
        _release(source, claim, clock(), str(error))
        raise NotConfigured(str(error)) from error
    except BaseException:
        _release(source, claim, clock(), "interrupted")
        raise


# --- what to read -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Plan:
    """Where reading begins, and with what memory."""

    window: Window | None
    position: dict[str, Any]
    adapter_state: State
    goes_on: bool
    """Whether this is the source's own line, and not a window of its past beside it."""


def _plan(
    config: SourceConfig, collector: Collector, state: dict[str, Any], window: Window | None, now_ms: int
) -> Plan:
    position = state.get("position") or {}
    own = Plan(window, position, copy.deepcopy(state.get("adapter") or {}), True)
    if window is None:
        return own
    if not collector.has_past:
        raise NotConfigured(f"source {config.name!r} keeps no past: collect it without --since and --until")
    if not position or window.starts_ms == position.get("until_ms"):
        return own
    if collector.reads_once:
        window = _whole_hours(window)
        _refuse_second_reading(config, state.get("spans", []), window, now_ms)
    return Plan(window, {}, {}, False)


def _whole_hours(window: Window) -> Window:
    """Counters are booked by the hour: part of one, read alone, would be booked beside the rest of it."""
    starts_ms = window.starts_ms // MS_PER_HOUR * MS_PER_HOUR
    return Window(starts_ms, -(-window.ends_ms // MS_PER_HOUR) * MS_PER_HOUR)


def _refuse_second_reading(config: SourceConfig, spans: list[list[int]], window: Window, now_ms: int) -> None:
    for starts_ms, ends_ms in spans:
        if window.starts_ms < ends_ms and starts_ms < window.ends_ms:
            raise NotConfigured(
                f"source {config.name!r} was collected from {rfc3339(starts_ms)} to {rfc3339(ends_ms)} already; "
                "counters are read once, whole hours at a time"
            )
    if window.ends_ms > now_ms:
        raise NotConfigured(
            f"source {config.name!r}: {rfc3339(window.ends_ms)}, the end of the hour, is not over"
        )


@dataclass(frozen=True, slots=True)
class Claim:
    token: str
    until_ms: int


# --- keeping ------------------------------------------------------------------------------------------------


def _keep(
    source: Source, config: SourceConfig, claim: Claim, plan: Plan, harvest: Harvest, now_ms: int
) -> Step:
    """The step's events into the inbox and its place into the source, both or neither."""
    events, refused, notices = adapted(config, plan.adapter_state, harvest)
    with transaction.atomic():
        locked = _locked(source)
        state = locked.state
        if state.get("claim") != claim.token:
            raise Busy(f"source {config.name!r}: another process took over; this step is left to it")
        if plan.goes_on and (retried := state.pop("retried", [])):
            # The retry has booked what it could of them, with a copy of this memory; here they join it.
            followed = remember_retried(config, plan.adapter_state, retried)
            events += [outcome for outcome in followed if isinstance(outcome, dict)]
        fresh = _fresh_refusals(state, refused)
        step = Step(harvest.reached_ms, [], len(events), len(fresh), notices, harvest.problems)
        step.batches = keep_events(config, events, fresh)
        keep_notices(config, notices)
        if harvest.starts_ms is not None:
            state["spans"] = _merged([*state.get("spans", []), [harvest.starts_ms, harvest.reached_ms]])
        if plan.goes_on:
            state |= {"position": harvest.position, "adapter": plan.adapter_state}
        state["claimed_until_ms"] = claim.until_ms
        state["last"] = {"at_ms": now_ms, "reached_ms": harvest.reached_ms, "problems": harvest.problems}
        if plan.goes_on and harvest.settled_ms is not None:
            state["settled_ms"] = harvest.settled_ms
        locked.save(update_fields=["state"])
    return step


def adapted(
    config: SourceConfig, state: State, harvest: Harvest
) -> tuple[list[Event], list[Refused], list[Notice]]:
    """What the adapter makes of a harvest; `state` moves on."""
    adapter = load(config.adapter)
    events: list[Event] = []
    refused: list[Refused] = []
    notices = list(harvest.notices)

    def sort(outcomes: Iterator[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Refused):
                refused.append(outcome)
            elif isinstance(outcome, Notice):
                notices.append(outcome)
            else:
                events.append(outcome)

    sort(adapter.adapt(iter(harvest.lines), config, state))
    if harvest.settled_ms is not None:
        sort(adapter.flush(config, state, harvest.settled_ms))
    if harvest.leads_in and harvest.starts_ms is not None:
        starts_ms = harvest.starts_ms
        events = [event for event in events if instant_ms(event["time"]) > starts_ms]
        notices = [notice for notice in notices if notice.ends_ms is None or notice.ends_ms > starts_ms]
    return events, refused, notices


def _fresh_refusals(state: dict[str, Any], refused: list[Refused]) -> list[Refused]:
    """Windows that reach back, and what is polled, bring the same unreadable record again: kept for a person once."""
    known: dict[str, None] = dict.fromkeys(state.get("refused", []))
    fresh = []
    for one in refused:
        digest = hashlib.sha256(one.reason.encode() + b"\x00" + (one.says or one.record)).hexdigest()[:32]
        if digest not in known:
            fresh.append(one)
        known.pop(digest, None)
        known[digest] = None
    state["refused"] = list(known)[-REFUSED_KEPT:]
    return fresh


def _merged(spans: list[list[int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for starts_ms, ends_ms in sorted(spans):
        if merged and starts_ms <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], ends_ms)
        else:
            merged.append([starts_ms, ends_ms])
    return merged


# --- one at a time ------------------------------------------------------------------------------------------


def _locked(source: Source) -> Source:
    # Not FOR UPDATE: that would hold up every booking of an event of this source.
    return Source.objects.select_for_update(no_key=True).get(pk=source.pk)


def _claim(source: Source, now_ms: int, claim_ms: int) -> tuple[str, dict[str, Any]]:
    """Reserves the source for this process; the row itself is locked for a moment only."""
    with transaction.atomic():
        locked = _locked(source)
        if locked.state.get("claimed_until_ms", 0) > now_ms:
            raise Busy(f"source {locked}: another process collects it right now")
        claim = secrets.token_hex(8)
        locked.state |= {"claim": claim, "claimed_until_ms": now_ms + claim_ms}
        locked.save(update_fields=["state"])
        return claim, locked.state


def _release(source: Source, claim: str, now_ms: int, error: str) -> None:
    with transaction.atomic():
        locked = _locked(source)
        if locked.state.get("claim") != claim:
            return
        last = {"problems": [], **locked.state.get("last", {}), "at_ms": now_ms, "error": error}
        locked.state |= {"claimed_until_ms": 0, "last": last}
        locked.save(update_fields=["state"])
