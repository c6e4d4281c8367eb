"""Rules looked at over facts: what opens, what is seen again, what ends, and what people do in between."""

from __future__ import annotations

from datetime import datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from django.db import connection, transaction

from billing.models import Alert, AlertRule, Budget, Calibration
from billing.selectors.alert_words import figures_of, message_of
from billing.services import alerts as services
from billing.services.alerts import AlertError, acknowledge_alert, evaluate_alerts, resolve_alert
from billing.services.months import compute_month
from ledger.core.periods import Month
from ledger.locks import Lock, acquire
from ledger.models import (
    AuditEntry,
    Booking,
    Event,
    EventType,
    LevelKind,
    ModelName,
    Pool,
    Rejection,
    Source,
    Tenant,
    UsageHour,
)
from ledger.services.audit import Actor
from tests.billing.level_facts import (
    MONTH,
    book,
    capacity,
    hour,
    identity,
    make_pool,
    make_tenants,
    occupancy,
    reservation,
)
from tests.billing.preemption_facts import preemption

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

PAT = Actor("pat")


@pytest.fixture
def pool() -> Pool:
    """16 GPUs: acme reserves 8 and lends none, beta holds 8 on demand; delta reserves nothing."""
    pool = make_pool()
    make_tenants("acme", "beta", "delta")
    capacity(pool, hour(0), 16_000)
    reservation(pool, "acme", hour(0), 8_000, lendable=False)
    occupancy(pool, "wl-b", identity("beta"), hour(0), 8_000)
    return pool


def rule(kind: str, threshold: int = 0, lasting_s: int = 0, **more: Any) -> AlertRule:
    values = {"name": kind, "kind": kind, "threshold_micro": threshold * 1_000_000, "lasting_s": lasting_s}
    return AlertRule.objects.create(**{**values, **more})


def waits(pool: Pool, at: datetime, milli: int, who: str = "delta") -> None:
    book(pool, LevelKind.PENDING, "queue", at, milli, identity=identity(who))


def alerts() -> list[tuple[Any, ...]]:
    """The whole table as far as it tells the story."""
    rows = Alert.objects.order_by("opened_at", "subject")
    return [
        (one.subject, one.state, one.started_at, one.opened_at, one.resolved_at, one.holds) for one in rows
    ]


def test_a_shortage_opens_lasts_and_ends(pool: Pool) -> None:
    rule("shortage")
    waits(pool, hour(1), 4_000)
    assert evaluate_alerts(hour(1) - timedelta(seconds=1))["opened"] == 0
    assert evaluate_alerts(hour(1)) == {"opened": 1, "seen": 0, "resolved": 0}
    assert evaluate_alerts(hour(2)) == {"opened": 0, "seen": 1, "resolved": 0}
    assert alerts() == [("pool:bj-h100", "open", hour(1), hour(1), None, True)]
    alert = Alert.objects.get()
    assert alert.evidence == {
        "missing": {"value": "4", "unit": "GPU"},
        "gpu_hours": {"value": "4.00", "unit": "GPU-hour"},
        "lasted": {"value": "1", "unit": "h"},
    }
    assert sorted(tenant.slug for tenant in alert.audience.all()) == ["acme"]
    waits(pool, hour(2.5), 0)
    assert evaluate_alerts(hour(3)) == {"opened": 0, "seen": 1, "resolved": 0}  # it may come back soon
    assert evaluate_alerts(hour(3.5)) == {"opened": 0, "seen": 0, "resolved": 1}
    assert evaluate_alerts(hour(4)) == {"opened": 0, "seen": 0, "resolved": 0}
    assert alerts() == [("pool:bj-h100", "resolved", hour(1), hour(1), hour(2.5), False)]


def test_what_was_over_when_the_facts_came_is_kept_once(pool: Pool) -> None:
    rule("shortage", lasting_s=600)
    for starts, ends in ((1, 1.1), (2, 2.5)):
        waits(pool, hour(starts), 4_000)
        waits(pool, hour(ends), 0)
    assert evaluate_alerts(hour(3))["opened"] == 1
    assert evaluate_alerts(hour(3.5))["opened"] == 0
    assert alerts() == [
        ("pool:bj-h100", "resolved", hour(2), hour(2) + timedelta(minutes=10), hour(2.5), False)
    ]


