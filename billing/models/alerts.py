"""What needs a person now: rules, the alerts they opened, who is told, and what became of telling them."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import F, Q

from ledger.models import Pool, Tenant


class AlertKind(models.TextChoices):
    """What a rule looks for (docs/alerts.md says what its threshold counts)."""

    SHORTAGE = "shortage"
    UNUSED_RESERVATION = "unused_reservation"
    QUOTA_DRIFT = "quota_drift"
    CONVERSION_DRIFT = "conversion_drift"
    PREEMPTION_SPIKE = "preemption_spike"
    REJECTIONS = "rejections"
    BUDGET = "budget"
    BUDGET_FORECAST = "budget_forecast"
    INGEST_LAG = "ingest_lag"
    UNATTRIBUTED = "unattributed"
    SILENT_SOURCE = "silent_source"
    CAPACITY_CHANGE = "capacity_change"


class Severity(models.TextChoices):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class AlertState(models.TextChoices):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


class AlertRule(models.Model):
    """A condition that is looked at every minute. Never deleted, only disabled: its alerts stay.

    threshold_micro: in millionths of the unit of the kind. lasting_s: how long the condition has to hold, or over how
    long it is measured, by kind (billing.core.alerts.KINDS).
    """

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=20, choices=AlertKind.choices)
    pool = models.ForeignKey(Pool, models.PROTECT, null=True, blank=True, related_name="+")
    tenant = models.ForeignKey(Tenant, models.PROTECT, null=True, blank=True, related_name="+")
    threshold_micro = models.BigIntegerField()
    lasting_s = models.PositiveIntegerField(default=0)
    severity = models.CharField(max_length=8, choices=Severity.choices, default=Severity.WARNING)
    enabled = models.BooleanField(default=True)
    recorded_by = models.CharField(max_length=150, blank=True)
    recorded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(threshold_micro__gte=0), name="alert_rule_threshold"),
            models.CheckConstraint(condition=~Q(name=""), name="alert_rule_named"),
        ]

    def __str__(self) -> str:
        return self.name


class Alert(models.Model):
    """A rule found something about a subject. At most one that is not resolved per rule and subject.

    started_at: since when the condition holds by the facts. opened_at: when it had lasted as long as the rule asks, by
    the facts; recorded_at: when the ledger knew, later where facts came late. holds: whether it did at the last look;
    an alert that a person resolved while it holds is not opened again before it has once not held. evidence: name ->
    {"value": decimal text, "unit"}. audience: tenants who see it.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    rule = models.ForeignKey(AlertRule, models.PROTECT, related_name="alerts")
    kind = models.CharField(max_length=20, choices=AlertKind.choices)
    severity = models.CharField(max_length=8, choices=Severity.choices)
    subject = models.CharField(max_length=300, db_collation="C")
    pool = models.ForeignKey(Pool, models.PROTECT, null=True, related_name="+")
    tenant = models.ForeignKey(Tenant, models.PROTECT, null=True, related_name="+")
    audience = models.ManyToManyField(Tenant, related_name="alerts", blank=True)
    started_at = models.DateTimeField()
    opened_at = models.DateTimeField()
    recorded_at = models.DateTimeField(auto_now_add=True)
    last_seen_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)
    state = models.CharField(max_length=12, choices=AlertState.choices, default=AlertState.OPEN)
    holds = models.BooleanField(default=True)
    evidence = models.JSONField(default=dict)
    acknowledged_by = models.CharField(max_length=150, blank=True)
    acknowledged_at = models.DateTimeField(null=True)
    resolved_by = models.CharField(max_length=150, blank=True, help_text="empty: the condition ended")
    note = models.TextField(blank=True, help_text="what the person who acted said last")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "subject"],
                condition=~Q(state=AlertState.RESOLVED),
                name="alert_one_open_per_subject",
            ),
            models.CheckConstraint(
                condition=Q(state=AlertState.RESOLVED, resolved_at__isnull=False)
                | (~Q(state=AlertState.RESOLVED) & Q(resolved_at__isnull=True)),
                name="alert_resolved_whole",
            ),
            models.CheckConstraint(
                condition=Q(opened_at__gte=F("started_at")), name="alert_opens_after_start"
            ),
        ]
        indexes = [
            models.Index(fields=["state", "-opened_at"], name="alert_by_state"),
            models.Index(fields=["-opened_at"], name="alert_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}"


class Channel(models.TextChoices):
    WEBHOOK = "webhook"
    DINGTALK = "dingtalk"
    FEISHU = "feishu"
    WECOM = "wecom"
    SLACK = "slack"
    ALERTMANAGER = "alertmanager"
    EMAIL = "email"


class AlertSubscription(models.Model):
    """Who is told, and how. With a tenant: of what that tenant sees, managed by its admins.

    url and secret are write-only: chat services put their token into the address.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    name = models.CharField(max_length=100)
    tenant = models.ForeignKey(
        Tenant, models.PROTECT, null=True, blank=True, related_name="alert_subscriptions"
    )
    channel = models.CharField(max_length=12, choices=Channel.choices)
    url = models.CharField(max_length=500, blank=True)
    secret = models.CharField(max_length=200, blank=True)
    addresses = models.JSONField(default=list, blank=True, help_text="of e-mail")
    kinds = models.JSONField(default=list, blank=True, help_text="empty: all")
    min_severity = models.CharField(max_length=8, choices=Severity.choices, default=Severity.INFO)
    language = models.CharField(max_length=10, default="en")
    enabled = models.BooleanField(default=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"], nulls_distinct=False, name="alert_subscription_name"
            ),
            models.CheckConstraint(
                condition=(Q(channel=Channel.EMAIL) & Q(url="") & ~Q(addresses=[]))
                | (~Q(channel=Channel.EMAIL) & ~Q(url="")),
                name="alert_subscription_reaches",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Occasion(models.TextChoices):
    OPENED = "opened"
    RESOLVED = "resolved"


class DeliveryState(models.TextChoices):
    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"


class AlertDelivery(models.Model):
    """One subscriber, one alert, one occasion: told once, tried until it is. The id is the idempotency key."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    alert = models.ForeignKey(Alert, models.PROTECT, related_name="deliveries")
    subscription = models.ForeignKey(AlertSubscription, models.PROTECT, related_name="deliveries")
    occasion = models.CharField(max_length=8, choices=Occasion.choices)
    state = models.CharField(max_length=8, choices=DeliveryState.choices, default=DeliveryState.WAITING)
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    last_status = models.PositiveSmallIntegerField(null=True)
    last_answer = models.JSONField(default=str, help_text="why it was not taken: a sentence, or empty")
    created_at = models.DateTimeField(auto_now_add=True)
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["alert", "subscription", "occasion"], name="alert_delivery_once"),
            models.CheckConstraint(
                condition=~Q(state=DeliveryState.WAITING) | Q(next_attempt_at__isnull=False),
                name="alert_delivery_has_a_next",
            ),
        ]
        indexes = [
            models.Index(
                fields=["next_attempt_at"],
                condition=Q(next_attempt_at__isnull=False),
                name="alert_delivery_due",
            )
        ]
