"""The vectorised split against section 4 read literally, and what must hold whatever the facts are."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core import allocation_shares, invariants
from billing.core.allocation import PoolSplit, split_pool
from billing.core.allocation_at import Held, split_at
from billing.core.allocation_shares import Pending
from ledger.core.levels import effective_levels
from ledger.core.periods import Month, slot_edges, utc_days
from ledger.core.units import GPU_US_PER_GPU_HOUR, MS_PER_HOUR
from tests.core.naive_allocation import (
    CAPACITY,
    OCCUPANCY,
    PENDING,
    RESERVATION,
    WAITING,
    Fact,
    split_instant,
    split_month,
)
from tests.core.pools import busy_pool, distinct_ranks, figures, holders_of, hour_edges, pools, to_arrays


def split(facts: list[Fact], owner: list[int], edges, cuts=()) -> PoolSplit:
    effective = effective_levels(to_arrays(facts))
    return split_pool(
        effective.levels, holders_of(owner), np.array(edges, np.int64), effective.capacity_from_ms, cuts
    )


@given(pools())
def test_the_split_is_section_4_at_every_instant(pool):
    facts, count, owner = pool
    facts, edges = distinct_ranks(facts), hour_edges()
    cuts = [edges[0], edges[2]]
    assert figures(split(facts, owner, edges, cuts)) == split_month(facts, count, owner, edges, cuts)


@pytest.mark.parametrize("seed", range(5))
def test_busy_pools_too(seed):
    facts, count, owner = busy_pool(seed)
    edges = hour_edges()
    result = figures(split(facts, owner, edges, edges[:-1]))
    assert result == split_month(facts, count, owner, edges, edges[:-1])
    assert len([key for key in result if key[0] == "pair"]) > 5


@given(pools())
def test_chunks_of_any_size_give_the_same(pool):
    facts, _, owner = pool
    facts = distinct_ranks(facts)
    whole = figures(split(facts, owner, hour_edges()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocation_shares, "_CHUNK", 1)
        assert figures(split(facts, owner, hour_edges())) == whole


@given(pools(), st.randoms(use_true_random=False))
def test_order_of_arrival_and_repeated_facts_do_not_matter(pool, rng: random.Random):
    facts, _, owner = pool
    facts = distinct_ranks(facts)
    shuffled = facts + rng.sample(facts, len(facts) // 2)
    rng.shuffle(shuffled)
    assert figures(split(shuffled, owner, hour_edges())) == figures(split(facts, owner, hour_edges()))


@given(pools(), st.integers(0, 100), st.integers(1, 170))
def test_cutting_a_level_in_two_changes_nothing(pool, which, minute):
    facts, _, owner = pool
    facts = distinct_ranks(facts)
    whole = figures(split(facts, owner, hour_edges()))
    cut_ms = minute * 60_000
    fact = facts[which % len(facts)]
    same = [f for f in facts if (f.kind, f.subject, f.attempt) == (fact.kind, fact.subject, fact.attempt)]
    in_force = max((f for f in same if f.time_ms <= cut_ms), key=lambda f: (f.time_ms, f.rank), default=None)
    ended = in_force is None or (in_force.ends_ms is not None and in_force.ends_ms <= cut_ms)
    if ended or in_force.time_ms == cut_ms:
        return
    assert figures(split([*facts, replace(in_force, time_ms=cut_ms)], owner, hour_edges())) == whole


@given(pools())
def test_a_month_is_the_sum_of_its_slots_and_does_not_depend_on_them(pool):
    facts, _, owner = pool
    facts, edges = distinct_ranks(facts), hour_edges()
    fine = split(facts, owner, edges)
    coarse = split(facts, owner, [edges[0], edges[-1]])
    for name in ("reserved_used", "on_demand", "borrowed", "excess", "lent", "reserved_idle", "undelivered"):
        per_holder = {}
        for holder, gpu_us in zip(fine.rows.holder, getattr(fine.rows, name), strict=True):
            per_holder[holder] = per_holder.get(holder, 0) + gpu_us
        assert per_holder == dict(zip(coarse.rows.holder, getattr(coarse.rows, name), strict=True))
    later = split(facts, owner, edges[1:])
    first = {k: v for k, v in figures(fine).items() if k[0] != "pair" and k[1] >= 1}
    assert {(n, s + 1, h): v for (n, s, h, *_), v in figures(later).items() if n != "pair"} == first


@given(pools())
def test_the_split_at_one_instant_says_the_same(pool):
    facts, count, owner = pool
    held = [Held() for _ in range(count)]
    capacity = 0
    for fact in {(f.kind, f.subject): f for f in facts}.values():
        if fact.kind == CAPACITY:
            capacity = fact.milli
            continue
        field = {RESERVATION: "reservation", OCCUPANCY: "occupancy", WAITING: "waiting"}[fact.kind]
        change = {field: getattr(held[fact.who], field) + fact.milli}
        if fact.kind == RESERVATION and fact.lendable:
            change["lendable"] = held[fact.who].lendable + fact.milli
        held[fact.who] = replace(held[fact.who], **change)
    levels = list({(f.kind, f.subject): f for f in facts}.values())
    expected = split_instant(levels, count, owner)
    owners = {f"h{s}": f"h{o}" for s, o in enumerate(owner) if o >= 0}
    actual = split_at(capacity, {f"h{i}": h for i, h in enumerate(held)}, owners)
    for i in range(count):
        one = actual.holders[f"h{i}"]
        assert {name: getattr(one, name) for name in one.__slots__} == {
            name: expected[name][i] for name in one.__slots__
        }
    assert actual.unreserved_idle == expected["unreserved_idle"]
    assert actual.over_reserved == expected["over_reserved"]
    assert 0 <= actual.lendable_idle <= sum(expected["reserved_idle"]) + sum(expected["undelivered"])


ACME, BETA, GAMMA = 0, 1, 2


def hours(number: float) -> int:
    return int(number * MS_PER_HOUR)


def worked_example() -> list[Fact]:
    """Section 4: 16 GPUs, 10 hours; acme reserves 8 and beta 4, both lendable."""
    return [
        Fact(CAPACITY, 0, 0, 16_000),
        Fact(RESERVATION, 0, 0, 8_000, ACME),
        Fact(RESERVATION, 1, 0, 4_000, BETA),
        Fact(OCCUPANCY, 0, 0, 2_000, ACME),
        Fact(OCCUPANCY, 1, 0, 4_000, BETA),
        Fact(OCCUPANCY, 2, hours(2), 8_000, GAMMA),
        Fact(OCCUPANCY, 3, hours(4), 6_000, ACME),
        Fact(OCCUPANCY, 2, hours(4), 4_000, GAMMA),
        Fact(WAITING, 2, hours(4), 4_000, GAMMA),
        Fact(OCCUPANCY, 3, hours(7), 2_000, ACME),
        Fact(OCCUPANCY, 2, hours(7), 8_000, GAMMA),
        Fact(WAITING, 2, hours(7), 0, GAMMA),
    ]


def test_the_worked_example():
    result = split(worked_example(), [-1] * 3, slot_edges(0, hours(10)))
    totals: dict = {}
    for key, gpu_us in figures(result).items():
        if key[0] != "pair":
            totals[key[0], key[2]] = totals.get((key[0], key[2]), 0) + gpu_us / GPU_US_PER_GPU_HOUR
    assert totals == {
        ("reserved_used", ACME): 44,
        ("reserved_idle", ACME): 16,
        ("lent", ACME): 20,
        ("occupancy", ACME): 44,
        ("reservation", ACME): 80,
        ("reserved_used", BETA): 40,
        ("occupancy", BETA): 40,
        ("reservation", BETA): 40,
        ("on_demand", GAMMA): 32,
        ("borrowed", GAMMA): 20,
        ("occupancy", GAMMA): 52,
        ("unreserved_idle", None): 8,
        ("capacity", None): 160,
    }
    assert figures(result)["pair", 0, ACME, GAMMA] == 20 * GPU_US_PER_GPU_HOUR


@pytest.mark.parametrize(
    ("month", "zone", "slots"),
    [
        ("2026-10", "Europe/Berlin", 745),
        ("2026-03", "Europe/Berlin", 743),
        ("2026-11", "America/New_York", 721),
        ("2026-10", "Asia/Kolkata", 745),  # 744 hours, the first and last halved
    ],
)
def test_months_with_odd_days_hold_every_hour_once(month, zone, slots):
    span = Month.parse(month).span(zone)
    edges = slot_edges(span.start_ms, span.end_ms)
    facts = [
        Fact(CAPACITY, 0, span.start_ms - 1, 8_000),
        Fact(RESERVATION, 0, span.start_ms - 1, 4_000, 0),
        Fact(OCCUPANCY, 0, span.start_ms - 1, 6_500, 1),
    ]
    result = split(facts, [-1, -1], edges, [day.start_ms for day in utc_days(span)])
    assert len(result.pool.capacity) == slots
    assert result.pool.capacity.sum() == 8_000 * span.length_ms
    assert result.rows.on_demand.sum() == 4_000 * span.length_ms
    assert result.rows.borrowed.sum() == result.lending.gpu_us.sum() == 2_500 * span.length_ms
    assert result.rows.reserved_idle.sum() == 1_500 * span.length_ms


def test_nothing_is_split_before_the_first_capacity_fact():
    facts = [Fact(OCCUPANCY, 0, 0, 1_000, 0), Fact(CAPACITY, 0, hours(1.5), 4_000)]
    result = split(facts, [-1], slot_edges(0, hours(3)))
    assert result.split_from_ms == hours(1.5)
    assert result.pool.capacity.tolist() == [0, 4_000 * hours(0.5), 4_000 * hours(1)]
    assert result.rows.slot.tolist() == [1, 2]
    never = split(facts[:1], [-1], slot_edges(0, hours(3)))
    assert never.split_from_ms is None
    assert len(never.rows.slot) == 0
    assert never.pool.capacity.tolist() == [0, 0, 0]


def test_levels_too_large_for_doubles_stay_exact():
    """Millions of GPUs: products pass 2^53, then 2^63, and the split changes its arithmetic, not its result."""
    for scale in (10**3, 10**7, 10**10):
        facts = [
            Fact(CAPACITY, 0, 0, 7 * scale),
            Fact(RESERVATION, 0, 0, 4 * scale + 1, 0),
            Fact(RESERVATION, 1, 0, 3 * scale + 1, 1),
            Fact(OCCUPANCY, 0, 0, scale + 3, 2),
            Fact(OCCUPANCY, 1, 0, 2 * scale + 5, 3),
        ]
        edges = [0, 60_000]
        assert figures(split(facts, [-1] * 4, edges, [0])) == split_month(facts, 4, [-1] * 4, edges, [0])


def split_with_pending(facts: list[Fact], owner: list[int], edges) -> PoolSplit:
    """As `split`, with the facts' pending levels as what the policy counts."""
    effective = effective_levels(to_arrays(facts))
    waits = effective.levels.kind == PENDING
    levels, pending = effective.levels.take(~waits), effective.levels.take(waits)
    until_ms = pending.until_ms()
    rows = np.lexsort((pending.time_ms, pending.subject, pending.who))
    return split_pool(
        levels,
        holders_of(owner),
        np.array(edges, np.int64),
        effective.capacity_from_ms,
        pending=Pending(
            *(column[rows] for column in (pending.who, pending.time_ms, until_ms, pending.milli))
        ),
    )