def test_the_threshold_and_the_scope_of_a_rule(pool: Pool) -> None:
    other = Pool.objects.create(slug="sh-h20", cluster="sh-1", gpu_model="H20")
    rule("shortage", threshold=4, name="more than four")
    rule("shortage", name="elsewhere", pool=other)
    rule("shortage", name="off", enabled=False)
    rule("shortage", name="here", pool=pool, threshold=3)
    waits(pool, hour(1), 4_000)
    evaluate_alerts(hour(1))
    assert list(Alert.objects.values_list("rule__name", flat=True)) == ["here"]
    AlertRule.objects.update(enabled=False)
    evaluate_alerts(hour(2))
    assert Alert.objects.get().state == "resolved"


def test_people_acknowledge_and_resolve(pool: Pool) -> None:
    rule("shortage")
    waits(pool, hour(1), 4_000)
    evaluate_alerts(hour(1))
    alert = Alert.objects.get()
    with pytest.raises(AlertError, match="a reason"):
        acknowledge_alert(alert.pk, "  ", PAT, hour(1))
    acknowledge_alert(alert.pk, "on it", PAT, hour(1.1))
    with pytest.raises(AlertError, match="already"):
        acknowledge_alert(alert.pk, "on it", PAT, hour(1.1))
    evaluate_alerts(hour(1.2))
    assert Alert.objects.get().state == "acknowledged"
    resolve_alert(alert.pk, "known and agreed", PAT, hour(1.5))
    with pytest.raises(AlertError, match="resolved"):
        resolve_alert(alert.pk, "again", PAT, hour(1.5))
    # It still holds: nobody is bothered again before it has once not held.
    assert evaluate_alerts(hour(2))["opened"] == 0
    waits(pool, hour(3), 0)
    evaluate_alerts(hour(3.5))
    waits(pool, hour(4), 4_000)
    assert evaluate_alerts(hour(4))["opened"] == 1
    assert [row[1:] for row in alerts()] == [
        ("resolved", hour(1), hour(1), hour(1.5), False),
        ("open", hour(4), hour(4), None, True),
    ]
    assert list(AuditEntry.objects.order_by("pk").values_list("actor", "action", "reason")) == [
        ("pat", "acknowledge_alert", "on it"),
        ("pat", "resolve_alert", "known and agreed"),
    ]


@pytest.mark.django_db(transaction=True)
def test_two_workers_do_not_look_at_once(pool: Pool) -> None:
    rule("shortage")
    waits(pool, hour(1), 4_000)
    found = []

    def look() -> None:
        found.append(evaluate_alerts(hour(1)))
        connection.close()

    with transaction.atomic():
        acquire(Lock.ALERTS)
        thread = Thread(target=look)
        thread.start()
        thread.join()
    assert found == [{"opened": 0, "seen": 0, "resolved": 0}]


def test_an_unused_reservation(pool: Pool) -> None:
    rule("unused_reservation", threshold=50, lasting_s=24 * 3600)
    compute_month(Month.parse(MONTH), horizon=hour(24))
    evaluate_alerts(hour(24))
    [alert] = Alert.objects.all()
    assert (alert.subject, alert.tenant.slug if alert.tenant else "") == ("tenant:acme pool:bj-h100", "acme")
    assert alert.evidence == {
        "share": {"value": "100.0", "unit": "%"},
        "unused": {"value": "192.00", "unit": "GPU-hour"},
        "reserved": {"value": "192.00", "unit": "GPU-hour"},
        "over": {"value": "24", "unit": "h"},
    }
    assert list(alert.audience.values_list("holder__slug", flat=True)) == ["acme"]


