"""A psycopg cursor on Django's connection that binds on the server, so that bytes travel as bytes."""

from __future__ import annotations

from typing import Any, cast

from django.db import connection
from psycopg import Connection, Cursor


def raw_cursor() -> Cursor[Any]:
    """Works inside Django's transactions; may be used by another thread while this one leaves it alone."""
    connection.ensure_connection()
    return Cursor(cast("Connection[Any]", connection.connection))
