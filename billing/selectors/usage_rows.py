"""`usage.csv`: one row per slot, pool, service and category of a tenant's month, in exact GPU-microseconds."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connection, transaction

from billing.sql_reports import USAGE_ROWS
from ledger.core.instants import instant_text
from ledger.core.units import fixed_decimal, gpu_hours_text, round_half_even
from ledger.models import Period, Tenant

COLUMNS = (
    "hour",
    "tenant",
    "pool",
    "gpu_model",
    "service",
    "category",
    "gpu_us",
    "gpu_hours",
    "share_of_capacity",
)
SHARE_PLACES = 6
_FETCH = 2000


def usage_rows(tenant: Tenant, period: Period) -> Iterator[tuple[object, ...]]:
    """Rows in the order of slot, pool, service, category; read through a server-side cursor."""
    parameters = {"tenant": tenant.pk, "from": period.starts_at, "to": period.ends_at}
    with transaction.atomic(), connection.chunked_cursor() as cursor:
        cursor.execute(USAGE_ROWS, parameters)
        while found := cursor.fetchmany(_FETCH):
            for starts_at, pool, gpu_model, service, category, gpu_us, capacity_gpu_us in found:
                yield (
                    instant_text(starts_at),
                    tenant.slug,
                    pool,
                    gpu_model,
                    service,
                    category,
                    int(gpu_us),
                    gpu_hours_text(int(gpu_us)),
                    share_text(int(gpu_us), capacity_gpu_us),
                )


def share_text(gpu_us: int, capacity_gpu_us: int | None) -> str:
    """Share of capacity as a decimal of 6 places; empty where there was no capacity."""
    if not capacity_gpu_us:
        return ""
    return fixed_decimal(round_half_even(gpu_us * 10**SHARE_PLACES, int(capacity_gpu_us)), SHARE_PLACES)
