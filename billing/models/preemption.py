"""Merged preemptions with their measures: derived from reports, resumes, levels and requests (domain.md 6)."""

from __future__ import annotations

from django.db import models

from ledger.models import Account, Holder, Identity, Pool, Purpose, ServiceClass


class PreemptionRecord(models.Model):
    """One preemption. `id` is UUIDv5 of (cluster, preemption id), so links stay when it is computed again.

    Unknown measures are null, never 0. `*_evidence`: reported, from_requests, from_occupancy, from_calibration,
    unknown. `events` lists the (source, id) of every report and resume.
    """

    id = models.UUIDField(primary_key=True)
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="preemptions")
    cluster = models.CharField(max_length=63)
    preemption = models.TextField(db_collation="C")
    queued_only = models.BooleanField(default=False)
    decided_at = models.DateTimeField()
    admitted_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(null=True)
    resumed_at = models.DateTimeField(null=True)
    waits_until = models.DateTimeField(null=True, help_text="end of its waiting; null while it still waits")
    victim_workload = models.TextField(null=True)
    victim_request = models.TextField(null=True)
    victim_attempt = models.IntegerField(null=True)
    victim_identity = models.ForeignKey(Identity, models.PROTECT, related_name="+")
    victim = models.ForeignKey(Holder, models.PROTECT, related_name="preemptions_suffered")
    preemptor_workload = models.TextField(null=True)
    preemptor = models.ForeignKey(Holder, models.PROTECT, null=True, related_name="preemptions_caused")
    preemptor_source = models.CharField(max_length=12)
    confidence_ppm = models.IntegerField(null=True)
    milli_gpus = models.BigIntegerField()
    cause = models.CharField(max_length=32)
    disposition = models.CharField(max_length=12, default="requeued")
    degrade_trigger = models.CharField(max_length=32, null=True)
    model = models.CharField(max_length=200, blank=True)
    service_class = models.SmallIntegerField(
        choices=ServiceClass.choices,
        default=ServiceClass.NONE,
        help_text="what the victim ran as just before",
    )
    purpose = models.SmallIntegerField(choices=Purpose.choices, default=Purpose.NONE)
    held_milli_gpus = models.BigIntegerField(
        default=0,
        help_text="of the victim in the pool just before, less earlier preemptions not yet released",
    )
    entitled_milli_gpus = models.BigIntegerField(default=0)
    requests_in_flight = models.IntegerField(null=True)
    requests_voided = models.IntegerField(null=True)
    voided = models.JSONField(
        null=True, help_text="requests it voided, as they were found: stays once they are pruned"
    )
    output_tokens_lost = models.BigIntegerField(null=True)
    context_tokens = models.BigIntegerField(null=True)
    cached_prefix_tokens = models.BigIntegerField(null=True)
    recompute_prefill_tokens = models.BigIntegerField(null=True)
    drain_gpu_us = models.BigIntegerField(null=True)
    waiting_gpu_us = models.BigIntegerField(
        default=0,
        help_text="until it ended; while it still waits, up to the latest hour that any month is computed to",
    )
    lost_gpu_us = models.BigIntegerField(null=True)
    lost_evidence = models.CharField(max_length=20)
    recompute_gpu_us = models.BigIntegerField(null=True)
    recompute_evidence = models.CharField(max_length=20)
    resumed_pool = models.ForeignKey(Pool, models.PROTECT, null=True, related_name="+")
    resumed_state = models.CharField(max_length=8, blank=True, help_text="full or idle just before")
    idle_elsewhere_milli_gpus = models.BigIntegerField(null=True)
    idle_elsewhere = models.JSONField(
        default=dict, help_text="pool slug -> milli-GPU that it could have given"
    )
    lead_time_ms = models.BigIntegerField(null=True)
    notice_ms = models.BigIntegerField(null=True)
    charged_to = models.CharField(max_length=12, blank=True)
    amount_micro = models.BigIntegerField(null=True, help_text="moved from the victim to the payer")
    on_demand_milli_gpus = models.BigIntegerField(
        default=0, help_text="the victim's split just before: on demand"
    )
    borrowed_milli_gpus = models.BigIntegerField(default=0)
    excess_milli_gpus = models.BigIntegerField(default=0)
    events = models.JSONField(default=list)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cluster", "preemption"], name="preemption_key")]
        indexes = [
            models.Index(fields=["decided_at"], name="preemption_when"),
            models.Index(fields=["victim", "decided_at"], name="preemption_of_victim"),
            models.Index(fields=["preemptor", "decided_at"], name="preemption_of_preemptor"),
        ]


class PreemptionShare(models.Model):
    """A tenant's part of a preemption: all of it for its own workload; a split where a shared service was hit.

    `weight_*`: what its part of the waiting is in any stretch of time (`Part` in billing.core.preemption_charges).
    """

    record = models.ForeignKey(PreemptionRecord, models.CASCADE, related_name="shares")
    account = models.ForeignKey(Account, models.PROTECT, related_name="+")
    milli_gpus = models.BigIntegerField(default=0)
    entitled_milli_gpus = models.BigIntegerField(default=0)
    waiting_gpu_us = models.BigIntegerField(default=0)
    lost_gpu_us = models.BigIntegerField(null=True)
    recompute_gpu_us = models.BigIntegerField(null=True)
    weight_before = models.BigIntegerField(default=0, db_default=0)
    weight_through = models.BigIntegerField(default=1, db_default=1)
    weight_total = models.BigIntegerField(default=1, db_default=1)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["record", "account"], name="preemption_share_once")]


class PreemptionWait(models.Model):
    """The waiting of a preemption as intervals per UTC day of the month, so that months and slots add up."""

    record = models.ForeignKey(PreemptionRecord, models.CASCADE, related_name="waits")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+")
    holder = models.ForeignKey(Holder, models.PROTECT, related_name="+")
    milli_gpus = models.BigIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, help_text="null while it still waits")

    class Meta:
        indexes = [models.Index(fields=["pool", "starts_at", "ends_at"], name="preemption_wait_when")]
