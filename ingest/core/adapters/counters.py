"""Cumulative counters of engines -> what was counted in each UTC hour, per engine instance.

A pull metric says only how far a counter stood when somebody looked. So every growth is booked in the hour in
which it was seen, whole; a gap is told and never filled in; and a counter that began again at 0 gives its new
value, with notice that what it counted after its last sample is lost. All counters of one engine process
begin again together, so one that has already overtaken its old value is not mistaken for growth.

State: `series` {series: [at_ms, value]}, `groups` {group: [first_ms, last_ms]}, `hours` {group: {hour: [from_ms,
to_ms, {field: count}]}}; keys are JSON texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from ingest.core.adapters.base import Notice, Refusal, Refused, State
from ingest.core.adapters.prometheus import Sample

MS_PER_HOUR = 3_600_000
Group = tuple[str, ...]
"""What restarts as one and is booked as one: (instance, model, ...)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample of one counter, in whole units."""

    group: Group
    field: str
    """Samples of one field of one group are summed, whatever other labels tell them apart."""
    value: int
    sample: Sample
    series: str
    """Key of the counter in `state`."""


@dataclass(frozen=True, slots=True)
class Hour:
    """What a group counted in one UTC hour, as far as it was seen."""

    group: Group
    starts_ms: int
    ends_ms: int
    counts: dict[str, int]

    @property
    def id(self) -> str:
        parts = "/".join(quote(part, safe="") for part in self.group)
        return f"{parts}/{self.starts_ms}-{self.ends_ms}"


class CounterBook:
    """Reads counters in order of time and keeps, in `state`, what it needs to go on later."""

    def __init__(self, state: State | None, max_gap_ms: int, from_zero: bool) -> None:
        self._whole_input = state is None
        kept: dict[str, Any] = {} if state is None else state
        self._series: dict[str, list[int]] = kept.setdefault("series", {})
        self._groups: dict[str, list[int]] = kept.setdefault("groups", {})
        self._hours: dict[str, dict[str, list[Any]]] = kept.setdefault("hours", {})
        self._max_gap_ms = max_gap_ms
        self._from_zero = from_zero

    def read(self, readings: list[Reading]) -> Iterator[Notice]:
        """Books `readings`, which are in order of time."""
        together: dict[tuple[int, str], list[Reading]] = {}
        for reading in readings:
            together.setdefault((reading.sample.at_ms, _key(reading.group)), []).append(reading)
        for (at_ms, group), readings_now in together.items():
            yield from self._read_instant(at_ms, group, readings_now)

    def settled(self) -> Iterator[Hour]:
        """Hours that are over for their group; all of them where the input is whole."""
        for group in sorted(self._hours):
            last_ms = self._groups[group][1]
            yield from self._take(group, None if self._whole_input else last_ms)

    def flush(self, before_ms: int | None) -> Iterator[Hour]:
        """Hours that end by `before_ms`, or all of them."""
        for group in sorted(self._hours):
            yield from self._take(group, before_ms)

    def _take(self, group: str, before_ms: int | None) -> Iterator[Hour]:
        hours = self._hours[group]
        for hour in sorted(hours, key=int):
            if before_ms is None or int(hour) + MS_PER_HOUR <= before_ms:
                starts_ms, ends_ms, counts = hours.pop(hour)
                yield Hour(tuple(msgspec.json.decode(group)), starts_ms, ends_ms, counts)
        if not hours:
            del self._hours[group]

    def _read_instant(self, at_ms: int, group: str, readings: list[Reading]) -> Iterator[Notice]:
        known = self._groups.get(group)
        # Of two samples of one counter at one instant the first holds; the next scrape makes up for the other.
        once = {r.series: r for r in reversed(readings)}
        fresh = [
            r for key, r in reversed(once.items()) if key not in self._series or self._series[key][0] < at_ms
        ]
        if not fresh:
            return
        before = [self._series[r.series] for r in fresh if r.series in self._series]
        restarted = any(r.value < self._series.get(r.series, [0, 0])[1] for r in fresh)
        if known is None and not self._from_zero:
            yield _notice(
                fresh[0], "counter_unknown_start", "what it counted before its first sample", at_ms, at_ms
            )
        if restarted:
            last_ms = max(at for at, _ in before)
            yield _notice(fresh[0], "counter_reset", "what it counted after its last sample", last_ms, at_ms)
        gap_from_ms = min((at for at, _ in before), default=at_ms)
        if at_ms - gap_from_ms > self._max_gap_ms:
            yield _notice(
                fresh[0], "missed_samples", "how its growth spread over the gap", gap_from_ms, at_ms
            )
        for reading in fresh:
            self._book(reading, group, known, restarted)
        first_ms, last_seen_ms = known or (at_ms, at_ms)
        self._groups[group] = [first_ms, max(last_seen_ms, at_ms)]

    def _book(self, reading: Reading, group: str, known: list[int] | None, restarted: bool) -> None:
        at_ms = reading.sample.at_ms
        previous = self._series.get(reading.series)
        self._series[reading.series] = [at_ms, reading.value]
        if previous is not None:
            from_ms, grown = previous[0], reading.value - (0 if restarted else previous[1])
        elif known is not None and known[0] < at_ms:
            # The process was seen before this counter existed, so the counter began at 0 since then.
            from_ms, grown = min(known[1], at_ms - 1), reading.value
        elif known is None and self._from_zero:
            from_ms, grown = at_ms - 1, reading.value
        else:
            return
        # A sample on the hour closes the hour it ends.
        hour_ms = (at_ms - 1) // MS_PER_HOUR * MS_PER_HOUR
        hours = self._hours.setdefault(group, {})
        entry = hours.setdefault(str(hour_ms), [at_ms, at_ms, {}])
        entry[0] = min(entry[0], max(from_ms, hour_ms))
        entry[1] = max(entry[1], at_ms)
        entry[2][reading.field] = entry[2].get(reading.field, 0) + grown


def reading_of(sample: Sample, group: Group, field: str, scale: int = 1) -> Reading | Refused:
    """A counter's sample in whole units of 1/`scale`; a finer rest is floored, so that growth still sums up.

    A counter below 0, or a fraction of a token, is refused: its neighbours go on.
    """
    try:
        number = sample.number() * scale
        if number < 0:
            raise Refusal("bad_quantity", f"counter {sample.name} is {sample.value}, below 0")
        if scale == 1 and number != int(number):
            raise Refusal("bad_quantity", f"counter {sample.name} is {sample.value}, not a whole number")
    except Refusal as refusal:
        return sample.refused(refusal)
    series = msgspec.json.encode([sample.name, sorted(sample.labels.items())]).decode()
    return Reading(group, field, int(number), sample, series)


def _key(group: Group) -> str:
    return msgspec.json.encode(list(group)).decode()


def _notice(reading: Reading, reason: str, unknown: str, starts_ms: int, ends_ms: int) -> Notice:
    subject = "/".join(reading.group)
    return Notice(
        position=reading.sample.position,
        reason=reason,
        detail=f"{subject}: {unknown} is not known",
        subject=subject,
        starts_ms=starts_ms,
        ends_ms=ends_ms,
    )
