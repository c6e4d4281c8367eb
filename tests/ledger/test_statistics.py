"""A bulk import followed at once by a computation is planned on what the tables hold now."""

from __future__ import annotations

import pytest
from django.db import connection

from ledger.models import Booking, DirtySpan, Pool
from ledger.services.statistics import refresh_statistics
from tests.billing.level_facts import hour, make_pool

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


def planned_rows() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reltuples FROM pg_class WHERE relname = 'ledger_dirtyspan'")
        return int(cursor.fetchone()[0])


def fill(pool: Pool, count: int) -> None:
    span = (hour(0), hour(1))
    DirtySpan.objects.bulk_create(DirtySpan(pool=pool, span=span) for _ in range(count))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT 1")


def test_only_tables_that_changed_a_lot_are_analysed() -> None:
    pool = make_pool()
    fill(pool, 1500)
    assert "ledger_dirtyspan" in refresh_statistics()
    assert planned_rows() == 1500
    fill(pool, 10)
    assert "ledger_dirtyspan" not in refresh_statistics()
    assert not Booking.objects.exists()
