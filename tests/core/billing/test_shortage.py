"""Headroom, shortages and who would give way, by hand and on the demo month (domain.md section 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.allocation_at import Held, split_at
from billing.core.pool_moments import CAPACITY, OCCUPANCY, PENDING, RESERVATION, Change, moments
from billing.core.shortage import (
    Running,
    Shortage,
    giving_way,
    headroom,
    preemptions_of,
    shortages,
)
from ledger.core.periods import Span
from tests.core.demo_books import holder_of, milli, ms, october_books

HOUR = 3_600_000
GPU_HOUR = 3_600_000_000
DAY = Span(0, 24 * HOUR)


def level(hour: float, kind: int, name: str, holder: str, gpus: int, **more: bool) -> Change:
    return Change(int(hour * HOUR), (kind, name, 1), holder, gpus * 1000, **more)


# 16 GPUs; acme reserves 8 and uses 2, gamma runs 8 of which 4 may be preempted: 2 unreserved and 4 + ... see below.
POOL = [
    level(0, CAPACITY, "", "", 16),
    level(0, RESERVATION, "r", "acme", 8),
    level(0, OCCUPANCY, "a", "acme", 2),
    level(0, OCCUPANCY, "g1", "gamma", 4),
    level(0, OCCUPANCY, "g2", "gamma", 4, preemptible=True),
]


def test_headroom_is_unreserved_lendable_and_preemptible() -> None:
    """8 unreserved all serve gamma; of acme's 6 idle nothing is lent; 4 of gamma's may be preempted."""
    room, split = headroom([*POOL, level(1, PENDING, "p", "beta", 9)], 2 * HOUR, {})
    assert (room.capacity, room.reserved, room.occupied, room.pending) == (16_000, 8_000, 10_000, 9_000)
    assert (room.unreserved, room.lendable, room.preemptible) == (0, 6_000, 4_000)
    assert (room.total, room.deficit, room.short_since_ms) == (10_000, 0, None)
    assert room.waiting == {"beta": 9_000}
    assert split.holders["gamma"].on_demand == 8_000


def test_a_shortage_lasts_from_when_demand_exceeds_headroom_until_it_fits() -> None:
    """11 wait for 10 from hour 1; 15 from hour 2 (two waiters); one takes 4 back at hour 3 and all is well at 4."""
    changes = [
        *POOL,
        level(1, PENDING, "p", "beta", 11),
        level(2, PENDING, "q", "delta", 4),
        level(3, PENDING, "q", "delta", 0),
        level(4, PENDING, "p", "beta", 10),
    ]
    assert shortages(changes, {}, DAY) == [
        Shortage(HOUR, 4 * HOUR, 5_000, (1 + 5 + 1) * GPU_HOUR, {"beta": 11_000, "delta": 4_000})
    ]


def test_a_shortage_that_lasts_has_no_end_and_one_that_began_before_keeps_its_start() -> None:
    changes = [*POOL, level(1, PENDING, "p", "beta", 11)]
    assert shortages(changes, {}, Span(2 * HOUR, 5 * HOUR)) == [
        Shortage(HOUR, None, 1_000, 3 * GPU_HOUR, {"beta": 11_000})
    ]
    assert shortages([*changes, level(2, PENDING, "p", "beta", 0)], {}, Span(2 * HOUR, 5 * HOUR)) == []


def test_changes_of_one_instant_count_together() -> None:
    """Demand that is admitted the moment it appears never waited."""
    changes = [*POOL, level(1, PENDING, "p", "beta", 11), level(1, PENDING, "p", "beta", 0)]
    assert shortages(changes, {}, DAY) == []


def test_a_decision_belongs_to_the_shortage_that_it_was_taken_in() -> None:
    """At its first instant nobody had seen it yet; the decision that ends it is still its own."""
    shortage = Shortage(1 * HOUR, 4 * HOUR, 1, 1, {})
    assert preemptions_of(shortage, [5 * HOUR, 4 * HOUR, 2 * HOUR, 1 * HOUR, 0]) == [2 * HOUR, 4 * HOUR]


LEVELS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from([CAPACITY, RESERVATION, OCCUPANCY, PENDING]),
        st.sampled_from(["acme", "beta", "svc"]),
        st.integers(0, 9),
        st.booleans(),
    ),
    max_size=25,
)


@given(LEVELS)
def test_shortages_lead_times_and_headroom_tell_one_story(
    facts: Sequence[tuple[int, int, str, int, bool]],
) -> None:
    """What a decision's lead time is counted from is the start of the shortage that the list shows; headroom's parts
    are those of the split."""
    owners = {"svc": "acme"}
    changes = [
        level(
            hour,
            kind,
            "" if kind == CAPACITY else who,
            "" if kind == CAPACITY else who,
            gpus,
            preemptible=flag,
        )
        for hour, kind, who, gpus, flag in facts
    ]
    listed = shortages(changes, owners, DAY)
    instants = [hour * HOUR for hour in range(1, 12)]
    for instant, moment in moments(changes, instants, owners).items():
        of = [one for one in listed if preemptions_of(one, [instant])]
        assert moment.short_since_ms == (of[0].starts_ms if of else None)
        before = [change for change in changes if change.time_ms < instant]
        room, _ = headroom(before, instant, owners)
        assert (room.unreserved, room.lendable) == (moment.split.unreserved_idle, moment.split.lendable_idle)
        assert room.deficit > 0 or not of


def test_who_gives_way_first() -> None:
    """gamma holds 12 with 4 reserved: its guaranteed 6 fill the reservation first, 2 of them and all 6 preemptible
    are beyond it. 4 of the 8 beyond are on demand at 3, 4 borrowed at 1: 2 per GPU-hour."""
    split = split_at(12_000, {"acme": Held(0, 4_000, 4_000), "gamma": Held(12_000, 4_000, 4_000)})
    running = [
        Running("g-keep", "gamma", 6_000, False, False, 0),
        Running("g-serve", "gamma", 2_000, True, True, 0),
        Running("g-late", "gamma", 2_000, True, False, 9 * HOUR),
        Running("g-saved", "gamma", 2_000, True, False, 0, checkpoint_ms=8 * HOUR),
    ]
    prices = {("gamma", flag): {"on_demand": 3_000_000, "borrowed": 1_000_000} for flag in (True, False)}
    found = [
        (one.running.workload, one.beyond_milli, one.price_micro, one.loss_gpu_us, one.loss_micro)
        for one in giving_way(running, split, prices, 10 * HOUR)
    ]
    assert found == [
        ("g-late", 2_000, 2_000_000, 2 * GPU_HOUR, 4_000_000),
        ("g-saved", 2_000, 2_000_000, 4 * GPU_HOUR, 8_000_000),
        ("g-serve", 2_000, 2_000_000, None, None),
        ("g-keep", 2_000, 2_000_000, 20 * GPU_HOUR, 40_000_000),
    ]


def demo_changes(pool: str) -> list[Change]:
    """The demo month's facts of a pool as level changes; a new attempt follows the end of the one before."""
    books = october_books()
    changes = [Change(at, (CAPACITY, "", 0), "", amount) for at, amount in books.capacity[pool]]
    for event in books.of("occupancy"):
        data = event["data"]
        if data["pool"] == pool:
            subject = (OCCUPANCY, data["workload"], data["attempt"])
            preemptible = data.get("service_class") == "preemptible"
            held = milli(data["gpus"])
            changes.append(Change(ms(event["time"]), subject, holder_of(data), held, preemptible=preemptible))
    for event in books.of("pending"):
        data = event["data"]
        if data["pool"] == pool:
            subject = (PENDING, data["workload"], 0)
            changes.append(Change(ms(event["time"]), subject, holder_of(data), milli(data["gpus"])))
    for event in books.reservations:
        data = event["data"]
        if data["pool"] == pool:
            subject, lendable = (RESERVATION, data["reservation"], 0), data["lendable"]
            reserved = milli(data["gpus"])
            changes.append(Change(ms(event["time"]), subject, holder_of(data), reserved, lendable))
            if "ends_at" in data:
                changes.append(Change(ms(data["ends_at"]), subject, holder_of(data), 0, lendable))
    return sorted(changes, key=lambda change: change.time_ms)


