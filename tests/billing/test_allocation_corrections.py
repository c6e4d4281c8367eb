"""Facts that contradict each other, come late or are withdrawn, in the books of a month."""

from __future__ import annotations

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.utils import timezone

from billing.models import (
    BillingFinding,
)
from billing.services.allocation import compute_allocation
from ledger.core.periods import Month
from ledger.models import (
    Correction,
    DirtySpan,
    Event,
    Period,
    PeriodState,
    Subject,
)
from tests.billing.allocation_books import OCTOBER, compute, hours_of, tables
from tests.billing.level_facts import (
    MONTH,
    capacity,
    hour,
    identity,
    make_pool,
    make_tenants,
    occupancy,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_a_superseded_fact_is_out_of_force_and_the_latest_correction_wins(worked_example):
    wrong = occupancy(worked_example, "wl-8", identity("beta"), hour(1), 5_000, event_id="wrong")
    occupancy(worked_example, "wl-8", identity("beta"), hour(1), 4_000, event_id="better")
    occupancy(worked_example, "wl-8", identity("beta"), hour(2), 0, event_id="end")
    occupancy(worked_example, "wl-8", identity("beta"), hour(1), 1_000, event_id="best")
    for at, replacement in ((20, "better"), (21, "best")):
        event = Event.objects.create(
            source=wrong.event.source, event_id=f"fix-{at}", type=11, occurred_at=hour(at), content_hash=b"",
            booking=wrong.event.booking, line=at, body={},
        )  # fmt: skip
        Correction.objects.create(
            event=event, corrected_at=hour(at), supersedes_source="/tests", supersedes_event_id="wrong",
            reason="typo", replacement_source="/tests", replacement_event_id=replacement,
        )  # fmt: skip
    compute()
    assert hours_of()["beta", "on_demand"] == 1
    assert not BillingFinding.objects.filter(code="level_conflict").exists()


def test_conflicting_facts_are_found_and_the_greatest_id_holds(worked_example):
    occupancy(worked_example, "wl-8", identity("beta"), hour(1), 3_000, event_id="b")
    lost = occupancy(worked_example, "wl-8", identity("beta"), hour(1), 1_000, event_id="a")
    occupancy(worked_example, "wl-8", identity("beta"), hour(2), 0)
    compute()
    finding = BillingFinding.objects.get(code="level_conflict")
    assert finding.subject == f"event {lost.event_id}"
    assert finding.blocks_close
    assert hours_of()["beta", "on_demand"] == 3


def conflicts() -> list[tuple[str, str]]:
    found = BillingFinding.objects.filter(code="level_conflict").order_by("starts_at")
    return [(f"{one.starts_at:%m-%d}", one.month) for one in found]


def test_a_conflict_is_found_once_on_its_own_day_however_long_its_level_lasts(worked_example):
    """The month is computed as beat does, a stretch of days at a time; the level stays in force for two months."""
    for number, milli in enumerate((3_000, 1_000)):
        occupancy(worked_example, "wl-8", identity("beta"), hour(30), milli, event_id=f"c{number}")
    for hours in (40, 41, 24 * 9, 24 * 31):
        compute(hours)
        assert conflicts() == [("10-02", MONTH)]
    compute_allocation(OCTOBER.next(), horizon=hour(24 * 33))
    assert conflicts() == [("10-02", MONTH)]


def test_a_conflict_that_comes_after_the_close_is_an_exception_of_the_open_month(worked_example):
    """Told of in October, which is closed: nobody has seen it, so that it stands at November's start; not in December
    too, once November was closed over it."""
    occupancy(worked_example, "wl-8", identity("beta"), hour(30), 3_000, event_id="c0")
    compute(24 * 31)
    close_as_of(OCTOBER, 1)
    occupancy(worked_example, "wl-8", identity("beta"), hour(30), 1_000, event_id="c1", batch=2)
    november, december = OCTOBER.next(), OCTOBER.next().next()
    compute_allocation(november, horizon=hour(24 * 33))
    assert conflicts() == [("11-01", str(november))]
    compute_allocation(november, horizon=hour(24 * 61))
    assert conflicts() == [("11-01", str(november))]
    close_as_of(november, 2)
    compute_allocation(december, horizon=hour(24 * 63))
    assert conflicts() == [("11-01", str(november))]


def close_as_of(month: Month, cut: int) -> None:
    closed_at = timezone.now()
    Period.objects.filter(month=str(month)).update(
        state=PeriodState.CLOSED, cut_sequence=cut, closed_at=closed_at
    )


def test_an_attempt_that_a_higher_one_ended_before_the_day_is_not_opened_again(worked_example):
    who = identity("gamma")
    occupancy(worked_example, "wl-7", who, hour(11), 2_000, attempt=1)
    occupancy(worked_example, "wl-7", who, hour(12), 3_000, attempt=2)
    occupancy(worked_example, "wl-7", who, hour(13), 0, attempt=2)
    occupancy(worked_example, "wl-7", who, hour(40), 9_000, attempt=1)
    compute(100)
    whole = tables()
    DirtySpan.objects.create(pool=worked_example, span=DateTimeTZRange(hour(30), hour(31), "[)"))
    assert compute(100).slots == 24
    assert tables() == whole


def withdraw(level, at: float = 50) -> None:
    """A correction of a fact, as booking leaves it behind."""
    event = Event.objects.create(
        source=level.event.source, event_id=f"c-{level.pk}", type=11, occurred_at=hour(at), content_hash=b"c",
        booking=level.event.booking, line=1, body={},
    )  # fmt: skip
    Correction.objects.create(
        event=event, corrected_at=hour(at), supersedes_source="/tests", supersedes_event_id=level.event.event_id,
        reason="wrong",
    )  # fmt: skip
    Subject.objects.filter(subject=level.subject, attempt=level.attempt, last_milli_gpus=0).update(
        last_milli_gpus=1
    )


def test_a_withdrawn_release_leaves_the_work_running_also_on_days_after_it():
    pool = make_pool()
    make_tenants("acme")
    capacity(pool, hour(0), 8_000)
    occupancy(pool, "wl-1", identity("acme"), hour(0), 2_000)
    withdraw(occupancy(pool, "wl-1", identity("acme"), hour(5), 0))
    compute(48)
    assert hours_of() == {("acme", "on_demand"): 96}
    DirtySpan.objects.create(pool=pool, span=DateTimeTZRange(hour(24), hour(48)))
    compute(48)
    assert hours_of() == {("acme", "on_demand"): 96}


def test_a_withdrawn_attempt_does_not_end_the_one_before_it():
    """Its subject row stays, so a day that begins after it took the lower attempt for ended."""
    pool = make_pool()
    make_tenants("acme")
    capacity(pool, hour(0), 8_000)
    occupancy(pool, "wl-1", identity("acme"), hour(0), 2_000, attempt=1)
    withdraw(occupancy(pool, "wl-1", identity("acme"), hour(5), 4_000, attempt=2))
    compute(48)
    DirtySpan.objects.create(pool=pool, span=DateTimeTZRange(hour(24), hour(48)))
    compute(48)
    assert hours_of() == {("acme", "on_demand"): 96}
