"""Headroom, shortages, reservations, lending, demand and refusals through the API (domain.md section 9)."""

from __future__ import annotations

from typing import Any

import pytest

from billing.models import PreemptionRecord
from billing.selectors import shortages
from billing.services.months import compute_month
from billing.services.preemption_moments import read_changes
from ledger.core.periods import Month, Span, to_ms
from ledger.models import EventType, LevelKind, ModelName, Outcome, Pool, Rejection, UsageHour
from tests.billing.level_facts import MONTH, book, hour, identity
from tests.billing.page_books import HOURS_OF_OCTOBER, Books, make_books
from tests.billing.preemption_facts import event
from tests.billing.test_api import client, get
from tests.fixtures.made_once import made_once
from tests.ingest.feeding import deliver, request, small_world
from tests.ingest.feeding import event as fed_event

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

WINDOW = "window=2026-10"


@made_once
def books() -> Books:
    """The worked example, in which acme's 6 GPUs waited for half an hour before it preempted gamma."""
    made = make_books()
    pending(made.pool, "wl-4/a", "acme", 3.5, 6_000)
    pending(made.pool, "wl-4/a", "acme", 4, 0)
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER))
    return made


def pending(pool: Pool, workload: str, who: str, at: float, milli: int) -> None:
    book(pool, LevelKind.PENDING, workload, hour(at), milli, identity=identity(who))


def rows(role: str, path: str, *tenants: str) -> Any:
    return get(client(role, *tenants), path)


def test_headroom_and_who_would_give_way(books: Books) -> None:
    """Just before the preemption: 4 unreserved serve gamma, which borrows 4 of acme's idle 6."""
    (row,) = rows("finance", "headroom/?at=2026-10-01T03:45:00Z")
    assert row == {
        "pool": "bj-h100",
        "at": "2026-10-01T03:45:00Z",
        "capacity_gpus": "16",
        "reserved_gpus": "12",
        "occupied_gpus": "14",
        "pending_gpus": "6",
        "unreserved_gpus": "0",
        "lendable_gpus": "2",
        "preemptible_gpus": "0",
        "headroom_gpus": "2",
        "deficit_gpus": "4",
        "short_since": "2026-10-01T03:30:00Z",
        "currency": "USD",
        "waiting": [{"tenant": "acme", "gpus": "6"}],
        "gives_way": [
            {
                "workload": "wl-3",
                "tenant": "gamma",
                "gpus": "8",
                "gpus_beyond_entitlement": "8",
                "service_class": "guaranteed",
                "price_per_gpu_hour": "2",
                "estimated_loss_gpu_hours": "14",
                "estimated_loss": "28",
            }
        ],
    }


def test_a_shortage_is_visible_before_the_preemption_and_its_lead_time_is_the_records(books: Books) -> None:
    (row,) = rows("finance", f"shortages/?{WINDOW}")
    record = PreemptionRecord.objects.get()
    assert row == {
        "pool": "bj-h100",
        "starts_at": "2026-10-01T03:30:00Z",
        "ends_at": "2026-10-01T04:00:00Z",
        "deficit_gpus": "4",
        "deficit_gpu_hours": "2",
        "waiting": [{"tenant": "acme", "gpus": "6"}],
        "preemptions": 1,
        "first_preemption": str(record.pk),
        "first_preemption_at": "2026-10-01T04:00:00Z",
        "lead_time_seconds": "1800",
    }
    assert record.lead_time_ms == 1_800_000


def test_a_tenant_sees_that_a_pool_is_short_and_nothing_of_the_others(books: Books) -> None:
    for path in ("headroom/?at=2026-10-01T03:45:00Z", f"shortages/?{WINDOW}"):
        answer = client("tenant_viewer", "delta").get(f"/api/v1/{path}")
        assert answer.status_code == 200
        body = answer.content.decode()
        assert [name for name in ("acme", "gamma", "Alpha", "wl-", "another") if name in body] == []
    (row,) = rows("tenant_viewer", f"shortages/?{WINDOW}", "delta")
    assert (row["first_preemption"], row["lead_time_seconds"]) == (None, "1800")
    (row,) = rows("tenant_viewer", f"shortages/?{WINDOW}", "gamma")
    assert row["first_preemption"] == str(PreemptionRecord.objects.get().pk)


