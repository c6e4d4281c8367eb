"""Reads of the ledger's settings and months."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import MS_PER_HOUR
from ledger.models import Ledger, Period
from ledger.selectors.settings import ledger_settings


def ledger_and_now() -> tuple[Ledger, int]:
    """The ledger's settings (defaults where nothing was configured yet), and now in UTC ms."""
    return ledger_settings(), to_ms(timezone.now())


def horizon_of(window: Span, now_ms: int) -> datetime:
    """Up to when the books of a window are computed: the stored horizon of its last month, else the last whole
    UTC hour, and never past the window's end (domain.md section 10)."""
    last_hour_ms = now_ms - now_ms % MS_PER_HOUR
    stored = (
        Period.objects.filter(starts_at__lt=to_datetime(window.end_ms), horizon_at__isnull=False)
        .order_by("-starts_at")
        .values_list("horizon_at", flat=True)
        .first()
    )
    horizon = stored or to_datetime(last_hour_ms)
    return min(horizon, to_datetime(window.end_ms))
