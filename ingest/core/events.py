"""The event contract: the envelope and every type of events.md, as typed records with canonical values.

A field is declared once, with its reader. `settle` runs the readers over a record decoded from JSON, after which
every value is canonical (see `fields`). An absent field and a null are the same; optional fields hold their
default. At run time the annotated fields are untyped, so that a wrong value gives a reason a person understands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import msgspec

from ingest.core import fields
from ingest.core.fields import Refusal

FUTURE_TOLERANCE_MS = 10 * 60 * 1000
# A longer "request" is a broken clock; spread over the hours it touched it would flood the roll-ups.
LONGEST_REQUEST_MS = 31 * fields.MS_PER_DAY
MS_PER_HOUR = 3_600_000

if TYPE_CHECKING:
    Instant = int
    MilliGpus = int
    SecondsUs = int
    LongSecondsUs = int
    Tokens = int
    SmallCount = int
    Attempt = int
    MilliAmount = int
    Ppm = int
    Status = int
    Key = str
    Slug = str
    Name = str
    LongText = str
    Flag = bool
    Labels = dict[str, str]
    Nodes = list[str]
else:
    Instant = Annotated[Any, fields.instant_ms]
    MilliGpus = Annotated[Any, fields.milli_gpus]
    SecondsUs = Annotated[Any, fields.seconds_us]
    LongSecondsUs = Annotated[Any, fields.long_seconds_us]
    Tokens = Annotated[Any, fields.count]
    SmallCount = Annotated[Any, fields.small_count]
    Attempt = Annotated[Any, fields.attempt_number]
    MilliAmount = Annotated[Any, fields.milli_amount]
    Ppm = Annotated[Any, fields.fraction_ppm]
    Status = Annotated[Any, fields.http_status]
    Key = Annotated[Any, fields.key_text]
    Slug = Annotated[Any, fields.slug_text]
    Name = Annotated[Any, fields.name_text]
    LongText = Annotated[Any, fields.long_text]
    Flag = Annotated[Any, fields.flag]
    Labels = Annotated[Any, fields.labels]
    Nodes = Annotated[Any, fields.node_names]

SERVICE_CLASSES = ("guaranteed", "preemptible")
read_service_class = fields.one_of(*SERVICE_CLASSES)


# `omit_defaults`: the content hash must not change when a later version adds an optional field.
class Record(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of an event's `data`. Unknown fields are refused, nothing is guessed."""

    def check(self) -> None:
        """What no single field can tell; raises `Refusal`."""


class Identity(Record, kw_only=True):
    kind: Annotated[Any, fields.identity_kind]
    value: Annotated[Any, fields.identity_value]


class Holder(Record):
    """Whoever holds: a tenant by slug or by identity, or (where the type allows) a service."""

    tenant: Slug | None = None
    identity: Identity | None = None
    service: Slug | None = None

    def who(self) -> tuple[str, str] | None:
        """(kind, value) of the holder's identity; `tenant` and `service` are kinds of slugs."""
        if self.service is not None and not self.service_is_scope():
            return ("service", self.service)
        if self.tenant is not None:
            return ("tenant", self.tenant)
        return (self.identity.kind, self.identity.value) if self.identity is not None else None

    def service_is_scope(self) -> bool:
        """Whether `service` says where something ran instead of who holds."""
        return False

    def check_holder(self, *, needed: bool = True) -> None:
        given = [self.tenant is not None, self.identity is not None]
        names = "tenant or identity"
        if not self.service_is_scope():
            given.append(self.service is not None)
            names = "tenant, identity or service"
        if sum(given) > 1:
            raise Refusal("bad_identity", f"more than one of {names}")
        if needed and not any(given):
            raise Refusal("bad_identity", f"none of {names}")


class Fact(Holder):
    """The `data` of one event type."""


class Capacity(Record, kw_only=True):
    pool: Slug
    gpus: MilliGpus
    reason: LongText | None = None


