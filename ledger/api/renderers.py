"""JSON, and `?format=csv` on every list: the same rows, RFC 4180, spreadsheet formulas defused (`&excel=1`: for
spreadsheets). An instant is the same text in both, and in every file of the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.utils.encoders import JSONEncoder

from ledger.core.csv_stream import csv_pieces
from ledger.core.instants import instant_text


class LedgerEncoder(JSONEncoder):
    """Instants as in files."""

    def default(self, obj: Any) -> Any:
        return instant_text(obj) if isinstance(obj, datetime) else super().default(obj)


class JsonRenderer(JSONRenderer):
    encoder_class = LedgerEncoder


class CsvRenderer(BaseRenderer):
    """Rows as CSV: a page where one was asked for, its neighbours in the `Link` header; else the whole list."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        rows = data.get("results", [data]) if isinstance(data, dict) else data
        if isinstance(rows, dict):
            rows = [rows]
        # A list's view knows its columns without any row.
        shown_columns = getattr((renderer_context or {}).get("view"), "shown_columns", list)
        columns = list(rows[0]) if rows else shown_columns()
        if not columns:
            return b""
        request = (renderer_context or {}).get("request")
        headings = headings_of(columns) if request is not None and is_for_spreadsheets(request) else None
        return b"".join(csv_pieces(columns, csv_rows(columns, rows), headings=headings))


def csv_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """The cells of each row; what is a structure in JSON is its JSON text in a cell."""
    return ([_flat(row[column]) for column in columns] for row in rows)


def headings_of(columns: Sequence[str]) -> list[str]:
    """In the reader's language."""
    return [gettext(column.replace("_", " ")) for column in columns]


def is_for_spreadsheets(request: Request) -> bool:
    """`?excel=1`."""
    return request.query_params.get("excel") == "1"


def _flat(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=_plain)
    return instant_text(value) if isinstance(value, datetime) else value


def _plain(value: Any) -> str:
    """Instants inside of a cell, as they stand outside of one."""
    return instant_text(value) if isinstance(value, datetime) else str(value)
