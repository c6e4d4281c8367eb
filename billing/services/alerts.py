"""Looks at the rules, opens and resolves alerts, and lets people act on them (domain.md section 9; docs/alerts.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from billing.core import alerts as core
from billing.core.alert_history import MEASURED, looks, stretches
from billing.models import Alert, AlertRule, AlertState, Occasion
from billing.selectors.alert_facts import Facts
from billing.services.alert_delivery import announce
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.locks import Lock, try_acquire
from ledger.models import Pool, Tenant
from ledger.services.audit import Actor, record

# How far back something that is already over is still noticed: facts may come late.
LOOK_BACK = timedelta(hours=2)
LONG_LOOK_BACK = timedelta(hours=26)
# What was over for longer than this when the ledger learnt of it is kept, but nobody is told.
STILL_NEWS = timedelta(hours=2)

logger = logging.getLogger(__name__)

Look = Callable[[core.Rule, Facts], Iterable[core.Finding]]

LOOKS: dict[str, Look] = {
    "shortage": lambda rule, facts: core.shortage(rule, facts.short, facts.now_ms),
    "quota_drift": lambda rule, facts: core.quota_drift(rule, facts.drifting, facts.now_ms),
    "unused_reservation": lambda rule, facts: core.unused_reservation(
        rule, facts.reserved(rule.lasting_s), facts.now_ms
    ),
    "conversion_drift": lambda rule, facts: core.conversion_drift(
        rule, facts.converted(rule.lasting_s), facts.now_ms
    ),
    "preemption_spike": lambda rule, facts: core.preemption_spike(
        rule, facts.preempted(rule.lasting_s), facts.now_ms
    ),
    "rejections": lambda rule, facts: core.rejections(rule, facts.rejected(rule.lasting_s), facts.now_ms),
    "budget": lambda rule, facts: core.budget(rule, facts.budgets, facts.now_ms),
    "budget_forecast": lambda rule, facts: core.budget_forecast(rule, facts.budgets, facts.now_ms),
    "ingest_lag": lambda rule, facts: core.ingest_lag(rule, facts.newest_ms, facts.sources, facts.now_ms),
    "unattributed": lambda rule, facts: core.unattributed(
        rule, facts.unattributed(rule.lasting_s), facts.now_ms
    ),
    "silent_source": lambda rule, facts: core.silent_source(rule, facts.sources, facts.now_ms),
    "capacity_change": lambda rule, facts: core.capacity_change(
        rule, facts.planned(rule.lasting_s), facts.now_ms
    ),
}


# A forecast reads three months of slots, and moves slowly: these are looked at every quarter of an hour.
SLOW = frozenset({"budget", "budget_forecast"})
SLOW_EVERY_MINUTES = 15


class AlertError(ValueError):
    """The alert cannot take that step; `code` says why to programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@transaction.atomic
def evaluate_alerts(now: datetime, since: datetime | None = None) -> dict[str, int]:
    """Look at every enabled rule as of `now`; returns how many alerts were opened, seen again and resolved.

    since: how far back stretches that are over are looked for (default: 2 hours; once an hour 26); where it is given,
    rules that measure over a time are looked at all the way from there. Safe to repeat; where another worker is at
    it, nothing happens.
    """
    counts = {"opened": 0, "seen": 0, "resolved": 0}
    if not try_acquire(Lock.ALERTS):
        return counts
    facts = Facts(to_ms(now), to_ms(since or now - (LOOK_BACK if now.minute else LONG_LOOK_BACK)))
    for rule in (
        AlertRule.objects.filter(enabled=True).select_related("pool", "tenant__holder").order_by("name")
    ):
        if rule.kind in LOOKS and (rule.kind not in SLOW or since or not now.minute % SLOW_EVERY_MINUTES):
            for name, count in _look(rule, facts, now, in_hindsight=since is not None).items():
                counts[name] += count
    _end_of_disabled(now)
    return counts


def _look(rule: AlertRule, facts: Facts, now: datetime, in_hindsight: bool) -> dict[str, int]:
    """One rule that fails must not silence the others: its alerts stay as they are, and the log says why."""
    try:
        with transaction.atomic():
            return _settle(rule, _found(rule, facts, in_hindsight), facts, now)
    except Exception:
        logger.exception("alert rule %s could not be looked at", rule.name)
        return {}


def _found(rule: AlertRule, facts: Facts, in_hindsight: bool) -> list[core.Finding]:
    wanted, look = _core_rule(rule), LOOKS[rule.kind]
    if not in_hindsight or rule.kind not in MEASURED:
        return list(look(wanted, facts))
    instants = looks(Span(facts.since_ms, facts.now_ms), rule.lasting_s)
    holding = [
        core.Finding(alert.subject, to_ms(alert.started_at), to_ms(alert.opened_at), alert.evidence)
        for alert in rule.alerts.filter(holds=True, started_at__lt=to_datetime(facts.since_ms))
    ]
    looked = ((now_ms, list(look(wanted, Facts(now_ms, facts.since_ms)))) for now_ms in instants)
    return stretches(looked, holding)


