"""The life of a month after it was computed: approvals, waivers, closing, credits, disputes (domain.md section 10)."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import F, Q

from billing.models.statement import Statement
from ledger.core.sentences import in_english
from ledger.models import Period, Tenant


class Decision(models.TextChoices):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"


class ApprovalKind(models.TextChoices):
    OVERRIDE = "override"
    CREDIT = "credit"
    TERMS = "terms", "rates, policies, contracts"
    ACCESS = "access", "role of finance"


class Approval(models.Model):
    """Something one person asks for and a second one decides. `payload` is what will be done, complete.

    A trigger refuses any change but the one decision.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    kind = models.CharField(max_length=16, choices=ApprovalKind.choices)
    payload = models.JSONField()
    reason = models.TextField()
    requested_by = models.CharField(max_length=150)
    requested_at = models.DateTimeField(auto_now_add=True)
    decision = models.CharField(max_length=8, choices=Decision.choices, default=Decision.PENDING)
    decided_by = models.CharField(max_length=150, blank=True)
    decided_at = models.DateTimeField(null=True)
    note = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=~Q(decision=Decision.APPROVED) | ~Q(decided_by=F("requested_by")),
                name="approval_by_a_second_person",
            ),
            models.CheckConstraint(
                condition=Q(decision=Decision.PENDING, decided_at__isnull=True, decided_by="")
                | (~Q(decision=Decision.PENDING) & Q(decided_at__isnull=False) & ~Q(decided_by="")),
                name="approval_decided_whole",
            ),
        ]
        indexes = [models.Index(fields=["decision", "requested_at"], name="approval_waiting")]


class StatementApproval(models.Model):
    """Somebody looked at a draft and agreed; `sha256` names the draft. The latest one of a statement counts."""

    statement = models.ForeignKey(Statement, models.PROTECT, related_name="approvals")
    sha256 = models.CharField(max_length=64)
    content = models.JSONField(null=True, help_text="of the draft, to tell what changed since")
    approved_by = models.CharField(max_length=150)
    approved_at = models.DateTimeField(auto_now_add=True)


class ChecklistWaiver(models.Model):
    """A blocked item of the closing checklist that is overridden with a reason: the item as it was seen.

    Once the item's evidence says something else, the waiver no longer holds. evidence: sentences (`Sentence.kept`).
    """

    period = models.ForeignKey(Period, models.PROTECT, related_name="waivers")
    item = models.CharField(max_length=40)
    evidence = models.JSONField()
    evidence_sha256 = models.CharField(max_length=64)
    reason = models.TextField()
    requested_by = models.CharField(max_length=150)
    approval = models.ForeignKey(Approval, models.PROTECT, null=True, related_name="waivers")
    recorded_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["period", "item", "evidence_sha256"], name="waiver_once")
        ]


class RunState(models.TextChoices):
    RUNNING = "running"
    BLOCKED = "blocked"
    DONE = "done"


# Beginnings of a computation whose worker was killed at it each time: more would only kill more workers.
ATTEMPTS = 3


class CloseRun(models.Model):
    """One attempt to close a month, with its progress. A worker that dies leaves it `running`; any other goes on.

    steps: [{"name", "state": waiting | running | done | blocked, "attempts", "detail", "started_at", "ended_at"}].
    detail, outcome: what was done, or what blocks, as sentences (`Sentence.kept`); finished texts where they are older.
    """

    period = models.ForeignKey(Period, models.PROTECT, related_name="close_runs")
    state = models.CharField(max_length=8, choices=RunState.choices, default=RunState.RUNNING)
    steps = models.JSONField(default=list)
    outcome = models.JSONField(default=list)
    requested_by = models.CharField(max_length=150)
    request_id = models.CharField(max_length=128, blank=True)
    started_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)
    chain_head = models.CharField(max_length=64, blank=True, help_text="hash of the last statement issued")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["period"], condition=Q(state=RunState.RUNNING), name="close_run_one_at_a_time"
            )
        ]

    @property
    def message(self) -> str:
        """How it ended, in English."""
        return in_english(self.outcome)


class DisputeState(models.TextChoices):
    OPEN = "open"
    ANSWERED = "answered"
    PROPOSED = "proposed", "adjustment proposed"
    ADJUSTED = "adjusted"
    REJECTED = "rejected"


class Dispute(models.Model):
    """A tenant says that a line of its bill is wrong. What was said stands in the events; this is where it is now.

    `line_key` names the line for ever; `position` and `amount_micro` are how it stood when the dispute was opened.
    Lines of a draft move as others come before them: `line_position` is where it stands now (selectors/disputes.py),
    None once the statement has it no longer.
    """

    line_position: int | None  # no column: `disputes_for` looks it up

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    statement = models.ForeignKey(Statement, models.PROTECT, related_name="disputes")
    line_key = models.TextField(db_collation="C")
    position = models.IntegerField()
    amount_micro = models.BigIntegerField(null=True)
    state = models.CharField(max_length=8, choices=DisputeState.choices, default=DisputeState.OPEN)
    opened_by = models.CharField(max_length=150)
    opened_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["statement", "line_key"],
                condition=Q(state__in=[DisputeState.OPEN, DisputeState.ANSWERED, DisputeState.PROPOSED]),
                name="dispute_one_open_per_line",
            )
        ]


class DisputeEvent(models.Model):
    """One step of a dispute: what was said or done, by whom. `kind` is the state it led to."""

    id = models.BigAutoField(primary_key=True)
    dispute = models.ForeignKey(Dispute, models.PROTECT, related_name="events")
    kind = models.CharField(max_length=8, choices=DisputeState.choices)
    text = models.TextField()
    amount_micro = models.BigIntegerField(null=True, help_text="of an adjustment: what the tenant gets back")
    by = models.CharField(max_length=150)
    recorded_at = models.DateTimeField(auto_now_add=True)


class CreditKind(models.TextChoices):
    GOODWILL = "goodwill"
    DISPUTE = "dispute"


class Credit(models.Model):
    """Money given back to a tenant with a reason: goodwill, or the adjustment that settles a dispute.

    It belongs to the target of the month it concerns. Where that month is closed, it is posted, as any adjustment,
    in the earliest month that is not. `granted_at` (whole milliseconds) names its line within the month.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    kind = models.CharField(max_length=8, choices=CreditKind.choices)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="credits")
    concerns = models.ForeignKey(Period, models.PROTECT, related_name="credits")
    amount_micro = models.BigIntegerField()
    reason = models.TextField()
    requested_by = models.CharField(max_length=150)
    granted_at = models.DateTimeField()
    approval = models.OneToOneField(Approval, models.PROTECT, null=True, related_name="credit")
    dispute = models.ForeignKey(Dispute, models.PROTECT, null=True, related_name="credits")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(amount_micro__gt=0), name="credit_positive"),
            models.UniqueConstraint(fields=["tenant", "concerns", "granted_at"], name="credit_line_once"),
            models.CheckConstraint(
                condition=Q(kind=CreditKind.DISPUTE, dispute__isnull=False)
                | Q(kind=CreditKind.GOODWILL, dispute__isnull=True),
                name="credit_dispute_fits_kind",
            ),
        ]
