"""Cases of the corpus of public faults that booking and billing decide (sources/inference.md section 7)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing.models import MonthLine, Statement
from billing.services.months import compute_month
from ingest.models import QuarantinedEvent
from ledger.core.periods import Month
from ledger.models import FactFinding, Rejection, Request, UsageHour
from ledger.services.duplicates import flag_suspected_duplicates
from tests.billing.closed_months import NOVEMBER_5, OCTOBER, closable_ledger, close
from tests.core.adapters.running import events_of, run
from tests.ingest.feeding import SOURCE, deliver, event, lines, occupancy, request, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


def tokens_counted() -> tuple[int, int, int]:
    """(requests, input, output) of the roll-up that money rests on."""
    rows = UsageHour.objects.all()
    return (
        sum(row.requests for row in rows),
        sum(row.input_tokens for row in rows),
        sum(row.output_tokens for row in rows),
    )


def correct(event_id: str, target: str, reason: str, replacement: Any = None) -> dict[str, Any]:
    data = {"supersedes": {"source": SOURCE, "id": target}, "reason": reason}
    return event(
        "correction",
        event_id,
        "2026-10-02T00:00:00Z",
        **data,
        **({"event": replacement} if replacement else {}),
    )


# --- C13: a stream that is cut, and what the provider says later -----------------------------------------------


def test_c13_a_provisional_row_is_adjusted_and_not_overwritten() -> None:
    small_world()
    cut = request(
        "r-1",
        "2026-10-01T00:00:09Z",
        "2026-10-01T00:00:00Z",
        input_tokens=20,
        output_tokens=130,
        outcome="aborted",
    )
    deliver(cut)
    assert tokens_counted() == (1, 20, 130)
    later = {**cut, "id": "r-1/final", "data": {**cut["data"], "output_tokens": 511}}
    # Saying the same id with other content is no adjustment, it is a conflict that a person sees.
    assert deliver({**cut, "data": later["data"]}).conflict == 1
    deliver(correct("c-1", "r-1", "the provider reports 511", later))
    assert tokens_counted() == (1, 20, 511)
    assert sorted(Request.objects.values_list("output_tokens", flat=True)) == [130, 511]


# --- C19: two tenants send the same source and id ----------------------------------------------------------------


def test_c19_two_tenants_under_one_key_are_a_conflict_and_none_is_lost() -> None:
    """The key is (source, id) for ever (events.md): whose sources are their own are two events, whose are not go to a
    person."""
    small_world()
    times = ("2026-10-01T00:00:09Z", "2026-10-01T00:00:00Z")
    ours, theirs = (request("1", *times, tenant=tenant, input_tokens=5) for tenant in ("acme", "beta"))
    receipt = deliver(ours, theirs)
    assert (receipt.booked, receipt.duplicate, receipt.conflict) == (1, 0, 1)
    assert bytes(QuarantinedEvent.objects.get(reason="conflict").raw) == lines(theirs)
    receipt = deliver(*[one | {"source": f"/tenants/{n}/svc"} for n, one in enumerate((ours, theirs))])
    assert (receipt.booked, receipt.conflict) == (2, 0)


# --- C21: a retry under a fresh id ------------------------------------------------------------------------------


def served(event_id: str, second: int, **data: Any) -> dict[str, Any]:
    started = datetime(2026, 10, 1, 12, tzinfo=UTC) + timedelta(seconds=data.pop("begun", 0))
    finished = datetime(2026, 10, 1, 12, 1, tzinfo=UTC) + timedelta(seconds=second)
    counts = {"request": "x-1", "input_tokens": 1536, "output_tokens": 212} | data
    return request(event_id, finished.isoformat(), started.isoformat(), **counts)


def flagged() -> list[str]:
    flag_suspected_duplicates(START, END)
    return sorted(finding.detail["id"] for finding in FactFinding.objects.filter(code="suspected_duplicate"))


def test_c21_a_retry_under_a_fresh_id_is_flagged_and_still_counts() -> None:
    small_world()
    deliver(served("a", 0), served("b", 2))
    assert flagged() == ["b"]
    (finding,) = FactFinding.objects.all()
    assert finding.detail["like"] == {"source": SOURCE, "id": "a"}
    assert finding.blocks_close
    assert tokens_counted() == (2, 3072, 424)


def test_c21_looking_twice_flags_once_and_a_withdrawn_one_is_flagged_no_more() -> None:
    small_world()
    deliver(served("a", 0), served("b", 2))
    assert flagged() == flagged() == ["b"]
    deliver(correct("c-1", "b", "the same request"))
    assert flagged() == []
    assert tokens_counted() == (1, 1536, 212)


@pytest.mark.parametrize(
    "other",
    [
        {"request": "x-2"},
        {"attempt": 2},
        {"tenant": "beta"},
        {"model": "other"},
        {"output_tokens": 213},
        {"begun": 61},
    ],
)
def test_c9_what_differs_in_anything_that_matters_is_another_request(other: dict[str, Any]) -> None:
    small_world()
    deliver(served("a", 0), served("b", 2, **other))
    assert flagged() == []


def test_a_gateway_and_an_engine_that_both_report_a_request_are_flagged() -> None:
    small_world()
    deliver(served("a", 0), served("a", 0) | {"source": "/engines/vllm-0"})
    assert flagged() == ["a"]


# --- C23: late events -------------------------------------------------------------------------------------------


def test_c23_a_late_request_counts_in_its_own_month() -> None:
    """(a) In grace the period takes it; its hour is dirty and computed again. (b), after the close: test_periods."""
    small_world()
    deliver(event("capacity", "cap", "2026-10-31T00:00:00Z", pool="bj-h100", gpus=8))
    compute_month(OCTOBER, horizon=END)
    deliver(request("late", "2026-10-31T23:59:58Z", "2026-10-31T23:59:50Z", input_tokens=5))
    hour = UsageHour.objects.get()
    assert (hour.hour, hour.input_tokens) == (datetime(2026, 10, 31, 23, tzinfo=UTC), 5)
    assert compute_month(OCTOBER, horizon=END).allocation.spans


def test_c23_a_fact_after_the_close_leaves_the_closed_statement_as_it_was() -> None:
    closable_ledger()
    close()
    issued = Statement.objects.filter(period="2026-10").order_by("number")
    before = list(issued.values_list("number", "sha256", "total_micro"))
    deliver(occupancy("late", "2026-10-31T23:00:00Z", 1, workload="wl-late"))
    compute_month(Month.parse("2026-11"), horizon=NOVEMBER_5)
    after = list(issued.all().values_list("number", "sha256", "total_micro"))
    assert after == before


# --- C25: a counter that began again ----------------------------------------------------------------------------


def test_c25_a_reset_counter_adds_what_it_counted_since() -> None:
    small_world()
    labels = 'model_name="qwen",engine="0"'
    lines = []
    for minute, value in ((0, 900), (1, 1000), (2, 200)):
        lines += [
            f'# scraped 2026-10-03T04:{minute:02d}:00Z pod="vllm-0"',
            f"vllm:prompt_tokens_total{{{labels}}} {value}",
        ]
    events = events_of(run("vllm-metrics", lines, pool="bj-h100", pools={}))
    deliver(*events)
    assert sum(row.input_tokens for row in UsageHour.objects.all()) == 100 + 200


# --- C27: refusals are demand, not usage ------------------------------------------------------------------------


def test_c27_refused_calls_are_counted_apart_and_hold_nothing() -> None:
    small_world()
    refusal = {"tenant": "acme", "layer": "rate_limit", "reason": "daily requests: 8", "status": 429}
    deliver(
        *[
            request(f"r-{n}", "2026-10-01T00:00:09Z", "2026-10-01T00:00:08Z", input_tokens=1)
            for n in range(5)
        ],
        *[event("rejection", f"x-{n}", "2026-10-01T00:00:10Z", **refusal) for n in range(5)],
        event(
            "quota",
            "q",
            "2026-10-01T00:00:10Z",
            tenant="acme",
            layer="serving",
            resource="requests_per_minute",
            limit=8,
            used=10,
        ),
    )
    assert tokens_counted()[0] == 5
    assert [(row.status, row.reason, row.count) for row in Rejection.objects.all()] == [
        (429, "daily requests: 8", 1)
    ] * 5


# --- C15: a flat deployment is not billed per token too ---------------------------------------------------------


def test_c15_a_tenant_on_gpu_time_pays_its_reservation_and_no_tokens() -> None:
    closable_ledger()
    deliver(
        request("r", "2026-10-01T02:00:00Z", "2026-10-01T01:59:00Z", input_tokens=10**6, output_tokens=10**6)
    )
    close()
    units = set(MonthLine.objects.filter(account__tenant__holder__slug="acme").values_list("kind", flat=True))
    assert "tokens" not in units
    assert tokens_counted() == (1, 10**6, 10**6)
