"""`load_demo_month`: a small simulated month, through the doors that real data takes, into books that hold."""

from __future__ import annotations

import io
import re
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db.models import Sum
from django.utils import timezone

from billing.models import Allocation, Dispute, StatementLine
from ingest.core.demo.calendar import Calendar
from ingest.core.demo.cast import LAUNCH_POOL
from ingest.core.demo.incidents import LAUNCH_WEEKDAY
from ingest.models import Batch, QuarantinedEvent
from ledger.core.periods import Month, to_datetime, to_ms
from ledger.core.units import MS_PER_HOUR
from ledger.demo_logins import DEMO_PASSWORD, demo_logins
from ledger.models import (
    Booking,
    DirtySpan,
    Event,
    FactFinding,
    Holder,
    HolderKind,
    Ledger,
    Level,
    LevelKind,
    Period,
    Request,
    Role,
    Source,
    Tenant,
    UsageHour,
    User,
)
from ledger.services.demo_users import create_demo_users
from ledger.services.masters import ensure_books

SMALL = {"tenants": 6, "gpus": 128, "requests": 300, "seed": 5}
MONTH = "2026-02"


def load(*month: str, **options: Any) -> str:
    said = io.StringIO()
    call_command("load_demo_month", *month, **{**SMALL, **options}, stdout=said, stderr=io.StringIO())
    return said.getvalue()


def tenant(slug: str) -> Tenant:
    return Tenant.objects.create(holder=Holder.objects.create(slug=slug, kind=HolderKind.TENANT), name=slug)


@pytest.mark.slow
@pytest.mark.django_db
def test_a_month_is_booked_once_computed_and_holds() -> None:
    said = load(MONTH)
    receipts = Batch.objects.values_list("received", "booked", "duplicate", "conflict", "quarantined")
    received, booked, duplicate, conflict, quarantined = (
        sum(column) for column in zip(*receipts, strict=True)
    )
    assert received == booked + duplicate + quarantined
    assert duplicate > 50
    assert conflict == 0
    assert quarantined == QuarantinedEvent.objects.count()
    assert booked == Event.objects.count() + Request.objects.count()
    by_contracts = Batch.objects.filter(door="contracts").aggregate(booked=Sum("booked"))["booked"]
    assert f"{booked - by_contracts} booked" in said
    assert not FactFinding.objects.filter(blocks_close=True).exists()
    period = Period.objects.get(month=MONTH)
    assert not DirtySpan.objects.filter(span__overlap=(period.starts_at, period.ends_at)).exists()
    checked = io.StringIO()
    call_command("verify_ledger", stdout=checked, stderr=io.StringIO())
    assert "invariants hold" in checked.getvalue()
    the_contract_reserves_what_it_promises(period)
    mend_and_retry()

    # Every source signs off, in Shanghai's midnight.
    ends_at = datetime(2026, 2, 28, 16, tzinfo=UTC)
    assert set(told_of("complete_until")) == {ends_at}
    logins = demo_logins()
    assert [login.username for login in logins] == [
        *("finance", "finance2", "platform", "auditor", "tenantadmin", "viewer"),
    ]
    assert all(login.username in said for login in logins)
    assert DEMO_PASSWORD in said
    assert set(User.objects.values_list("memberships__role", flat=True)) == set(Role) - {Role.INGEST}

    dispute = Dispute.objects.get()
    assert (dispute.statement.tenant.slug, dispute.opened_by, dispute.state) == ("research", "viewer", "open")
    # The line is what its words are about: on-demand GPUs of the launch's pool, at prices of the launch's day.
    line = StatementLine.objects.get(statement=dispute.statement, key=dispute.line_key)
    assert (line.category, line.pool) == ("on_demand", LAUNCH_POOL)
    launch = Calendar(Month.parse(MONTH), "Asia/Shanghai")
    at = to_datetime(launch.at(launch.weekday_on_or_after(14, LAUNCH_WEEKDAY), 10, 4))
    same = StatementLine.objects.filter(
        statement=line.statement, pool=line.pool, category=line.category, version_from__lte=at
    )
    assert line.version_from == max(one.version_from for one in same)

    before = (Level.objects.count(), Request.objects.count(), Booking.objects.count())
    load(MONTH)
    assert (Level.objects.count(), Request.objects.count(), Booking.objects.count()) == before
    assert Dispute.objects.count() == 1


def told_of(field: str) -> list[Any]:
    """Of every source that somebody waits for."""
    return list(Source.objects.filter(retired_at=None).values_list(field, flat=True))


def the_contract_reserves_what_it_promises(period: Period) -> None:
    """For 128 GPUs 30 000 tokens in and 6000 out: 30 x 0.31 + 6 x 5.2 = 40.5 GPU-seconds a minute, 0.675 GPUs."""
    reserved = Level.objects.filter(kind=LevelKind.RESERVATION, identity__value="gov-cloud")
    levels = dict(reserved.values_list("subject", "milli_gpus"))
    assert levels["contract/gov-cloud/deepseek-v3"] == 675 and len(levels) == 2
    parts = ("reserved_used", "lent", "reserved_idle", "undelivered", "oversold")
    of_tenant = Allocation.objects.filter(holder__slug="gov-cloud")
    of_month = of_tenant.filter(starts_at__gte=period.starts_at, starts_at__lt=period.ends_at)
    sums = of_month.aggregate(**{name: Sum(f"{name}_gpu_us") for name in parts})
    month_ms = to_ms(period.ends_at) - to_ms(period.starts_at)
    assert sum(sums.values()) == sum(levels.values()) * month_ms


