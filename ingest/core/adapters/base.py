"""The frame every adapter shares: configuration, outcomes, exact readers of native numbers and times.

An adapter is a pure function `adapt(lines, source, state) -> Iterator[Event | Refused | Notice]`. It has no clock
and does no I/O. What it must remember between records (a UID index, the conditions last seen) lives in
`state`, a JSON-serialisable dict that the caller keeps: `None` means one whole input, nothing before and
nothing after it.

An adapter that must see two records before it can speak of either holds the first back in `state`. With
`state=None` it lets go of everything at the end of the input; otherwise the caller calls `flush(source,
state, before_ms)` when it knows that nothing older than `before_ms` will come (`None`: nothing will come
at all).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

from ingest.core.reasons import _

Event = dict[str, Any]
"""One canonical CloudEvent as plain JSON-ready values (str, int, bool, dict, list)."""

State = dict[str, Any]
"""What an adapter remembers; only JSON values, so that a collector can persist it beside its watermark."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A record, or the part of one, that cannot be read. It goes to quarantine; its neighbours go on."""

    position: int
    """Line of the input where the record starts, from 1."""
    record: bytes
    """The original bytes, so that a retry after a fix reads exactly what came."""
    reason: str
    """A code of `REASONS`."""
    detail: str
    """One sentence for the person who has to act on it."""
    says: bytes = b""
    """The record without what changes in it by itself, such as the age of a running job or the instant of a sample:
    a collector that meets it again and again keeps it once. Empty: the record itself."""


@dataclass(frozen=True, slots=True)
class Total:
    """A number that the source itself adds up to, in the words of the ledger's `SourceTotal`."""

    measure: str
    """`occupied`, `occupied_by_account`, `capacity`, `preemptions` or `held_time`."""
    unit: str
    """`gpu_us`, `count` or `s`."""
    quantity: int


@dataclass(frozen=True, slots=True)
class Notice:
    """What a person should know of a record that was read: a lost counter tail, a missed scrape, a gap.

    A notice stands beside the events, never instead of one. It books nothing and refuses nothing.
    """

    position: int
    """Line of the input where the record starts, from 1."""
    reason: str
    """A code of `NOTICES`."""
    detail: str
    """One sentence for the person who has to judge it."""
    subject: str
    """What it is about, such as an engine instance and model."""
    starts_ms: int | None = None
    """The span it speaks of, where it speaks of one: half-open, UTC milliseconds."""
    ends_ms: int | None = None
    total: Total | None = None
    """Of a `source_total`: the number, over the span or, without a start, up to `ends_ms`."""


NOTICES: dict[str, str] = {
    "counter_reset": _("a counter began again at 0; what it counted after its last sample is lost"),
    "counter_unknown_start": _("a counter was seen for the first time; what it counted before is not known"),
    "missed_samples": _("samples are missing; what was counted meanwhile is booked where it was seen"),
    "missed_steps": _("steps of an engine are missing; their GPU time is not known and not estimated"),
    "spend_mismatch": _("a gateway contradicts itself about the price; the ledger rates tokens anew"),
    "flat_cost_row": _("a flat charge of the gateway, which is no request"),
    "missing_duplicates": _("an export that keeps one run per job; the GPU time of the others is not in it"),
    "source_total": _("what the source itself adds up to, for reconciliation"),
    "scoped_quota": _("a quota that caps only some pods of its namespace, and so not the namespace"),
    "watch_gap": _("a watch could not be resumed; what changed meanwhile is known only by its result"),
    "incomplete_stream": _("a stream ended before its last usage; its counts may be too low"),
}
"""Codes of notices, and what each means."""


REASONS: dict[str, str] = {
    "not_json": _("the record is not JSON"),
    "bad_record": _("the record lacks a field, or has one that cannot be read"),
    "unknown_kind": _("the object is of a kind this source does not read"),
    "unmapped_pool": _("no pool is configured for this flavor, queue, partition or model"),
    "bad_quantity": _("a number or quantity cannot be read"),
    "bad_time": _("an instant cannot be read, or is missing"),
    "no_instant": _("the record does not say when the fact began to hold"),
    "unknown_resource": _("a GPU resource whose size in GPUs is not configured"),
    "unknown_workload": _("the record speaks of a workload that was never seen"),
    "watch_error": _("the API server ended the watch with an error"),
    "too_large": _("the record is larger than the limit"),
    "impossible_tokens": _("token counts contradict each other, such as more cached than input"),
    "unknown_version": _("the record is of a version that this source does not read"),
}
"""Reason codes adapters refuse with, and what each means."""


