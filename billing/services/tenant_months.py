"""Keeps the days of tenants' months, as computing a month leaves them (domain.md section 9)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date

import numpy as np
from django.db import connection

from billing.models import TenantMonth
from billing.selectors.daily_figures import Days, daily_figures
from billing.selectors.prices import price_segments
from billing.sql import computing
from ledger.core.periods import Span, to_ms
from ledger.models import Period

_INTO = """
COPY billing_tenantmonth (period_id, tenant_id, amounts_from, amounts, held_from, held) FROM STDIN
"""

# The first day, and the figures from it on as they are kept.
DayList = tuple[date | None, bytes]
NO_DAYS: tuple[DayList, DayList] = ((None, b""), (None, b""))


def write_tenant_months(period: Period, zone: str, end_ms: int, accounts: Collection[int] | None) -> int:
    """Of the tenants that these accounts are of, or of all (None): the days of the month up to `end_ms` in place of
    what was kept of them. Returns how many tenants had any. Reads what is added up by day, and the rate cards.
    """
    tenants = None if accounts is None else _tenants_of(accounts)
    if tenants is not None and not tenants:
        return 0
    rows = tenant_month_rows(Span(to_ms(period.starts_at), end_ms), zone, tenants)
    with connection.cursor() as cursor:
        cursor.execute(computing.DELETE_TENANT_MONTHS, {"month": period.month, "tenants": tenants})
        with cursor.copy(_INTO) as copy:
            for tenant, (amounts, held) in sorted(rows.items()):
                copy.write_row((period.month, tenant, *amounts, *held))
    return len(rows)


def tenant_month_rows(
    window: Span, zone: str, tenants: Collection[int] | None
) -> dict[int, tuple[DayList, DayList]]:
    """Tenant -> its amounts and its GPU time held, as what is added up by day and the rate cards give them."""
    figures = daily_figures(window, zone, price_segments(window), tenants)
    return {
        tenant: (_list(amounts), _list(figures.gpu_us.get(tenant, {})))
        for tenant, amounts in figures.amount.items()
    }


def kept_tenant_months(period: Period) -> dict[int, tuple[DayList, DayList]]:
    """The same as it is kept. One query."""
    rows = TenantMonth.objects.filter(period=period)
    return {
        row.tenant_id: ((row.amounts_from, bytes(row.amounts)), (row.held_from, bytes(row.held)))
        for row in rows
    }


def _tenants_of(accounts: Collection[int]) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(computing.TENANTS_OF_ACCOUNTS, {"accounts": sorted(accounts)})
        return [tenant for (tenant,) in cursor.fetchall()]


def _list(days: Days) -> DayList:
    if not days:
        return NO_DAYS[0]
    first = min(days)
    figures = np.zeros((max(days) - first).days + 1, ">i8")
    for day, value in days.items():
        figures[(day - first).days] = value
    return first, figures.tobytes()
