"""What happened: facts as they were booked. Append-only; a trigger refuses UPDATE and DELETE (domain.md section 3).

Every low-volume event is registered once in `Event` (its key is unique for ever) and unfolds into one typed row:
`Level`, `PreemptionReport`, `ResumeReport`, `Rejection`, `QuotaLevel` or `Correction`. Requests and pre-aggregated
usage are their own registry, in daily partitions (`Request`), summed up by the hour in `UsageHour`.
"""

from __future__ import annotations

from django.contrib.postgres.fields import DateTimeRangeField
from django.contrib.postgres.indexes import GistIndex
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone

from ledger.models.choices import EventType, LevelKind, Outcome, Purpose, ServiceClass, WorkloadKind
from ledger.models.masters import Identity, ModelName, Pool, Service


class Source(models.Model):
    """An emitter of events, named by its CloudEvents `source`. Seen first = registered; configuration names it.

    registered_at: since when it is waited for; of those from before this was kept, since the ledger's upgrade.
    """

    uri = models.CharField(max_length=512, unique=True, db_collation="C")
    name = models.CharField(max_length=100, unique=True, null=True, blank=True)
    adapter = models.CharField(max_length=40, default="cloudevents")
    config = models.JSONField(default=dict, blank=True)
    silence_after_s = models.PositiveIntegerField(null=True, blank=True)
    registered_at = models.DateTimeField(default=timezone.now, db_default=Now())
    watermark_at = models.DateTimeField(null=True, blank=True, help_text="greatest event time booked")
    complete_until = models.DateTimeField(null=True, blank=True, help_text="signed off up to here")
    retired_at = models.DateTimeField(null=True, blank=True)
    state = models.JSONField(default=dict, blank=True, help_text="where a collector goes on")

    def __str__(self) -> str:
        return self.name or self.uri


class Booking(models.Model):
    """One batch booked, in one transaction. `sequence` is given under a lock just before the commit, so that it
    grows in the order in which facts became visible; a period's cut and `as of` are expressed in it.

    `batch` is the id of the raw batch in the inbox (`ingest.Batch`), which this package must not import.
    """

    batch = models.BigIntegerField(unique=True)
    sequence = models.BigIntegerField(unique=True, null=True)
    booked_at = models.DateTimeField(null=True)
    received = models.IntegerField(default=0)
    booked = models.IntegerField(default=0)
    duplicate = models.IntegerField(default=0)
    conflict = models.IntegerField(default=0)
    quarantined = models.IntegerField(default=0)

    class Meta:
        constraints = [
            # domain.md 11.9: no event is lost.
            models.CheckConstraint(
                condition=Q(received=F("booked") + F("duplicate") + F("conflict") + F("quarantined")),
                name="booking_loses_nothing",
            ),
        ]

    def __str__(self) -> str:
        return f"booking {self.sequence} of batch {self.batch}"


class Event(models.Model):
    """The register of low-volume events: key, hash, where it came from, and its canonical content."""

    id = models.BigAutoField(primary_key=True)
    source = models.ForeignKey(Source, models.PROTECT, related_name="+", db_index=False)
    event_id = models.TextField(db_collation="C")
    type = models.SmallIntegerField(choices=EventType.choices)
    occurred_at = models.DateTimeField()
    content_hash = models.BinaryField(max_length=16)
    booking = models.ForeignKey(Booking, models.PROTECT, related_name="events")
    line = models.IntegerField()
    body = models.JSONField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["source", "event_id"], name="event_key")]

    def __str__(self) -> str:
        return self.event_id


