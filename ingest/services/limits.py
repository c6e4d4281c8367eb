"""The limits of this installation."""

from __future__ import annotations

from django.conf import settings

from ingest.core.unpack import Limits


def configured_limits() -> Limits:
    """What one body may be; setting INGEST_LIMITS overrides single limits by name."""
    return Limits(**getattr(settings, "INGEST_LIMITS", {}))
