"""The limits of this installation."""

from __future__ import annotations

from dataclasses import replace

from django.conf import settings

from ingest.core.parse import REFUSED_LINE_BYTES
from ingest.core.unpack import Limits

RETRY = "retry"
OWN_DOORS = frozenset({"import_events", "collector", RETRY})
"""Doors whose batches the ledger wrote itself, with lines that stand for refused records."""


def configured_limits() -> Limits:
    """What one body may be; setting INGEST_LIMITS overrides single limits by name."""
    return Limits(**getattr(settings, "INGEST_LIMITS", {}))


def cutting_limits(limits: Limits, door: str) -> Limits:
    """By what the body of a batch is cut into lines; `parse_line` still holds each event to its own limit."""
    if door not in OWN_DOORS:
        return limits
    return replace(limits, event_bytes=max(limits.event_bytes, REFUSED_LINE_BYTES))
