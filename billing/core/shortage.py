"""Headroom, shortages, and who would give way (domain.md section 9).

A pool is short while pending demand exceeds its headroom: unreserved + lendable + preemptible GPUs. Shortages come
from the same sweep (`PoolState.note_shortage`) as the lead time stored with each preemption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from billing.core.allocation_at import InstantSplit
from billing.core.pool_moments import OCCUPANCY, RESERVATION, Change, PoolState
from ledger.core.apportion import apportion
from ledger.core.periods import Span
from ledger.core.units import GPU_US_PER_GPU_HOUR, round_half_even


@dataclass(frozen=True, slots=True)
class Headroom:
    """What a pool could still give from an instant on; milli-GPU. short_since_ms: None where it is not short."""

    at_ms: int
    capacity: int
    reserved: int
    occupied: int
    pending: int
    unreserved: int
    lendable: int
    preemptible: int
    short_since_ms: int | None
    waiting: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.unreserved + self.lendable + self.preemptible

    @property
    def deficit(self) -> int:
        return max(self.pending - self.total, 0)


def headroom(
    changes: Iterable[Change], at_ms: int, owners: Mapping[str, str]
) -> tuple[Headroom, InstantSplit]:
    """The pool at an instant, changes at the instant itself included, and its split by holder."""
    state = PoolState(owners)
    for instant_ms, group in _by_instant(changes):
        if instant_ms > at_ms:
            break
        for change in group:
            state.apply(change)
        state.note_shortage(instant_ms)
    held = [change for change in state.levels.values() if change.milli]
    found = Headroom(
        at_ms,
        state.capacity,
        sum(change.milli for change in held if change.subject[0] == RESERVATION),
        sum(change.milli for change in held if change.subject[0] == OCCUPANCY),
        state.pending,
        state.unreserved,
        state.lendable,
        state.preemptible,
        state.short_since_ms,
        {holder: milli for holder, milli in sorted(state.waiting.items()) if milli},
    )
    return found, state.moment().split


@dataclass(frozen=True, slots=True)
class Shortage:
    """One unbroken stretch of shortage. ends_ms: None while it lasts. deficit: the greatest, milli-GPU;
    deficit_gpu_us: its integral inside the span asked for. waiting: holder -> the most it had pending meanwhile."""

    starts_ms: int
    ends_ms: int | None
    deficit: int
    deficit_gpu_us: int
    waiting: Mapping[str, int]


@dataclass(slots=True)
class _Open:
    starts_ms: int
    counted_ms: int
    deficit: int = 0
    deficit_gpu_us: int = 0
    waiting: dict[str, int] = field(default_factory=dict)

    def count(self, until_ms: int, deficit: int, span: Span) -> None:
        """The deficit held from the last instant until this one."""
        inside = Span(self.counted_ms, max(until_ms, self.counted_ms)).overlap(span)
        self.deficit_gpu_us += deficit * inside.length_ms if inside else 0
        self.counted_ms = until_ms

    def note(self, state: PoolState) -> None:
        self.deficit = max(self.deficit, state.pending - state.headroom)
        for holder, milli in state.waiting.items():
            if milli:
                self.waiting[holder] = max(self.waiting.get(holder, 0), milli)

    def closed(self, ends_ms: int | None) -> Shortage:
        return Shortage(
            self.starts_ms, ends_ms, self.deficit, self.deficit_gpu_us, dict(sorted(self.waiting.items()))
        )


def shortages(changes: Iterable[Change], owners: Mapping[str, str], span: Span) -> list[Shortage]:
    """Shortages that touch `span`, in order. Changes may begin before it, so that older starts are seen."""
    state = PoolState(owners)
    running: _Open | None = None
    deficit, found = 0, []
    for instant_ms, group in _by_instant(changes):
        if instant_ms >= span.end_ms:
            break
        if running:
            running.count(instant_ms, deficit, span)
        for change in group:
            state.apply(change)
        state.note_shortage(instant_ms)
        # Without demand there is no deficit, and no need to know the headroom.
        deficit = max(state.pending - state.headroom, 0) if state.pending else 0
        if running and not deficit:
            found.append(running.closed(instant_ms))
            running = None
        elif deficit:
            running = running or _Open(instant_ms, instant_ms)
            running.note(state)
    if running:
        running.count(span.end_ms, deficit, span)
        found.append(running.closed(None))
    return [one for one in found if one.ends_ms is None or one.ends_ms > span.start_ms]


def _by_instant(changes: Iterable[Change]) -> Iterable[tuple[int, Iterable[Change]]]:
    ordered = sorted(changes, key=lambda change: change.time_ms)
    return groupby(ordered, key=lambda change: change.time_ms)


def preemptions_of(shortage: Shortage, decided_ms: Sequence[int]) -> list[int]:
    """Decisions that this shortage preceded: just before each of them the pool was short, so start < decision."""
    return sorted(
        decided
        for decided in decided_ms
        if shortage.starts_ms < decided and (shortage.ends_ms is None or decided <= shortage.ends_ms)
    )


@dataclass(frozen=True, slots=True)
class Running:
    """A workload that holds GPUs now. running_since_ms: start of its attempt's unbroken occupancy."""

    workload: str
    holder: str
    milli: int
    preemptible: bool
    is_serving: bool
    running_since_ms: int
    checkpoint_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GivesWay:
    """A workload that holds more than it is entitled to.

    price_micro: per GPU-hour of the part beyond, in its holder's ratio on_demand : borrowed : excess; None where a
    price is missing. loss_gpu_us: work thrown away if the part beyond were taken now; None for serving work, whose
    requests in flight nobody states (section 6: a replica up for 20 days does not lose 20 days).
    """

    running: Running
    beyond_milli: int
    price_micro: int | None
    loss_gpu_us: int | None

    @property
    def loss_micro(self) -> int | None:
        if self.loss_gpu_us is None or self.price_micro is None:
            return None
        return round_half_even(self.loss_gpu_us * self.price_micro, GPU_US_PER_GPU_HOUR)


