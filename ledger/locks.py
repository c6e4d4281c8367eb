"""Advisory locks: every key in one list, so that two purposes never share one by accident."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

# The first of the two keys PostgreSQL takes: keeps ours apart from anyone else's in the same database.
NAMESPACE = 0x1ED6E2
# Keys of clusters, by hash of their names: bookings of one cluster's work take turns at their end.
CLUSTERS = 0x1ED6E3


@enum.unique  # a second name of a number would be the same lock
class Lock(enum.IntEnum):
    """What is serialised. Where several are taken, in this order."""

    TABLES = 7  # migrations; held by a session and not by a transaction
    VERIFICATION = 8  # one verification of the books at a time; held by a session and not by a transaction
    EFFECTS = 10  # one worker on previews of changed terms; held by a session and not by a transaction
    COMPUTE = 1  # one computation, close or preview of the books at a time
    MASTERS = 2  # changes of masters and terms, and asking for them
    PARTITIONS = 3  # creating or dropping request partitions
    CORRECTIONS = (
        5  # shared by bookings of requests, exclusive to bookings of corrections: neither misses the other
    )
    QUOTAS = 9  # bookings of quotas: each sees what the others brought
    ALERTS = 6  # one evaluation of the alert rules at a time
    BOOKING_SEQUENCE = 4  # the last statement of a booking: its place in commit order


class LockOutsideTransaction(RuntimeError):
    """An advisory transaction lock was asked for where no transaction would hold it."""


def acquire(lock: Lock, *, using: str = "default") -> None:
    """Wait for `lock`; it is held until the surrounding transaction ends."""
    _refuse_outside_transaction(using)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [NAMESPACE, int(lock)])


def try_acquire(lock: Lock, *, using: str = "default") -> bool:
    """Take `lock` if it is free; False if somebody else holds it."""
    _refuse_outside_transaction(using)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, %s)", [NAMESPACE, int(lock)])
        return bool(cursor.fetchone()[0])


@contextmanager
def held_by_session(lock: Lock) -> Iterator[bool]:
    """Hold `lock` over several transactions if it is free; False, and nothing held, if somebody else has it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [NAMESPACE, int(lock)])
        is_held = bool(cursor.fetchone()[0])
    try:
        yield is_held
    finally:
        if is_held:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [NAMESPACE, int(lock)])


def _refuse_outside_transaction(using: str) -> None:
    if not transaction.get_connection(using).in_atomic_block:
        raise LockOutsideTransaction("take advisory locks inside transaction.atomic()")
