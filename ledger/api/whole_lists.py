"""A list as one CSV file (interfaces.md, Conventions): all of its rows, however many, in constant memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any
from wsgiref.util import FileWrapper

from django.db import connection
from django.db.models import Model, QuerySet
from django.db.models.expressions import RawSQL
from django.http import StreamingHttpResponse
from rest_framework.request import Request

from ledger.api import keyset
from ledger.api.problems import Problem
from ledger.api.renderers import csv_rows, headings_of
from ledger.core.csv_stream import csv_pieces
from ledger.snapshots import in_snapshot

# Rows read at a time; a list that ends within the first of them is an ordinary answer with its ETag.
ROWS_AT_ONCE = 2_000
# What has to be computed for a question is computed anew for every piece of it.
COMPUTED_AT_ONCE = 20_000
MAX_COMPUTED = 200_000
_SENT_AT_ONCE = 2**16

Fetch = Callable[[int, int], Sequence[Any]]


@dataclass(frozen=True)
class Streamed:
    """The body of an answer that is made while it is sent."""

    pieces: Iterable[bytes]
    etag: str = ""

    def response(self) -> StreamingHttpResponse:
        headers = {"ETag": self.etag} if self.etag else {}
        return StreamingHttpResponse(self.pieces, content_type="text/csv; charset=utf-8", headers=headers)

    def made(self) -> Streamed:
        """Made now, into a file that nobody else sees and that is gone when it has been sent."""
        file, digest = TemporaryFile(), hashlib.sha256()  # noqa: SIM115 (the answer closes it)
        for piece in self.pieces:
            file.write(piece)
            digest.update(piece)
        file.seek(0)
        return Streamed(FileWrapper(file, _SENT_AT_ONCE), f'"{digest.hexdigest()}"')


def is_wanted(request: Request) -> bool:
    """CSV that asks for no page is the whole list."""
    return request.accepted_renderer.format == "csv" and not (
        request.query_params.keys() & {"cursor", "page_size"}
    )


def tag_of(rows: QuerySet[Any], also: Collection[type[Model]], said: object) -> str:
    """A weak ETag of all these rows and of whatever stands in the tables `also`, known without reading any of it.

    PostgreSQL writes every change of a row in another place or by another transaction, and both together name what
    it holds; so a tag may change where nothing that shows does, but not the other way. said: what else the answer
    depends on. One query, over the rows that the list is made of and those of small tables.
    """
    counted = rows.order_by().select_related(None).prefetch_related(None)
    parts = [_placed(counted), *(_placed(model._default_manager.all()) for model in also)]
    with connection.cursor() as cursor:
        texts, values = zip(*(part.query.sql_with_params() for part in parts), strict=True)
        asked = " UNION ALL ".join(
            f"SELECT {number}, count(*), sum(hashtextextended(placed, 0)) FROM ({text}) AS part(placed)"
            for number, text in enumerate(texts)
        )
        cursor.execute(f"{asked} ORDER BY 1", [value for one in values for value in one])
        found = cursor.fetchall()
    return f'W/"{hashlib.sha256(repr((found, said)).encode()).hexdigest()}"'


def _placed(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Of each row its place and the transaction that wrote it."""
    table = connection.ops.quote_name(rows.model._meta.db_table)
    system = RawSQL(f"concat_ws(' ', {table}.tableoid, {table}.ctid, {table}.xmin)", ())
    return rows.annotate(placed=system).values_list("placed", flat=True)


def file_of(
    rows: Callable[[], Iterable[dict[str, Any]]], columns: Sequence[str], *, excel: bool, etag: str = ""
) -> Streamed:
    """Of one instant. Headings are in the reader's language, so they are made before anything is sent."""
    headings = headings_of(columns) if excel else None
    return Streamed(
        in_snapshot(
            lambda: csv_pieces(columns, csv_rows(columns, rows()), headings=headings), read_only=False
        ),
        etag,
    )


def stored(rows: QuerySet[Any]) -> Iterator[Any]:
    """The rows of a list that keyset cursors suit, read some at a time."""
    place = None
    while found := keyset.page_at(rows, place, ROWS_AT_ONCE):
        yield from found
        if len(found) < ROWS_AT_ONCE:
            return
        place = keyset.place_after(rows, found[-1])


def computed(fetch: Fetch) -> Iterator[Any]:
    """All that `fetch(offset, limit)` gives. Raises Problem where that is more than MAX_COMPUTED rows: no file may
    look whole that is not."""
    for offset in range(0, MAX_COMPUTED + 1, COMPUTED_AT_ONCE):
        found = fetch(offset, COMPUTED_AT_ONCE if offset < MAX_COMPUTED else 1)
        if offset == MAX_COMPUTED and found:
            detail = (
                f"More than {MAX_COMPUTED} rows are not one file: ask for less, or for pages with page_size."
            )
            raise Problem(422, "too_many_rows", detail, parameter="page_size")
        yield from found
        if len(found) < COMPUTED_AT_ONCE:
            return