Prices = Mapping[tuple[str, bool], Mapping[str, int | None]]
"""(holder, whether preemptible) -> category -> micro units per GPU-hour"""


def giving_way(running: Sequence[Running], split: InstantSplit, prices: Prices, at_ms: int) -> list[GivesWay]:
    """Who would give way, first first: preemptible before others, then the cheapest loss, unknown losses last."""
    found = []
    for holder in sorted({one.holder for one in running}):
        of_holder = sorted((one for one in running if one.holder == holder), key=lambda one: one.workload)
        for one, beyond in zip(of_holder, _beyond(of_holder, split, holder), strict=True):
            if beyond:
                price = _price(split, holder, prices.get((holder, one.preemptible), {}))
                found.append(GivesWay(one, beyond, price, _loss(one, beyond, at_ms)))
    return sorted(
        found,
        key=lambda one: (
            not one.running.preemptible,
            one.loss_gpu_us is None,
            one.loss_gpu_us or 0,
            one.running.holder,
            one.running.workload,
        ),
    )


def _beyond(of_holder: Sequence[Running], split: InstantSplit, holder: str) -> list[int]:
    """What each holds beyond the reservation: guaranteed work fills it first, in each class by apportion."""
    left = split.holders[holder].reserved_used if holder in split.holders else 0
    beyond = [one.milli for one in of_holder]
    for preemptible in (False, True):
        weights = [one.milli if one.preemptible is preemptible else 0 for one in of_holder]
        inside = apportion(min(left, sum(weights)), weights)
        left -= sum(inside)
        beyond = [milli - part for milli, part in zip(beyond, inside, strict=True)]
    return beyond


def _price(split: InstantSplit, holder: str, prices: Mapping[str, int | None]) -> int | None:
    if holder not in split.holders:
        return None
    of = split.holders[holder]
    parts = {"on_demand": of.on_demand, "borrowed": of.borrowed, "excess": of.excess}
    known = [(milli, prices.get(category)) for category, milli in parts.items() if milli]
    if not known or any(price is None for _, price in known):
        return None
    return round_half_even(
        sum(milli * (price or 0) for milli, price in known), sum(milli for milli, _ in known)
    )


def _loss(one: Running, beyond: int, at_ms: int) -> int | None:
    if one.is_serving:
        return None
    kept_ms = max(one.running_since_ms, one.checkpoint_ms or one.running_since_ms)
    return beyond * max(at_ms - kept_ms, 0)
