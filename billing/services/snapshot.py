"""One long computation on one view of the facts, while facts go on arriving."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, connection, transaction

from ledger.locks import Lock, acquire, try_acquire

T = TypeVar("T")
_TRIES = 50
_SERIALIZATION_FAILURE = "40001"


def in_snapshot(lock: Lock, work: Callable[[], T]) -> T:
    """Run `work` in one transaction that sees the facts of one instant, alone under `lock`.

    A computation reads dirty time, facts and requests in several statements and then takes the dirty time away.
    Facts committed in between must not be taken for computed, so all statements share a snapshot. Inside a
    surrounding transaction there is nothing to start, and the lock alone is taken.
    """
    if connection.in_atomic_block:
        acquire(lock)
        return work()
    for _ in range(_TRIES):
        with transaction.atomic():
            acquire(lock)  # waits for whoever computes now; the snapshot must begin after that
        try:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                if try_acquire(lock):
                    return work()
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != _SERIALIZATION_FAILURE:
                raise
    raise OperationalError("the books are being computed elsewhere; try again")
