"""A psycopg cursor on Django's connection that binds on the server, so that bytes travel as bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, cast

from django.db import connection
from psycopg import Connection, Cursor, Error, errors
from psycopg.copy import LibpqWriter

Settled = Callable[[bool], None]
"""Told whether all rows went in; False if the primary key objected, and then none of them is in the table."""

Answered = Callable[[list[Any]], None]

_Open = tuple[AbstractContextManager[Any], Callable[[], None]]
"""What to leave, and how to end it in an orderly way."""

# What the driver may hold back for the server before it waits: a whole block, so that a COPY never waits for its rows.
_UNSENT_BYTES = 64 * 1024 * 1024


class BookingCursor(Cursor[Any]):
    """A cursor that can leave one COPY or query open, so that PostgreSQL works while Python makes the next rows.

    Whatever else is executed first settles what is open; nobody needs to know that there is something.
    """

    _open: _Open | None = None

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
        self._open = manager, lambda: settled(self._is_all_new(manager))

    def begin_query(self, statement: str, parameters: dict[str, Any], answered: Answered) -> None:
        """Start a query; `answered` is called with its rows when they are needed."""
        self.settle()
        pipeline = self.connection.pipeline()
        pipeline.__enter__()
        super().execute(statement, parameters, binary=True)

        def end() -> None:
            try:
                rows = self.fetchall()
            finally:
                pipeline.__exit__(*sys.exc_info())
            answered(rows)

        self._open = pipeline, end

    def settle(self) -> None:
        """End what is open, if anything is, and tell its outcome; and so on, if that began something else."""
        while self._open is not None:
            (_, end), self._open = self._open, None
            end()

    def _is_all_new(self, manager: AbstractContextManager[Any]) -> bool:
        try:
            manager.__exit__(None, None, None)
        except errors.UniqueViolation:
            self.execute("ROLLBACK TO SAVEPOINT open_copy")
            return False
        self.execute("RELEASE SAVEPOINT open_copy")
        return True

    def close(self) -> None:
        """Also gives up what is open, so that its transaction can be rolled back."""
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