class Refusal(Exception):
    """Raised inside an adapter for one record; the loop around it turns it into a `Refused`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail

    def at(self, position: int, record: bytes, says: bytes = b"") -> Refused:
        return Refused(position, record, self.reason, self.detail, says)


class ConfigError(Exception):
    """The source's own table is wrong; no record can be blamed for it."""


READING_ERRORS = (
    Refusal,
    AttributeError,
    TypeError,
    KeyError,
    IndexError,
    ValueError,
    OverflowError,
    ArithmeticError,
)
"""What reading one record of any shape may raise; an adapter catches these around each record, never around more."""


def refusal_of(error: Exception) -> Refusal:
    """The refusal for an error of `READING_ERRORS`: itself, or that a field has a shape nobody writes."""
    if isinstance(error, Refusal):
        return error
    return Refusal("bad_record", f"a field is missing or is of another type than this source writes: {error}")


Outcome = Event | Refused | Notice
Adapt = Callable[[Iterable[bytes], "SourceConfig", "State | None"], Iterator[Outcome]]
Flush = Callable[["SourceConfig", State, "int | None"], Iterator[Outcome]]


def no_flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    """The flush of an adapter that never holds anything back."""
    return iter(())


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    adapt: Adapt
    flush: Flush
    remembers: bool = False
    """Whether a record can mean something else after other records: a retry is then read with the memory of them,
    and whatever its order, the same comes out (module attribute `REMEMBERS`)."""


def forget_refusals(state: Any) -> None:
    """Takes the marks `refused` off a memory, so that what is tried again and is still wrong is refused again."""
    if isinstance(state, dict):
        if state.get("refused") is True:
            del state["refused"]
        for value in state.values():
            forget_refusals(value)


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """One `[[source]]` table (events.md, "Sources")."""

    name: str
    adapter: str
    uri: str
    """The CloudEvents `source` of what it emits."""
    cluster: str = ""
    pools: Mapping[str, str] = field(default_factory=dict)
    """Native partition, flavor, queue or model deployment -> pool."""
    pool: str | None = None
    """The pool of everything that `pools` does not name."""
    time_zone: str = "UTC"
    """IANA zone of native times that carry none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    meters: Mapping[str, str] = field(default_factory=dict)
    """Pool -> what it meters (`gpu` unless named here)."""

    def pool_for(self, *native_names: str | None) -> str:
        """The pool of the first native name that is mapped, else the single pool.

        Raises `Refusal("unmapped_pool")` if neither exists.
        """
        for name in native_names:
            if name is not None and name in self.pools:
                return self.pools[name]
        if self.pool is not None:
            return self.pool
        tried = ", ".join(repr(name) for name in native_names if name) or "nothing"
        raise Refusal("unmapped_pool", f"source {self.name!r} maps {tried} to no pool and has no single pool")

    def meter(self, pool: str) -> str:
        return self.meters.get(pool, "gpu")

    def option(self, name: str, default: Any) -> Any:
        """An option, of the same JSON type as its default; raises `ValueError` for another type (a config
        error).
        """
        value = self.options.get(name, default)
        if default is not None and not isinstance(value, type(default)):
            raise ConfigError(
                f"source {self.name!r}: option {name!r} must be {type(default).__name__}, "
                f"not {type(value).__name__}"
            )
        return value

    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.time_zone)


# --- events -----------------------------------------------------------------------------------------------


def event(
    source: SourceConfig, event_id: str, event_type: str, time_ms: int, data: Mapping[str, Any]
) -> Event:
    """One CloudEvent of `source`; `event_type` without prefix and version (`occupancy`). Drops `None`
    fields of data.
    """
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": source.uri,
        "type": f"ledger.{event_type}.v1",
        "time": rfc3339(time_ms),
        "data": {name: value for name, value in data.items() if value is not None},
    }


def identity(kind: str, value: str) -> dict[str, str]:
    """`{kind, value}` of events.md, "Identity"."""
    return {"kind": kind, "value": value}


def gpus_json(milli: int) -> int | str:
    """Milli-GPU as the contract's `gpus`: a whole number, or a decimal string with at most 3 places."""
    whole, rest = divmod(milli, 1000)
    return whole if rest == 0 else f"{whole}.{rest:03d}".rstrip("0")


