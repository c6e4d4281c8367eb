"""The books against what others counted: residuals of engines, sources' totals, quotas sold (domain.md section 9)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import call_command
from django.db import InternalError, connection, transaction
from django.db.models import F
from django.db.utils import IntegrityError
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from billing.checks import CHECKS, days_equal_slots
from billing.models import CountedDay, CountedTokens, DifferenceExplanation, ReconciliationLine
from billing.selectors.checklist import month_checklist
from billing.selectors.residuals import residuals
from billing.services.months import compute_month
from billing.services.reconciliation import count_tokens, reconcile, reconcile_months
from ledger.checks import run_checks
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import AuditEntry, FactFinding, Period, Pool, Source, SourceTotal, Tenant
from ledger.services.tokens import create_api_token
from tests.billing.closed_months import NOVEMBER_5, OCTOBER, closable_ledger
from tests.billing.level_facts import make_pool, make_tenants
from tests.ingest.feeding import deliver, event, occupancy, request, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

OCTOBER_SPAN = Span(to_ms(datetime(2026, 10, 1, tzinfo=UTC)), to_ms(datetime(2026, 11, 1, tzinfo=UTC)))


def october() -> Period:
    period, _ = Period.objects.get_or_create(
        month="2026-10",
        defaults={
            "starts_at": to_datetime(OCTOBER_SPAN.start_ms),
            "ends_at": to_datetime(OCTOBER_SPAN.end_ms),
        },
    )
    return period


def engine_total(event_id: str, start: str, end: str, **data: Any) -> dict[str, Any]:
    return event(
        "usage",
        event_id,
        end,
        usage=event_id,
        pool="bj-h100",
        model="qwen",
        starts_at=start,
        ends_at=end,
        **data,
    )


def client(role: str, *tenants: str) -> APIClient:
    rows = list(Tenant.objects.filter(holder__slug__in=tenants))
    _, secret = create_api_token(f"{role} token", role, tenants=rows)
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


# --- engines' totals ------------------------------------------------------------------------------------------


def aborted_and_exceeded() -> None:
    """Day 1: 5 streams of 602 tokens that no request states, beside 1000 that one does. Day 2: requests say more."""
    deliver(
        engine_total("u-1", "2026-10-01T04:00:00Z", "2026-10-01T05:00:00Z", input_tokens=4010, requests=0),
        request("r-1", "2026-10-01T04:30:00Z", "2026-10-01T04:29:00Z", input_tokens=1000, output_tokens=5),
        request("r-2", "2026-10-01T04:40:00Z", "2026-10-01T04:39:00Z", output_tokens=5),
        engine_total(
            "u-2", "2026-10-02T04:00:00Z", "2026-10-02T05:00:00Z", input_tokens=100, gpu_seconds="2"
        ),
        request("r-3", "2026-10-02T04:30:00Z", "2026-10-02T04:29:00Z", input_tokens=130, gpu_seconds="1.25"),
    )


def test_what_no_request_explains_is_a_row_of_its_own_and_may_be_negative() -> None:
    small_world()
    aborted_and_exceeded()
    rows = [
        (
            row.day.day,
            row.pool,
            row.model,
            row.kind,
            row.engine,
            row.explained,
            row.unattributed,
            row.silent_requests,
        )
        for row in residuals(OCTOBER_SPAN)
    ]
    assert rows == [
        (1, "bj-h100", "qwen", "input_tokens", 4010, 1000, 3010, 1),
        (2, "bj-h100", "qwen", "input_tokens", 100, 130, -30, 0),
        (2, "bj-h100", "qwen", "gpu_us", 2_000_000, 1_250_000, 750_000, 0),
    ]


def test_a_gateway_that_counts_them_explains_them() -> None:
    small_world()
    aborted_and_exceeded()
    gone = [
        request(
            f"gw-{n}",
            "2026-10-01T04:50:00Z",
            "2026-10-01T04:49:00Z",
            input_tokens=602,
            outcome="aborted",
        )
        for n in range(5)
    ]
    deliver(*gone)
    first = residuals(OCTOBER_SPAN)[0]
    assert (first.explained, first.unattributed) == (4010, 0)


def test_residuals_over_the_api_are_not_for_tenants() -> None:
    small_world()
    aborted_and_exceeded()
    path = "/api/v1/usage/residuals/?window=2026-10&model=qwen"
    rows = client("auditor").get(path).json()["results"]
    assert [(row["day"], row["kind"], row["unattributed"]) for row in rows] == [
        ("2026-10-01", "input_tokens", "3010"),
        ("2026-10-02", "input_tokens", "-30"),
        ("2026-10-02", "gpu_us", "0.0002083333"),
    ]
    assert client("tenant-viewer", "acme").get(path).status_code == 403
    assert client("auditor").get("/api/v1/usage/residuals/?window=2026-10&x=1").status_code == 400


def test_engines_that_count_less_than_requests_wait_for_a_person_unless_their_count_has_holes() -> None:
    small_world()
    deliver(
        engine_total("u-2", "2026-10-02T04:00:00Z", "2026-10-02T05:00:00Z", input_tokens=100),
        request("r-3", "2026-10-02T04:30:00Z", "2026-10-02T04:29:00Z", input_tokens=130),
    )
    period = october()
    reconcile(period, NOVEMBER_5)
    assert list(ReconciliationLine.objects.values_list("measure", "stated", "booked", "cause")) == [
        ("input_tokens", 100, 130, "")
    ]
    assert blocked(period) == ["bj-h100 qwen: input_tokens differs by -30 tokens"]
    FactFinding.objects.create(
        code="counter_reset",
        occurred_at=datetime(2026, 10, 2, 4, 10, tzinfo=UTC),
        subject="vllm: vllm-0/qwen/0",
        detail={"ends_ms": OCTOBER_SPAN.start_ms + 30 * 3_600_000},
        blocks_close=False,
    )
    reconcile(period, NOVEMBER_5)
    assert ReconciliationLine.objects.get().cause == "counter_gaps"
    assert blocked(period) == []


def blocked(period: Period) -> list[str]:
    (item,) = [item for item in month_checklist(period, NOVEMBER_5) if item.code == "reconciliation"]
    return [str(one) for one in item.evidence]


# --- sources' own totals --------------------------------------------------------------------------------------


def total(source: Source, measure: str, unit: str, subject: str, quantity: int, **span: Any) -> SourceTotal:
    span.setdefault("ends_at", datetime(2026, 11, 1, tzinfo=UTC))
    return SourceTotal.objects.create(
        source=source, measure=measure, unit=unit, subject=subject, quantity=quantity, **span
    )


def preemption(event_id: str, name: str, time: str) -> dict[str, Any]:
    return event(
        "preemption",
        event_id,
        time,
        preemption=name,
        victim={"workload": "wl-1", "tenant": "acme"},
        preemptor_source="none",
        pool="bj-h100",
        gpus=1,
        cause="priority",
    )


def test_preemptions_are_counted_as_kueue_counts_them() -> None:
    """Two events of one preemption are one; one that is withdrawn or decided later does not count."""
    small_world()
    deliver(
        preemption("p-1", "wl-1/a", "2026-10-03T04:00:00Z"),
        preemption("p-2", "wl-1/a", "2026-10-03T04:00:01Z"),
        preemption("p-3", "wl-1/b", "2026-10-04T04:00:00Z"),
        event(
            "correction",
            "c-1",
            "2026-10-05T00:00:00Z",
            supersedes={"source": "/clusters/bj-1/kueue", "id": "p-3"},
            reason="never happened",
        ),
        preemption("p-4", "wl-1/c", "2026-10-30T04:00:00Z"),
    )
    source = Source.objects.get(uri="/clusters/bj-1/kueue")
    total(source, "preemptions", "count", "wl-1", 1, ends_at=datetime(2026, 10, 3, 5, tzinfo=UTC))
    total(source, "preemptions", "count", "wl-1", 2, ends_at=datetime(2026, 10, 20, tzinfo=UTC))
    period = october()
    reconcile(period, NOVEMBER_5)
    line = ReconciliationLine.objects.get()
    assert (line.measure, line.subject, line.stated, line.booked) == ("preemptions", "wl-1", 2, 1)
    assert blocked(period) == ["/clusters/bj-1/kueue wl-1: preemptions differs by 1 count"]


def test_slurm_totals_are_compared_with_what_the_pools_held() -> None:
    """vision: 4 GPUs for 3 hours before a higher attempt, then 2 for 1 hour; other: 1 GPU for 2 hours."""
    small_world()
    vision = {"identity": {"kind": "slurm_account", "value": "vision"}}
    deliver(
        event("capacity", "cap", "2026-09-01T00:00:00Z", pool="bj-h100", gpus=8),
        occupancy("o-1", "2026-10-01T00:00:00Z", 4, **vision),
        occupancy("o-2", "2026-10-01T03:00:00Z", 2, attempt=2, **vision),
        occupancy("o-3", "2026-10-01T04:00:00Z", 0, attempt=2, **vision),
        occupancy(
            "o-4",
            "2026-10-01T00:00:00Z",
            1,
            workload="wl-2",
            identity={"kind": "slurm_account", "value": "other"},
        ),
        occupancy("o-5", "2026-10-01T02:00:00Z", 0, workload="wl-2", **vision),
    )
    hour = 3_600_000_000
    source = Source.objects.create(uri="/slurm", name="hpc", config={"pools": {"gpu": "bj-h100"}})
    span = {
        "starts_at": datetime(2026, 10, 1, tzinfo=UTC),
        "ends_at": datetime(2026, 10, 2, tzinfo=UTC),
    }
    total(source, "occupied_by_account", "gpu_us", "alpha/vision", 15 * hour, **span)
    total(source, "occupied_by_account", "gpu_us", "alpha/vision", 14 * hour, **span)
    total(source, "occupied", "gpu_us", "alpha/cluster", 17 * hour, **span)
    total(source, "capacity", "gpu_us", "alpha/cluster", 192 * hour, **span)
    period = october()
    reconcile(period, NOVEMBER_5)
    found = ReconciliationLine.objects.order_by("measure").values_list("measure", "stated", "booked")
    assert list(found) == [
        ("capacity", 192 * hour, 192 * hour),
        ("occupied", 17 * hour, 16 * hour),
        ("occupied_by_account", 14 * hour, 14 * hour),
    ]
    assert blocked(period) == [
        "hpc alpha/cluster 2026-10-01T00:00/2026-10-02T00:00: occupied differs by 1 GPU-hours"
    ]


def test_totals_arrive_with_an_import_and_repeats_add_nothing(tmp_path: Any) -> None:
    make_pool()
    Source.objects.create(uri="/slurm", name="hpc", adapter="slurm-sreport", config={"pool": "bj-h100"})
    report = tmp_path / "report.txt"
    report.write_text(
        "Cluster Utilization 2026-10-01T00:00:00 - 2026-10-01T23:59:59\n"
        "Usage reported in TRES Seconds\n"
        "Cluster|Account|Login|Proper Name|TRES Name|Used\n"
        "alpha|vision|||gres/gpu|72000\n"
        "alpha|vision|ana|Ana|gres/gpu|72000\n"
    )
    for _ in range(2):
        call_command("import_events", str(report), source="hpc", verbosity=0)
    found = SourceTotal.objects.values_list("measure", "unit", "subject", "quantity", "starts_at__day")
    assert list(found) == [("occupied_by_account", "gpu_us", "alpha/vision", 72_000_000_000, 1)]
    assert not FactFinding.objects.exists()


# --- tokens ---------------------------------------------------------------------------------------------------


def test_tokens_counted_at_both_sides_are_compared_per_tenant() -> None:
    """The bill rests on all requests, so what gateway and engine both reported stands in it twice."""
    small_world()
    for uri, adapter in (("/gw", "litellm-spendlogs"), ("/engine", "sglang-log")):
        Source.objects.create(uri=uri, adapter=adapter)
    of_gateway = request(
        "g-1", "2026-10-01T04:30:00Z", "2026-10-01T04:29:00Z", input_tokens=100, output_tokens=7
    )
    of_engine = request(
        "e-1", "2026-10-01T04:30:00Z", "2026-10-01T04:29:00Z", input_tokens=104, output_tokens=7
    )
    deliver(of_gateway | {"source": "/gw"}, of_engine | {"source": "/engine"})
    period = october()
    reconcile(period, NOVEMBER_5)
    found = ReconciliationLine.objects.order_by("key").values_list(
        "tenant", "subject", "measure", "stated", "booked"
    )
    assert list(found) == [
        ("acme", "engine", "input_tokens", 104, 204),
        ("acme", "gateway", "input_tokens", 100, 204),
        ("acme", "engine", "output_tokens", 7, 14),
        ("acme", "gateway", "output_tokens", 7, 14),
    ]


def of_both_sides(number: int, tokens: int, day: int = 1, **more: Any) -> list[dict[str, Any]]:
    """One request as its gateway counted it, and with 4 tokens more as its engine did."""
    time, start = f"2026-10-{day:02d}T04:30:00Z", f"2026-10-{day:02d}T04:29:00Z"
    return [
        request(f"g-{number}", time, start, input_tokens=tokens, **more) | {"source": "/gw"},
        request(f"e-{number}", time, start, input_tokens=tokens + 4, **more) | {"source": "/engine"},
    ]


def counted() -> dict[tuple[str, str], int]:
    found = ReconciliationLine.objects.filter(kind="tokens", measure="input_tokens")
    return {(one.tenant, one.subject): int(one.stated) for one in found}


def reads_of_requests(work: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as asked:
        work()
    return sum(bool(re.search(r"\bledger_request\b", one["sql"])) for one in asked.captured_queries)


def test_tokens_are_added_up_once_and_again_only_on_days_that_were_computed_since() -> None:
    """A close costs the same however many requests there are (domain.md 10): it reads those of touched days only."""
    small_world()
    for uri, adapter in (("/gw", "litellm-spendlogs"), ("/engine", "sglang-log")):
        Source.objects.create(uri=uri, adapter=adapter)
    period, at_the_edge = october(), usage_at_the_months_edge() | {"source": "/gw"}
    deliver(*of_both_sides(1, 100), *of_both_sides(2, 50, day=9), at_the_edge)
    compute_month(OCTOBER, horizon=NOVEMBER_5)
    assert counted() == {("acme", "gateway"): 157, ("acme", "engine"): 158}
    days = CountedDay.objects.count()
    assert days == 31 * Pool.objects.count()
    assert reads_of_requests(lambda: reconcile(period, NOVEMBER_5)) == 0
    assert reads_of_requests(lambda: compute_month(OCTOBER, horizon=NOVEMBER_5)) == 0
    assert counted() == {("acme", "gateway"): 157, ("acme", "engine"): 158}

    late = of_both_sides(3, 10)
    withdrawn = event(
        "correction",
        "c-1",
        "2026-10-20T00:00:00Z",
        supersedes={"source": "/gw", "id": "g-2"},
        reason="never happened",
    )
    deliver(*late, withdrawn)
    compute_month(OCTOBER, horizon=NOVEMBER_5)
    assert counted() == {("acme", "gateway"): 117, ("acme", "engine"): 172}
    kept = list(CountedTokens.objects.order_by("pk").values())
    CountedDay.objects.all().delete()
    CountedTokens.objects.all().delete()
    assert count_tokens(period) == days
    assert list(CountedTokens.objects.order_by("pk").values()) == kept
    # They add up to the hours of requests, and whatever changes them behind the ledger's back is named.
    assert run_checks(CHECKS) == []
    CountedTokens.objects.update(input_tokens=F("input_tokens") + 1)
    assert list(map(str, days_equal_slots("2026-10"))) == [
        "days equal slots: 2026-10 bj-h100 acme: "
        "the tokens that sources counted are not those of the hours of requests"
    ]


def usage_at_the_months_edge() -> dict[str, Any]:
    """Counts at its start, within the month, and is kept on the UTC day after, beyond it."""
    return engine_total("u-1", "2026-10-31T23:00:00Z", "2026-11-01T00:00:00Z", input_tokens=7, tenant="acme")


# --- explaining -----------------------------------------------------------------------------------------------


def test_a_person_explains_a_difference_for_exactly_its_amount() -> None:
    make_tenants("acme")
    source = Source.objects.create(uri="/kueue")
    first = total(source, "preemptions", "count", "wl-9", 3)
    period = october()
    reconcile_months(NOVEMBER_5)
    path = "/api/v1/periods/2026-10/reconciliation/"
    finance = client("finance")
    (row,) = finance.get(path).json()["results"]
    assert (row["difference"], row["unit"], row["cause"]) == ("3", "count", "unexplained")
    assert finance.get(path + "?cause=explained").json()["results"] == []
    body = {"key": row["key"], "reason": "the collector started later"}
    assert client("auditor").post(path + "explain/", body, format="json").status_code == 403
    assert client("tenant-viewer", "acme").get(path).status_code == 403
    for wrong, status in ((body | {"key": "x"}, 404), (body | {"reason": " "}, 400)):
        assert finance.post(path + "explain/", wrong, format="json").status_code == status
    assert finance.post(path + "explain/", body, format="json").status_code == 201
    (row,) = finance.get(path).json()["results"]
    assert (row["cause"], row["reason"]) == ("explained", "the collector started later")
    assert blocked(period) == []
    (entry,) = AuditEntry.objects.filter(action="explain_difference")
    assert (entry.object_id, entry.after) == (
        "2026-10",
        {"key": row["key"], "difference": "3", "unit": "count"},
    )
    # The source counts again: what was said was not said about this difference.
    total(source, "preemptions", "count", "wl-9", 4, ends_at=first.ends_at)
    reconcile_months(NOVEMBER_5)
    assert blocked(period) == ["/kueue wl-9: preemptions differs by 4 count"]


@pytest.mark.parametrize("model", [SourceTotal, DifferenceExplanation])
def test_totals_and_explanations_are_never_changed(model: Any) -> None:
    source = Source.objects.create(uri="/kueue")
    total(source, "preemptions", "count", "wl-9", 3)
    DifferenceExplanation.objects.create(
        period=october(), key="k", difference=1, unit="count", reason="r", explained_by="anna"
    )
    for change in (model.objects.all().delete, lambda: model.objects.update(unit="s")):
        with pytest.raises((InternalError, IntegrityError)), transaction.atomic():
            change()


# --- quotas sold ----------------------------------------------------------------------------------------------


def test_quotas_sold_against_capacity() -> None:
    """October of the small ledger: 16 GPUs from its first instant on, 8 of them reserved for ten hours."""
    closable_ledger()
    compute_month(OCTOBER, horizon=to_datetime(OCTOBER_SPAN.end_ms))
    (row,) = client("auditor").get("/api/v1/periods/2026-10/reconciliation/quotas/").json()["results"]
    assert row == {
        "pool": "bj-h100",
        "capacity_gpu_hours": "11904",
        "reserved_gpu_hours": "80",
        "quota_gpu_hours": "0",
        "guardrail_gpu_hours": "11904",
        "oversold_ratio": "0.006720",
    }
