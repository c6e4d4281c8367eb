"""Reads a generated demo month back from its delivered lines, apart from the code that wrote it."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any

from ingest.core.demo import DemoMonth, DemoSize, generate
from ledger.core.periods import Month

Event = dict[str, Any]
Subject = tuple[str, str, int]  # pool, id, attempt


def milli(value: int | str) -> int:
    return int(Decimal(str(value)) * 1000)


def ms(text: str) -> int:
    instant = datetime.fromisoformat(text)
    assert instant.tzinfo is not None, text
    return round(instant.timestamp() * 1000)


def holder_of(data: Event) -> str:
    if "identity" in data:
        value: str = data["identity"]["value"]
        return value.removesuffix("-serving")
    return str(data.get("tenant") or data["service"])


@dataclass
class Books:
    """Facts of a month by kind. occupancy: per subject its levels (ms, milli-GPU) in time order."""

    events: list[Event]
    occupancy: dict[Subject, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    holders: dict[Subject, str] = field(default_factory=dict)
    pending: dict[Subject, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    capacity: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    reservations: list[Event] = field(default_factory=list)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == f"ledger.{kind}.v1"]

    def level(self, subject: Subject, at_ms: int) -> int:
        levels = [amount for time_ms, amount in self.occupancy[subject] if time_ms <= at_ms]
        return levels[-1] if levels else 0


def read(month: DemoMonth) -> Books:
    """The distinct events of a month, by time."""
    distinct = {event.line: event for event in month.events}
    events = sorted((json.loads(line) for line in distinct), key=lambda event: ms(event["time"]))
    books = Books(events)
    for event in events:
        data, time_ms = event["data"], ms(event["time"])
        if event["type"] == "ledger.occupancy.v1":
            subject = (data["pool"], data["workload"], data["attempt"])
            books.occupancy[subject].append((time_ms, milli(data["gpus"])))
            books.holders[subject] = holder_of(data)
        elif event["type"] == "ledger.pending.v1":
            books.pending[data["pool"], data["workload"], 0].append((time_ms, milli(data["gpus"])))
        elif event["type"] == "ledger.capacity.v1":
            books.capacity[data["pool"]].append((time_ms, milli(data["gpus"])))
        elif event["type"] == "ledger.reservation.v1":
            books.reservations.append(event)
    return books


@cache
def october() -> DemoMonth:
    """The month of the default size, with fewer requests; generated once per test process."""
    return generate(Month(2026, 10), "Asia/Shanghai", DemoSize(requests=1500), seed=1)


@cache
def october_books() -> Books:
    return read(october())


@dataclass
class Instant:
    """A pool between two changes."""

    at_ms: int
    capacity: int
    held: dict[str, int]
    lendable: dict[str, int]
    fixed: dict[str, int]

    @property
    def occupied(self) -> int:
        return sum(self.held.values())

    @property
    def excess(self) -> int:
        """domain.md section 4, for one instant: occupancy that no capacity backs."""
        over = gap = lendable_gap = reserved = 0
        for holder in {*self.held, *self.lendable, *self.fixed}:
            has, lends, keeps = (kind.get(holder, 0) for kind in (self.held, self.lendable, self.fixed))
            used = min(has, lends + keeps)
            over += has - used
            gap += lends + keeps - used
            lendable_gap += min(lends + keeps - used, lends)
            reserved += lends + keeps
        used = self.occupied - over
        on_demand = min(over, max(self.capacity - reserved, 0))
        borrowed = min(over - on_demand, lendable_gap, max(self.capacity - used - on_demand, 0))
        return over - on_demand - borrowed


def instants(books: Books, pool: str) -> list[Instant]:
    """The pool's state after every change, once all changes of an instant are in."""
    changes: list[tuple[int, str, str, int]] = [
        (t, "capacity", "", amount) for t, amount in books.capacity[pool]
    ]
    for (of_pool, workload, attempt), levels in books.occupancy.items():
        if of_pool == pool:
            before = 0
            for time_ms, amount in levels:
                changes.append((time_ms, "held", books.holders[of_pool, workload, attempt], amount - before))
                before = amount
    for event in books.reservations:
        data = event["data"]
        if data["pool"] == pool:
            kind = "lendable" if data["lendable"] else "fixed"
            changes.append((ms(event["time"]), kind, holder_of(data), milli(data["gpus"])))
            if "ends_at" in data:
                changes.append((ms(data["ends_at"]), kind, holder_of(data), 0))
    state = Instant(0, 0, {}, {}, {})
    found = []
    changes.sort(key=lambda change: change[0])
    for place, (time_ms, kind, holder, amount) in enumerate(changes):
        if kind == "capacity":
            state.capacity = amount
        elif kind == "held":
            state.held[holder] = state.held.get(holder, 0) + amount
        else:
            getattr(state, kind)[holder] = amount
        if place + 1 == len(changes) or changes[place + 1][0] > time_ms:
            found.append(
                Instant(time_ms, state.capacity, dict(state.held), dict(state.lendable), dict(state.fixed))
            )
    return found