def is_short_just_before(changes: Sequence[Change], at_ms: int) -> bool:
    """Section 9 by the rules of section 4 at one instant, apart from the sweep."""
    last: Mapping[object, Change] = {one.subject: one for one in changes if one.time_ms < at_ms}
    capacity = pending = preemptible = 0
    sums: dict[str, list[int]] = {}
    for (kind, _, _), one in last.items():  # type: ignore[misc]  # the key is a subject
        if kind == CAPACITY:
            capacity = one.milli
        elif kind == PENDING:
            pending += one.milli
        else:
            of = sums.setdefault(one.holder, [0, 0, 0])
            of[0 if kind == OCCUPANCY else 1] += one.milli
            of[2] += one.milli if kind == RESERVATION and one.lendable else 0
            preemptible += one.milli if kind == OCCUPANCY and one.preemptible else 0
    split = split_at(capacity, {slug: Held(*levels) for slug, levels in sums.items()})
    return pending > split.unreserved_idle + split.lendable_idle + preemptible


@pytest.mark.parametrize("pool", ["bj-h100", "bj-h200", "sh-h20"])
def test_on_the_demo_month_every_shortage_is_visible_before_the_first_preemption_it_causes(pool: str) -> None:
    decided = sorted(
        {
            ms(event["time"])
            for event in october_books().of("preemption")
            if event["data"]["pool"] == pool and not event["data"].get("queued_only")
        }
    )
    changes = demo_changes(pool)
    found = shortages(changes, {}, Span(changes[0].time_ms, changes[-1].time_ms + 1))
    caused = {one.starts_ms: preemptions_of(one, decided) for one in found}
    led = {start: of for start, of in caused.items() if of}
    assert len(led) >= 3
    assert all(start < of[0] for start, of in led.items())
    # Nothing is missed and nothing made up: the pool was short just before exactly these decisions.
    inside = {at for of in caused.values() for at in of}
    checked = decided[:: max(len(decided) // 25, 1)]
    assert [at for at in checked if is_short_just_before(changes, at)] == [
        at for at in checked if at in inside
    ]
