"""Keeps the days of tenants' months, as computing a month leaves them (domain.md section 9)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date

import numpy as np
from django.db import connection

from billing.selectors.daily_figures import Days, daily_figures
from billing.selectors.prices import price_segments
from billing.sql import computing
from ledger.core.periods import Span, to_ms
from ledger.models import Period

_INTO = """
COPY billing_tenantmonth (period_id, tenant_id, amounts_from, amounts, held_from, held) FROM STDIN
"""


def write_tenant_months(period: Period, zone: str, end_ms: int, accounts: Collection[int] | None) -> int:
    """Of the tenants that these accounts are of, or of all (None): the days of the month up to `end_ms` in place of
    what was kept of them. Returns how many tenants had any. Reads what is added up by day, and the rate cards.
    """
    tenants = None if accounts is None else _tenants_of(accounts)
    if tenants is not None and not tenants:
        return 0
    window = Span(to_ms(period.starts_at), end_ms)
    figures = daily_figures(window, zone, price_segments(window), tenants)
    with connection.cursor() as cursor:
        cursor.execute(computing.DELETE_TENANT_MONTHS, {"month": period.month, "tenants": tenants})
        with cursor.copy(_INTO) as copy:
            for tenant, amounts in sorted(figures.amount.items()):
                held = figures.gpu_us.get(tenant, {})
                copy.write_row((period.month, tenant, *_columns(amounts), *_columns(held)))
    return len(figures.amount)


def _tenants_of(accounts: Collection[int]) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(computing.TENANTS_OF_ACCOUNTS, {"accounts": sorted(accounts)})
        return [tenant for (tenant,) in cursor.fetchall()]


def _columns(days: Days) -> tuple[date | None, bytes]:
    """The first day, and the figures from it on."""
    if not days:
        return None, b""
    first = min(days)
    figures = np.zeros((max(days) - first).days + 1, ">i8")
    for day, value in days.items():
        figures[(day - first).days] = value
    return first, figures.tobytes()