@st.composite
def pending_facts(draw, count: int):
    return Fact(
        PENDING,
        draw(st.integers(0, 5)),
        draw(st.integers(-20, 200)) * 60_000,
        draw(st.one_of(st.integers(0, 4).map(lambda n: n * 1000), st.integers(0, 3000))),
        who=draw(st.integers(0, count - 1)),
        rank=draw(st.integers(0, 10**6)),
    )


@given(pools(), st.data())
def test_pending_work_that_fits_whole_is_undelivered_at_every_instant(pool, data):
    facts, count, owner = pool
    if count:
        facts = facts + data.draw(st.lists(pending_facts(count), max_size=8))
    facts, edges = distinct_ranks(facts), hour_edges()
    result = split_with_pending(facts, owner, edges)
    assert figures(result) == split_month(facts, count, owner, edges, edges[:1])
    assert invariants.check(result) == []


def test_pending_work_is_counted_in_id_order_and_only_whole() -> None:
    """Reserved 8, held 2: of 4 + 3 + 2 waiting, 4 and 2 fit into the idle 6; in the second hour 3 alone."""
    hour = MS_PER_HOUR
    facts = [
        Fact(CAPACITY, 0, 0, 16_000),
        Fact(RESERVATION, 0, 0, 8_000, 0),
        Fact(OCCUPANCY, 0, 0, 2_000, 0, attempt=1),
        Fact(PENDING, 1, 0, 4_000, 0),
        Fact(PENDING, 2, 0, 3_000, 0),
        Fact(PENDING, 3, 0, 2_000, 0),
        Fact(PENDING, 1, hour, 0, 0),
        Fact(PENDING, 3, hour, 0, 0),
        Fact(PENDING, 2, 2 * hour, 0, 0),
    ]
    rows = split_with_pending(distinct_ranks(facts), [-1], hour_edges()).rows
    gpu_hours = {name: (getattr(rows, name) // GPU_US_PER_GPU_HOUR).tolist() for name in (
        "undelivered", "undelivered_pending", "reserved_idle")}  # fmt: skip
    assert gpu_hours == {
        "undelivered": [6, 3, 0],
        "undelivered_pending": [6, 3, 0],
        "reserved_idle": [0, 3, 6],
    }