class Reservation(Fact, kw_only=True):
    reservation: Key
    pool: Slug
    gpus: MilliGpus
    lendable: Flag = True
    ends_at: Instant | None = None

    def check(self) -> None:
        self.check_holder()


class Occupancy(Fact, kw_only=True):
    workload: Key
    pool: Slug
    gpus: MilliGpus
    attempt: Attempt = 1
    kind: Annotated[Any, fields.one_of("batch", "serving")] = None
    service_class: Annotated[Any, read_service_class] = None
    preemptible: Flag | None = None  # an older spelling of service_class; never kept
    purpose: Annotated[Any, fields.one_of("warmup", "load_test", "drill")] = None
    priority_class: LongText | None = None
    user: LongText | None = None
    labels: Labels | None = None
    nodes: Nodes | None = None
    name: LongText | None = None
    last_checkpoint_at: Instant | None = None

    def check(self) -> None:
        self.check_holder()
        if self.kind is None:
            self.kind = "serving" if self.service is not None else "batch"
        if self.preemptible is not None:
            meant = "preemptible" if self.preemptible else "guaranteed"
            if self.service_class not in (None, meant):
                raise Refusal("bad_value", f"preemptible contradicts service_class {self.service_class!r}")
            self.service_class, self.preemptible = meant, None


class Pending(Fact, kw_only=True):
    pool: Slug
    workload: Key | None = None
    queue: Key | None = None
    gpus: MilliGpus | None = None
    requests: SmallCount | None = None
    priority_class: LongText | None = None
    service_class: Annotated[Any, read_service_class] = None

    def check(self) -> None:
        self.check_holder()
        if (self.workload is None) == (self.queue is None):
            raise Refusal("missing_field", "say what waits: exactly one of workload and queue")
        if self.gpus is None and self.requests is None:
            raise Refusal("missing_field", "say how much waits: gpus, requests or both")


class Victim(Holder, kw_only=True):
    workload: Key | None = None
    request: Key | None = None
    attempt: Attempt | None = None

    def check(self) -> None:
        self.check_holder()
        if (self.workload is None) == (self.request is None):
            raise Refusal("missing_field", "a victim is exactly one of workload and request")


class Preemptor(Holder, kw_only=True):
    workload: Key | None = None

    def check(self) -> None:
        self.check_holder()


CAUSES = (
    "reclaim_own_reservation",
    "priority",
    "fair_share",
    "kv_cache_pressure",
    "capacity_lost",
    "maintenance",
    "overuse",
    "other",
)


class Preemption(Record, kw_only=True):
    preemption: Key
    victim: Victim
    pool: Slug
    gpus: MilliGpus
    cause: Annotated[Any, fields.one_of(*CAUSES)]
    preemptor_source: Annotated[Any, fields.one_of("structured", "parsed", "inferred", "none")]
    preemptor: Preemptor | None = None
    confidence: Ppm | None = None
    admitted_at: Instant | None = None
    released_at: Instant | None = None
    disposition: Annotated[Any, fields.one_of("requeued", "stopped", "degraded", "drained")] = None
    degrade_trigger: Annotated[Any, fields.one_of("receiver_limit", "instance_latency")] = None
    lost_gpu_seconds: LongSecondsUs | None = None
    requests_in_flight: SmallCount | None = None
    requests_voided: SmallCount | None = None
    output_tokens_lost: Tokens | None = None
    context_tokens: Tokens | None = None
    cached_prefix_tokens: Tokens | None = None
    queued_only: Flag | None = None

    def check(self) -> None:
        if self.victim.request is not None and self.gpus:
            raise Refusal("contradiction", "a preempted request gives back no GPUs: gpus must be 0")
        if self.preemptor is not None and self.preemptor_source == "none":
            raise Refusal("contradiction", "a preemptor is given although preemptor_source is none")
        if _more(self.cached_prefix_tokens, self.context_tokens):
            raise Refusal("contradiction", "cached_prefix_tokens are part of context_tokens")


class Resume(Record, kw_only=True):
    preemption: Key
    pool: Slug
    workload: Key | None = None
    attempt: Attempt | None = None
    recompute_gpu_seconds: SecondsUs | None = None
    recompute_prefill_tokens: Tokens | None = None