def test_a_lead_time_looks_back_a_week_however_much_else_is_measured(books: Books) -> None:
    """A demand that waits for nine days: the decision knows of seven, alone or together with an earlier one."""
    record = PreemptionRecord.objects.get()
    pending(books.pool, "wl-9", "beta", -9 * 24, 60_000)
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER), everything=True)
    record.refresh_from_db()
    assert record.lead_time_ms == 7 * 86_400_000


def test_what_is_read_of_a_pool_does_not_grow_with_its_history(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool in which much has begun and ended, and work has waited, but not lately: the headroom needs what stands,
    and shortages need what changed while something waited."""
    for number in range(60):
        at, milli = hour(240 + number / 60), 1_000 * (number % 2)
        book(books.pool, LevelKind.OCCUPANCY, "busy", at, milli, identity=identity("acme"))
        pending(books.pool, f"waited-{number}", "acme", 200 + number / 60, 1_000)
        pending(books.pool, f"waited-{number}", "acme", 200 + (number + 1) / 60, 0)
    read: list[int] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        found = read_changes(*arguments, **options)
        read.append(len(found))
        return found

    monkeypatch.setattr(shortages, "read_changes", counted)
    (now,) = shortages.headrooms(hour(242), [books.pool])
    assert now.headroom.deficit == 0 and read == [len(now.changes)] and read[0] < 10
    read.clear()
    assert shortages.shortages_of(_span(239, 242), [books.pool]) == [] and read == []
    around = shortages.shortages_of(_span(3, 4.25), [books.pool])
    assert [one.starts_at for one in around] == [hour(3.5)] and read.pop() < 20
    # The hour in which something waited is within the look-back; what came after it is not left out.
    pending(books.pool, "wl-5", "acme", 241.5, 100_000)
    (short,) = shortages.shortages_of(_span(241, 242), [books.pool])
    assert (short.starts_at, short.ends_at) == (hour(241.5), None)
    (now,) = shortages.headrooms(hour(242), [books.pool])
    assert now.headroom.short_since_ms == to_ms(hour(241.5))


def _span(begin: float, end: float) -> Span:
    return Span(to_ms(hour(begin)), to_ms(hour(end)))


def test_reservations_in_force_and_planned(books: Books) -> None:
    found = rows("finance", "reservations/?at=2026-10-01T03:00:00Z")
    assert [(row["tenant"], row["gpus"], row["ends_at"], row["state"]) for row in found] == [
        ("acme", "8", "2026-10-01T10:00:00Z", "active"),
        ("beta", "4", "2026-10-01T10:00:00Z", "active"),
    ]
    found = rows("finance", "reservations/?at=2026-09-01T00:00:00Z&tenant=beta")
    assert [(row["tenant"], row["state"]) for row in found] == [("beta", "planned")]
    assert rows("finance", "reservations/?at=2026-10-02T00:00:00Z") == []
    found = rows("tenant_viewer", "reservations/?at=2026-10-01T03:00:00Z", "beta")
    assert [row["tenant"] for row in found] == ["beta"]
    assert rows("tenant_viewer", "reservations/?at=2026-10-01T03:00:00Z&tenant=acme", "beta") == []


def test_what_became_of_reservations(books: Books) -> None:
    """The worked example of section 4: acme used 44, lent 20 and left 16 of 80; beta used all of its 40."""
    wanted = [("acme", "80", "44", "20", "16", "0"), ("beta", "40", "40", "0", "0", "0")]
    names = ("tenant", *[f"{name}_gpu_hours" for name in ("reserved", "used", "lent", "idle", "undelivered")])
    for query in ("", "&by=reservation", "&step=day"):
        found = rows("finance", f"reservations/utilization/?{WINDOW}{query}")
        assert [tuple(row[name] for name in names) for row in found] == wanted
    assert [
        row["reservation"] for row in rows("finance", f"reservations/utilization/?{WINDOW}&by=reservation")
    ] == [
        "r-acme",
        "r-beta",
    ]
    assert len(rows("finance", f"reservations/utilization/?{WINDOW}&step=hour")) == 20
    found = rows("tenant_viewer", f"reservations/utilization/?{WINDOW}", "gamma")
    assert found == []


def test_lending_in_gpu_time_and_money(books: Books) -> None:
    """gamma ran 20 GPU-hours on what acme had reserved: at the borrowed rate of 1, which is below the reserved rate."""
    (row,) = rows("finance", f"lending/?{WINDOW}")
    assert row == {
        "pool": "bj-h100",
        "lender": "acme",
        "borrower": "gamma",
        "gpu_hours": "20",
        "gpu_us": "72000000000",
        "amount": "20",
        "credit": "20",
        "currency": "USD",
    }
    (row,) = rows("tenant_viewer", f"lending/?{WINDOW}", "gamma")
    assert (row["lender"], row["borrower"]) == ("Alpha customer", "gamma")
    assert rows("tenant_viewer", f"lending/?{WINDOW}", "delta") == []


def used(pool: Pool, who: str, outcome: Outcome, requests: int, **sums: int) -> None:
    UsageHour.objects.create(
        pool=pool,
        hour=hour(5),
        identity=identity(who),
        model=ModelName.objects.get_or_create(name="qwen3")[0],
        outcome=outcome,
        requests=requests,
        **sums,
    )


def refused(who: str, count: int, **said: Any) -> None:
    Rejection.objects.create(
        event=event(EventType.REJECTION, hour(5)),
        occurred_at=hour(5),
        identity=identity(who),
        count=count,
        model=ModelName.objects.get_or_create(name="qwen3")[0],
        **{"layer": "rate_limit", "reason": "tokens per minute", "status": 429} | said,
    )


@pytest.fixture
def asked(books: Books) -> None:
    """gamma: 10 completed in 1 GPU-hour, 2 timed out, 1 preempted, 5 refused; acme: 3 completed."""
    used(books.pool, "gamma", Outcome.OK, 10, input_tokens=9_000, output_tokens=1_000, gpu_us=3_600_000_000)
    used(books.pool, "gamma", Outcome.TIMEOUT, 2)
    used(books.pool, "gamma", Outcome.PREEMPTED, 1)
    used(books.pool, "acme", Outcome.OK, 3)
    refused("gamma", 2, retry_after_us=5_000_000, requested_tokens=3_000)
    refused("gamma", 1, request="r-1", status=503)
    # The same request refused again is one that was asked for, and the last refusal is what became of it.
    refused("gamma", 1, request="r-1", status=503)
    refused("gamma", 2)


def test_the_funnel_and_what_refusing_cost(asked: None) -> None:
    """5 refused of 18. 3 of them stated no tokens and count as 1000 each: 6000 tokens, 0.6 GPU-hours, and as no token
    has a price, 0.6 x 3 on demand. Preempting took 4 GPUs and re-queued 8 + 0.1779... GPU-hours."""
    found = rows("finance", f"demand/?{WINDOW}&tenant=gamma")
    (row,) = found
    assert {
        name: row[name] for name in ("asked", "completed", "rejected", "preempted", "timed_out", "explicit")
    } == {
        "asked": "18",
        "completed": "10",
        "rejected": "5",
        "preempted": "1",
        "timed_out": "2",
        "explicit": "2",
    }
    assert (row["explicit_share"], row["declined_tokens"], row["declined_basis"]) == (
        "0.250000",
        "6000",
        "gpu_time",
    )
    assert (row["declined_gpu_hours"], row["declined_amount"]) == ("0.6", "1.8")
    # 0.6 x (8 + 640.5 / 3600) / 4 GPU-hours
    assert (row["killing_gpu_hours"], row["killing_amount"]) == ("1.2266875", "3.680062")
    assert [row["tenant"] for row in rows("tenant_viewer", f"demand/?{WINDOW}", "gamma")] == ["gamma"]
    assert [row["tenant"] for row in rows("finance", f"demand/?{WINDOW}")] == ["acme", "gamma"]


def test_refusals_by_any_dimension(asked: None) -> None:
    found = rows("finance", f"rejections/?{WINDOW}&by=status")
    assert [(row["status"], row["rejections"], row["explicit"]) for row in found] == [
        ("429", "4", "2"),
        ("503", "2", "0"),
    ]
    (row,) = rows("finance", f"rejections/?{WINDOW}&by=tenant&status=429&step=day")
    assert (row["tenant"], row["requested_tokens"], row["least_retry_after_seconds"]) == (
        "gamma",
        "3000",
        "5",
    )
    assert rows("tenant_viewer", f"rejections/?{WINDOW}", "acme") == []
    assert rows("tenant_viewer", f"rejections/?{WINDOW}&tenant=gamma", "acme") == []


@pytest.mark.parametrize(
    ("path", "code", "parameter"),
    [
        ("headroom/?at=yesterday", "bad_instant", "at"),
        ("headroom/?colour=red", "unknown_parameter", "colour"),
        ("shortages/", "missing_parameter", "window"),
        (f"reservations/utilization/?{WINDOW}&by=colour", "bad_by", "by"),
        (f"reservations/utilization/?{WINDOW}&step=week", "bad_step", "step"),
        (f"rejections/?{WINDOW}&by=colour", "bad_by", "by"),
    ],
)
def test_what_is_not_understood_is_named(path: str, code: str, parameter: str) -> None:
    answer = client("finance").get(f"/api/v1/{path}")
    assert answer.status_code == 400
    assert (answer.json()["code"], answer.json()["parameter"]) == (code, parameter)


@pytest.mark.parametrize(
    "path",
    [
        "headroom/?at=2026-10-01T03:45:00Z",
        f"shortages/?{WINDOW}",
        "reservations/?at=2026-10-01T03:00:00Z",
        f"reservations/utilization/?{WINDOW}",
        f"lending/?{WINDOW}",
        f"demand/?{WINDOW}",
        f"rejections/?{WINDOW}",
    ],
)
def test_every_list_is_csv_too(asked: None, path: str) -> None:
    answer = client("finance").get(f"/api/v1/{path}{'&' if '?' in path else '?'}format=csv")
    assert (answer.status_code, answer["Content-Type"].split(";")[0]) == (200, "text/csv")
    assert len(answer.content.splitlines()) > 1


def test_a_request_tried_again_was_asked_for_once_and_so_was_one_that_ran_after_a_refusal() -> None:
    """r-1 was preempted and completed on its second attempt; r-2 was refused and then completed as a further attempt;
    r-3 timed out for good. Three were asked for, two completed."""
    small_world()
    deliver(
        request("r-1", "2026-10-03T01:00:00Z", "2026-10-03T00:59:00Z", outcome="preempted"),
        request("r-1b", "2026-10-03T01:05:00Z", "2026-10-03T01:04:00Z", request="r-1", attempt=2),
        request("r-2b", "2026-10-03T02:00:00Z", "2026-10-03T01:59:00Z", request="r-2", attempt=2),
        request("r-3", "2026-10-03T03:00:00Z", "2026-10-03T02:59:00Z", outcome="timeout"),
        fed_event(
            "rejection",
            "rej-2",
            "2026-10-03T01:58:00Z",
            tenant="acme",
            layer="capacity",
            reason="full",
            status=503,
            request="r-2",
            model="qwen",
        ),
    )
    (row,) = rows("finance", f"demand/?{WINDOW}")
    assert {name: row[name] for name in ("asked", "completed", "rejected", "preempted", "timed_out")} == {
        "asked": "3",
        "completed": "2",
        "rejected": "0",
        "preempted": "0",
        "timed_out": "1",
    }
