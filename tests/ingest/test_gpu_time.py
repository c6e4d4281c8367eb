"""Engines' busy time on the requests they served: exact sums, once, and nothing where nobody explains it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing.selectors.residuals import residuals
from ingest.services.booking import book_batch
from ingest.services.gpu_time import attribute_gpu_time, sources_that_ask
from ledger.core.periods import Span, to_ms
from ledger.models import Request, Source, UsageHour
from tests.ingest.feeding import SOURCE, deliver, event, request, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

HOUR_OVER = datetime(2026, 10, 1, 5, tzinfo=UTC)
DAY = Span(to_ms(datetime(2026, 10, 1, tzinfo=UTC)), to_ms(datetime(2026, 10, 2, tzinfo=UTC)))


def busy(event_id: str, start: str, end: str, gpu_seconds: str) -> dict[str, Any]:
    return event(
        "usage",
        event_id,
        end,
        usage=event_id,
        pool="bj-h100",
        model="qwen",
        starts_at=start,
        ends_at=end,
        gpu_seconds=gpu_seconds,
    )


@pytest.fixture
def source(db: None) -> Source:
    """11.000001 GPU-seconds in a window with a request that states 1 and three that state none, one of them half in it;
    2 in a window with none."""
    small_world()
    deliver(
        busy("w-1", "2026-10-01T04:00:00Z", "2026-10-01T04:30:00Z", "11.000001"),
        busy("w-2", "2026-10-01T04:30:00Z", "2026-10-01T05:00:00Z", "2"),
        request("a", "2026-10-01T04:10:00Z", "2026-10-01T04:05:00Z", input_tokens=100, output_tokens=25),
        request(
            "b",
            "2026-10-01T04:20:00Z",
            "2026-10-01T04:10:00Z",
            input_tokens=200,
            output_tokens=0,
            tenant="beta",
        ),
        request("c", "2026-10-01T04:05:00Z", "2026-10-01T03:55:00Z", input_tokens=400, output_tokens=0),
        request("known", "2026-10-01T04:20:00Z", "2026-10-01T04:10:00Z", input_tokens=9, gpu_seconds="1"),
    )
    Source.objects.filter(uri=SOURCE).update(
        config={"options": {"attribute_gpu_time": {"input": 1, "output": 4}}}
    )
    return Source.objects.get(uri=SOURCE)


def attributed() -> dict[str, int]:
    rows = Request.objects.filter(event_id__startswith="gpu-time/").select_related("identity")
    return {row.identity.value: row.gpu_us for row in rows}


def test_a_window_is_divided_exactly_and_once(source: Source) -> None:
    """Weights: a 200, b 200, c 400 x 1/2 = 200, so a third each: 3 333 333 and one more for the ids a and b."""
    assert [one.pk for one in sources_that_ask()] == [source.pk]
    assert attribute_gpu_time(source, HOUR_OVER) is None  # requests may still come
    batch = attribute_gpu_time(source, HOUR_OVER + timedelta(hours=1))
    assert batch is not None
    receipt = book_batch(batch)
    assert receipt is not None and (receipt.booked, receipt.quarantined) == (2, 0)
    assert sum(attributed().values()) == 10_000_001
    assert attributed() == {"acme": 6_666_667, "beta": 3_333_334}
    assert attribute_gpu_time(source, HOUR_OVER + timedelta(hours=2)) is None
    assert {row.gpu_us for row in Request.objects.filter(event_id__in="abc")} == {None}


def test_what_no_request_explains_stays_a_residual_and_no_token_counts_twice(source: Source) -> None:
    tokens = sum(row.input_tokens for row in UsageHour.objects.all())
    batch = attribute_gpu_time(source, HOUR_OVER + timedelta(hours=1))
    assert batch is not None
    book_batch(batch)
    (row,) = [row for row in residuals(DAY) if row.kind == "gpu_us"]
    assert (row.engine, row.explained, row.unattributed) == (13_000_001, 11_000_001, 2_000_000)
    assert sum(row.input_tokens for row in UsageHour.objects.all()) == tokens