class Level(models.Model):
    """From `starts_at` on, `subject` holds `milli_gpus`, until its next level (domain.md section 3).

    subject: '' for capacity, the reservation id, the workload id, or the workload or queue that waits.
    `ends_at` (reservations) ends this very level if it is still in force then.
    """

    id = models.BigAutoField(primary_key=True)
    kind = models.SmallIntegerField(choices=LevelKind.choices)
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False)
    subject = models.TextField(db_collation="C")
    attempt = models.IntegerField(default=0)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True)
    milli_gpus = models.BigIntegerField()
    identity = models.ForeignKey(Identity, models.PROTECT, null=True, related_name="+")
    lendable = models.BooleanField(default=True)
    service_class = models.SmallIntegerField(choices=ServiceClass.choices, default=ServiceClass.NONE)
    purpose = models.SmallIntegerField(choices=Purpose.choices, default=Purpose.NONE)
    workload_kind = models.SmallIntegerField(choices=WorkloadKind.choices, default=WorkloadKind.NONE)
    last_checkpoint_at = models.DateTimeField(null=True)
    requests = models.IntegerField(null=True, help_text="pending requests, where a service counts those")
    attributes = models.JSONField(null=True, help_text="name, user, labels, nodes, priority_class, reason")
    event = models.ForeignKey(Event, models.PROTECT, related_name="levels")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["pool", "event"], name="level_once_per_event"),
            models.CheckConstraint(condition=Q(milli_gpus__gte=0), name="level_not_negative"),
            models.CheckConstraint(
                condition=Q(kind=LevelKind.CAPACITY, identity__isnull=True, subject="")
                | (~Q(kind=LevelKind.CAPACITY) & Q(identity__isnull=False) & ~Q(subject="")),
                name="level_has_a_holder_unless_capacity",
            ),
            models.CheckConstraint(
                condition=Q(ends_at__isnull=True) | Q(kind=LevelKind.RESERVATION, ends_at__gt=F("starts_at")),
                name="level_end_only_for_reservations",
            ),
        ]
        indexes = [
            # The sweep: one pool's changes of a time range; and a subject's latest level before an instant.
            models.Index(fields=["pool", "starts_at"], name="level_sweep"),
            models.Index(
                fields=["pool", "kind", "subject", "attempt", "-starts_at"], name="level_of_subject"
            ),
            models.Index(fields=["subject", "starts_at"], name="level_of_workload"),
        ]

    def __str__(self) -> str:
        return f"{self.subject} {self.milli_gpus} m from {self.starts_at}"


class Subject(models.Model):
    """Which subjects a pool has ever had, with the first and last instant of their levels and the last level.

    Derived at booking (not a fact): lets the sweep find what is held at an instant without reading all history.
    A subject can hold something at T only if first_at <= T and (last_at >= T or last_milli_gpus > 0). What has ended
    before T is most of a long history: two indexes find the rest, each of its own kind.
    """

    id = models.BigAutoField(primary_key=True)
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False)
    kind = models.SmallIntegerField(choices=LevelKind.choices)
    subject = models.TextField(db_collation="C")
    attempt = models.IntegerField(default=0)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    last_milli_gpus = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["pool", "kind", "subject", "attempt"], name="subject_key")
        ]
        indexes = [
            models.Index(fields=["pool", "last_at"], name="subject_last"),
            models.Index(
                fields=["pool", "kind"],
                condition=models.Q(last_milli_gpus__gt=0) | models.Q(kind=LevelKind.CAPACITY),
                name="subject_open",
            ),
        ]


class PreemptionReport(models.Model):
    """What one event says of one preemption. Several reports of one (cluster, preemption) merge (section 6)."""

    event = models.OneToOneField(Event, models.PROTECT, primary_key=True, related_name="preemption_report")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+")
    cluster = models.CharField(max_length=63)
    preemption = models.TextField(db_collation="C")
    decided_at = models.DateTimeField()
    victim_workload = models.TextField(null=True)
    victim_request = models.TextField(null=True)
    victim_identity = models.ForeignKey(Identity, models.PROTECT, related_name="+")
    victim_attempt = models.IntegerField(null=True)
    preemptor_workload = models.TextField(null=True)
    preemptor_identity = models.ForeignKey(Identity, models.PROTECT, null=True, related_name="+")
    preemptor_source = models.CharField(max_length=12)
    confidence_ppm = models.IntegerField(null=True, help_text="confidence in millionths")
    milli_gpus = models.BigIntegerField()
    cause = models.CharField(max_length=32)
    admitted_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(null=True)
    disposition = models.CharField(max_length=12, null=True)
    degrade_trigger = models.CharField(max_length=32, null=True)
    lost_gpu_us = models.BigIntegerField(null=True)
    requests_in_flight = models.IntegerField(null=True)
    requests_voided = models.IntegerField(null=True)
    output_tokens_lost = models.BigIntegerField(null=True)
    context_tokens = models.BigIntegerField(null=True)
    cached_prefix_tokens = models.BigIntegerField(null=True)
    queued_only = models.BooleanField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["cluster", "preemption"], name="preemption_report_key"),
            models.Index(fields=["decided_at"], name="preemption_report_when"),
            models.Index(fields=["victim_workload", "decided_at"], name="preemption_report_victim"),
        ]


