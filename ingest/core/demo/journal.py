"""Writes the demo's happenings down as events of the contract, one dict each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from ledger.core.periods import to_datetime
from ledger.core.units import MS_PER_DAY, milli_gpus_text, seconds_text

Json = dict[str, Any]

CAPACITY_MANAGER = "/capacity/manager"
GATEWAY = "/gateways/ai-gateway"


def scheduler_of(cluster: str) -> str:
    return f"/clusters/{cluster}/kueue"


def controller_of(cluster: str) -> str:
    """Tells of preemptions a second time, from Kubernetes events: what it says merges with the scheduler's word."""
    return f"/clusters/{cluster}/kube-events"


def engines_of(cluster: str) -> str:
    return f"/clusters/{cluster}/engines"


@cache
def api_key(tenant: str) -> str:
    """The hash by which the gateway names a tenant's key; any stable text will do."""
    return f"{sum(ord(letter) * 131**place for place, letter in enumerate(tenant)) % 16**8:08x}"


@cache
def _date(day: int) -> str:
    return to_datetime(day * MS_PER_DAY).date().isoformat()


def rfc3339(instant_ms: int) -> str:
    """In UTC with milliseconds. Put together by hand: a demo month writes a quarter of a million of them."""
    day, within_ms = divmod(instant_ms, MS_PER_DAY)
    second, milli = divmod(within_ms, 1000)
    return f"{_date(day)}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{milli:03d}Z"


def gpus(milli_gpus: int) -> int | str:
    """A number where it is whole, else a decimal string: JSON numbers with fractions invite floats."""
    return milli_gpus // 1000 if milli_gpus % 1000 == 0 else milli_gpus_text(milli_gpus)


def seconds(microseconds: int) -> str:
    return seconds_text(microseconds)


@dataclass(slots=True)
class Entry:
    time_ms: int
    source: str
    type: str
    data: Json
    id: str = ""
    announced_ms: int | None = None  # planned facts are sent before their time


@dataclass
class Journal:
    """Events in the order in which the simulation found out, later sorted by time.

    Ids are numbered per source and prefixed with the month, so that several demo months never meet.
    """

    month: str
    zone: str
    entries: list[Entry] = field(default_factory=list)

    def write(
        self, source: str, kind: str, time_ms: int, data: Json, announced_ms: int | None = None
    ) -> Entry:
        entry = Entry(time_ms, source, kind, data, announced_ms=announced_ms)
        self.entries.append(entry)
        return entry

    def numbered(self) -> list[Entry]:
        """All entries by time, with ids."""
        ordered = sorted(self.entries, key=lambda entry: entry.time_ms)
        counts: dict[str, int] = {}
        for entry in ordered:
            kind = f"{entry.source}:{entry.type}"
            counts[kind] = counts.get(kind, 0) + 1
            entry.id = f"{self.month}-{entry.type}-{counts[kind]:06d}"
        return ordered

    def cloud_event(self, entry: Entry) -> Json:
        return {
            "specversion": "1.0",
            "id": entry.id,
            "source": entry.source,
            "type": f"ledger.{entry.type}.v1",
            "time": self._time(entry),
            "data": entry.data,
        }

    def _time(self, entry: Entry) -> str:
        if entry.source != CAPACITY_MANAGER:
            return rfc3339(entry.time_ms)
        # People plan capacity in their own clock.
        return to_datetime(entry.time_ms).astimezone(ZoneInfo(self.zone)).isoformat(timespec="milliseconds")
