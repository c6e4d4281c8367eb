"""Instants as files and API print them."""

from __future__ import annotations

from datetime import UTC, datetime


def instant_text(instant: datetime | None) -> str:
    """UTC ISO 8601 with milliseconds only where there are any; empty for None."""
    if instant is None:
        return ""
    utc = instant.astimezone(UTC)
    precision = "milliseconds" if utc.microsecond else "seconds"
    return utc.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
