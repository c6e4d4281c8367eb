"""A month as it was known at an instant: computed again from what had been committed by then, posting nothing.

domain.md section 10: all facts and master versions committed by T, with horizon min(T, the month's end).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from typing import Any

import psycopg
from django.db import connection, transaction
from django.db.models import Max

from billing.services.months import compute_month
from billing.sql import as_of as statements
from ledger.core.periods import Month, to_datetime
from ledger.models import Booking, Period
from ledger.selectors.corrections import void_facts
from ledger.selectors.settings import ledger_settings


class RequestsGone(ValueError):
    """Requests that would tell what was known were archived and dropped."""

    def __init__(self, day: date) -> None:
        self.day = day
        super().__init__(
            f"the raw requests of {day.isoformat()} are pruned, and some of them, or a correction, came later than"
            " that: what was known of the month's usage cannot be told any more"
        )


@contextmanager
def month_as_of(month: Month, instant: datetime, cut: int | None = None) -> Iterator[Period]:
    """While this lasts, reads of the month's books give what the ledger knew at `instant`; then all is as before.

    cut: the last booking that was known, where the instant itself does not tell (that of a close). The rows live in
    tables of this session alone. Costs what computing the whole month costs, and waits for whoever computes now.

    Raises:
        RequestsGone: usage as it was known cannot be summed any more.
    """
    span = month.span(ledger_settings().billing_time_zone)
    if cut is None:
        cut = Booking.objects.filter(booked_at__lte=instant).aggregate(last=Max("sequence"))["last"] or 0
    values = {
        "at": instant,
        "cut": cut,
        "month": str(month),
        "from": to_datetime(span.start_ms),
        "to": to_datetime(span.end_ms),
    }
    with _taken_back():
        _shadow(values)
        compute_month(month, horizon=min(instant, to_datetime(span.end_ms)), everything=True)
        yield Period.objects.get(month=str(month))


@contextmanager
def _taken_back() -> Iterator[None]:
    """One view of the facts, and nothing that is done here stays."""
    nested = connection.in_atomic_block
    with transaction.atomic():
        if not nested:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        point = transaction.savepoint()
        try:
            yield
        finally:
            transaction.savepoint_rollback(point)


def _shadow(values: dict[str, Any]) -> None:
    with connection.cursor() as cursor:
        for statement in (*_single(statements.LATE), *statements.FACTS, *_single(statements.SUBJECTS)):
            cursor.execute(_bound(statement, values))
        cursor.execute(statements.USAGE_TOUCHED, values)
        touched = cursor.fetchone()[0]
        cursor.execute(statements.USAGE_GONE, values | {"touched": touched})
        gone = cursor.fetchone()[0]
        if gone is not None:
            raise RequestsGone(gone)
        for statement in (*_single(statements.MAPPINGS), *statements.TERMS, *statements.WRITTEN):
            cursor.execute(_bound(statement, values))
        for statement in _single(statements.MONTH):
            cursor.execute(_bound(statement, values))
    if touched:
        values = values | void_facts().parameters()
    usage = _single(statements.USAGE_SUMMED) if touched else [statements.USAGE_KEPT]
    with connection.cursor() as cursor:
        for statement in usage:
            cursor.execute(_bound(statement, values))


def _single(statements: str) -> list[str]:
    return [statement for statement in statements.split(";") if statement.strip()]


def _bound(statement: str, values: dict[str, Any]) -> str:
    """With its values written out as literals: definitions of views and tables take no parameters."""
    if "%(" not in statement:
        return statement
    return psycopg.ClientCursor(connection.connection).mogrify(statement, values)
