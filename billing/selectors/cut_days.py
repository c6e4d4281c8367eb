"""Days whose raw requests are still needed because a slot begins or ends inside an hour there."""

from __future__ import annotations

from datetime import date

from django.db import connection

from billing.sql.computing import DAYS_OF_CUT_SLOTS


def days_of_cut_slots() -> set[date]:
    """UTC days that `USAGE_OF_SLOT` would read for the slots there are. One query.

    The roll-up knows whole hours only.
    """
    with connection.cursor() as cursor:
        cursor.execute(DAYS_OF_CUT_SLOTS)
        return {day for (day,) in cursor.fetchall()}
