"""Instants and durations as Slurm prints them: local, without an offset (cluster.md 5.3)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from ingest.core.adapters.base import Refusal, instant_ms

UNSET = frozenset({"", "Unknown", "None", "N/A"})
_LOCAL = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\Z", re.ASCII)
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?\Z", re.ASCII)


def local_ms(text: str, zone: ZoneInfo, later: bool = False) -> int:
    """A local time of `zone` (or epoch seconds, or one with an offset) -> epoch milliseconds.

    Of the two instants a clock shows twice in autumn, the earlier one unless `later`. A time that the clock skips in
    spring is refused: it shows that the configured zone is not the one it was printed in.
    """
    if text.isascii() and text.isdigit() and len(text) > 8:  # SLURM_TIME_FORMAT=%s
        return int(text) * 1000
    match = _LOCAL.match(text)
    if match is None:
        return instant_ms(text)
    *numbers, fraction = match.groups()
    millis = int((fraction or "0").ljust(3, "0")[:3])
    try:
        local = datetime(*(int(n) for n in numbers), tzinfo=zone, fold=int(later))  # type: ignore[misc, arg-type]
    except ValueError as error:
        raise Refusal("bad_time", f"{text!r} is not a time: {error}") from error
    moment = local.timestamp()
    if datetime.fromtimestamp(moment, zone).replace(tzinfo=None) != local.replace(tzinfo=None):
        raise Refusal(
            "bad_time", f"{text!r} does not exist in {zone.key}: is time_zone the zone of the client?"
        )
    return int(moment) * 1000 + millis


def optional_ms(text: str, zone: ZoneInfo, later: bool = False) -> int | None:
    return None if text in UNSET else local_ms(text, zone, later)


def is_ambiguous(text: str, zone: ZoneInfo) -> bool:
    """Whether the clock of `zone` shows this time twice."""
    return (
        text not in UNSET and bool(_LOCAL.match(text)) and local_ms(text, zone) != local_ms(text, zone, True)
    )


def duration_ms(text: str) -> int | None:
    """`[D-]HH:MM:SS`, `MM:SS`, or seconds; empty is unknown."""
    if text in UNSET:
        return None
    if text.isdigit():
        return int(text) * 1000
    match = _DURATION.match(text)
    if match is None:
        raise Refusal("bad_time", f"{text!r} is not a duration")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) // timedelta(milliseconds=1)
