"""Instants as files and API print them."""

from __future__ import annotations

from datetime import UTC, datetime


def instant_text(instant: datetime | None) -> str:
    """UTC ISO 8601; what happened has milliseconds only where there are any, what we recorded may be finer.

    Empty for None.
    """
    if instant is None:
        return ""
    utc = instant.astimezone(UTC)
    precision = (
        "seconds" if not utc.microsecond else "microseconds" if utc.microsecond % 1000 else "milliseconds"
    )
    return utc.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