# --- instants ---------------------------------------------------------------------------------------------

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,12}))?(Z|z|[+-]\d\d:?\d\d)\Z", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant_ms(text: Any) -> int:
    """RFC 3339 with an offset -> epoch milliseconds, finer digits floored. Raises `Refusal("bad_time")`."""
    match = _RFC3339.match(text) if isinstance(text, str) else None
    if match is None:
        raise Refusal("bad_time", f"{text!r} is not an RFC 3339 instant with an offset")
    year, month, day, hour, minute, second, fraction, offset = match.groups()
    millis = int((fraction or "0").ljust(3, "0")[:3])
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=_offset(offset)
        )
        return (moment - _EPOCH) // timedelta(milliseconds=1) + millis
    except (ValueError, OverflowError) as error:
        raise Refusal("bad_time", f"{text!r} is not an instant: {error}") from error


def _offset(text: str) -> timezone:
    if text in "Zz":
        return UTC
    span = timedelta(hours=int(text[1:3]), minutes=int(text[-2:]))
    return timezone(-span if text[0] == "-" else span)


def rfc3339(time_ms: int) -> str:
    """Epoch milliseconds -> RFC 3339 in UTC; the fraction only where there is one."""
    seconds, millis = divmod(time_ms, 1000)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
    except OverflowError as error:
        raise Refusal("bad_time", f"{time_ms} ms since the epoch is outside the calendar") from error
    return f"{text}.{millis:03d}Z" if millis else f"{text}Z"


def unix_seconds_ms(value: Any) -> int:
    """Unix seconds (number or digits, may have a fraction) -> epoch milliseconds, floored."""
    return math.floor(decimal_of(value) * 1000)


# --- numbers ----------------------------------------------------------------------------------------------

_QUANTITY = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?\d{1,3})?\Z", re.ASCII
)
_SUFFIX: dict[str, Decimal] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(2) ** (10 * power) for power, suffix in enumerate("KMGTPE", start=1)},
}


def decimal_of(value: Any) -> Decimal:
    """A finite decimal from a JSON number or its text. Raises `Refusal("bad_quantity")`; booleans are not
    numbers.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise Refusal("bad_quantity", f"{value!r} is not a number")
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation as error:
        raise Refusal("bad_quantity", f"{value!r} is not a number") from error
    # An exponent of thousands would make integer arithmetic on it unbounded.
    if not number.is_finite() or abs(number.adjusted()) > 40:
        raise Refusal("bad_quantity", f"{value!r} is not a finite number of a sane size")
    return number


def quantity(value: Any) -> Decimal:
    """A Kubernetes quantity (`8`, `"500m"`, `"1Ti"`, `"2e3"`) as an exact decimal. Raises
    `Refusal("bad_quantity")`.
    """
    if not isinstance(value, str):
        return decimal_of(value)
    match = _QUANTITY.match(value.strip())
    if match is None:
        raise Refusal("bad_quantity", f"{value!r} is not a Kubernetes quantity")
    number, suffix = match.groups()
    if suffix and suffix[0] in "eE" and suffix not in ("E", "Ei"):
        return decimal_of(number + suffix)
    return decimal_of(number) * _SUFFIX[suffix] if suffix else decimal_of(number)


def quantity_milli(value: Any) -> int:
    """A Kubernetes quantity in thousandths; a finer remainder is rounded up, as the API server's
    `MilliValue` does.
    """
    milli = int((quantity(value) * 1000).to_integral_value(ROUND_CEILING))
    if milli < 0:
        raise Refusal("bad_quantity", f"{value!r} is below 0")
    return milli


def whole(value: Any) -> int:
    """An integer >= 0 from a JSON number or digits. Raises `Refusal("bad_quantity")`."""
    number = decimal_of(value)
    if number != number.to_integral_value() or number < 0:
        raise Refusal("bad_quantity", f"{value!r} is not a whole number >= 0")
    return int(number)
