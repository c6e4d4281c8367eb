"""Past the guards of the database, as its owner could go: no superuser is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def unguarded(table: str) -> Iterator[None]:
    """The table without its append-only triggers. Inside of a transaction."""
    with connection.cursor() as cursor:
        # A table with checks still to come cannot be altered.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    yield
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
