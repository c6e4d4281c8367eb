"""What a pool looked like just before given instants: one sweep over its level changes (domain.md sections 4, 6, 9).

Every boundary is just another event of the sweep. Sums over the pool follow each change; shares are split only at the
instants asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from billing.core.allocation_at import Held, InstantSplit, cover_own_services, split_at
from billing.core.preemption_standing import NOTHING_HELD, Standing

CAPACITY, RESERVATION, OCCUPANCY, PENDING = 1, 2, 3, 4

Subject = tuple[int, int | str, int]
"""(kind, subject, attempt)"""


@dataclass(frozen=True, slots=True)
class Change:
    """From time_ms on, `subject` holds `milli` for `holder` (a slug; '' for capacity)."""

    time_ms: int
    subject: Subject
    holder: str
    milli: int
    lendable: bool = True
    preemptible: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """The pool just before an instant. held: with what owners' reservations cover of their services."""

    split: InstantSplit
    held: Mapping[str, Held]
    short_since_ms: int | None

    def standing(self, holder: str) -> Standing:
        if holder not in self.held:
            return NOTHING_HELD
        held, split = self.held[holder], self.split.holders[holder]
        return Standing(held.occupancy, held.reservation, split.on_demand, split.borrowed, split.excess)


@dataclass(slots=True)
class _Sums:
    """Of one holder, or of the pool."""

    occupancy: int = 0
    reservation: int = 0
    lendable: int = 0

    def held(self) -> Held:
        return Held(self.occupancy, self.reservation, self.lendable)


@dataclass(frozen=True, slots=True)
class _Family:
    """An owner with its services: the only holders whose reservations cover each other."""

    used: int = 0
    over: int = 0
    gap: int = 0
    lendable_gap: int = 0

    def plus(self, other: _Family, sign: int = 1) -> _Family:
        return _Family(
            self.used + sign * other.used,
            self.over + sign * other.over,
            self.gap + sign * other.gap,
            self.lendable_gap + sign * other.lendable_gap,
        )


@dataclass(slots=True)
class PoolState:
    """The pool at one instant of the sweep. owners: service slug -> owning tenant's slug."""

    owners: Mapping[str, str]
    capacity: int = 0
    pending: int = 0
    preemptible: int = 0
    short_since_ms: int | None = None
    levels: dict[Subject, Change] = field(default_factory=dict)
    holders: defaultdict[str, _Sums] = field(default_factory=lambda: defaultdict(_Sums))
    waiting: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    families: dict[str, _Family] = field(default_factory=dict)
    _total: _Family = _Family()
    _changed: set[str] = field(default_factory=set)

    def apply(self, change: Change) -> None:
        before = self.levels.get(change.subject)
        self.levels[change.subject] = change
        if before is not None:
            self._add(before, -1)
        self._add(change, 1)

    def _add(self, change: Change, sign: int) -> None:
        kind, milli = change.subject[0], sign * change.milli
        if kind == CAPACITY:
            self.capacity += milli
        elif kind == PENDING:
            self.pending += milli
            self.waiting[change.holder] += milli
        else:
            sums = self.holders[change.holder]
            if kind == OCCUPANCY:
                sums.occupancy += milli
                self.preemptible += milli if change.preemptible else 0
            else:
                sums.reservation += milli
                sums.lendable += milli if change.lendable else 0
            self._changed.add(self.owners.get(change.holder, change.holder))

    @property
    def total(self) -> _Family:
        """Over the pool. Families that changed are added up when somebody asks, not at each of their changes."""
        for owner in self._changed:
            self._renew_family(owner)
        self._changed.clear()
        return self._total

    def _renew_family(self, owner: str) -> None:
        members = [owner, *(service for service, of in self.owners.items() if of == owner)]
        held = {slug: self.holders[slug].held() for slug in members if slug in self.holders}
        family = _Family()
        for one in cover_own_services(held, self.owners).values():
            used = min(one.occupancy, one.reservation)
            gap = one.reservation - used
            family = family.plus(_Family(used, one.occupancy - used, gap, min(gap, one.lendable)))
        self._total = self._total.plus(self.families.get(owner, _Family()), -1).plus(family)
        self.families[owner] = family

    @property
    def unreserved(self) -> int:
        """GPUs that nobody reserved and nobody holds."""
        free = self.capacity - self.total.used - self.total.gap
        return max(free, 0) - min(self.total.over, max(free, 0))

    @property
    def lendable(self) -> int:
        """Idle reservations that could still be lent, as far as there is capacity behind them."""
        sums, capacity = self.total, self.capacity
        on_demand = min(sums.over, max(capacity - sums.used - sums.gap, 0))
        backed = max(capacity - sums.used - on_demand, 0)
        borrowed = min(sums.over - on_demand, sums.lendable_gap, backed)
        return min(sums.lendable_gap - borrowed, max(backed - borrowed, 0))

    @property
    def headroom(self) -> int:
        """Unreserved + lendable + preemptible GPUs (section 9)."""
        return self.unreserved + self.lendable + self.preemptible

    @property
    def is_short(self) -> bool:
        """A pool is short while pending demand exceeds its headroom, which is never below 0."""
        return self.pending > 0 and self.pending > self.headroom

    def note_shortage(self, at_ms: int) -> None:
        """Call once per instant, after all of its changes."""
        if not self.is_short:
            self.short_since_ms = None
        elif self.short_since_ms is None:
            self.short_since_ms = at_ms

    def moment(self) -> Moment:
        held = {
            slug: sums.held() for slug, sums in self.holders.items() if sums.occupancy or sums.reservation
        }
        return Moment(
            split_at(self.capacity, held, self.owners),
            cover_own_services(held, self.owners),
            self.short_since_ms,
        )


def moments(
    changes: Iterable[Change], instants: Sequence[int], owners: Mapping[str, str]
) -> dict[int, Moment]:
    """The pool just before each of `instants`: changes at the instant itself do not count yet."""
    state = PoolState(owners)
    found = {}
    waiting = sorted(set(instants), reverse=True)
    last_ms: int | None = None
    for change in sorted(changes, key=lambda change: change.time_ms):
        if last_ms is not None and change.time_ms != last_ms:
            state.note_shortage(last_ms)
        while waiting and waiting[-1] <= change.time_ms:
            found[waiting.pop()] = state.moment()
        if not waiting:
            return found
        state.apply(change)
        last_ms = change.time_ms
    if last_ms is not None:
        state.note_shortage(last_ms)
    for instant in waiting:
        found[instant] = state.moment()
    return found
