"""A psycopg cursor on Django's connection that binds on the server, so that bytes travel as bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

from django.db import connection
from psycopg import Connection, Copy, Cursor, Error, errors
from psycopg.copy import LibpqWriter

from ingest.core.binary_rows import SIGNATURE, TRAILER

Settled = Callable[[bool], None]
"""Told whether all rows went in; False if the primary key objected, and then none of them is in the table."""

Answered = Callable[[list[Any]], None]

# What the driver may hold back for the server before it waits: whole blocks, so that a COPY never waits for its rows.
_UNSENT_BYTES = 64 * 1024 * 1024
# Blocks that one COPY takes: with every new one somebody waits until PostgreSQL is through with the one before.
_MOST_BLOCKS = 8


@dataclass(slots=True)
class _OpenCopy:
    """A COPY under way, and for each of its blocks whom to tell the outcome."""

    statement: str
    manager: AbstractContextManager[Copy]
    copy: Copy
    waiting: list[Settled] = field(default_factory=list)

    def takes(self, statement: str) -> bool:
        return statement == self.statement and len(self.waiting) < _MOST_BLOCKS

    def add(self, rows: bytes, settled: Settled) -> None:
        self.copy.write(rows)
        self.waiting.append(settled)


@dataclass(slots=True)
class _OpenQuery:
    manager: AbstractContextManager[Any]
    answered: Answered


class BookingCursor(Cursor[Any]):
    """A cursor that can leave one COPY or query open, so that PostgreSQL works while Python makes the next rows.

    Whatever else is executed first settles what is open; nobody needs to know that there is something.
    """

    _open: _OpenCopy | _OpenQuery | None = None

    def execute(self, *arguments: Any, **options: Any) -> BookingCursor:
        self.settle()
        super().execute(*arguments, **options)
        return self

    def copy(self, *arguments: Any, **options: Any) -> Any:
        self.settle()
        return super().copy(*arguments, **options)

    def begin_copy(self, statement: str, rows: bytes, settled: Settled) -> None:
        """Start to copy a block of binary rows, in a savepoint; `settled` is called when the outcome is known.

        A COPY of the same columns that is open takes some more blocks; the outcome is then that of all of them.
        """
        if not isinstance(self._open, _OpenCopy) or not self._open.takes(statement):
            self.execute("SAVEPOINT open_copy")
            manager = super().copy(statement, writer=LibpqWriter(self, flush_threshold=_UNSENT_BYTES))
            self._open = _OpenCopy(statement, manager, manager.__enter__())
            self._open.copy.write(SIGNATURE)
        self._open.add(rows, settled)

    def begin_query(self, statement: str, parameters: dict[str, Any], answered: Answered) -> None:
        """Start a query; `answered` is called with its rows when they are needed."""
        self.settle()
        pipeline = self.connection.pipeline()
        pipeline.__enter__()
        super().execute(statement, parameters, binary=True)
        self._open = _OpenQuery(pipeline, answered)

    def settle(self) -> None:
        """End what is open, if anything is, and tell its outcome; and so on, if that began something else."""
        while self._open is not None:
            ended, self._open = self._open, None
            if isinstance(ended, _OpenCopy):
                is_all_new = self._is_all_new(ended)
                for settled in ended.waiting:
                    settled(is_all_new)
            else:
                ended.answered(self._rows_of(ended))

    def _is_all_new(self, ended: _OpenCopy) -> bool:
        try:
            ended.copy.write(TRAILER)
            ended.manager.__exit__(None, None, None)
        except errors.UniqueViolation:
            self.execute("ROLLBACK TO SAVEPOINT open_copy")
            return False
        self.execute("RELEASE SAVEPOINT open_copy")
        return True

    def _rows_of(self, ended: _OpenQuery) -> list[Any]:
        try:
            return self.fetchall()
        finally:
            ended.manager.__exit__(*sys.exc_info())

    def close(self) -> None:
        """Also gives up what is open, so that its transaction can be rolled back."""
        if self._open is not None:
            given_up, self._open = self._open, None
            with suppress(Error):
                given_up.manager.__exit__(RuntimeError, RuntimeError("the booking was given up"), None)
        super().close()


def raw_cursor() -> Cursor[Any]:
    """Works inside Django's transactions."""
    connection.ensure_connection()
    return Cursor(cast("Connection[Any]", connection.connection))


def booking_cursor() -> BookingCursor:
    """As `raw_cursor`, with an open COPY."""
    connection.ensure_connection()
    return BookingCursor(cast("Connection[Any]", connection.connection))