def test_unattributed_occupancy(pool: Pool) -> None:
    rule("unattributed", threshold=2, lasting_s=24 * 3600)
    occupancy(pool, "wl-x", identity("who-knows", "k8s_namespace"), hour(1), 1_000)
    occupancy(pool, "wl-x", identity("who-knows", "k8s_namespace"), hour(3), 0)
    compute_month(Month.parse(MONTH), horizon=hour(24))
    evaluate_alerts(hour(24))
    assert [(one.subject, one.evidence["gpu_hours"]["value"]) for one in Alert.objects.all()] == [
        ("pool:bj-h100", "2.00")
    ]
    assert not Alert.objects.get().audience.exists()


def test_a_preemption_spike_counts_each_preemption_once(pool: Pool) -> None:
    rule("preemption_spike", threshold=2, lasting_s=3600)
    for number in range(2):
        for report in range(2):
            preemption(
                pool,
                hour(1 + number / 10),
                "wl-b",
                identity("beta"),
                1_000,
                event_id=f"p{number}-{report}",
                preemption=f"p{number}",
            )
    evaluate_alerts(hour(1.05))
    assert not Alert.objects.exists()
    evaluate_alerts(hour(1.5))
    [alert] = Alert.objects.all()
    assert (alert.evidence["preemptions"]["value"], alert.evidence["gpus_taken"]["value"]) == ("2", "2")
    evaluate_alerts(hour(2.15))
    assert Alert.objects.get().state == "resolved"


def reject(number: int, who: str, at: datetime, count: int, retry_after_us: int | None) -> None:
    source, _ = Source.objects.get_or_create(uri="/tests")
    booking, _ = Booking.objects.get_or_create(batch=1, defaults={"sequence": 1})
    event = Event.objects.create(
        source=source,
        event_id=f"r{number}",
        type=EventType.REJECTION,
        occurred_at=at,
        content_hash=b"r" + number.to_bytes(15, "big"),
        booking=booking,
        line=number,
        body={},
    )
    Rejection.objects.create(
        event=event,
        occurred_at=at,
        identity=identity(who),
        layer="gateway",
        reason="quota",
        status=429,
        count=count,
        retry_after_us=retry_after_us,
    )


def test_rejections_by_tenant(pool: Pool) -> None:
    rule("rejections", threshold=100, lasting_s=3600)
    for number, (who, count, retry) in enumerate(
        [("acme", 60, 1_000_000), ("acme", 60, None), ("beta", 99, None), ("nobody-known", 100, None)]
    ):
        reject(number, who, hour(1), count, retry)
    evaluate_alerts(hour(1.5))
    assert [
        (one.subject, one.evidence["explicit_share"]["value"]) for one in Alert.objects.order_by("subject")
    ] == [
        ("#unattributed", "0.0"),
        ("tenant:acme", "50.0"),
    ]


def test_what_was_measured_in_the_past_is_found_in_hindsight_once(pool: Pool) -> None:
    rule("rejections", threshold=100, lasting_s=3600)
    for number, (at, count) in enumerate([(1.5, 120), (2.5, 300), (5.5, 99), (8.5, 400), (11.5, 100)]):
        reject(number, "acme", hour(at), count, None)
    expected = [
        ("tenant:acme", "resolved", hour(2), hour(2), hour(4), False),
        ("tenant:acme", "resolved", hour(9), hour(9), hour(10), False),
        ("tenant:acme", "open", hour(12), hour(12), None, True),
    ]
    assert evaluate_alerts(hour(12), since=hour(0)) == {"opened": 3, "seen": 0, "resolved": 0}
    assert alerts() == expected
    assert Alert.objects.earliest("opened_at").evidence["rejections"] == {"value": "300", "unit": "count"}
    assert evaluate_alerts(hour(12), since=hour(0))["opened"] == 0
    assert evaluate_alerts(hour(12), since=hour(7))["opened"] == 0
    assert alerts() == expected
    # What held when it was last looked at ended in between, and came back.
    reject(9, "acme", hour(14.5), 500, None)
    assert evaluate_alerts(hour(15), since=hour(12.5)) == {"opened": 1, "seen": 0, "resolved": 1}
    assert alerts() == [
        *expected[:2],
        ("tenant:acme", "resolved", hour(12), hour(12), hour(13.5), False),
        ("tenant:acme", "open", hour(15), hour(15), None, True),
    ]


