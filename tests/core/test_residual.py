"""What engines counted and no request explains: a line of its own, never spread, never forced to zero."""

from __future__ import annotations

from typing import Any

from ingest.core.adapters.base import Notice, instant_ms
from ingest.core.residual import (
    ABORTED,
    EXCEEDED,
    EXPLAINED,
    Residual,
    engine_totals,
    explained_totals,
    residuals,
)

DAY_MS = instant_ms("2026-10-03T00:00:00Z")


def usage(model: str = "m", at: str = "2026-10-03T04", **data: Any) -> dict[str, Any]:
    span = {"starts_at": f"{at}:00:00Z", "ends_at": f"{at}:30:00Z"}
    return {"type": "ledger.usage.v1", "time": f"{at}:30:00Z", "data": {"model": model, **span, **data}}


def request(model: str = "m", time: str = "2026-10-03T04:10:00Z", **data: Any) -> dict[str, Any]:
    return {"type": "ledger.request.v1", "time": time, "data": {"model": model, "tenant": "acme", **data}}


def lines(events: list[dict[str, Any]], notices: list[Notice] | None = None) -> dict[str, Residual]:
    found = residuals(engine_totals(events), explained_totals(events), notices or [])
    return {f"{line.model}/{line.kind}": line for line in found}


def test_the_rest_is_a_line_per_model_day_and_kind() -> None:
    events = [
        usage(input_tokens=3_610, output_tokens=50),
        request(input_tokens=600, output_tokens=50),
        request(model="other", input_tokens=9_999),
    ]
    found = lines(events)
    assert found["m/input_tokens"].unattributed == 3_010
    assert found["m/input_tokens"].reason == ABORTED
    assert found["m/output_tokens"].unattributed == 0
    assert found["m/output_tokens"].reason == EXPLAINED
    assert found["m/input_tokens"].day_ms == DAY_MS
    assert set(found) == {"m/input_tokens", "m/output_tokens"}, "no engine total, no line"


def test_a_request_without_counts_is_pointed_at_and_given_nothing() -> None:
    found = lines([usage(input_tokens=100), request(outcome="aborted"), request(input_tokens=40)])
    assert found["m/input_tokens"].unattributed == 60
    assert found["m/input_tokens"].silent_rows == 1


def test_requests_that_exceed_the_engine_stay_negative() -> None:
    found = lines([usage(output_tokens=10), request(output_tokens=25)])
    assert found["m/output_tokens"].unattributed == -15
    assert found["m/output_tokens"].reason == EXCEEDED


def test_days_are_kept_apart() -> None:
    events = [usage(input_tokens=5), usage(at="2026-10-04T00", input_tokens=7), request(input_tokens=5)]
    found = residuals(engine_totals(events), explained_totals(events))
    assert [(line.day_ms - DAY_MS, line.unattributed) for line in found] == [(0, 0), (86_400_000, 7)]


def test_usage_of_a_tenant_explains_and_is_no_engine_total() -> None:
    events = [usage(input_tokens=50), usage(tenant="acme", input_tokens=30)]
    assert lines(events)["m/input_tokens"].unattributed == 20


def test_gpu_time_is_exact() -> None:
    events = [usage(gpu_seconds="1.000001"), request(gpu_seconds="0.400000")]
    assert lines(events)["m/gpu_us"].unattributed == 600_001


def test_a_hole_in_the_counter_marks_the_line_of_its_model_and_day() -> None:
    at = instant_ms("2026-10-03T05:00:00Z")
    hole = Notice(1, "missed_samples", "gap", "vllm-0/org/m/0", at, at + 1_000)
    events = [usage(model="org/m", input_tokens=1), usage(model="m", input_tokens=1)]
    found = lines(events, [hole])
    assert found["org/m/input_tokens"].incomplete
    assert lines(events)["org/m/input_tokens"].incomplete is False
    elsewhere = Notice(1, "missed_samples", "gap", "vllm-0/x/0", at, at + 1_000)
    assert lines(events, [elsewhere])["m/input_tokens"].incomplete is False
