"""Rows of fixed width between PostgreSQL and numpy in binary format: no row passes through Python.

Rows are written by COPY. A row on the wire is a 16-bit number of fields, then for each field a 32-bit length and its
bytes, all big-endian. With columns of fixed width and without nulls every row has the same size, so all of them are
one structured array. COPY hands rows out one at a time, so they are read as one array per column instead: a header,
then for each element the same length and bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from django.db import connection
from numpy.typing import NDArray
from psycopg import Connection, Cursor, pq
from psycopg.abc import Loader

from ledger.core.units import INT64_MAX

_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
_ARRAY_HEADER = (
    20  # number of dimensions, whether any element is null, type, length, first index: 32 bits each
)
_TYPES = {"bigint": ">i8", "integer": ">i4", "smallint": ">i2", "boolean": "u1", "timestamptz": ">i8"}

# PostgreSQL counts microseconds from 2000-01-01; 'infinity' is the greatest number.
_EPOCH_2000_MS = 946_684_800_000


def read_rows(query: str, columns: Mapping[str, str], params: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The query's rows as one array per column: int64 (milliseconds for timestamptz, of which `infinity` becomes
    NEVER), bool for boolean, objects of str for text.

    columns: name -> type of every column of the query, in order; none may be null.
    """
    (rows,) = read_tables("", [(query, columns)], params)
    return rows


def read_tables(
    common: str, tables: Sequence[tuple[str, Mapping[str, str]]], params: dict[str, Any]
) -> list[dict[str, NDArray[Any]]]:
    """The rows of several queries over one snapshot, each as `read_rows` gives them. common: a WITH clause that all of
    them may read."""
    parts = []
    for number, (query, columns) in enumerate(tables):
        places = [f"column_{place}" for place in range(len(columns))]
        arrays = ", ".join(f"array_agg({place})" for place in places)
        parts.append(f"(SELECT {arrays} FROM ({query}) AS rows ({', '.join(places)})) AS table_{number}")
    connection.ensure_connection()
    raw = cast("Connection[Any]", connection.connection)
    # Binary results need parameters bound by the server. Never prepared: a plan fits the span it is for.
    with Cursor(raw) as cursor:
        cursor.execute(f"{common} SELECT * FROM {', '.join(parts)}", params, binary=True, prepare=False)
        result = cursor.pgresult
        count = sum(len(columns) for _, columns in tables)
        values = iter([None if result is None else result.get_value(0, place) for place in range(count)])
    return [
        {name: _column(next(values), kind, raw) for name, kind in columns.items()} for _, columns in tables
    ]


def _column(value: bytes | None, kind: str, raw: Connection[Any]) -> NDArray[Any]:
    """A column of what array_agg made of it: NULL of no rows."""
    if kind != "text":
        return _decoded(_elements(value, kind), kind)
    texts = np.empty(0 if value is None else int.from_bytes(value[12:16]), object)
    if value is not None:
        texts[:] = _text_arrays(raw).load(value)
    return texts


def _text_arrays(raw: Connection[Any]) -> Loader:
    oid = raw.adapters.types["text"].array_oid
    loader = raw.adapters.get_loader(oid, pq.Format.BINARY)
    assert loader is not None
    return loader(oid, raw)


def _elements(value: bytes | None, kind: str) -> NDArray[Any]:
    """The elements of a one-dimensional array; NULL is what array_agg makes of no rows."""
    element = np.dtype([("size", ">i4"), ("value", _TYPES[kind])])
    elements: NDArray[Any] = np.frombuffer(value or b"", element, offset=_ARRAY_HEADER if value else 0)
    return elements["value"]


def _decoded(values: NDArray[Any], kind: str) -> NDArray[Any]:
    if kind == "boolean":
        return values.astype(bool)
    numbers = values.astype(np.int64)
    if kind == "timestamptz":
        return np.where(numbers == INT64_MAX, INT64_MAX, numbers // 1000 + _EPOCH_2000_MS)
    return numbers


def write_rows(table: str, columns: Mapping[str, tuple[str, NDArray[Any]]]) -> int:
    """Append rows to `table`; columns: name -> (type, values), timestamptz in milliseconds. Returns their number."""
    dtype = _row_type({name: kind for name, (kind, _) in columns.items()})
    rows = np.zeros(len(next(iter(columns.values()))[1]), dtype)
    rows["fields"] = len(columns)
    for name, (kind, values) in columns.items():
        rows[f"{name} size"] = dtype[name].itemsize
        rows[name] = (values - _EPOCH_2000_MS) * 1000 if kind == "timestamptz" else values
    names = ", ".join(columns)
    with connection.cursor() as wrapped:
        cursor = cast("Cursor[Any]", wrapped.cursor)
        with cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT binary)") as copy:
            copy.write(_SIGNATURE)
            copy.write(rows.tobytes())
            copy.write(_TRAILER)
    return len(rows)


def _row_type(columns: Mapping[str, str]) -> np.dtype[Any]:
    fields: list[tuple[str, str]] = [("fields", ">i2")]
    for name, kind in columns.items():
        fields += [(f"{name} size", ">i4"), (name, _TYPES[kind])]
    return np.dtype(fields)