class TokenUse(Fact):
    """What requests and pre-aggregated usage have in common."""

    input_tokens: Tokens | None = None
    cached_input_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    reasoning_tokens: Tokens | None = None
    gpu_seconds: SecondsUs | None = None
    prefill_gpu_seconds: SecondsUs | None = None
    preemptions: SmallCount | None = None
    recomputed_tokens: Tokens | None = None
    recompute_gpu_seconds: SecondsUs | None = None

    def service_is_scope(self) -> bool:
        return True

    def check_tokens(self) -> None:
        cached = (self.cached_input_tokens or 0) + (self.cache_write_tokens or 0)
        if self.input_tokens is not None and cached > self.input_tokens:
            raise Refusal("contradiction", "cached_input_tokens and cache_write_tokens exceed input_tokens")
        if _more(self.reasoning_tokens, self.output_tokens):
            raise Refusal("contradiction", "reasoning_tokens exceed output_tokens")


OUTCOMES = ("ok", "aborted", "error", "timeout", "preempted")


class Request(TokenUse, kw_only=True):
    request: Key
    pool: Slug
    model: Name
    started_at: Instant
    outcome: Annotated[Any, fields.one_of(*OUTCOMES)]
    workload: Key | None = None
    queued_at: Instant | None = None
    deferrals: SmallCount | None = None
    attempt: Attempt = 1
    parent_request: Key | None = None
    service_class: Annotated[Any, read_service_class] = None
    user: LongText | None = None
    api_key: LongText | None = None
    labels: Labels | None = None

    def check(self) -> None:
        self.check_holder()
        self.check_tokens()


