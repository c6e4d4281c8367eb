"""Billing months, slots and days (domain.md section 2). Instants are int milliseconds, UTC."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from ledger.core.units import MS_PER_DAY, MS_PER_HOUR

_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The half-open interval [start_ms, end_ms)."""

    start_ms: int
    end_ms: int

    def overlap(self, other: Span) -> Span | None:
        start_ms, end_ms = max(self.start_ms, other.start_ms), min(self.end_ms, other.end_ms)
        return Span(start_ms, end_ms) if start_ms < end_ms else None

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A calendar month of the billing time zone, written '2026-10'."""

    year: int
    number: int

    @classmethod
    def parse(cls, text: str) -> Month:
        match = _MONTH.fullmatch(text)
        if not match or match[1] == "0000":
            raise ValueError(f"{text!r} is not a month such as 2026-10")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def containing(cls, instant_ms: int, zone: str) -> Month:
        """The month whose span in `zone` holds the instant."""
        local = to_datetime(instant_ms).astimezone(ZoneInfo(zone))
        month = cls(local.year, local.month)
        # A clock may show the 1st, go back, and show the last day again: that stretch is of the new month.
        return month.next() if instant_ms >= month.next().starts_ms(zone) else month

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"

    def next(self) -> Month:
        return self.plus(1)

    def previous(self) -> Month:
        return self.plus(-1)

    def plus(self, months: int) -> Month:
        year, number = divmod(self.year * 12 + self.number - 1 + months, 12)
        return Month(year, number + 1)

    def starts_ms(self, zone: str) -> int:
        """The first existing instant whose local date is the 1st (the earlier where it is shown twice)."""
        return _first_instant_of(self.year, self.number, ZoneInfo(zone))

    def span(self, zone: str) -> Span:
        return Span(self.starts_ms(zone), self.next().starts_ms(zone))


def _first_instant_of(year: int, month: int, zone: ZoneInfo) -> int:
    # fold=0 names the earlier of two instants that a clock shows alike.
    midnight = datetime(year, month, 1, tzinfo=zone, fold=0)
    wall_clock = midnight.replace(tzinfo=None)
    candidate = midnight.astimezone(UTC)
    if candidate.astimezone(zone).replace(tzinfo=None) == wall_clock:
        return to_ms(candidate)
    # The clock jumps over midnight: the first instant after the jump, found by halving.
    before_ms, after_ms = to_ms(candidate) - 2 * MS_PER_DAY, to_ms(candidate) + 2 * MS_PER_DAY
    while after_ms - before_ms > 1:
        middle_ms = (before_ms + after_ms) // 2
        if to_datetime(middle_ms).astimezone(zone).replace(tzinfo=None) >= wall_clock:
            after_ms = middle_ms
        else:
            before_ms = middle_ms
    return after_ms


def to_ms(instant: datetime) -> int:
    """Milliseconds since the epoch of an aware datetime, finer parts floored."""
    if instant.tzinfo is None:
        raise ValueError("an instant needs an offset")
    return (instant - _EPOCH) // _MS


def to_datetime(instant_ms: int) -> datetime:
    return _EPOCH + instant_ms * _MS


def slot_edges(start_ms: int, end_ms: int, cuts: Iterable[int] = ()) -> NDArray[np.int64]:
    """Edges of the slots of [start_ms, end_ms): UTC hours, cut further at `cuts`.

    Slot i is [edges[i], edges[i + 1]). Returns start_ms alone, so no slot, for an empty span. Cuts outside of
    the span are ignored.
    """
    first_hour = -(-start_ms // MS_PER_HOUR) * MS_PER_HOUR
    hours = np.arange(first_hour, end_ms, MS_PER_HOUR, dtype=np.int64)
    inner = np.array([cut for cut in cuts if start_ms < cut < end_ms], dtype=np.int64)
    ends = np.array([start_ms, end_ms] if start_ms < end_ms else [start_ms], dtype=np.int64)
    return np.unique(np.concatenate([ends, hours, inner]))


def local_midnights(span: Span, zone: str) -> list[int]:
    """Where days of the zone begin inside the span, its start left out. Of a midnight shown twice, the earlier."""
    tz = ZoneInfo(zone)
    found: list[int] = []
    day = to_datetime(span.start_ms).astimezone(tz).date()
    while True:
        day += timedelta(days=1)
        begins_ms = to_ms(datetime(day.year, day.month, day.day, tzinfo=tz).astimezone(UTC))
        if begins_ms >= span.end_ms:
            return found
        if begins_ms > span.start_ms:
            found.append(begins_ms)


def utc_days(span: Span) -> Iterator[Span]:
    """The UTC days of a span, the first and last cut to it: the units in which books are computed again."""
    start_ms = span.start_ms
    while start_ms < span.end_ms:
        end_ms = min((start_ms // MS_PER_DAY + 1) * MS_PER_DAY, span.end_ms)
        yield Span(start_ms, end_ms)
        start_ms = end_ms
