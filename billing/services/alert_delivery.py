"""Telling subscribers of alerts: each of one occasion once, tried again until it is (docs/alerts.md).

A delivery is claimed in a short transaction, sent outside of any, and its answer noted: a worker that dies in between
leaves it due again. So a subscriber may hear twice, under one idempotency key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.utils import translation

from billing.core import alert_messages as core
from billing.core.destinations import BadDestination
from billing.core.sentences import Sentence, sentence
from billing.models import (
    Alert,
    AlertDelivery,
    AlertState,
    AlertSubscription,
    Channel,
    DeliveryState,
    Occasion,
)
from billing.selectors.alert_words import SEVERITY_ORDER, message_of
from billing.selectors.alerts import alert_row
from billing.services.alert_transport import NotReached, post
from billing.services.mailing import MAIL_ERRORS, mail_problem
from ledger.core.instants import instant_text

# A worker that takes longer than this is taken for dead.
CLAIM = timedelta(minutes=2)
# Alertmanager forgets what it does not hear of again (resolve_timeout, 5 minutes by default).
ALERTMANAGER_REPEAT = timedelta(minutes=3)


def announce(alert: Alert, occasion: Occasion, now: datetime) -> None:
    """Note who has to be told; stands or falls with the surrounding transaction. Safe to repeat."""
    if occasion == Occasion.OPENED:
        subscriptions = [one for one in _subscriptions() if _wants(one, alert)]
    else:
        told = alert.deliveries.filter(occasion=Occasion.OPENED)
        told.filter(state=DeliveryState.SENT).update(next_attempt_at=None)
        subscriptions = [delivery.subscription for delivery in told.select_related("subscription")]
    AlertDelivery.objects.bulk_create(
        (
            AlertDelivery(alert=alert, subscription=one, occasion=occasion, next_attempt_at=now)
            for one in subscriptions
            if one.enabled
        ),
        ignore_conflicts=True,
    )


def _subscriptions() -> Iterable[AlertSubscription]:
    return AlertSubscription.objects.filter(enabled=True).order_by("created_at", "pk")


def _wants(subscription: AlertSubscription, alert: Alert) -> bool:
    if subscription.kinds and alert.kind not in subscription.kinds:
        return False
    if SEVERITY_ORDER[alert.severity] < SEVERITY_ORDER[subscription.min_severity]:
        return False
    return subscription.tenant_id is None or alert.audience.filter(pk=subscription.tenant_id).exists()


def due_deliveries(now: datetime, limit: int = 200) -> list[str]:
    """Ids of what has to be sent, the longest waiting first; leans on alert_delivery_due."""
    due = AlertDelivery.objects.filter(next_attempt_at__lte=now).order_by("next_attempt_at", "pk")
    return [str(pk) for pk in due.values_list("pk", flat=True)[:limit]]


def deliver(delivery_id: str, now: datetime) -> AlertDelivery | None:
    """Try one delivery; None where it is not due, or somebody else is at it."""
    delivery = _claim(delivery_id, now)
    if delivery is None:
        return None
    status, problem, asked_s, is_final = _send(delivery)
    delivery.last_status, delivery.last_answer = status, problem.kept() if problem else ""
    if problem is None:
        delivery.state, delivery.delivered_at = DeliveryState.SENT, now
        delivery.next_attempt_at = _again_at(delivery, now)
    else:
        delay_s = None if is_final else core.retry_after_s(delivery.attempts, asked_s)
        delivery.state = DeliveryState.FAILED if delay_s is None else DeliveryState.WAITING
        delivery.next_attempt_at = None if delay_s is None else now + timedelta(seconds=delay_s)
    delivery.save(update_fields=["last_status", "last_answer", "state", "delivered_at", "next_attempt_at"])
    return delivery


@transaction.atomic
def _claim(delivery_id: str, now: datetime) -> AlertDelivery | None:
    delivery = (
        AlertDelivery.objects.select_for_update(skip_locked=True, of=("self",))
        .select_related("alert__rule", "alert__pool", "alert__tenant__holder", "subscription__tenant__holder")
        .filter(pk=delivery_id, next_attempt_at__lte=now)
        .first()
    )
    if delivery is None:
        return None
    if not delivery.subscription.enabled:
        delivery.state, delivery.next_attempt_at = DeliveryState.FAILED, None
        delivery.last_answer = sentence("subscription_off").kept()
        delivery.save(update_fields=["state", "next_attempt_at", "last_answer"])
        return None
    if delivery.state == DeliveryState.SENT:
        delivery.attempts = 0  # told again, not tried again
    delivery.attempts += 1
    delivery.next_attempt_at = now + CLAIM
    delivery.save(update_fields=["attempts", "next_attempt_at"])
    return delivery


def _again_at(delivery: AlertDelivery, now: datetime) -> datetime | None:
    repeats = delivery.subscription.channel == Channel.ALERTMANAGER and delivery.occasion == Occasion.OPENED
    if not repeats or Alert.objects.filter(pk=delivery.alert_id, state=AlertState.RESOLVED).exists():
        return None
    return now + ALERTMANAGER_REPEAT


def _send(delivery: AlertDelivery) -> tuple[int | None, Sentence | None, int | None, bool]:
    """(HTTP status, problem or None, seconds the receiver asked to wait, whether trying again is useless)."""
    subscription = delivery.subscription
    try:
        if subscription.channel == Channel.EMAIL:
            _mail(delivery)
            return None, None, None, False
        url, body, headers = request_of(delivery, time.time())
        answer = post(url, body, {**headers, "Idempotency-Key": str(delivery.pk)})
    except BadDestination as error:
        return None, error.told, None, True
    except NotReached as error:
        return None, error.told, None, False
    except MAIL_ERRORS as error:
        return None, mail_problem(error), None, False
    problem = core.problem_of(subscription.channel, answer.status, answer.body)
    # What the receiver says may repeat its own token: it is kept from answers and logs as the address is.
    return answer.status, _without_secrets(problem, subscription), answer.retry_after_s, answer.status == 410


def _without_secrets(problem: Sentence | None, subscription: AlertSubscription) -> Sentence | None:
    query = subscription.url.partition("?")[2]
    values = [part.partition("=")[2] for part in query.split("&")]
    parts = [subscription.url, subscription.secret, *values, subscription.url.rsplit("/", 1)[-1]]

    def cleared(value: Any) -> Any:
        for part in parts:
            if isinstance(value, str) and len(part) >= 6:
                value = value.replace(part, "…")
        return value

    if problem is None:
        return None
    return sentence(problem.code, **{name: cleared(value) for name, value in problem.values.items()})


def request_of(delivery: AlertDelivery, now_s: float) -> tuple[str, bytes, dict[str, str]]:
    """Address, body and headers of one delivery, signed for this second."""
    subscription, headers = delivery.subscription, {"Content-Type": "application/json; charset=utf-8"}
    url, secret, payload = subscription.url, subscription.secret, _payload(delivery)
    if subscription.channel == Channel.DINGTALK and secret:
        url += ("&" if "?" in url else "?") + core.dingtalk_query(secret, int(now_s * 1000))
    elif subscription.channel == Channel.FEISHU and secret:
        payload = core.feishu_signed(secret, int(now_s), payload)
    elif subscription.channel == Channel.ALERTMANAGER:
        url = url.rstrip("/")
        url = url if url.endswith("/api/v2/alerts") else f"{url}/api/v2/alerts"
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
    body = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    if subscription.channel == Channel.WEBHOOK:
        headers["X-Ledger-Timestamp"] = str(int(now_s))
        if secret:
            headers["X-Ledger-Signature"] = core.signature(secret, int(now_s), body)
    return url, body, headers


def _payload(delivery: AlertDelivery) -> Any:
    alert, subscription = delivery.alert, delivery.subscription
    is_resolved = delivery.occasion == Occasion.RESOLVED
    if subscription.channel == Channel.WEBHOOK:
        return {
            "type": f"ledger.alert.{delivery.occasion}.v1",
            "id": str(delivery.pk),
            "alert": _json_row(alert),
        }
    with translation.override(subscription.language):
        message = message_of(alert, is_resolved=is_resolved, base_url=settings.PUBLIC_URL)
    if subscription.channel == Channel.ALERTMANAGER:
        labels = {
            "alertname": f"ledger_{alert.kind}",
            "severity": alert.severity,
            "rule": alert.rule.name,
            "subject": alert.subject,
            "pool": alert.pool.slug if alert.pool else "",
            "tenant": alert.tenant.slug if alert.tenant else "",
        }
        ended = instant_text(alert.resolved_at) if is_resolved and alert.resolved_at else None
        return core.alertmanager(message, labels, instant_text(alert.started_at), ended)
    forms = {
        Channel.DINGTALK: core.dingtalk,
        Channel.FEISHU: core.feishu,
        Channel.WECOM: core.wecom,
        Channel.SLACK: core.slack,
    }
    return forms[Channel(subscription.channel)](message)


def _json_row(alert: Alert) -> dict[str, Any]:
    row = alert_row(alert)
    if settings.PUBLIC_URL and row["link"]:
        row["link"] = settings.PUBLIC_URL + row["link"]
    return {
        name: instant_text(value) if isinstance(value, datetime) else value for name, value in row.items()
    }


def _mail(delivery: AlertDelivery) -> None:
    alert, subscription = delivery.alert, delivery.subscription
    with translation.override(subscription.language):
        is_resolved = delivery.occasion == Occasion.RESOLVED
        message = message_of(alert, is_resolved=is_resolved, base_url=settings.PUBLIC_URL)
    mail = EmailMessage(
        subject=" ".join(message.title.split()),
        body=core.plain_text(message),
        to=list(subscription.addresses),
        headers={"X-Ledger-Delivery": str(delivery.pk)},
    )
    mail.send()
