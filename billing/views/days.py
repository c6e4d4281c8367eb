"""Days that people type, as instants."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo


def start_of_day(text: str, zone: str) -> datetime | None:
    """The first instant of a day such as 2027-01-01 in the billing zone; None where the text is no day."""
    try:
        day = date.fromisoformat(text)
        return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
