"""A psycopg cursor on Django's connection that binds on the server, so that bytes travel as bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, cast

from django.db import connection
from psycopg import Connection, Copy, Cursor, Error, errors
from psycopg.copy import LibpqWriter

Settled = Callable[[bool], None]
"""Told whether all rows went in; False if the primary key objected, and then none of them is in the table."""

# What the driver may hold back for the server before it waits: a whole block, so that a COPY never waits for its rows.
_UNSENT_BYTES = 64 * 1024 * 1024


class BookingCursor(Cursor[Any]):
    """A cursor that can leave one COPY open, so that PostgreSQL takes in rows while Python makes the next ones.

    Whatever else is executed first settles the open COPY; nobody needs to know that there is one.
    """

    _open: tuple[AbstractContextManager[Copy], Settled] | None = None

    def execute(self, *arguments: Any, **options: Any) -> BookingCursor:
        self.settle()
        super().execute(*arguments, **options)
        return self

    def copy(self, *arguments: Any, **options: Any) -> Any:
        self.settle()
        return super().copy(*arguments, **options)

    def begin_copy(self, statement: str, rows: bytes, settled: Settled) -> None:
        """Start to copy, in a savepoint; `settled` is called when the outcome is known."""
        self.execute("SAVEPOINT open_copy")
        manager = super().copy(statement, writer=LibpqWriter(self, flush_threshold=_UNSENT_BYTES))
        manager.__enter__().write(rows)
        self._open = manager, settled

    def settle(self) -> None:
        """End the open COPY, if there is one, and tell its outcome; and so on, if that began another one."""
        while self._open is not None:
            (manager, settled), self._open = self._open, None
            settled(self._is_all_new(manager))

    def _is_all_new(self, manager: AbstractContextManager[Copy]) -> bool:
        try:
            manager.__exit__(None, None, None)
        except errors.UniqueViolation:
            self.execute("ROLLBACK TO SAVEPOINT open_copy")
            return False
        self.execute("RELEASE SAVEPOINT open_copy")
        return True

    def close(self) -> None:
        """Also gives up an open COPY, so that its transaction can be rolled back."""
        if self._open is not None:
            (manager, _), self._open = self._open, None
            with suppress(Error):
                manager.__exit__(RuntimeError, RuntimeError("the booking was given up"), None)
        super().close()


def raw_cursor() -> Cursor[Any]:
    """Works inside Django's transactions."""
    connection.ensure_connection()
    return Cursor(cast("Connection[Any]", connection.connection))


def booking_cursor() -> BookingCursor:
    """As `raw_cursor`, with an open COPY."""
    connection.ensure_connection()
    return BookingCursor(cast("Connection[Any]", connection.connection))