class ResumeReport(models.Model):
    """Work that a preemption had stopped runs again. May come before its preemption."""

    event = models.OneToOneField(Event, models.PROTECT, primary_key=True, related_name="resume_report")
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+")
    cluster = models.CharField(max_length=63)
    preemption = models.TextField(db_collation="C")
    resumed_at = models.DateTimeField()
    workload = models.TextField(null=True)
    attempt = models.IntegerField(null=True)
    recompute_gpu_us = models.BigIntegerField(null=True)
    recompute_prefill_tokens = models.BigIntegerField(null=True)

    class Meta:
        indexes = [models.Index(fields=["preemption"], name="resume_report_key")]


class Rejection(models.Model):
    """Demand refused before it ran."""

    event = models.OneToOneField(Event, models.PROTECT, primary_key=True, related_name="rejection")
    occurred_at = models.DateTimeField()
    identity = models.ForeignKey(Identity, models.PROTECT, related_name="+")
    layer = models.CharField(max_length=16)
    reason = models.CharField(max_length=200)
    status = models.SmallIntegerField()
    count = models.IntegerField(default=1)
    requested_tokens = models.BigIntegerField(null=True)
    requested_milli_gpus = models.BigIntegerField(null=True)
    pool = models.ForeignKey(Pool, models.PROTECT, null=True, related_name="+")
    model = models.ForeignKey(ModelName, models.PROTECT, null=True, related_name="+")
    request = models.TextField(null=True)
    retry_after_us = models.BigIntegerField(null=True)
    service_class = models.SmallIntegerField(choices=ServiceClass.choices, default=ServiceClass.NONE)
    origin = models.CharField(max_length=12, null=True)

    class Meta:
        indexes = [models.Index(fields=["occurred_at"], name="rejection_when")]


class QuotaLevel(models.Model):
    """One layer's limit and use for one tenant, resource and scope, from `starts_at` on."""

    event = models.OneToOneField(Event, models.PROTECT, primary_key=True, related_name="quota_level")
    starts_at = models.DateTimeField()
    identity = models.ForeignKey(Identity, models.PROTECT, related_name="+")
    layer = models.CharField(max_length=8)
    resource = models.CharField(max_length=24)
    limit_milli = models.BigIntegerField()
    used_milli = models.BigIntegerField()
    pool = models.ForeignKey(Pool, models.PROTECT, null=True, related_name="+")
    service = models.ForeignKey(Service, models.PROTECT, null=True, related_name="+")

    class Meta:
        indexes = [models.Index(fields=["identity", "layer", "resource", "-starts_at"], name="quota_latest")]


class Correction(models.Model):
    """Replaces or withdraws another event; may arrive before it. The greatest (time, source, id) wins."""

    event = models.OneToOneField(Event, models.PROTECT, primary_key=True, related_name="correction")
    corrected_at = models.DateTimeField()
    supersedes_source = models.CharField(max_length=512, db_collation="C")
    supersedes_event_id = models.TextField(db_collation="C")
    reason = models.TextField()
    replacement_source = models.CharField(max_length=512, null=True, db_collation="C")
    replacement_event_id = models.TextField(null=True, db_collation="C")

    class Meta:
        indexes = [
            models.Index(fields=["supersedes_event_id", "supersedes_source"], name="correction_target")
        ]


