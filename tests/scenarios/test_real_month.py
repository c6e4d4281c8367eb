"""A month put together from three public traces, through the real doors, against books computed independently.

Every number of `expected.json` must come out exactly: GPU time, tokens, preemptions, amounts. Delivering the file
again, shuffled and cut into other batches, must change nothing.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models import F, Sum

from billing.models import Allocation, MonthLine, PoolSlot, PreemptionShare
from billing.selectors.allocations import requeued
from billing.selectors.tokens import tokens
from ledger.core.periods import Month, to_datetime
from ledger.models import AccountKind, Booking, Event, Request, Tenant

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

MONTH = "2020-05"
CATEGORIES = (
    "reserved_used",
    "on_demand",
    "borrowed",
    "lent",
    "reserved_idle",
    "undelivered",
    "oversold",
    "excess",
)


@pytest.fixture(scope="module")
def real_month(shared_data: Path, django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    """The month imported and computed once for this module; taken out of the database again afterwards."""
    from django.db import transaction

    with django_db_blocker.unblock(), transaction.atomic():
        directory = shared_data / "real_month"
        call_command("apply_config", directory / "config.toml", verbosity=0)
        call_command("import_events", str(directory / "events.ndjson.gz"), verbosity=0)
        call_command("compute_allocation", MONTH, verbosity=0)
        yield {**json.loads((directory / "expected.json").read_text()), "directory": directory}
        transaction.set_rollback(True)


def test_every_event_is_booked_once(real_month: dict[str, Any]) -> None:
    booked = Booking.objects.aggregate(
        received=Sum("received"),
        booked=Sum("booked"),
        duplicate=Sum("duplicate"),
        conflict=Sum("conflict"),
        quarantined=Sum("quarantined"),
    )
    assert booked == {
        "received": real_month["delivered"],
        "booked": real_month["events"],
        "duplicate": real_month["duplicates"],
        "conflict": 0,
        "quarantined": 0,
    }
    assert Event.objects.count() + Request.objects.count() == real_month["events"]


def allocations_gpu_us() -> dict[str, int]:
    """Every non-zero figure of the month in the spelling of expected.json."""
    found: dict[str, int] = {}
    by_tenant = Allocation.objects.values(
        slug=F("pool__slug"), tenant=F("account__tenant__holder__slug")
    ).annotate(**{category: Sum(f"{category}_gpu_us") for category in CATEGORIES})
    for row in by_tenant:
        for category in CATEGORIES:
            if row[category]:
                found[f"{row['slug']}/{row['tenant']}/{category}"] = row[category]
    by_pool = PoolSlot.objects.values(slug=F("pool__slug")).annotate(
        capacity=Sum("capacity_gpu_us"), unreserved_idle=Sum("unreserved_idle_gpu_us")
    )
    for row in by_pool:
        for category in ("capacity", "unreserved_idle"):
            if row[category]:
                found[f"{row['slug']}/-/{category}"] = row[category]
    return found


def test_gpu_time_is_exact(real_month: dict[str, Any]) -> None:
    assert allocations_gpu_us() == real_month["allocations_gpu_us"]


def test_tokens_are_exact(real_month: dict[str, Any]) -> None:
    rows = tokens(Month.parse(MONTH).span("UTC"), "UTC", by=("tenant",))
    assert {
        row.dimensions["tenant"]: {
            "requests": row.requests,
            "input_tokens": row.input_tokens,
            "cached_input_tokens": row.cached_input_tokens,
            "output_tokens": row.output_tokens,
        }
        for row in rows
    } == real_month["tokens"]


def test_preemptions_are_exact(real_month: dict[str, Any]) -> None:
    span = Month.parse(MONTH).span("UTC")
    rows = requeued(span, to_datetime(span.end_ms))
    assert {
        row.tenant: {
            "preemptions": row.preemptions,
            "lost_gpu_us": row.lost_gpu_us,
            "waiting_gpu_us": row.waiting_gpu_us,
            "stopped": row.stopped,
        }
        for row in rows
        if row.preemptions
    } == real_month["preemptions"]
    # Of few tenants the waits are read another way.
    for row in rows:
        alone = frozenset(Tenant.objects.filter(holder__slug=row.tenant).values_list("pk", flat=True))
        assert requeued(span, to_datetime(span.end_ms), tenant_ids=alone) == [row]
    assert not PreemptionShare.objects.exclude(account__kind=AccountKind.TENANT).exists()


def amounts_micro() -> dict[str, int]:
    rows = (
        MonthLine.objects.filter(period=MONTH, unit="gpu_us", account__kind=AccountKind.TENANT)
        .exclude(amount_micro=0)
        .values("pool", "category", tenant=F("account__tenant__holder__slug"))
        .annotate(amount=Sum("amount_micro"))
    )
    return {f"{row['pool']}/{row['tenant']}/{row['category']}": row["amount"] for row in rows}


def test_amounts_are_exact(real_month: dict[str, Any]) -> None:
    assert amounts_micro() == real_month["amounts_micro"]


def test_delivering_it_again_shuffled_and_cut_otherwise_changes_nothing(
    real_month: dict[str, Any], tmp_path: Path
) -> None:
    before = allocations_gpu_us(), amounts_micro()
    lines = gzip.decompress((real_month["directory"] / "events.ndjson.gz").read_bytes()).splitlines()
    chance = random.Random(20200501)
    chance.shuffle(lines)
    cuts = sorted(chance.sample(range(1, len(lines)), 4))
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(lines)], strict=True)):
        part = tmp_path / f"part-{number}.ndjson"
        part.write_bytes(b"\n".join(lines[start:end]) + b"\n")
        call_command("import_events", str(part), verbosity=0)
    call_command("compute_allocation", MONTH, verbosity=0)
    assert (allocations_gpu_us(), amounts_micro()) == before
    assert Event.objects.count() + Request.objects.count() == real_month["events"]
    assert Booking.objects.aggregate(booked=Sum("booked"))["booked"] == real_month["events"]
