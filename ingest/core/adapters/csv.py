"""`csv`: any table with a column map -> events of one type (events.md, "Sources").

options: `type` (such as `request`), `columns` {field of the event: column}, `constants` {field: value},
`time_format` (`rfc3339`, `local`, `unix`, `unix_ms`), `delimiter`, `id_columns`. The fields `id` and `time` are the
event's own, all others its data; `victim.workload` names a field inside another. An empty cell is absent, not 0.
"""

from __future__ import annotations

import copy
import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ingest.core.adapters.base import (
    Event,
    Outcome,
    Refusal,
    SourceConfig,
    State,
    event,
    instant_ms,
    rfc3339,
    unix_seconds_ms,
    whole,
)
from ingest.core.adapters.native import native_ms, needed, text_of

_INSTANTS = frozenset(
    {
        "started_at",
        "queued_at",
        "starts_at",
        "ends_at",
        "admitted_at",
        "released_at",
        "last_checkpoint_at",
    }
)
_BOOLEANS = {"true": True, "false": False}
_BOOLEAN_FIELDS = frozenset({"lendable", "queued_only"})


@dataclass(frozen=True, slots=True)
class _Table:
    """The options, read once."""

    event_type: str
    columns: Mapping[str, str]
    constants: Mapping[str, Any]
    id_columns: tuple[str, ...]
    time_format: str
    delimiter: str


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Rows under a header line. A row is one line: a quote left open can never swallow the rows behind it.

    Under a header that lacks a column every row is refused, with the header, so that all of them can be tried again
    once the source's table was mended.

    Raises `ValueError` if the options make no sense (a configuration error, not a bad record).
    """
    table = _table(source)
    kept: State = {} if state is None else state
    written: str | None = kept.get("header")
    header = None if written is None else _cells_or_none(written.encode(), table)
    for position, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            cells = _cells(line, table)
            # A header that lacks a column may be followed by one that does not: that of the next, mended file.
            if header is None or (_missing(header, table) and not _missing(cells, table)):
                header = cells
                kept["header"] = written = line.decode("utf-8-sig").rstrip("\r\n")
                _check_header(header, table)
            elif cells != header:  # the next file of the same source begins with it again
                _check_header(header, table)
                yield _event(cells, header, table, source)
        except Refusal as refusal:
            if header is None:
                yield refusal.at(position, line)
                return
            # A row means nothing without its header, and a retry has to find it.
            is_header = header == _cells_or_none(line, table)
            yield refusal.at(position, line if is_header else f"{written}\n".encode() + line)


def _cells_or_none(line: bytes, table: _Table) -> list[str] | None:
    try:
        return _cells(line, table)
    except Refusal:
        return None


def _table(source: SourceConfig) -> _Table:
    columns = source.option("columns", {})
    id_columns = tuple(source.option("id_columns", []) or filter(None, [columns.get("id")]))
    table = _Table(
        event_type=source.option("type", "request"),
        columns=columns,
        constants=source.option("constants", {}),
        id_columns=id_columns,
        time_format=source.option("time_format", "rfc3339"),
        delimiter=source.option("delimiter", ","),
    )
    if not id_columns or "time" not in columns:
        raise ValueError(
            f"source {source.name!r}: options.columns needs `time`, and `id` or options.id_columns"
        )
    if table.time_format not in ("rfc3339", "local", "unix", "unix_ms"):
        raise ValueError(f"source {source.name!r}: options.time_format {table.time_format!r} is not known")
    return table


def _cells(line: bytes, table: _Table) -> list[str]:
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
        (cells,) = csv.reader([text], delimiter=table.delimiter, strict=True)
    except UnicodeDecodeError as error:
        raise Refusal("bad_record", f"not UTF-8: {error.reason}") from error
    except (csv.Error, ValueError) as error:
        raise Refusal("bad_record", f"not a row of this table: {error}") from error
    return cells


def _missing(header: list[str], table: _Table) -> list[str]:
    return sorted({*table.columns.values(), *table.id_columns} - set(header))


def _check_header(header: list[str], table: _Table) -> None:
    missing = _missing(header, table)
    if missing:
        raise Refusal("bad_record", f"the header has no column {', '.join(missing)}")


def _event(cells: list[str], header: list[str], table: _Table, source: SourceConfig) -> Event:
    if len(cells) != len(header):
        raise Refusal("bad_record", f"{len(cells)} cells under {len(header)} columns")
    row = dict(zip(header, cells, strict=True))
    data: dict[str, Any] = {}
    for field, value in table.constants.items():
        _put(data, field, copy.deepcopy(value))
    for field, column in table.columns.items():
        text = row[column].strip()
        if text and field not in ("id", "time"):
            _put(data, field, _value(field, text, table, source))
    if "pool" not in data or source.pools:
        data["pool"] = source.pool_for(text_of(data.get("pool")), text_of(data.get("model")))
    parts = [needed(text_of(row[column]), f"value in {column}") for column in table.id_columns]
    time_ms = _instant(row[table.columns["time"]].strip(), table, source)
    return event(source, "/".join(parts), table.event_type, time_ms, data)


def _value(field: str, text: str, table: _Table, source: SourceConfig) -> Any:
    name = field.rpartition(".")[2]
    if name in _INSTANTS:
        return rfc3339(_instant(text, table, source))
    if name in _BOOLEAN_FIELDS:
        if text.lower() not in _BOOLEANS:
            raise Refusal("bad_record", f"{field} is {text!r}, neither true nor false")
        return _BOOLEANS[text.lower()]
    return text


def _put(data: dict[str, Any], field: str, value: Any) -> None:
    *path, name = field.split(".")
    for step in path:
        data = data.setdefault(step, {})
    data[name] = value


def _instant(text: str, table: _Table, source: SourceConfig) -> int:
    if table.time_format == "unix":
        return unix_seconds_ms(text)
    if table.time_format == "unix_ms":
        return whole(text)
    return instant_ms(text) if table.time_format == "rfc3339" else native_ms(text, source)
