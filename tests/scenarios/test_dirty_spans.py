"""Only what changed is computed again: after generated deliveries the books are those of computing all of it.

Every delivery marks the time that its levels change as dirty, and only the days of that time are computed. Levels come
in any order, also several of one subject at once, repeat one another, share an instant, end by themselves, belong to
attempts, and are withdrawn; where one delivery leaves too little dirty, the last computation of everything differs.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from billing.models import (
    Allocation,
    AllocationDay,
    LendingDay,
    MonthLine,
    PoolSlot,
    PreemptionRecord,
    PreemptionShare,
    PreemptionWait,
    TenantMonth,
    WorkloadDay,
)
from billing.services.months import compute_month
from ledger.models import DirtySpan
from tests.scenarios.golden import (
    MONTH,
    Fact,
    at,
    capacity,
    correction,
    holds,
    preempted,
    reserves,
    resumed,
    tell,
    world,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

DAYS = 5
BOOKS = (
    PoolSlot, Allocation, AllocationDay, TenantMonth, LendingDay, WorkloadDay, MonthLine, PreemptionRecord,
    PreemptionShare, PreemptionWait,
)  # fmt: skip
TENANTS = ("acme", "beta")
# Hours of few days, so that instants are shared and midnight is among them.
HOURS = st.integers(0, 4 * DAYS - 1).map(lambda quarter: 6 * quarter)
GPUS = st.sampled_from([0, 0, 0, 2, 3])
TOLD = st.one_of(
    st.tuples(st.just("holds"), st.sampled_from(TENANTS), HOURS, GPUS, st.sampled_from([1, 1, 2])),
    st.tuples(st.just("reserves"), st.sampled_from(TENANTS), HOURS, GPUS, st.sampled_from([0, 5, 30])),
    st.tuples(st.just("has"), st.just(""), HOURS, st.sampled_from([0, 4, 6]), st.just(0)),
    # Few preemptions, of which many reports tell, and resumes.
    st.tuples(st.just("loses"), st.sampled_from(TENANTS), HOURS, st.just(1), st.sampled_from([0, 0, 1])),
    st.tuples(st.just("resumes"), st.just(""), HOURS, st.just(0), st.sampled_from([0, 0, 1])),
    st.tuples(st.just("withdraws"), st.just(""), st.just(0), st.just(0), st.integers(0, 9)),
)
Told = tuple[str, str, int, int, int]


def fact(told: Told, name: str, before: list[str]) -> Fact | None:
    """The event that says so; before: names of what was told before, of which one may be withdrawn."""
    kind, tenant, hour, gpus, number = told
    match kind:
        case "holds":
            return holds(tenant, hour, gpus, event_id=name, attempt=number)
        case "reserves":
            ends = {"ends_at": at(hour + number).isoformat()} if number and gpus else {}
            return reserves(tenant, hour, gpus, **ends) | {"id": name}
        case "has":
            return capacity(hour, gpus) | {"id": name}
        case "loses":
            said = {"requests_voided": hour} if hour % 24 else {"admitted_at": at(hour - 6).isoformat()}
            return preempted(hour, tenant, gpus, preemption=f"p{number}", event_id=name, **said)
        case "resumes":
            return resumed(hour, f"p{number}", event_id=name, recompute_gpu_seconds=str(hour))
        case _:
            return correction(before[number % len(before)]) if before else None


def deliver_in_turn(deliveries: list[list[Told]]) -> None:
    """Book and compute one delivery after another."""
    events: list[str] = []
    for number, delivery in enumerate(deliveries):
        names = [f"d{number}-{place}" for place in range(len(delivery))]
        facts = [fact(told, name, events) for told, name in zip(delivery, names, strict=True)]
        tell(*[one for one in facts if one is not None])
        events += [name for told, name in zip(delivery, names, strict=True) if told[0] != "withdraws"]
        compute_month(MONTH, horizon=at(24 * DAYS))


def books() -> dict[str, list[dict[str, Any]]]:
    found = {}
    for model in BOOKS:
        names = [field.attname for field in model._meta.concrete_fields if field.attname not in ("id", "pk")]
        found[model.__name__] = sorted(model.objects.values(*names), key=repr)
    return found


# Deliveries whose levels of 0 do change what is held.
BEFORE_A_LEVEL = [[("holds", "acme", 6, 3, 1)], [("holds", "acme", 24, 2, 1), ("holds", "acme", 48, 0, 1)]]
HIGHER_ATTEMPT = [[("holds", "acme", 6, 3, 1)], [("holds", "acme", 24, 2, 2), ("holds", "acme", 48, 0, 2)]]
SAME_INSTANT = [[("holds", "acme", 24, 0, 1)], [("holds", "acme", 24, 3, 1)], [("holds", "acme", 24, 0, 1)]]
# Reports and a resume of a preemption that was measured before; the first tells of an instant long after its waiting.
MEASURED = [("holds", "acme", 6, 3, 1), ("holds", "acme", 12, 0, 1), ("holds", "acme", 18, 3, 1)]
REPORTED_EARLIER = [[*MEASURED, ("loses", "acme", 12, 1, 0)], [("loses", "acme", 6, 1, 0)]]
REPORTED_LATER = [[*MEASURED, ("loses", "acme", 12, 1, 0)], [("loses", "acme", 90, 1, 0)]]
REPORT_WITHDRAWN = [*REPORTED_LATER, [("withdraws", "", 0, 0, 4)]]
RESUMED = [
    [*MEASURED, ("loses", "acme", 12, 1, 0)],
    [("resumes", "", 78, 0, 0)],
    [("withdraws", "", 0, 0, 4)],
]


@example(deliveries=REPORTED_EARLIER)
@example(deliveries=REPORTED_LATER)
@example(deliveries=REPORT_WITHDRAWN)
@example(deliveries=RESUMED)
@example(deliveries=BEFORE_A_LEVEL)
@example(deliveries=HIGHER_ATTEMPT)
@example(deliveries=SAME_INSTANT)
@given(deliveries=st.lists(st.lists(TOLD, min_size=1, max_size=4), min_size=1, max_size=4))
@hypothesis_settings(deadline=None, max_examples=10)
def test_books_of_what_is_dirty_are_the_books_of_everything(deliveries: list[list[Told]]) -> None:
    with transaction.atomic():
        world(8, *TENANTS)
        compute_month(MONTH, horizon=at(24 * DAYS))
        deliver_in_turn(deliveries)
        followed = books()
        compute_month(MONTH, horizon=at(24 * DAYS), everything=True)
        assert books() == followed
        transaction.set_rollback(True)


def test_work_that_is_told_of_whole_leaves_only_its_own_time_dirty() -> None:
    """Neither its end nor a reservation that ends by itself reaches to the horizon; what was held before does."""
    world(8, *TENANTS)
    DirtySpan.objects.all().delete()
    tell(holds("acme", 30, 2), holds("acme", 40, 0), reserves("beta", 50, 2, ends_at=at(60).isoformat()))
    assert dirty() == [(at(30), at(40)), (at(50), at(60))]
    tell(holds("acme", 10, 3))
    assert dirty()[0] == (at(10), at(30))
    DirtySpan.objects.all().delete()
    tell(holds("acme", 20, 0), holds("acme", 26, 0))
    assert dirty() == [(at(20), at(30))]


def dirty() -> list[tuple[Any, Any]]:
    return sorted((span.lower, span.upper) for span in DirtySpan.objects.values_list("span", flat=True))
