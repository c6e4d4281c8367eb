"""Small random pools for the tests of the split, and their translation into arrays."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import strategies as st

from billing.core.allocation import HOLDER_CATEGORIES, PoolSplit
from billing.core.allocation_levels import Holders
from ledger.core.levels import NEVER, LevelFacts, Levels
from ledger.core.units import MS_PER_HOUR
from tests.core.naive_allocation import CAPACITY, OCCUPANCY, RESERVATION, WAITING, Fact

HOURS = 3
milli = st.one_of(st.integers(0, 12).map(lambda n: n * 1000), st.integers(0, 9000))
instants = st.integers(-20, HOURS * 60 + 20).map(lambda minute: minute * 60_000)


@st.composite
def pools(draw, services: bool = True):
    """(facts, number of holders, owners): up to five holders, few subjects, any overlap of their changes."""
    count = draw(st.integers(0, 5))
    owner = [-1] * count
    if services and count > 2:
        # The last two are services; whoever owns them is a tenant.
        owner[-2:] = [draw(st.integers(-1, count - 3)) for _ in range(2)]
    facts = [Fact(CAPACITY, 0, draw(st.integers(-30, 40)) * 60_000, draw(milli) * 2)]
    facts += [
        Fact(CAPACITY, 0, t, m * 2, rank=i + 1)
        for i, (t, m) in enumerate(draw(few(st.tuples(instants, milli), 2)))
    ]
    if count:
        facts += draw(few(level_facts(count), 14))
    return facts, count, owner


def few(what, most):
    return st.lists(what, max_size=most)


@st.composite
def level_facts(draw, count: int):
    kind = draw(st.sampled_from([RESERVATION, OCCUPANCY, OCCUPANCY, OCCUPANCY, WAITING]))
    subject = draw(st.integers(0, 4))
    time_ms = draw(instants)
    reserves = kind == RESERVATION
    return Fact(
        kind,
        subject,
        time_ms,
        draw(milli),
        who=draw(st.integers(0, count - 1)),
        attempt=draw(st.integers(1, 3)) if kind == OCCUPANCY else 0,
        lendable=draw(st.booleans()) if reserves else True,
        ends_ms=time_ms + draw(st.integers(1, 90)) * 60_000 if reserves and draw(st.booleans()) else None,
        rank=draw(st.integers(0, 10**6)),
        group=draw(st.integers(0, 2)) if kind == OCCUPANCY else 0,
    )


def busy_pool(seed: int):
    """A pool in which bursts keep meeting idle reservations, scarce capacity and waiting work."""
    rng = random.Random(seed)
    owner = [-1, -1, -1, -1, 0, 1, -1]
    facts = [Fact(CAPACITY, 0, minute * 60_000, rng.randrange(20_000, 40_000)) for minute in (-5, 50, 110)]
    facts += [Fact(RESERVATION, i, 0, rng.randrange(2_000, 9_000), i, lendable=i != 2) for i in range(4)]
    for number in range(70):
        time_ms = rng.randrange(-20, HOURS * 60) * 60_000
        kind = rng.choice([OCCUPANCY] * 5 + [RESERVATION, WAITING])
        who = rng.randrange(len(owner))
        subject = 10 * who + rng.randrange(2)
        milli = rng.choice([0, rng.randrange(7_000), rng.randrange(7_000)])
        group = subject % 3 if kind == OCCUPANCY else 0
        facts.append(Fact(kind, subject, time_ms, milli, who, rank=number, group=group))
    return facts, len(owner), owner


def distinct_ranks(facts: list[Fact]) -> list[Fact]:
    """Two facts never have one (source, id): of facts with one subject, instant and rank keep one."""
    unique = {(f.kind, f.subject, f.attempt, f.time_ms, f.rank): f for f in facts}
    return list(unique.values())


def to_arrays(facts: list[Fact]) -> LevelFacts:
    def column(name: str, dtype: type = np.int64):
        return np.array([getattr(fact, name) for fact in facts], dtype)

    levels = Levels(
        column("kind"),
        column("subject"),
        column("attempt"),
        column("time_ms"),
        column("milli"),
        column("who"),
        column("lendable", bool),
        column("group"),
    )
    ends = np.array([NEVER if fact.ends_ms is None else fact.ends_ms for fact in facts], np.int64)
    return LevelFacts(levels, ends, column("rank"))


def holders_of(owner: list[int]) -> Holders:
    return Holders(tuple(f"h{i}" for i in range(len(owner))), np.array(owner, np.int64))


def hour_edges() -> list[int]:
    return [hour * MS_PER_HOUR for hour in range(HOURS + 1)]


def figures(split: PoolSplit) -> dict:
    """A split in the form of naive_allocation.split_month."""
    totals = {}
    rows = split.rows
    for name in (*HOLDER_CATEGORIES, "occupancy", "reservation"):
        for slot, holder, gpu_us in zip(rows.slot, rows.holder, getattr(rows, name), strict=True):
            totals[name, int(slot), int(holder)] = int(gpu_us)
    for name in ("capacity", "unreserved_idle", "over_reserved"):
        for slot, gpu_us in enumerate(getattr(split.pool, name)):
            totals[name, slot, None] = int(gpu_us)
    pairs = split.lending
    for start, lender, borrower, gpu_us in zip(
        pairs.start_ms, pairs.lender, pairs.borrower, pairs.gpu_us, strict=True
    ):
        totals["pair", int(start), int(lender), int(borrower)] = int(gpu_us)
    return {key: total for key, total in totals.items() if total}
