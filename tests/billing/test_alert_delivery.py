"""Telling subscribers: what a real HTTP server on this machine receives, and what becomes of its answers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core import mail
from django.db import IntegrityError, transaction

from billing.models import (
    Alert,
    AlertDelivery,
    AlertRule,
    AlertSubscription,
    DeliveryState,
    Occasion,
)
from billing.services import alert_transport
from billing.services.alert_delivery import announce, deliver, due_deliveries
from billing.services.alerts import resolve_alert
from ledger.core.sentences import in_english
from ledger.models import Tenant
from ledger.services.audit import Actor
from tests.billing.level_facts import make_pool, make_tenants
from tests.fixtures.receiver import Receiver, http_receiver

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

NOW = datetime(2026, 10, 9, 12, tzinfo=UTC)
SECRET = "a-very-secret-word"
TOKEN = "token-in-the-address-0123456789"


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.WEBHOOK_PRIVATE_NETWORKS = ["127.0.0.0/8"]
    settings.PUBLIC_URL = "https://ledger.example.org"
    with http_receiver() as one:
        yield one


@pytest.fixture
def alert() -> Alert:
    pool, [acme, _] = make_pool(), make_tenants("acme", "beta")
    rule = AlertRule.objects.create(name="short", kind="shortage", threshold_micro=0, severity="critical")
    alert = Alert.objects.create(
        rule=rule,
        kind="shortage",
        severity="critical",
        subject="pool:bj-h100",
        pool=pool,
        started_at=NOW - timedelta(minutes=5),
        opened_at=NOW - timedelta(minutes=5),
        last_seen_at=NOW,
        evidence={"missing": {"value": "12", "unit": "GPU"}, "lasted": {"value": "5", "unit": "min"}},
    )
    alert.audience.add(acme)
    return alert


def subscribe(channel: str, url: str = "", **more: Any) -> AlertSubscription:
    values = {"name": channel, "channel": channel, "url": url, "created_by": "test", **more}
    return AlertSubscription.objects.create(**values)


def told(alert: Alert, now: datetime = NOW) -> AlertDelivery:
    announce(alert, Occasion.OPENED, now)
    [due] = due_deliveries(now)
    delivery = deliver(due, now)
    assert delivery is not None
    return delivery


def test_a_webhook_is_signed_and_has_an_idempotency_key(receiver: Receiver, alert: Alert) -> None:
    subscribe("webhook", f"{receiver.url}/hook?token={TOKEN}", secret=SECRET)
    delivery = told(alert)
    [request] = receiver.received
    assert request.path == f"/hook?token={TOKEN}"
    assert request.headers["Idempotency-Key"] == str(delivery.pk)
    signed = request.headers["X-Ledger-Timestamp"].encode() + b"." + request.body
    expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert request.headers["X-Ledger-Signature"] == f"v1={expected}"
    content = request.json
    assert (content["type"], content["id"]) == ("ledger.alert.opened.v1", str(delivery.pk))
    assert content["alert"]["evidence"]["missing"] == {"value": "12", "unit": "GPU"}
    assert content["alert"]["link"] == f"https://ledger.example.org/alerts/{alert.pk}/"
    assert content["alert"]["opened_at"] == "2026-10-09T11:55:00Z"
    assert (delivery.state, delivery.attempts, delivery.next_attempt_at) == (DeliveryState.SENT, 1, None)
    assert deliver(str(delivery.pk), NOW + timedelta(days=1)) is None
    assert len(receiver.received) == 1


def test_is_tried_again_with_the_same_key_until_it_is_taken(receiver: Receiver, alert: Alert) -> None:
    receiver.answers = [(500, {}, b"oops"), (503, {"Retry-After": "900"}, b""), (204, {}, b"")]
    subscribe("webhook", receiver.url)
    first = told(alert)
    assert (first.state, first.last_status, in_english(first.last_answer)) == (
        DeliveryState.WAITING,
        500,
        "HTTP 500",
    )
    assert first.next_attempt_at == NOW + timedelta(seconds=30)
    assert deliver(str(first.pk), NOW + timedelta(seconds=29)) is None
    second = deliver(str(first.pk), NOW + timedelta(seconds=30))
    assert second and second.next_attempt_at == NOW + timedelta(seconds=30 + 900)
    third = deliver(str(first.pk), NOW + timedelta(hours=1))
    assert third and (third.state, third.attempts, third.last_status) == (DeliveryState.SENT, 3, 204)
    assert len({request.headers["Idempotency-Key"] for request in receiver.received}) == 1


def test_gives_up_in_the_end(receiver: Receiver, alert: Alert) -> None:
    receiver.answers = [(500, {}, b"")]
    subscribe("webhook", receiver.url)
    now, delivery = NOW, told(alert)
    while delivery.next_attempt_at is not None:
        now = delivery.next_attempt_at
        delivery = deliver(str(delivery.pk), now) or delivery
    assert (delivery.state, delivery.attempts) == (DeliveryState.FAILED, 12)
    assert due_deliveries(now + timedelta(days=9)) == []


def test_gone_is_gone(receiver: Receiver, alert: Alert) -> None:
    receiver.answers = [(410, {}, b"")]
    subscribe("webhook", receiver.url)
    assert told(alert).state == DeliveryState.FAILED


def test_a_redirect_is_not_followed(receiver: Receiver, alert: Alert) -> None:
    receiver.answers = [(302, {"Location": f"{receiver.url}/elsewhere"}, b"")]
    subscribe("webhook", f"{receiver.url}/hook")
    delivery = told(alert)
    assert (delivery.state, delivery.last_status) == (DeliveryState.WAITING, 302)
    assert [request.path for request in receiver.received] == ["/hook"]


def test_nothing_private_is_reached_unless_allowed(receiver: Receiver, alert: Alert, settings: Any) -> None:
    settings.WEBHOOK_PRIVATE_NETWORKS = ["10.0.0.0/8"]
    subscribe("webhook", receiver.url)
    delivery = told(alert)
    assert (delivery.state, receiver.received) == (DeliveryState.FAILED, [])
    assert "private network" in in_english(delivery.last_answer)


def test_a_name_with_two_faces_leads_nowhere(
    receiver: Receiver, alert: Alert, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WEBHOOK_PRIVATE_NETWORKS = []
    two = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 80)) for ip in ("93.184.216.34", "127.0.0.1")]
    monkeypatch.setattr(alert_transport.socket, "getaddrinfo", lambda *args, **more: two)
    subscribe("webhook", "http://two-faces.example/")
    assert told(alert).state == DeliveryState.FAILED


def test_what_was_checked_is_what_is_reached(
    receiver: Receiver, alert: Alert, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is looked up once; the request names it as its host."""
    asked = []

    def look_up(host: str, port: int, **more: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    subscribe("webhook", f"http://hooks.example:{receiver.port}/")
    real = socket.getaddrinfo
    monkeypatch.setattr(
        alert_transport.socket,
        "getaddrinfo",
        lambda host, *args, **more: (
            look_up(host, *args, **more) if host == "hooks.example" else real(host, *args, **more)
        ),
    )
    assert told(alert).state == DeliveryState.SENT
    assert asked == ["hooks.example"]
    assert receiver.received[0].headers["Host"] == f"hooks.example:{receiver.port}"


def test_no_answer_is_tried_again_and_says_nothing_of_the_address(
    alert: Alert, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.WEBHOOK_PRIVATE_NETWORKS = ["127.0.0.0/8"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        subscribe("webhook", f"http://127.0.0.1:{taken.getsockname()[1]}/{TOKEN}", secret=SECRET)
        with caplog.at_level(logging.DEBUG):
            delivery = told(alert)
    assert delivery.state == DeliveryState.WAITING
    assert in_english(delivery.last_answer) == "not reached: NewConnectionError"
    assert TOKEN not in caplog.text and SECRET not in caplog.text


def test_dingtalk_signs_and_answers_in_its_body(receiver: Receiver, alert: Alert) -> None:
    said = b'{"errcode":310000,"errmsg":"token token-in-the-address-0123456789 is bad"}'
    receiver.answers = [(200, {}, said), (200, {}, b'{"errcode":0}')]
    subscribe(
        "dingtalk", f"{receiver.url}/robot/send?access_token={TOKEN}", secret=SECRET, language="zh-hans"
    )
    first = told(alert)
    assert (first.state, in_english(first.last_answer)) == (
        DeliveryState.WAITING,
        "code 310000: token … is bad",
    )
    assert deliver(str(first.pk), NOW + timedelta(minutes=1))
    query = parse_qs(urlsplit(receiver.received[1].path).query)
    expected = hmac.new(
        SECRET.encode(), f"{query['timestamp'][0]}\n{SECRET}".encode(), hashlib.sha256
    ).digest()
    assert query["sign"] == [base64.b64encode(expected).decode()]
    assert receiver.received[1].json["msgtype"] == "markdown"
    assert receiver.received[1].json["markdown"]["title"] == "准入不足: bj-h100"


@pytest.mark.parametrize(
    ("channel", "answer", "key"),
    [
        ("feishu", b'{"code":0}', "card"),
        ("wecom", b'{"errcode":0}', "markdown"),
        ("slack", b"ok", "blocks"),
    ],
)
def test_chat(receiver: Receiver, alert: Alert, channel: str, answer: bytes, key: str) -> None:
    receiver.answers = [(200, {}, answer)]
    subscribe(channel, f"{receiver.url}/{TOKEN}", secret=SECRET if channel == "feishu" else "")
    assert told(alert).state == DeliveryState.SENT
    assert key in receiver.received[0].json
    assert ("sign" in receiver.received[0].json) == (channel == "feishu")


def test_alertmanager_hears_of_it_again_until_it_is_over(receiver: Receiver, alert: Alert) -> None:
    subscribe("alertmanager", f"{receiver.url}/alertmanager/", secret=SECRET)
    first = told(alert)
    assert (first.state, first.next_attempt_at) == (DeliveryState.SENT, NOW + timedelta(minutes=3))
    again = deliver(str(first.pk), NOW + timedelta(minutes=3))
    assert again and again.next_attempt_at == NOW + timedelta(minutes=6)
    ends = NOW + timedelta(minutes=4)
    resolve_alert(alert.pk, "enough", Actor("pat"), ends)
    [due] = due_deliveries(NOW + timedelta(hours=1))
    assert deliver(due, ends)
    assert due_deliveries(NOW + timedelta(days=1)) == []
    assert [request.path for request in receiver.received] == ["/alertmanager/api/v2/alerts"] * 3
    assert receiver.received[0].headers["Authorization"] == f"Bearer {SECRET}"
    [fired], [over] = receiver.received[0].json, receiver.received[2].json
    assert (
        fired["labels"]
        == over["labels"]
        == {
            "alertname": "ledger_shortage",
            "severity": "critical",
            "rule": "short",
            "subject": "pool:bj-h100",
            "pool": "bj-h100",
        }
    )
    assert ("endsAt" in fired, over["endsAt"]) == (False, "2026-10-09T12:04:00Z")


def test_mail(alert: Alert) -> None:
    subscribe("email", addresses=["a@example.com", "b@example.com"])
    assert told(alert).state == DeliveryState.SENT
    [message] = mail.outbox
    assert (message.subject, message.to) == ("Shortage: bj-h100", ["a@example.com", "b@example.com"])
    assert message.body == (
        "Severity: critical\nRule: short\nSince: 2026-10-09 11:55 UTC\nMissing: 12 GPUs\nLasted: 5 min\n"
    )


def test_who_is_told(alert: Alert) -> None:
    """A tenant of what it sees, anybody of the kinds and severities asked for, and of the end whoever heard the
    beginning."""
    acme = alert.audience.get()
    beta = Tenant.objects.get(holder__slug="beta")
    for name, more in {
        "all": {},
        "acme": {"tenant": acme},
        "beta": {"tenant": beta},
        "other-kind": {"kinds": ["budget"]},
        "this-kind": {"kinds": ["budget", "shortage"]},
        "severe": {"min_severity": "critical"},
        "off": {"enabled": False},
    }.items():
        subscribe("webhook", "https://hooks.example/", **{"name": name, **more})
    announce(alert, Occasion.OPENED, NOW)
    announce(alert, Occasion.OPENED, NOW)
    late = subscribe("webhook", "https://hooks.example/", name="late")
    announce(alert, Occasion.RESOLVED, NOW)
    names = AlertDelivery.objects.order_by("occasion", "subscription__name")
    assert list(names.values_list("occasion", "subscription__name")) == [
        (occasion, name)
        for occasion in ("opened", "resolved")
        for name in ("acme", "all", "severe", "this-kind")
    ]
    assert not late.deliveries.exists()


def test_the_database_keeps_one_open_alert_and_one_delivery(alert: Alert) -> None:
    again = {
        field.name: getattr(alert, field.name)
        for field in Alert._meta.concrete_fields
        if field.name not in ("id", "recorded_at")
    }
    with pytest.raises(IntegrityError, match="alert_one_open_per_subject"), transaction.atomic():
        Alert.objects.create(**again)
    with pytest.raises(IntegrityError, match="alert_resolved_whole"), transaction.atomic():
        Alert.objects.filter(pk=alert.pk).update(state="resolved")
    Alert.objects.filter(pk=alert.pk).update(state="resolved", resolved_at=NOW)
    Alert.objects.create(**again)
    subscription = subscribe("webhook", "https://hooks.example/")
    announce(alert, Occasion.OPENED, NOW)
    with pytest.raises(IntegrityError, match="alert_delivery_once"), transaction.atomic():
        AlertDelivery.objects.create(
            alert=alert, subscription=subscription, occasion="opened", next_attempt_at=NOW
        )
    with pytest.raises(IntegrityError, match="alert_subscription_reaches"), transaction.atomic():
        subscribe("email")
