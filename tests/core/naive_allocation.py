"""Section 4 read literally, instant by instant, in Python ints: what the vectorised split is compared with.

Nothing is shared with the code under test, not even the arithmetic of shares.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

CAPACITY, RESERVATION, OCCUPANCY, PENDING, WAITING = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Fact:
    kind: int
    subject: int
    time_ms: int
    milli: int
    who: int = -1
    attempt: int = 0
    lendable: bool = True
    ends_ms: int | None = None
    rank: int = 0
    group: int = 0


def level_at(facts: list[Fact], instant: int) -> Fact | None:
    """The fact of one subject and attempt that holds at the instant, None where it is 0 or unknown."""
    past = [fact for fact in facts if fact.time_ms <= instant]
    if not past:
        return None
    fact = max(past, key=lambda f: (f.time_ms, f.rank))
    if fact.kind == RESERVATION and fact.ends_ms is not None and fact.ends_ms <= instant:
        return None
    return fact


def levels_at(facts: list[Fact], instant: int) -> list[Fact]:
    by_subject: dict[tuple[int, int], dict[int, list[Fact]]] = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        by_subject[fact.kind, fact.subject][fact.attempt].append(fact)
    levels = []
    for attempts in by_subject.values():
        started = max(
            (a for a, fs in attempts.items() if min(f.time_ms for f in fs) <= instant), default=None
        )
        if started is not None and (level := level_at(attempts[started], instant)):
            levels.append(level)
    return levels


def share(total: int, weights: list[int]) -> list[int]:
    whole = sum(weights)
    if whole == 0:
        return [0 for _ in weights]
    sums = [sum(weights[: i + 1]) for i in range(len(weights))]
    return [total * s // whole - total * (s - w) // whole for s, w in zip(sums, weights, strict=True)]


def split_instant(levels: list[Fact], holders: int, owner: list[int]) -> dict:
    """All figures of one instant: per holder lists, pool scalars, pairs {(lender, borrower): milli}."""
    occupancy, reservation, lendable, waiting = ([0] * holders for _ in range(4))
    capacity = 0
    for level in levels:
        if level.kind == CAPACITY:
            capacity = level.milli
        elif level.kind == OCCUPANCY:
            occupancy[level.who] += level.milli
        elif level.kind == RESERVATION:
            reservation[level.who] += level.milli
            lendable[level.who] += level.milli if level.lendable else 0
        elif level.kind == WAITING:
            waiting[level.who] += level.milli
    for service in range(holders):
        if owner[service] >= 0:
            spare = max(reservation[owner[service]] - occupancy[owner[service]], 0)
            cover = min(spare, max(occupancy[service] - reservation[service], 0))
            reservation[owner[service]] -= cover
            reservation[service] += cover

    everybody = range(holders)
    used = [min(occupancy[i], reservation[i]) for i in everybody]
    over = [occupancy[i] - used[i] for i in everybody]
    gap = [reservation[i] - used[i] for i in everybody]
    lendable_gap = [min(gap[i], lendable[i]) for i in everybody]
    free = capacity - sum(reservation)
    on_demand = min(sum(over), max(free, 0))
    borrowed = min(sum(over) - on_demand, sum(lendable_gap), max(capacity - sum(used) - on_demand, 0))
    oversold = min(max(-free, 0), sum(gap) - borrowed)

    on_demand_of = share(on_demand, over)
    borrowed_of = share(borrowed, [over[i] - on_demand_of[i] for i in everybody])
    lent_of = share(borrowed, lendable_gap)
    oversold_of = share(oversold, [gap[i] - lent_of[i] for i in everybody])
    idle = [gap[i] - lent_of[i] - oversold_of[i] for i in everybody]
    undelivered = [min(idle[i], max(waiting[i] - lent_of[i] - oversold_of[i], 0)) for i in everybody]
    pending = [0] * holders
    for level in sorted(
        (level for level in levels if level.kind == PENDING), key=lambda level: level.subject
    ):
        if 0 < level.milli <= idle[level.who] - undelivered[level.who] - pending[level.who]:
            pending[level.who] += level.milli
    undelivered = [undelivered[i] + pending[i] for i in everybody]
    pairs = {}
    remaining = list(lent_of)
    for borrower in everybody:
        for lender, part in enumerate(share(borrowed_of[borrower], remaining)):
            pairs[lender, borrower] = part
            remaining[lender] -= part
    return {
        "reserved_used": used,
        "on_demand": on_demand_of,
        "borrowed": borrowed_of,
        "excess": [over[i] - on_demand_of[i] - borrowed_of[i] for i in everybody],
        "lent": lent_of,
        "lent_waiting": [min(lent_of[i], waiting[i]) for i in everybody],
        "reserved_idle": [idle[i] - undelivered[i] for i in everybody],
        "undelivered": undelivered,
        "undelivered_pending": pending,
        "oversold": oversold_of,
        "occupancy": occupancy,
        "reservation": reservation,
        "capacity": capacity,
        "unreserved_idle": max(free, 0) - on_demand,
        "over_reserved": max(sum(used) - capacity, 0),
        "pairs": pairs,
    }


def split_month(facts: list[Fact], holders: int, owner: list[int], edges: list[int], cuts: list[int]) -> dict:
    """gpu_us: {(category, slot, holder)}, {(pool figure, slot, None)}, {("pair", segment start, lender, borrower)}."""
    known = min((f.time_ms for f in facts if f.kind == CAPACITY), default=edges[-1])
    instants = {f.time_ms for f in facts} | {f.ends_ms for f in facts if f.ends_ms is not None} | set(edges)
    instants = sorted(t for t in instants | {known} if max(edges[0], known) <= t <= edges[-1])
    totals: dict = defaultdict(int)
    for start, end in pairwise(instants):
        slot = max(i for i, edge in enumerate(edges) if edge <= start)
        segment = max(cut for cut in cuts if cut <= edges[slot])
        figures = split_instant(levels_at(facts, start), holders, owner)
        for name, value in figures.items():
            if name == "pairs":
                for (lender, borrower), part in value.items():
                    totals["pair", segment, lender, borrower] += part * (end - start)
            elif isinstance(value, list):
                for holder, part in enumerate(value):
                    totals[name, slot, holder] += part * (end - start)
            else:
                totals[name, slot, None] += value * (end - start)
    return {key: total for key, total in totals.items() if total}