def mend_and_retry() -> None:
    """What docs/demo.md says about the quarantine: name the forgotten service, try again, dismiss what is wrong."""
    waiting = QuarantinedEvent.objects.filter(resolved_at=None).values_list("reason", "event_id").distinct()
    reasons = Counter(reason for reason, _ in waiting)
    assert reasons == {"unknown_service": 4, "unknown_field": 1}
    file = Path(settings.BASE_DIR) / "docs" / "demo.md"
    (table,) = re.findall(r"```toml\n(.*?)```", file.read_text(encoding="utf-8"), re.S)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(table.replace('"code"', '"assistant"'))  # the smallest cast has no code
        config.flush()
        call_command("apply_config", config.name, stdout=io.StringIO(), stderr=io.StringIO())
    call_command("retry_quarantine", stdout=io.StringIO(), stderr=io.StringIO())
    left = QuarantinedEvent.objects.filter(resolved_at=None).values_list("reason", flat=True)
    assert set(left) == {"unknown_field"}
    assert UsageHour.objects.filter(service__holder__slug="qwen3-coder").count() == 4


@pytest.mark.django_db
def test_months_are_loaded_after_one_another_and_never_another_version_of_one() -> None:
    load(MONTH, requests=50)
    events = Event.objects.count()
    with pytest.raises(CommandError, match=f"{MONTH} is loaded already, with seed 5, 6 tenants"):
        load(MONTH, requests=50, seed=6)
    assert Event.objects.count() == events
    now = timezone.now()
    said = load(running=True, requests=50)
    loaded = [Month.parse(text) for text in re.findall(r"Computing (\S+)", said)]
    assert [str(month) for month in loaded] == expected_by(now)
    assert not FactFinding.objects.filter(blocks_close=True).exists()
    beyond = Level.objects.filter(starts_at__gt=timezone.now())
    assert set(beyond.values_list("kind", flat=True)) <= {LevelKind.CAPACITY, LevelKind.RESERVATION}
    planned = beyond.filter(kind=LevelKind.CAPACITY).values_list("starts_at", flat=True)
    assert {to_ms(at) for at in planned} == {
        month.plus(2).starts_ms("Asia/Shanghai") + 10 * MS_PER_HOUR for month in loaded
    }
    # Only what is over is signed off.
    complete = Period.objects.get(month=str(loaded[0]))
    assert set(told_of("complete_until")) == {complete.ends_at}


def expected_by(now: datetime) -> list[str]:
    """The last complete month, and the running one once it has run for an hour."""
    running = Month.containing(to_ms(now), "Asia/Shanghai")
    is_young = to_ms(now) < running.starts_ms("Asia/Shanghai") + MS_PER_HOUR
    return [str(running.previous())] + ([] if is_young else [str(running)])


@pytest.mark.django_db
def test_a_ledger_with_data_of_its_own_is_left_alone() -> None:
    tenant("acme")
    with pytest.raises(CommandError, match="data of its own"):
        load(MONTH)
    assert not Event.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("month", "options", "problem"),
    [
        ("2026-13", {}, "not a month such as"),
        ("2999-01", {}, "2999-01 has not begun"),
        (MONTH, {"tenants": 3}, "at least 6 tenants"),
        (MONTH, {"gpus": 8}, "at least 128 GPUs"),
        (MONTH, {"requests": -1}, "requests"),
        (MONTH, {"time_zone": "Mars/Olympus"}, "not an IANA time zone"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(month: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(CommandError, match=problem) as raised:
        load(month, **options)
    assert "\n" not in str(raised.value)
    assert not Event.objects.exists()


@pytest.mark.django_db
def test_the_zone_of_a_ledger_that_counts_its_months_stays() -> None:
    ledger = ensure_books()
    ledger.options = {"demo 2026-01": "seed 5"}
    ledger.billing_time_zone = "Europe/Berlin"
    ledger.save()
    tenant("research")
    with pytest.raises(CommandError, match="counts its months in Europe/Berlin"):
        load(MONTH, time_zone="UTC")
    assert Ledger.objects.get().billing_time_zone == "Europe/Berlin"


@pytest.mark.django_db
def test_accounts_of_others_keep_the_demo_password_out() -> None:
    tenant("research")
    tenant("assistant")
    somebody = User.objects.create_user("somebody", password="of their own")
    assert not create_demo_users()
    assert list(User.objects.all()) == [somebody]
    somebody.delete()
    theirs = User.objects.create_user("finance", password="of their own")
    assert create_demo_users()
    # An account that happens to have a demo name keeps its password and gains no role.
    theirs.refresh_from_db()
    assert theirs.check_password("of their own")
    assert not theirs.memberships.exists()
    assert User.objects.count() == 6
