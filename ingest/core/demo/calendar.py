"""When things happen in the demo month: local days and hours as instants, and how busy an hour is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

from ledger.core.periods import Month, Span, to_datetime, to_ms
from ledger.core.units import MS_PER_HOUR

# How busy each local hour is, 0 to 100: (weekday, weekend). Read them as a day from midnight to midnight.
_RHYTHMS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "consumer": (
        (38, 24, 16, 12, 10, 12, 20, 34, 48, 58, 64, 68, 72, 66, 62, 62, 64, 68, 76, 88, 97, 100, 86, 60),
        (46, 32, 22, 15, 12, 12, 16, 26, 42, 60, 72, 78, 82, 80, 78, 78, 80, 84, 90, 96, 100, 98, 86, 64),
    ),
    "office": (
        (6, 4, 4, 4, 4, 4, 6, 14, 40, 82, 98, 94, 62, 86, 100, 98, 96, 90, 70, 54, 40, 28, 16, 10),
        (5, 4, 4, 4, 4, 4, 4, 6, 10, 18, 24, 26, 22, 24, 28, 28, 26, 22, 18, 16, 14, 12, 9, 7),
    ),
    "night": (
        (92, 78, 60, 46, 34, 26, 20, 16, 14, 16, 18, 18, 20, 20, 20, 22, 26, 34, 48, 66, 84, 98, 100, 98),
        (80, 68, 54, 42, 34, 28, 24, 22, 22, 24, 26, 28, 28, 28, 30, 32, 36, 42, 52, 64, 76, 86, 90, 88),
    ),
    "flat": ((70,) * 24, (64,) * 24),
}


@dataclass(frozen=True)
class Calendar:
    """One billing month in its time zone. `day` arguments are days of that month, from 1."""

    month: Month
    zone: str

    @cached_property
    def span(self) -> Span:
        return self.month.span(self.zone)

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.zone)

    @cached_property
    def days(self) -> int:
        following = self.month.next()
        return (date(following.year, following.number, 1) - date(self.month.year, self.month.number, 1)).days

    def at(self, day: int, hour: int, minute: int = 0) -> int:
        """The instant at which a clock in the zone shows this, in ms; never before the month's start."""
        local = datetime(self.month.year, self.month.number, day, hour, minute, tzinfo=self._zone)
        return max(to_ms(local), self.span.start_ms)

    def local(self, instant_ms: int) -> datetime:
        return to_datetime(instant_ms).astimezone(self._zone)

    def weekday_on_or_after(self, day: int, weekday: int) -> int:
        """The first day of the month from `day` on that is this weekday (0 = Monday)."""
        first = date(self.month.year, self.month.number, day)
        return (first + timedelta(days=(weekday - first.weekday()) % 7)).day

    def busyness(self, rhythm: str, instant_ms: int) -> float:
        """How busy that instant is, 0 to 1, between the values of the hours around it."""
        local = self.local(instant_ms)
        hours = _RHYTHMS[rhythm][local.weekday() >= 5]
        part = local.minute / 60
        return (hours[local.hour] * (1 - part) + hours[(local.hour + 1) % 24] * part) / 100

    def hours(self) -> list[int]:
        """The starts of the UTC hours that lie wholly inside the month, in ms."""
        first = -(-self.span.start_ms // MS_PER_HOUR) * MS_PER_HOUR
        return list(range(first, self.span.end_ms - MS_PER_HOUR + 1, MS_PER_HOUR))
