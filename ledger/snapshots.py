"""Files that are read over a while, and are of one instant."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.db import connection, transaction


def in_snapshot(pieces: Callable[[], Iterator[bytes]], *, read_only: bool = True) -> Iterator[bytes]:
    """All of a file is of one instant, even if what it shows is computed again while it streams.

    Within a surrounding transaction that transaction has to do. Temporary tables need one that is not read-only.
    """
    if connection.in_atomic_block:
        yield from pieces()
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if read_only:
                cursor.execute("SET TRANSACTION READ ONLY")
        yield from pieces()
