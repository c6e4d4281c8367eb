"""The cluster now and its pools, down to the minute, against the worked example."""

from __future__ import annotations

import csv
import io

import pytest
from django.test import Client

from billing.models import PoolSlot
from ledger.models import (
    LevelKind,
    Source,
)
from tests.billing.level_facts import book, hour, identity, occupancy
from tests.billing.page_books import (
    Books,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_the_cluster_now_is_the_newest_level_of_each_subject(books: Books, finance: Client) -> None:
    late = hour(11)
    book(books.pool, LevelKind.CAPACITY, "", late, 24_000)
    occupancy(books.pool, "wl-9", identity("beta"), late, 16_000)
    occupancy(books.pool, "wl-9", identity("beta"), late, 5_000, attempt=2)
    book(books.pool, LevelKind.PENDING, "queue", late, 20_000, identity=identity("acme"))
    book(
        books.pool,
        LevelKind.RESERVATION,
        "r-9",
        late,
        7_000,
        identity=identity("acme"),
        ends_at=hour(12),
    )
    (pool,) = finance.get("/cluster/").context["pools"]
    assert (pool.capacity_milli, pool.held_milli, pool.reserved_milli) == (24_000, 5_000, 0)
    assert (pool.pending_milli, pool.free_milli, pool.is_short) == (20_000, 19_000, True)
    assert [(one.name, one.held_milli, one.pending_milli) for one in pool.holders] == [
        ("acme", 0, 20_000),
        ("beta", 5_000, 0),
    ]


def test_the_cluster_is_looked_at_in_the_past(books: Books, finance: Client) -> None:
    """As it was then by the same rules as now: levels, headroom, and what had been preempted by then."""

    def shown(at: str) -> tuple[int | None, int, int]:
        (pool,) = finance.get("/cluster/", {"at": at}).context["pools"]
        return pool.capacity_milli, pool.held_milli, pool.reserved_milli

    assert (
        shown("") == shown("soon") == shown("9999-12-31T23:59:59Z") == shown("0001-01-01T00:00") == (0, 0, 0)
    )
    capacity, held, reserved = shown("2026-10-01T03:00:00Z")
    assert (capacity, held, reserved) == shown("2026-10-01T03:00") == shown("2026-10-01T11:00:00 08:00")
    assert (capacity, held, reserved) == (16_000, 14_000, 12_000)
    page = finance.get("/cluster/", {"at": "2026-10-01T03:00:00Z"})
    (row,) = page.context["tables"]["pools"].shown
    assert (
        page.context["tables"]["recent"].shown
        == []
        != finance.get("/cluster/").context["tables"]["recent"].shown
    )
    body = page.content.decode()
    assert f'/pools/{row.pool.slug}/?zoom=day&amp;at=2026-10-01T03%3A00%3A00%2B00%3A00#over-time"' in body
    assert 'name="at" required value="2026-10-01T03:00"' in body and 'href="/cluster/">Back to now' in body
    assert "Back to now" not in finance.get("/cluster/").content.decode()


def test_a_higher_attempt_that_is_over_has_ended_the_lower_ones(books: Books, finance: Client) -> None:
    occupancy(books.pool, "wl-9", identity("beta"), hour(11), 16_000)
    occupancy(books.pool, "wl-9", identity("beta"), hour(12), 16_000, attempt=2)
    occupancy(books.pool, "wl-9", identity("beta"), hour(13), 0, attempt=2)
    (pool,) = finance.get("/cluster/").context["pools"]
    assert (pool.held_milli, pool.holders) == (0, [])
    assert finance.get(f"/pools/{books.pool.slug}/").context["tables"]["workloads"].shown == []
    occupancy(books.pool, "wl-8", identity("beta"), hour(12), 3_000)
    (row,) = finance.get(f"/pools/{books.pool.slug}/").context["tables"]["workloads"].shown
    assert (row.subject, row.last_milli_gpus) == ("wl-8", 3_000)


def test_a_minute_is_a_part_of_its_hour_and_an_hour_of_its_day(books: Books, finance: Client) -> None:
    """By the minute the facts are split anew; the sums are what the books hold, category by category."""
    sums = {}
    for zoom in ("month", "day", "hour"):
        page = finance.get(f"/pools/{books.pool.slug}/", {"zoom": zoom, "at": hour(4).isoformat()})
        buckets = page.context["tables"]["buckets"].matching
        sums[zoom] = {bucket.starts_at: bucket.gpu_us for bucket in buckets}
        assert all(bucket.difference_gpu_us == 0 for bucket in buckets)
    day = page.context["frame"]
    stored = PoolSlot.objects.get(pool=books.pool, starts_at=hour(4))
    for name in ("capacity", "reserved_used", "on_demand", "borrowed", "reserved_idle", "undelivered"):
        of_hour = sum(minute[name] for minute in sums["hour"].values())
        assert of_hour == getattr(stored, f"{name}_gpu_us"), name
        of_day = [minute[name] for at, minute in sums["day"].items() if hour(4) <= at < hour(5)]
        assert sum(of_day) == of_hour
    assert (len(sums["hour"]), day.starts_at) == (60, hour(4))
    whole = next(iter(sums["month"].values()))
    assert whole["capacity"] == sum(minute["capacity"] for minute in sums["day"].values())


def test_a_pool_leads_closer_earlier_and_later_and_forgives_wrong_addresses(
    books: Books, finance: Client
) -> None:
    url = f"/pools/{books.pool.slug}/"
    page = finance.get(url, {"zoom": "month", "at": hour(4).isoformat()})
    assert len(page.context["chart"]["urls"]) == len(page.context["tables"]["buckets"].matching)
    closer = finance.get(url + page.context["chart"]["urls"][0])
    assert (closer.context["frame"].zoom, closer.context["bucket"]) == ("day", "minute")
    assert (
        finance.get(url + page.context["earlier_url"]).context["frame"].ends_at
        == page.context["frame"].starts_at
    )
    assert finance.get(url, {"zoom": "month", "at": "2027-03-01T00:00:00Z"}).context["chart"] is None
    for query in (
        "?at=x",
        "?zoom=year&at=9999-12-31T00:00:00Z",
        "?at=2026-10-01",
        "?zoom=day&at=0001-01-01T00:00:00Z",
    ):
        assert finance.get(url + query).status_code == 200
    assert finance.get("/pools/no-such-pool/").status_code == 404


def test_the_cluster_names_who_preempts_and_who_is_hit(books: Books, finance: Client) -> None:
    Source.objects.update(watermark_at=hour(10))
    book(books.pool, LevelKind.CAPACITY, "", hour(11), 16_000)
    page = finance.get("/cluster/")
    tables = page.context["tables"]
    assert [(row.preemptions, row.milli_gpus, row.victims) for row in tables["preempting"].shown] == [
        (1, 4000, 1)
    ]
    assert tables["victims"].shown == []
    assert [side.record.preemption for side in tables["recent"].shown] == ["wl-3/4"]
    (row,) = csv.DictReader(io.StringIO(finance.get("/cluster/?csv=pools").getvalue().decode()))
    assert (row["pool"], row["capacity"], row["headroom"]) == (books.pool.slug, "16", "16")
    assert int(row["unreserved"]) + int(row["lendable"]) + int(row["preemptible"]) == int(row["headroom"])
