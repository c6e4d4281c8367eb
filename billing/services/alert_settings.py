"""Rules and subscriptions as people set them, with an audit entry each. Secrets never enter the trail."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from billing.core.alerts import KINDS
from billing.core.destinations import BadDestination, PrivateDestination
from billing.models import AlertRule, AlertSubscription, Channel
from billing.selectors.alerts import rule_row, subscription_row
from billing.services.alert_transport import check_destination
from billing.services.alerts import AlertError
from ledger.services.audit import Actor, record

MAX_ADDRESSES = 20


def create_rule(values: dict[str, Any], by: Actor) -> AlertRule:
    """values: fields of AlertRule; what is not said is as usual for the kind.

    Raises AlertError: `exists`.
    """
    usual = KINDS[values["kind"]]
    defaults = {
        "threshold_micro": usual.threshold_micro,
        "lasting_s": usual.lasting_s,
        "severity": usual.severity,
    }
    try:
        with transaction.atomic():
            rule = AlertRule.objects.create(**{**defaults, **values}, recorded_by=by.name)
            record(by, "create_alert_rule", "alert_rule", rule.name, after=rule_row(rule))
    except IntegrityError:
        raise AlertError("exists", "there is a rule of that name") from None
    return rule


@transaction.atomic
def change_rule(rule: AlertRule, values: dict[str, Any], by: Actor) -> AlertRule:
    """Threshold, duration, severity, or on and off. The next look settles its alerts."""
    before = rule_row(rule)
    for name, value in values.items():
        setattr(rule, name, value)
    rule.save(update_fields=list(values))
    if rule_row(rule) != before:
        record(by, "change_alert_rule", "alert_rule", rule.name, before=before, after=rule_row(rule))
    return rule


def create_subscription(values: dict[str, Any], by: Actor) -> AlertSubscription:
    """Raises AlertError: `exists`, `bad_url`, `private_url`, `bad_addresses`."""
    _check_reach(values["channel"], values.get("url", ""), values.get("addresses", []))
    try:
        with transaction.atomic():
            one = AlertSubscription.objects.create(**values, created_by=by.name)
            record(by, "create_alert_subscription", "alert_subscription", one.pk, after=subscription_row(one))
    except IntegrityError:
        raise AlertError("exists", "there is a subscription of that name") from None
    return one


@transaction.atomic
def change_subscription(one: AlertSubscription, values: dict[str, Any], by: Actor) -> AlertSubscription:
    """What leads where delivery may not go any more can be switched off and changed, not switched on.

    Raises AlertError: `bad_url`, `private_url`, `bad_addresses`, `needs_secret`: another host gets no secret meant for
    this one.
    """
    url, before = values.get("url", one.url), subscription_row(one)
    if one.secret and "secret" not in values and urlsplit(url).netloc != urlsplit(one.url).netloc:
        raise AlertError("needs_secret", "another host needs its own secret")
    if values.get("enabled") or not values.keys().isdisjoint({"url", "addresses"}):
        _check_reach(one.channel, url, values.get("addresses", one.addresses))
    for name, value in values.items():
        setattr(one, name, value)
    one.save(update_fields=list(values))
    after = subscription_row(one)
    record(by, "change_alert_subscription", "alert_subscription", one.pk, before=before, after=after)
    return one


def _check_reach(channel: str, url: str, addresses: list[str]) -> None:
    if channel == Channel.EMAIL:
        if url or not addresses or len(addresses) > MAX_ADDRESSES:
            raise AlertError("bad_addresses", f"e-mail needs 1 to {MAX_ADDRESSES} addresses and no url")
        for address in addresses:
            try:
                validate_email(address)
            except ValidationError:
                raise AlertError("bad_addresses", "an address cannot be read") from None
        return
    if addresses:
        raise AlertError("bad_addresses", "only e-mail has addresses")
    try:
        check_destination(url)
    except PrivateDestination as error:
        raise AlertError("private_url", str(error)) from None
    except BadDestination as error:
        raise AlertError("bad_url", str(error)) from None