def test_conversion_beyond_the_tolerance_of_the_calibration(pool: Pool) -> None:
    rule("conversion_drift", lasting_s=24 * 3600)
    model = ModelName.objects.create(name="qwen3")
    Calibration.objects.create(
        valid_from=hour(-100),
        model=model,
        gpu_model="H100",
        input_gpu_us_per_1k=1_000_000,
        cached_input_gpu_us_per_1k=0,
        output_gpu_us_per_1k=0,
    )
    usage = UsageHour.objects.create(
        pool=pool,
        hour=hour(2),
        model=model,
        outcome=1,
        requests=1,
        input_tokens=3_600_000,
        gpu_us=3_960_000_000,
    )
    evaluate_alerts(hour(24))
    assert not Alert.objects.exists()  # 10 % off, 10 % allowed
    UsageHour.objects.filter(pk=usage.pk).update(gpu_us=4_500_000_000)
    evaluate_alerts(hour(24))
    [alert] = Alert.objects.all()
    assert alert.subject == "model#qwen3 · H100"
    assert {name: figure["value"] for name, figure in alert.evidence.items()} == {
        "deviation": "25.0",
        "tolerance": "10.0",
        "predicted": "1.00",
        "measured": "1.25",
        "over": "24",
    }


def test_lag_and_silence(pool: Pool) -> None:
    rule("ingest_lag", threshold=60)
    rule("silent_source")
    Source.objects.update(watermark_at=hour(1))
    Source.objects.create(uri="/quiet", name="quiet", watermark_at=hour(0), silence_after_s=1800)
    Source.objects.create(
        uri="/gone", name="gone", watermark_at=hour(-9), silence_after_s=60, retired_at=hour(0)
    )
    evaluate_alerts(hour(1))
    assert [(one.kind, one.subject, one.opened_at) for one in Alert.objects.all()] == [
        ("silent_source", "source#quiet", hour(0.5))
    ]
    evaluate_alerts(hour(2) + timedelta(seconds=1))
    lag = Alert.objects.get(kind="ingest_lag")
    assert (lag.started_at, lag.opened_at, lag.evidence["lag"]) == (
        hour(1),
        hour(2),
        {"value": "3601", "unit": "s"},
    )
    Source.objects.filter(uri="/quiet").update(watermark_at=hour(2))
    evaluate_alerts(hour(2.1))
    assert set(Alert.objects.values_list("state", flat=True)) == {"resolved"}


def test_a_source_that_is_set_up_and_never_sent_anything(pool: Pool) -> None:
    """Silence by its own limit, lag where it has none, from when it was set up or last answered for."""
    rule("ingest_lag", threshold=60)
    rule("silent_source")
    Source.objects.update(watermark_at=hour(9))
    for name, more in {
        "limited": {"silence_after_s": 1800},
        "unlimited": {},
        "signed-off": {"complete_until": hour(40)},
        "gone": {"retired_at": hour(1)},
    }.items():
        Source.objects.create(uri=f"/{name}", name=name, registered_at=hour(1), **more)
    # Nobody set this one up: what it sent is refused, and stands in quarantine.
    Source.objects.create(uri="/unknown", registered_at=hour(1))
    evaluate_alerts(hour(1.5))
    assert not Alert.objects.exists()
    evaluate_alerts(hour(1.75))
    evaluate_alerts(hour(3))
    found = Alert.objects.order_by("kind")
    assert [(one.kind, one.subject, one.started_at, one.opened_at) for one in found] == [
        ("ingest_lag", "source#unlimited", hour(1), hour(2)),
        ("silent_source", "source#limited", hour(1), hour(1.5)),
    ]
    assert [one.evidence for one in found] == [
        {"never": {"value": "2", "unit": "h"}, "allowed": {"value": allowed, "unit": unit}}
        for allowed, unit in (("1", "h"), ("30", "min"))
    ]
    message = message_of(found[0], is_resolved=False, base_url="")
    assert message.title == "Ingest lags behind: unlimited"
    assert ("Nothing ever came, for", "2 h") in message.lines
    Source.objects.filter(watermark_at=None).update(watermark_at=hour(3))
    evaluate_alerts(hour(3.1))
    assert set(Alert.objects.values_list("state", flat=True)) == {"resolved"}