class Request(models.Model):
    """One request (or one pre-aggregated `usage` event) as its gateway or engine reported it.

    Partitioned by `day`, the UTC day of its time; the key is (source, event id, day). Foreign keys are not
    constraints here: ids are interned in the same transaction, and a check per row would halve the booking speed.
    What nearly all rows have is a default of the database, so that a COPY need not bring it.
    """

    pk = models.CompositePrimaryKey("day", "source", "event_id")
    day = models.DateField()
    source = models.ForeignKey(
        Source, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    event_id = models.TextField(db_collation="C")
    content_hash = models.BinaryField(max_length=16)
    booking = models.ForeignKey(
        Booking, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    line = models.IntegerField()
    type = models.SmallIntegerField(
        choices=EventType.choices, default=EventType.REQUEST, db_default=EventType.REQUEST
    )
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(help_text="finish of a request; end of a usage event")
    queued_at = models.DateTimeField(null=True)
    pool = models.ForeignKey(Pool, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+")
    identity = models.ForeignKey(
        Identity, models.DO_NOTHING, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    service = models.ForeignKey(
        Service, models.DO_NOTHING, null=True, db_constraint=False, db_index=False, related_name="+"
    )
    model = models.ForeignKey(
        ModelName, models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    workload = models.TextField(null=True)
    request = models.TextField()
    attempt = models.IntegerField(default=1, db_default=1)
    outcome = models.SmallIntegerField(choices=Outcome.choices)
    service_class = models.SmallIntegerField(
        choices=ServiceClass.choices, default=ServiceClass.NONE, db_default=ServiceClass.NONE
    )
    requests = models.IntegerField(default=1, db_default=1)
    input_tokens = models.BigIntegerField(null=True)
    cached_input_tokens = models.BigIntegerField(null=True)
    cache_write_tokens = models.BigIntegerField(null=True)
    output_tokens = models.BigIntegerField(null=True)
    reasoning_tokens = models.BigIntegerField(null=True)
    gpu_us = models.BigIntegerField(null=True)
    prefill_gpu_us = models.BigIntegerField(null=True)
    concurrency_us = models.BigIntegerField(
        null=True, help_text="of a usage event; a request's is its duration"
    )
    preemptions = models.IntegerField(null=True)
    recomputed_tokens = models.BigIntegerField(null=True)
    recompute_gpu_us = models.BigIntegerField(null=True)
    attributes = models.JSONField(null=True, help_text="user, api_key, labels, parent_request, deferrals")

    class Meta:
        db_table = "ledger_request"


class UsageHour(models.Model):
    """Requests and usage of one UTC hour, summed; moves in the same transaction as its rows. Money rests on this.

    A request counts in the hour of its finish, a usage event in the hour of its start; `concurrency_us` (time in
    flight) is spread over the hours it really touched. Sums hold the known values; `*_missing` count requests that
    stated no such value (missing is not 0).
    """

    id = models.BigAutoField(primary_key=True)
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="+", db_index=False)
    hour = models.DateTimeField()
    identity = models.ForeignKey(Identity, models.PROTECT, null=True, related_name="+", db_index=False)
    service = models.ForeignKey(Service, models.PROTECT, null=True, related_name="+", db_index=False)
    model = models.ForeignKey(ModelName, models.PROTECT, related_name="+", db_index=False)
    service_class = models.SmallIntegerField(default=ServiceClass.NONE)
    outcome = models.SmallIntegerField(choices=Outcome.choices)
    requests = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    input_missing = models.BigIntegerField(default=0)
    cached_input_tokens = models.BigIntegerField(default=0)
    cached_missing = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    output_missing = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    gpu_us = models.BigIntegerField(default=0)
    gpu_missing = models.BigIntegerField(default=0)
    concurrency_us = models.BigIntegerField(default=0)
    preemptions = models.BigIntegerField(default=0)
    recomputed_tokens = models.BigIntegerField(default=0)
    recompute_gpu_us = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "hour", "identity", "service", "model", "service_class", "outcome"],
                nulls_distinct=False,
                name="usage_hour_key",
            ),
        ]
        indexes = [
            models.Index(fields=["hour"], name="usage_hour_when"),
            models.Index(
                fields=["hour"], name="usage_hour_engine", condition=models.Q(identity__isnull=True)
            ),
        ]


class DirtySpan(models.Model):
    """Time of a pool whose books must be computed again. Booking adds spans; computing takes them away.

    Rows are never merged or skipped on insert: a span that another transaction has not committed yet must survive
    a computation that could not see it. An open upper bound means "until the horizon". Without a pool only what the
    month's bills say beside their figures is out of date.
    """

    id = models.BigAutoField(primary_key=True)
    pool = models.ForeignKey(Pool, models.PROTECT, null=True, related_name="dirty_spans")
    span = DateTimeRangeField()

    class Meta:
        indexes = [GistIndex(fields=["span"], name="dirty_span_when")]


class FactFinding(models.Model):
    """Something in the facts a person should see: `level_conflict`, `merge_conflict`, `correction_of_nothing` ..."""

    id = models.BigAutoField(primary_key=True)
    code = models.CharField(max_length=40)
    pool = models.ForeignKey(Pool, models.PROTECT, null=True, related_name="+")
    occurred_at = models.DateTimeField()
    subject = models.TextField()
    detail = models.JSONField(default=dict)
    blocks_close = models.BooleanField(default=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["code", "pool", "occurred_at", "subject"], nulls_distinct=False, name="finding_once"
            )
        ]
