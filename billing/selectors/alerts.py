"""Reads of alerts, rules and subscriptions, as far as the asker may see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from django.db.models import Count, F, Max, Q, QuerySet, Sum

from billing.models import Alert, AlertRule, AlertState, AlertSubscription, Channel
from billing.selectors.alert_words import alert_path, threshold_text
from ledger.access import Access
from ledger.querysets import visible_to

UNRESOLVED = (AlertState.OPEN, AlertState.ACKNOWLEDGED)


def alerts_for(access: Access) -> QuerySet[Alert]:
    """Newest first; a tenant sees those it is in the audience of."""
    rows = Alert.objects.select_related("rule", "pool", "tenant__holder").order_by("-opened_at", "pk")
    return visible_to(rows, access)


@dataclass(frozen=True)
class AlertKind:
    """All alerts of one kind that a reader sees, of one pool where they are about a pool.

    lasted_ms: of those that are over, added up; longest_ms: of the longest of these. last_at: when the newest opened.
    """

    kind: str
    pool: str
    count: int
    unresolved: int
    lasted_ms: int
    longest_ms: int
    last_at: datetime


def alerts_by_kind(access: Access) -> list[AlertKind]:
    """The most frequent first: of what comes and goes often, one line instead of a hundred. One query."""
    over = F("resolved_at") - F("opened_at")
    # Who has several tenants sees an alert by several ways; sums must count it once.
    seen = visible_to(Alert.objects.order_by(), access)
    rows = (
        Alert.objects.filter(pk__in=seen.values("pk"))
        .values("kind", "pool__slug")
        .annotate(
            count=Count("pk"),
            unresolved=Count("pk", filter=Q(state__in=UNRESOLVED)),
            lasted=Sum(over),
            longest=Max(over),
            last=Max("opened_at"),
        )
        .order_by("-count", "kind", "pool__slug")
    )
    return [
        AlertKind(
            row["kind"],
            row["pool__slug"] or "",
            row["count"],
            row["unresolved"],
            _ms(row["lasted"]),
            _ms(row["longest"]),
            row["last"],
        )
        for row in rows
    ]


def _ms(span: timedelta | None) -> int:
    return 0 if span is None else span // timedelta(milliseconds=1)


def open_count(access: Access) -> int:
    """How many nobody has dealt with; leans on alert_by_state."""
    if not access.sees_anything:
        return 0
    return visible_to(Alert.objects.filter(state=AlertState.OPEN), access).count()


def rules_for(access: Access) -> QuerySet[AlertRule]:
    """By name. A tenant sees the rules without a tenant, which may open alerts for it, and those about itself."""
    rows = AlertRule.objects.select_related("pool", "tenant__holder").order_by("name")
    if access.sees_all_tenants:
        return rows
    return rows.filter(tenant=None) | rows.filter(tenant__in=access.tenant_ids)


def subscriptions_for(access: Access) -> QuerySet[AlertSubscription]:
    """The ledger's own and every tenant's for who runs it; a tenant's for its admins."""
    rows = AlertSubscription.objects.select_related("tenant__holder").order_by("name", "pk")
    return rows if access.sees_all_tenants else rows.filter(tenant__in=access.admin_of)


def alert_row(alert: Alert) -> dict[str, Any]:
    """One alert for the API and for webhooks."""
    return {
        "id": str(alert.pk),
        "kind": alert.kind,
        "severity": alert.severity,
        "state": alert.state,
        "rule": alert.rule.name,
        "subject": alert.subject,
        "pool": alert.pool.slug if alert.pool else None,
        "tenant": alert.tenant.slug if alert.tenant else None,
        "started_at": alert.started_at,
        "opened_at": alert.opened_at,
        "recorded_at": alert.recorded_at,
        "last_seen_at": alert.last_seen_at,
        "resolved_at": alert.resolved_at,
        "acknowledged_at": alert.acknowledged_at,
        "acknowledged_by": alert.acknowledged_by,
        "resolved_by": alert.resolved_by,
        "note": alert.note,
        "evidence": alert.evidence,
        "link": alert_path(alert),
    }


def rule_row(rule: AlertRule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "kind": rule.kind,
        "pool": rule.pool.slug if rule.pool else None,
        "tenant": rule.tenant.slug if rule.tenant else None,
        "threshold": threshold_text(rule.threshold_micro),
        "lasting_s": rule.lasting_s,
        "severity": rule.severity,
        "enabled": rule.enabled,
    }


def subscription_row(subscription: AlertSubscription) -> dict[str, Any]:
    """Without its secrets: of the address, which may hold a token, only the host."""
    is_mail = subscription.channel == Channel.EMAIL
    return {
        "id": str(subscription.pk),
        "name": subscription.name,
        "tenant": subscription.tenant.slug if subscription.tenant else None,
        "channel": subscription.channel,
        "host": "" if is_mail else (urlsplit(subscription.url).hostname or ""),
        "addresses": list(subscription.addresses),
        "has_secret": bool(subscription.secret),
        "kinds": list(subscription.kinds),
        "min_severity": subscription.min_severity,
        "language": subscription.language,
        "enabled": subscription.enabled,
    }


def may_change_rules(access: Access) -> bool:
    """Platform and finance set what is looked for and whom the ledger tells."""
    return access.is_platform or access.is_finance


def may_act_on(alert: Alert, access: Access) -> bool:
    """Whoever may change rules acts on any alert, a tenant's admin on those about it."""
    return may_change_rules(access) or alert.tenant_id in access.admin_of
