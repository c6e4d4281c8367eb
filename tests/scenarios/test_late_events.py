"""A late event is followed where it matters and nowhere else, and the books it leaves are those of everything.

Preempted time concerns two months where work is taken in one and resumes in the next; whichever is computed first, and
whatever is corrected, what moves between accounts is in the end what computing both of them whole says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from importlib import import_module
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from billing.models import MonthLine, PreemptionRecord, PreemptionShare, PreemptionWait, Statement
from billing.services import months, preemption_lines
from billing.services.months import compute_month, is_up_to_date
from ledger.core.units import GPU_US_PER_GPU_HOUR
from tests.scenarios.golden import (
    MONTH,
    NEXT_MONTH,
    POOL,
    Fact,
    at,
    capacity,
    correction,
    cost,
    holds,
    policy,
    preempted,
    reserves,
    resumed,
    served,
    tell,
    terms,
    world,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

FAR = "far"
DAYS = 4


# Where it matters


@pytest.fixture
def two_pools() -> None:
    """acme and beta in one pool, gamma and delta in another of the same GPU model; one preempts the other in both."""
    world(8, "acme", "beta", "gamma", "delta")
    terms(pool=[{"slug": FAR, "cluster": "sh", "gpu_model": "H100"}])
    policy(preemption_charged_to="preemptor")
    tell(capacity(0, 8, pool=FAR))
    for pool, victim, preemptor in ((POOL, "beta", "acme"), (FAR, "delta", "gamma")):
        tell(
            reserves(victim, 0, 4, pool=pool),
            holds(victim, 0, 2, pool=pool),
            holds(preemptor, 1, 2, pool=pool),
        )
        lost = preempted(30, victim, 1, by=preemptor, lost_gpu_seconds=3600)
        lost["data"] |= {"pool": pool, "preemption": f"p-{pool}"}
        tell(lost, resumed(31, f"p-{pool}") | {"data": {"preemption": f"p-{pool}", "pool": pool}})
    compute_month(MONTH, horizon=at(24 * DAYS))


def versions(table: str, *names: str, **where: Any) -> dict[str, tuple[Any, ...]]:
    """Place of each row version -> some of its columns: a row that is written again, even alike, stands elsewhere."""
    condition = " AND ".join(f"{name} = %({name})s" for name in where) or "true"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT ctid::text, {', '.join(names)} FROM {table} WHERE {condition}", where)
        return {place: tuple(values) for place, *values in cursor.fetchall()}


SLOTS = (
    "billing_poolslot",
    "billing_allocation",
    "billing_lendingday",
    "billing_workloadday",
    "billing_tokenday",
)


def written(before: dict[str, tuple[Any, ...]], after: dict[str, tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """The columns of rows that came or went."""
    return {(before | after)[place] for place in before.keys() ^ after.keys()}


def test_a_late_event_touches_its_pool_its_day_and_its_tenants_statements(
    two_pools: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else is neither written nor, of lines and of what preemptions move, read."""
    asked: list[Collection[str]] = []
    charged: list[str] = []
    stored_lines_of, record_charges = months.stored_lines_of, preemption_lines.record_charges

    def lines_of(period: Any, books: Any, names: Collection[str]) -> Any:
        asked.append(names)
        return stored_lines_of(period, books, names)

    def charges_of(record: PreemptionRecord, *rest: Any) -> Any:
        charged.append(record.preemption)
        return record_charges(record, *rest)

    monkeypatch.setattr(months, "stored_lines_of", lines_of)
    monkeypatch.setattr(preemption_lines, "record_charges", charges_of)
    slots = {table: versions(table, "pool_id", "starts_at") for table in SLOTS}
    lines = versions("billing_monthline", "pool", "kind", "account_id")
    statements = versions("billing_statement", "number")
    printed = versions("billing_statementline", "statement_id")
    records = versions("billing_preemptionrecord", "preemption")

    tell(holds("acme", 60, 5, workload="burst"), holds("acme", 62, 0, workload="burst"))
    compute_month(MONTH, horizon=at(24 * DAYS))

    days = {
        (pool, starts_at.date())
        for table in SLOTS
        for pool, starts_at in written(slots[table], versions(table, "pool_id", "starts_at"))
    }
    assert {day for _, day in days} == {at(60).date()} and len(days) == 1
    changed_lines = written(lines, versions("billing_monthline", "pool", "kind", "account_id"))
    assert {(pool, kind) for pool, kind, _ in changed_lines} == {(POOL, "usage"), (POOL, "credit")}
    # acme's occupancy grew into unreserved GPUs and into beta's idle ones.
    ours = {(f"{MONTH}-acme",), (f"{MONTH}-beta",)}
    assert written(statements, versions("billing_statement", "number")) == ours
    assert asked == [["tenant:acme", "tenant:beta"]]
    of_ours = set(Statement.objects.filter(number__in=[number for (number,) in ours]).values_list("pk"))
    assert written(printed, versions("billing_statementline", "statement_id")) == of_ours
    # Nothing was decided in these hours, so no record and nothing that one moves was looked at.
    assert written(records, versions("billing_preemptionrecord", "preemption")) == set()
    assert charged == []