class Usage(TokenUse, kw_only=True):
    usage: Key
    pool: Slug
    model: Name
    starts_at: Instant
    ends_at: Instant
    requests: SmallCount | None = None
    concurrency_seconds: SecondsUs | None = None
    service_class: Annotated[Any, read_service_class] = None

    def check(self) -> None:
        self.check_holder(needed=False)
        self.check_tokens()
        if self.ends_at < self.starts_at:
            raise Refusal("contradiction", "ends_at is before starts_at")
        hour_ends = (self.starts_at // MS_PER_HOUR + 1) * MS_PER_HOUR
        if self.ends_at > hour_ends:
            raise Refusal("usage_crosses_hour", "starts_at and ends_at lie in different UTC hours")


class Rejection(Fact, kw_only=True):
    layer: Annotated[Any, fields.one_of("rate_limit", "admission", "quota", "budget", "capacity")]
    reason: Name
    status: Status
    request: Key | None = None
    count: SmallCount = 1
    requested_tokens: Tokens | None = None
    requested_gpus: MilliGpus | None = None
    pool: Slug | None = None
    model: Name | None = None
    retry_after_seconds: SecondsUs | None = None
    service_class: Annotated[Any, read_service_class] = None
    origin: Annotated[Any, fields.one_of("gateway", "engine", "scheduler", "upstream")] = None

    def check(self) -> None:
        self.check_holder()
        if self.service is not None:
            raise Refusal("unknown_field", "a rejection names a tenant, not a service")


QUOTA_RESOURCES = ("gpus", "concurrency", "requests_per_minute", "tokens_per_minute", "tokens_per_month")


class Quota(Fact, kw_only=True):
    layer: Annotated[Any, fields.one_of("cluster", "serving")]
    resource: Annotated[Any, fields.one_of(*QUOTA_RESOURCES)]
    limit: MilliAmount
    used: MilliAmount
    pool: Slug | None = None

    def service_is_scope(self) -> bool:
        return True

    def check(self) -> None:
        self.check_holder()


class EventKey(Record, kw_only=True):
    source: Annotated[Any, fields.source_uri]
    id: Annotated[Any, fields.event_id]


class Correction(Record, kw_only=True):
    supersedes: EventKey
    reason: LongText
    event: Any = None  # a whole replacement event; `parse` reads it like any other


TYPES: dict[str, type[Record]] = {
    "ledger.capacity.v1": Capacity,
    "ledger.reservation.v1": Reservation,
    "ledger.occupancy.v1": Occupancy,
    "ledger.pending.v1": Pending,
    "ledger.preemption.v1": Preemption,
    "ledger.resume.v1": Resume,
    "ledger.request.v1": Request,
    "ledger.usage.v1": Usage,
    "ledger.rejection.v1": Rejection,
    "ledger.quota.v1": Quota,
    "ledger.correction.v1": Correction,
}

PLANNED_TYPES = frozenset({"ledger.capacity.v1", "ledger.reservation.v1"})


def _more(part: int | None, whole: int | None) -> bool:
    return part is not None and whole is not None and part > whole


# --- settling -----------------------------------------------------------------------------------------------


@cache
def _readers(record: type[Record]) -> tuple[tuple[str, Callable[[Any], Any], Any], ...]:
    """(field, reader, default) of every field of a record type that has a reader."""
    hints = get_type_hints(record, include_extras=True)
    defaults = {field.name: field.default for field in msgspec.structs.fields(record)}
    return tuple(
        (name, reader, defaults[name])
        for name, hint in hints.items()
        if (reader := _reader_in(hint)) is not None
    )


def _reader_in(hint: Any) -> Callable[[Any], Any] | None:
    for candidate in (hint, *get_args(hint)):
        metadata = getattr(candidate, "__metadata__", ())
        if metadata:
            reader: Callable[[Any], Any] = metadata[0]
            return reader
    return None


@cache
def _parts(record: type[Record]) -> tuple[str, ...]:
    """Names of the fields that are records themselves."""
    return tuple(
        name
        for name, hint in get_type_hints(record).items()
        if any(isinstance(kind, type) and issubclass(kind, Record) for kind in (hint, *get_args(hint)))
    )


def settle(record: Record, path: str = "data") -> None:
    """Replace every value by its canonical form, innermost parts first, then check the whole.

    Raises:
        Refusal: with the path of the field in its detail.
    """
    kind = type(record)
    for name in _parts(kind):
        part = getattr(record, name)
        if part is not None:
            settle(part, f"{path}.{name}")
    for name, read, default in _readers(kind):
        value = getattr(record, name)
        if value is not None:
            try:
                setattr(record, name, read(value))
            except Refusal as refusal:
                raise Refusal(refusal.reason, f"{path}.{name}: {refusal.detail}") from None
        elif default is msgspec.NODEFAULT:
            raise Refusal("missing_field", f"{path}.{name} is null")
        elif default is not None:
            setattr(record, name, default)
    try:
        record.check()
    except Refusal as refusal:
        raise Refusal(refusal.reason, f"{path}: {refusal.detail}") from None


def check_instant(record: Record, event_type: str, time_ms: int, now_ms: int) -> None:
    """What depends on the event's `time`: the clock rule, and the order of a record's own instants.

    Raises:
        Refusal: `future_time` or `contradiction`.
    """
    if event_type not in PLANNED_TYPES and time_ms > now_ms + FUTURE_TOLERANCE_MS:
        raise Refusal("future_time", "time is more than 10 minutes ahead of the ledger's clock")
    for problem in _instant_problems(record, time_ms):
        raise Refusal("contradiction", problem)


def _instant_problems(record: Record, time_ms: int) -> Iterator[str]:
    if isinstance(record, Reservation) and record.ends_at is not None and record.ends_at <= time_ms:
        yield "data.ends_at is not after time"
    if isinstance(record, Usage) and record.ends_at != time_ms:
        yield "time is not data.ends_at"
    if isinstance(record, Request):
        if record.started_at > time_ms:
            yield "data.started_at is after time, the finish"
        if time_ms - record.started_at > LONGEST_REQUEST_MS:
            yield "a request of more than 31 days"
        if record.queued_at is not None and record.queued_at > time_ms:
            yield "data.queued_at is after time, the finish"