def _core_rule(rule: AlertRule) -> core.Rule:
    return core.Rule(
        rule.kind,
        rule.threshold_micro,
        rule.lasting_s,
        rule.pool.slug if rule.pool else None,
        rule.tenant.slug if rule.tenant else None,
    )


def _settle(rule: AlertRule, findings: list[core.Finding], facts: Facts, now: datetime) -> dict[str, int]:
    """Make the alerts of a rule what was found."""
    recent = Q(resolved_at__isnull=True) | Q(holds=True) | Q(resolved_at__gte=to_datetime(facts.since_ms))
    alerts = {alert.pk: alert for alert in rule.alerts.filter(recent)}
    plan = core.plan(findings, [_known(alert) for alert in alerts.values()], facts.now_ms)
    for key, ended_ms in plan.ended:
        _end(alerts[key], to_datetime(ended_ms), now)  # type: ignore[index]
    for key, finding in plan.seen:
        alert = alerts[key]  # type: ignore[index]
        Alert.objects.filter(pk=alert.pk).update(last_seen_at=now, evidence=finding.evidence)
    for finding in plan.opened:
        _open(rule, finding, facts, now)
    return {"opened": len(plan.opened), "seen": len(plan.seen), "resolved": len(plan.ended)}


def _known(alert: Alert) -> core.Known:
    return core.Known(
        alert.pk,
        alert.subject,
        to_ms(alert.started_at),
        None if alert.resolved_at is None else to_ms(alert.resolved_at),
        alert.state == AlertState.RESOLVED,
        alert.holds,
    )


def _open(rule: AlertRule, finding: core.Finding, facts: Facts, now: datetime) -> None:
    pool = Pool.objects.filter(slug=finding.pool).first() if finding.pool else None
    tenant = Tenant.objects.filter(holder__slug=finding.tenant).first() if finding.tenant else None
    ended = None if finding.ended_ms is None else to_datetime(finding.ended_ms)
    alert = Alert.objects.create(
        rule=rule,
        kind=rule.kind,
        severity=rule.severity,
        subject=finding.subject,
        pool=pool,
        tenant=tenant,
        started_at=to_datetime(finding.started_ms),
        opened_at=to_datetime(min(finding.opens_ms, facts.now_ms)),
        last_seen_at=ended or now,
        resolved_at=ended,
        state=AlertState.RESOLVED if ended else AlertState.OPEN,
        holds=ended is None,
        evidence=finding.evidence,
    )
    audience = {tenant.pk} if tenant else set()
    if finding.public and pool:
        audience |= facts.reserving.get(pool.pk, set())
    alert.audience.set(audience)
    if ended is None or now - ended <= STILL_NEWS:
        announce(alert, Occasion.OPENED, now)
        if ended is not None:
            announce(alert, Occasion.RESOLVED, now)


def _end(alert: Alert, ended_at: datetime, now: datetime) -> None:
    """Its condition no longer holds. One that a person has resolved may now open again."""
    alert.holds = False
    if alert.state != AlertState.RESOLVED:
        alert.state, alert.resolved_at = AlertState.RESOLVED, max(ended_at, alert.started_at)
        announce(alert, Occasion.RESOLVED, now)
    alert.save(update_fields=["holds", "state", "resolved_at"])


def _end_of_disabled(now: datetime) -> None:
    """A rule that was switched off keeps no alert open."""
    for alert in Alert.objects.filter(rule__enabled=False, holds=True):
        _end(alert, now, now)


# What people do


def acknowledge_alert(alert_id: UUID, reason: str, by: Actor, now: datetime) -> Alert:
    """Somebody is at it. Raises AlertError: `no_reason`, `resolved`, `acknowledged`."""
    return _act(alert_id, AlertState.ACKNOWLEDGED, reason, by, now)


def resolve_alert(alert_id: UUID, reason: str, by: Actor, now: datetime) -> Alert:
    """Settled as far as people care: opens again once the condition has not held and holds again.

    Raises AlertError: `no_reason`, `resolved`.
    """
    return _act(alert_id, AlertState.RESOLVED, reason, by, now)


@transaction.atomic
def _act(alert_id: UUID, state: AlertState, reason: str, by: Actor, now: datetime) -> Alert:
    if not reason.strip():
        raise AlertError("no_reason", "a reason is needed")
    alert = Alert.objects.select_for_update().get(pk=alert_id)
    if alert.state == AlertState.RESOLVED:
        raise AlertError("resolved", "this alert is resolved already")
    if alert.state == state:
        raise AlertError("acknowledged", "this alert is acknowledged already")
    before = {"state": alert.state}
    alert.state, alert.note = state, reason.strip()
    if state == AlertState.RESOLVED:
        alert.resolved_at, alert.resolved_by = max(now, alert.started_at), by.name
    else:
        alert.acknowledged_at, alert.acknowledged_by = now, by.name
    alert.save(
        update_fields=["state", "note", "resolved_at", "resolved_by", "acknowledged_at", "acknowledged_by"]
    )
    action = "resolve_alert" if state == AlertState.RESOLVED else "acknowledge_alert"
    record(by, action, "alert", alert.pk, before=before, after={"state": state.value}, reason=reason)
    if state == AlertState.RESOLVED:
        announce(alert, Occasion.RESOLVED, now)
    return alert