def test_a_late_event_at_a_decision_measures_that_preemption_again(two_pools: None) -> None:
    """In the other pool of its GPU model as well: what was idle elsewhere is another number."""
    before = dict(PreemptionRecord.objects.values_list("preemption", "idle_elsewhere_milli_gpus"))
    tell(holds("acme", 29, 6, workload="burst"), holds("acme", 32, 0, workload="burst"))
    compute_month(MONTH, horizon=at(24 * DAYS))
    after = dict(PreemptionRecord.objects.values_list("preemption", "idle_elsewhere_milli_gpus"))
    assert before == {f"p-{POOL}": 1_000, f"p-{FAR}": 1_000}
    assert after == {f"p-{POOL}": 1_000, f"p-{FAR}": 0}


def test_a_resume_in_another_cluster_is_followed_when_it_comes_and_when_it_goes() -> None:
    """Work may run again elsewhere, under the name that its preemption has in its own cluster; unless another one has
    that name there."""
    world(8, "acme", "beta")
    terms(pool=[{"slug": FAR, "cluster": "sh", "gpu_model": "H200"}])
    policy(preemption_charged_to="preemptor")
    # It runs again by its occupancy, so that nothing waits and has it measured again.
    tell(capacity(0, 8, pool=FAR), holds("acme", 0, 3), holds("acme", 30, 2), holds("acme", 31, 3))
    tell(preempted(30, "acme", 1, by="beta", lost_gpu_seconds=600))
    compute_month(MONTH, horizon=at(24 * DAYS))
    there = resumed(34, "p-30", recompute_gpu_seconds=900) | {"id": "there"}
    there["data"]["pool"] = FAR
    namesake = preempted(33, "beta", 1, event_id="namesake", lost_gpu_seconds=60)
    namesake["data"] |= {"preemption": "p-30", "pool": FAR}
    recomputed = []
    for fact in (there, namesake, correction("namesake"), correction("there")):
        tell(fact)
        compute_month(MONTH, horizon=at(24 * DAYS))
        followed = books()
        compute_month(MONTH, horizon=at(24 * DAYS), everything=True)
        assert books() == followed
        recomputed.append(PreemptionRecord.objects.get(cluster="bj").recompute_gpu_us)
    assert recomputed == [GPU_US_PER_GPU_HOUR // 4, None, GPU_US_PER_GPU_HOUR // 4, None]


# Two months


BORDER = 744
HOURS = st.integers(BORDER - 6, BORDER + 6)
TOLD = st.one_of(
    st.tuples(st.just("holds"), HOURS, st.integers(0, 3)),
    st.tuples(st.just("loses"), HOURS, st.integers(1, 2)),
    st.tuples(st.just("resumes"), HOURS, st.integers(0, 5)),
    st.tuples(st.just("withdraws"), HOURS, st.integers(0, 9)),
    st.tuples(st.just("moves"), HOURS, st.integers(0, 9)),
)
ORDERS = st.lists(st.sampled_from([MONTH, NEXT_MONTH]), max_size=3)
Step = tuple[list[tuple[str, int, int]], list[Any]]
HORIZON: datetime = at(BORDER + 24)


def facts_of(told: list[tuple[str, int, int]], number: int, lost: dict[str, int]) -> Iterator[Fact]:
    """lost: names of preemptions told so far and not known to have ended -> hour of the decision. Work resumes after
    it was taken, and a decision stays before what it is known to have ended with."""
    for place, (kind, hour, value) in enumerate(told):
        name = f"d{number}-{place}"
        if kind == "holds":
            yield holds("acme", hour, value, event_id=name)
        elif kind == "loses":
            yield _loses(name, name, hour, value)
            lost[name] = hour
        elif lost:
            which = list(lost)[value % len(lost)]
            decided = lost.pop(which)
            if kind == "resumes":
                after = max(hour, decided + 1)
                yield resumed(after, which, recompute_gpu_seconds=60 * (value + 1)) | {"id": name}
            else:
                yield correction(which, _loses(name, which, hour, 1) if kind == "moves" else None)


def _loses(event_id: str, preemption: str, hour: int, gpus: int) -> Fact:
    fact = preempted(hour, "acme", gpus, by="beta", event_id=event_id, lost_gpu_seconds=600 * gpus)
    fact["data"]["preemption"] = preemption
    return fact


def books() -> dict[str, list[dict[str, Any]]]:
    found = {}
    for model in (MonthLine, PreemptionRecord, PreemptionShare, PreemptionWait):
        names = [field.attname for field in model._meta.concrete_fields if field.attname not in ("id", "pk")]
        found[model.__name__] = sorted(model.objects.values(*names), key=repr)
    found["Statement"] = list(Statement.objects.order_by("number").values("number", "content"))
    return found


# Work that runs again waits no more, so that nothing but its facts has it measured again.
INTO_NEXT = [
    ([("loses", BORDER - 4, 2), ("holds", BORDER - 4, 1), ("holds", BORDER - 3, 3)], [MONTH, NEXT_MONTH]),
    ([("moves", BORDER + 2, 0)], [NEXT_MONTH]),
]
BACK = [
    ([("loses", BORDER + 2, 2), ("holds", BORDER + 2, 1), ("holds", BORDER + 3, 3)], [MONTH, NEXT_MONTH]),
    ([("moves", BORDER - 2, 0)], [NEXT_MONTH]),
]
RESUME = [
    ([("holds", BORDER - 5, 3), ("loses", BORDER - 2, 2)], [MONTH, NEXT_MONTH]),
    ([("resumes", BORDER + 2, 0)], [NEXT_MONTH]),
    ([("holds", BORDER + 1, 2)], [NEXT_MONTH]),
]
# Nobody said when the GPUs were released, and the drop that tells comes after the work has resumed.
RELEASED_LATE = [
    ([("loses", BORDER + 1, 1), ("resumes", BORDER - 6, 0)], [NEXT_MONTH]),
    ([("holds", BORDER + 5, 0)], []),
]
RUNS_AGAIN = [([("holds", BORDER - 6, 0), ("holds", BORDER + 1, 1), ("loses", BORDER - 6, 1)], [])]


@example(steps=RELEASED_LATE)
@example(steps=RUNS_AGAIN)
@example(steps=INTO_NEXT)
@example(steps=BACK)
@example(steps=RESUME)
@given(steps=st.lists(st.tuples(st.lists(TOLD, min_size=1, max_size=3), ORDERS), min_size=1, max_size=3))
@hypothesis_settings(deadline=None, max_examples=5)
def test_what_preemptions_move_over_a_months_end_is_what_computing_both_months_whole_says(
    steps: list[Step],
) -> None:
    with transaction.atomic():
        world(8, "acme", "beta", begin=BORDER - 10)
        policy(preemption_charged_to="preemptor")
        tell(reserves("acme", BORDER - 10, 4), holds("acme", BORDER - 9, 3))
        for month in (MONTH, NEXT_MONTH):
            compute_month(month, horizon=HORIZON)
        lost: dict[str, int] = {}
        for number, (told, order) in enumerate(steps):
            tell(*facts_of(told, number, lost))
            for month in order:
                compute_month(month, horizon=HORIZON)
        for month in (MONTH, NEXT_MONTH):
            compute_month(month, horizon=HORIZON)
        followed = books()
        for month in (MONTH, NEXT_MONTH):
            compute_month(month, horizon=HORIZON, everything=True)
        assert books() == followed
        transaction.set_rollback(True)


def follow() -> None:
    """As beat does: month by month in order, each that is not up to date; until all are."""
    for _ in range(3):
        for month in (MONTH, NEXT_MONTH):
            if not is_up_to_date(month, HORIZON):
                compute_month(month, horizon=HORIZON)


def _taken(hour: int) -> Fact:
    return _loses("lost", "lost", hour, 2)


def _runs_again(hour: int) -> Fact:
    return resumed(hour, "lost", recompute_gpu_seconds=600) | {"id": "again"}


@pytest.mark.parametrize(
    ("first", "late"),
    [
        # The months in which it is told are marked by the booking; what it moves is known in the later one.
        pytest.param(_taken(BORDER + 2), _runs_again(BORDER - 2), id="a resume in the earlier month"),
        # A report that comes after its resume marks its own month alone.
        pytest.param(_runs_again(BORDER - 2), _taken(BORDER + 2), id="a report in the next month"),
        pytest.param(_runs_again(BORDER + 2), _taken(BORDER - 2), id="a resume in the next month"),
    ],
)
def test_what_moves_in_another_month_than_the_one_computed_is_followed_there(first: Fact, late: Fact) -> None:
    """The books of both months are those that come of all facts at once."""
    world(8, "acme", "beta", begin=BORDER - 10)
    policy(preemption_charged_to="preemptor")
    tell(reserves("acme", BORDER - 10, 4), holds("acme", BORDER - 9, 3))
    # It holds more again before the month ends, so that nothing waits into the next one.
    tell(holds("acme", BORDER - 1.5, 1), holds("acme", BORDER - 1, 3))
    with transaction.atomic():
        tell(first, late)
        for month in (MONTH, NEXT_MONTH, MONTH, NEXT_MONTH):
            compute_month(month, horizon=HORIZON, everything=True)
        at_once = books()
        transaction.set_rollback(True)
    assert {line["category"] for line in at_once["MonthLine"]} >= {"preemption_lost", "preemption_recompute"}
    tell(first)
    follow()
    tell(late)
    follow()
    assert books() == at_once
    assert all(is_up_to_date(month, HORIZON) for month in (MONTH, NEXT_MONTH))


def test_a_resume_past_the_horizon_moves_when_its_hour_is_computed() -> None:
    """It was told before the hour was over, with the preemption that was measured then; nothing tells of it again."""
    world(8, "acme", "beta")
    policy(preemption_charged_to="preemptor")
    tell(holds("acme", 0, 3), preempted(5, "acme", 2, by="beta", lost_gpu_seconds=600))
    tell(resumed(6.5, "p-5", recompute_gpu_seconds=600))
    compute_month(MONTH, horizon=at(6))
    compute_month(MONTH, horizon=at(7))
    followed = books()
    compute_month(MONTH, horizon=at(7), everything=True)
    assert books() == followed
    assert "preemption_recompute" in {line["category"] for line in followed["MonthLine"]}


@pytest.fixture
def waiting() -> None:
    """One that still waits, one that is known to end later than any month is computed to, one that ended; of a service
    that three share, so that their parts are no whole numbers. Nothing is computed."""
    world(8, "acme", "beta", "gamma", begin=BORDER - 10)
    terms(service=[{"slug": "chat", "pool": POOL, "key": "gpu_seconds"}])
    for number in range(3):
        replica = {"workload": f"chat-{number}", "service": "chat"}
        tell(holds("chat", BORDER - 9, 2, **replica), holds("chat", BORDER - 3.25, 0, **replica))
        lost = preempted(BORDER - 3.25, "acme", 2, event_id=f"lost-{number}")
        lost["data"] |= {"victim": replica, "preemption": f"chat-{number}"}
        tell(lost)
    for hour in range(BORDER - 9, BORDER - 3):
        used = (("acme", 5), ("beta", 7), ("gamma", 11))
        tell(*(served("chat", who, hour, gpu_seconds=seconds) for who, seconds in used))
    tell(resumed(BORDER + 30, "chat-1"), resumed(BORDER + 7, "chat-2"))


def test_waiting_is_the_same_in_whatever_order_months_are_computed(waiting: None) -> None:
    def computed(*order: Any) -> dict[str, list[dict[str, Any]]]:
        with transaction.atomic():
            for month in order:
                compute_month(month, horizon=HORIZON)
            follow()
            found = books()
            transaction.set_rollback(True)
        return found

    expected = computed(MONTH, NEXT_MONTH)
    waited = [record["waiting_gpu_us"] / (2 * GPU_US_PER_GPU_HOUR) for record in expected["PreemptionRecord"]]
    # Until the hour that is known of, until BORDER + 30, until BORDER + 7.
    assert sorted(waited) == [10.25, 27.25, 33.25]
    october = [one["content"]["totals"] for one in expected["Statement"] if "2026-10" in one["number"]]
    # 6 GPUs waited for 3.25 hours of October, to the microsecond.
    assert sum(int(totals["waiting_gpu_us"]) for totals in october) == 19.5 * GPU_US_PER_GPU_HOUR
    assert computed(NEXT_MONTH, MONTH) == expected
    assert computed(MONTH, NEXT_MONTH, MONTH) == expected


def test_waiting_that_was_kept_by_the_month_computed_last_is_said_again(waiting: None) -> None:
    """What the books said before they knew the parts of shares: the migration, and computing what it marked."""
    for month in (MONTH, NEXT_MONTH):
        compute_month(month, horizon=HORIZON)
    follow()
    expected = books()
    PreemptionShare.objects.update(weight_before=0, weight_through=1, weight_total=1)
    PreemptionRecord.objects.filter(preemption="chat-1").update(waiting_gpu_us=27 * GPU_US_PER_GPU_HOUR)
    migration = import_module("billing.migrations.0024_waiting_parts")
    with connection.cursor() as cursor:
        for statement in (migration.WAITED, migration.WEIGHTS, migration.PARTS, migration.MEASURE_AGAIN):
            cursor.execute(statement)
    assert books()["PreemptionRecord"] == expected["PreemptionRecord"]
    follow()
    assert books() == expected


def test_what_a_preemption_moves_in_cost_recovery_follows_the_price_of_the_month() -> None:
    """Capacity that is told of late, at the dearer cost of another day, makes every GPU-hour of the month dearer."""
    world(8, "acme", "beta")
    terms(ledger={"approvals": False, "mode": "cost_recovery"})
    policy(preemption_charged_to="preemptor")
    cost("1.5")
    cost("3", valid_from=at(48))
    tell(
        reserves("acme", 0, 4), holds("acme", 0, 3), preempted(5, "acme", 2, by="beta", lost_gpu_seconds=7200)
    )
    tell(resumed(6, "p-5"))
    compute_month(MONTH, horizon=at(48))
    amounts = [PreemptionRecord.objects.get().amount_micro]
    # The hours of the third day cost twice as much; then 56 GPUs more do so for two of them.
    for facts in ([], [capacity(60, 64), capacity(62, 8)]):
        tell(*facts)
        compute_month(MONTH, horizon=at(72))
        amounts.append(PreemptionRecord.objects.get().amount_micro)
        followed = books()
        compute_month(MONTH, horizon=at(72), everything=True)
        assert books() == followed
    assert amounts == [3_000_000, 4_000_000, round(2_000_000 * (384 * 1.5 + 304 * 3) / 688)]