def test_a_ledger_that_never_had_an_event_says_which_sources_are_awaited(pool: Pool) -> None:
    rule("ingest_lag", threshold=60)
    Source.objects.update(watermark_at=None)
    evaluate_alerts(hour(3))
    assert not Alert.objects.exists()
    Source.objects.create(uri="/new", name="new", registered_at=hour(1))
    evaluate_alerts(hour(3))
    assert [one.subject for one in Alert.objects.all()] == ["source#new"]


def test_a_planned_change_is_announced_to_who_reserves_there(pool: Pool) -> None:
    rule("capacity_change", lasting_s=7 * 24 * 3600)
    Booking.objects.update(booked_at=hour(10))
    capacity(pool, hour(30), 12_000)
    evaluate_alerts(hour(12))
    [alert] = Alert.objects.all()
    assert (alert.subject, alert.started_at) == ("pool:bj-h100#2026-10-02 06:00 UTC", hour(10))
    assert {name: figure["value"] for name, figure in alert.evidence.items()} == {
        "capacity_now": "16",
        "capacity_then": "12",
        "changes_in": "18",
    }
    assert list(alert.audience.values_list("holder__slug", flat=True)) == ["acme"]
    evaluate_alerts(hour(30))
    assert Alert.objects.get().state == "resolved"


def test_each_threshold_of_a_budget_is_news(pool: Pool) -> None:
    """acme holds 8 GPUs: 192 GPU-hours a day, of 400."""
    rule("budget")
    acme = Tenant.objects.get(holder__slug="acme")
    Budget.objects.create(tenant=acme, gpu_us=400 * 3_600_000_000, thresholds=[50, 80, 100])
    occupancy(pool, "wl-a", identity("acme"), hour(0), 8_000)
    for hours in (24, 48, 72):
        compute_month(Month.parse(MONTH), horizon=hour(hours))
        evaluate_alerts(hour(hours) + timedelta(minutes=1))  # not its turn
        evaluate_alerts(hour(hours) + timedelta(minutes=15))
    assert [
        (one.subject, one.state, one.evidence["share"]["value"])
        for one in Alert.objects.order_by("opened_at")
    ] == [
        ("tenant:acme#2026-10 · GPU-hour · 80 %", "resolved", "96.0"),
        ("tenant:acme#2026-10 · GPU-hour · 100 %", "open", "144.0"),
    ]


def test_evidence_in_words(pool: Pool) -> None:
    evidence = {
        "lasted": {"value": "8192", "unit": "s"},
        "gpu_hours": {"value": "1041.96", "unit": "GPU-hour"},
        "deviation": {"value": "-12.5", "unit": "%"},
        "spent": {"value": "296535.949163", "unit": "USD"},
        "full_layer": {"value": "serving", "unit": "layer"},
        "allowed": {"value": "48", "unit": "h"},
    }
    assert dict(figures_of(Alert(evidence=evidence))) == {
        "Deviation": "−12.5 %",
        "Spent": "296\u202f535.95 USD",
        "Allowed": "2 d",
        "GPU time": "1\u202f041.96 GPU-hours",
        "Lasted": "2 h 16 min",
        "Full layer": "serving layer",
    }


def test_a_rule_that_fails_silences_no_other(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rule: object, facts: object) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        return []

    monkeypatch.setitem(services.LOOKS, "rejections", broken)
    rule("rejections", name="a")
    rule("shortage", name="b")
    waits(pool, hour(1), 4_000)
    assert evaluate_alerts(hour(1))["opened"] == 1
