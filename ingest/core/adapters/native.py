"""What every adapter of inference records needs: absent values, nested objects, times, and one bad record
that never stops its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ingest.core.adapters.base import (
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    decimal_of,
    instant_ms,
    rfc3339,
    unix_seconds_ms,
    whole,
)
from ingest.core.adapters.json_records import JsonRecord, read_json

Obj = dict[str, Any]

ABSENT_TEXTS = frozenset({"", "None", "null", "-"})
"""What gateways print for nothing: Python's and JSON's, and the dash of Envoy's access log."""


def read_each(lines: Iterable[bytes], read: Callable[[JsonRecord], Iterator[Outcome]]) -> Iterator[Outcome]:
    """Everything `read` makes of each JSON record; a record that raises `Refusal` gives that and nothing else."""
    for record in read_json(lines):
        if isinstance(record, Refused):
            yield record
            continue
        try:
            outcomes = list(read(record))
        except Refusal as refusal:
            outcomes = [refusal.at(record.position, record.raw)]
        yield from outcomes


def as_object(value: Any, what: str) -> Obj:
    """`value` itself if it is a JSON object. Raises `Refusal("bad_record")`."""
    if not isinstance(value, dict):
        raise Refusal("bad_record", f"{what} is not a JSON object")
    return value


def child(parent: Mapping[str, Any], name: str) -> Obj:
    """The object under `name`; empty if absent or null. Raises `Refusal` if it is something else."""
    value = parent.get(name)
    return {} if value is None else as_object(value, name)


def children(parent: Mapping[str, Any], name: str) -> list[Obj]:
    """The objects of the list under `name`; empty if absent or null."""
    value = parent.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Refusal("bad_record", f"{name} is not a list")
    return [as_object(entry, f"an entry of {name}") for entry in value]


def text_of(value: Any) -> str | None:
    """A name or id as text; `None` where the source wrote nothing (`""`, `"None"`, `"null"`, `"-"`, null)."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Refusal("bad_record", f"{str(value)[:80]!r} is not a name")
    text = str(value).strip()
    return None if text in ABSENT_TEXTS else text


def first_text(*values: Any) -> str | None:
    """The first of `values` that says something."""
    return next((text for text in map(text_of, values) if text is not None), None)


def needed(value: str | None, what: str) -> str:
    if value is None:
        raise Refusal("bad_record", f"the record has no {what}")
    return value


def count_of(value: Any) -> int | None:
    """A count >= 0; `None` where the source states none. 0 is a statement and stays 0."""
    if type(value) is int and value >= 0:  # nearly always; a boolean is no count
        return value
    return None if value is None or value == "" or value == "-" else whole(value)


def native_ms(value: Any, source: SourceConfig) -> int:
    """Unix seconds, RFC 3339, or a time without offset in the source's `time_zone` -> epoch milliseconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return in_calendar(unix_seconds_ms(value))
    if not isinstance(value, str) or not value.strip():
        raise Refusal("no_instant", "the record does not say when it happened")
    text = value.strip()
    if text[-1] in "Zz":
        return instant_ms(text)
    if text.removesuffix(" UTC") != text:
        text = text.removesuffix(" UTC") + "Z"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return instant_ms(text)
    if moment.tzinfo is not None:
        return instant_ms(text)
    return _utc_ms(moment.replace(tzinfo=source.zone()))


def in_calendar(time_ms: int) -> int:
    """`time_ms` itself, if it can be written as an instant. Raises `Refusal("bad_time")`."""
    rfc3339(time_ms)
    return time_ms


def _utc_ms(moment: datetime) -> int:
    try:
        span = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError as error:
        raise Refusal("bad_time", f"{moment} is outside the calendar") from error
    return (span.days * 86_400 + span.seconds) * 1000 + span.microseconds // 1000


def millis_of(value: Any, per_unit: int) -> int | None:
    """A duration of seconds (`per_unit` 1000) or milliseconds (1) in whole milliseconds, floored."""
    if value is None:
        return None
    span = decimal_of(value)
    if span < 0:
        raise Refusal("bad_time", f"{value!r} is a negative duration")
    return math.floor(span * per_unit)
