"""Cursors that name the row a page ended with (interfaces.md, Conventions): a deep page costs what the first one does,
and rows that come in meanwhile neither repeat nor hide any."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Field, Q, QuerySet

MARK = "k:"
LONGEST = 4_000
_YEARS = range(1900, 9001)  # what any time zone's calendar has a place for


class BadCursor(ValueError):
    """It is none that this list gave out."""


@dataclass(frozen=True)
class Place:
    """Between two rows: before or after the one whose key this is."""

    key: tuple[Any, ...]
    is_backwards: bool


def suits(rows: QuerySet[Any]) -> bool:
    """Whether all that the rows are ordered by are columns of their own that are never null."""
    columns = {name for field in rows.model._meta.concrete_fields if not field.null for name in _names(field)}
    order = rows.query.order_by
    return bool(order) and all(isinstance(one, str) and one.removeprefix("-") in columns for one in order)


def written(rows: QuerySet[Any], row: Any, *, backwards: bool) -> str:
    """The cursor for what comes after `row`, or before it."""
    key = [_text(getattr(row, field.attname)) for field, _falls in _order(rows)]
    text = json.dumps([int(backwards), *key], separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode((MARK + text).encode()).decode().rstrip("=")


def place_after(rows: QuerySet[Any], row: Any) -> Place:
    """Where the list goes on after `row`."""
    return Place(tuple(getattr(row, field.attname) for field, _falls in _order(rows)), is_backwards=False)


def is_key(cursor: str) -> bool:
    return cursor.startswith(base64.urlsafe_b64encode(MARK.encode()).decode()[:2])


def read(rows: QuerySet[Any], cursor: str) -> Place:
    """Raises BadCursor."""
    fields = [field for field, _falls in _order(rows)]
    try:
        if len(cursor) > LONGEST:
            raise BadCursor(cursor)
        text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"==").decode()
        direction, *key = json.loads(text.removeprefix(MARK))
        if not text.startswith(MARK) or direction not in (0, 1) or len(key) != len(fields):
            raise BadCursor(cursor)
        return Place(
            tuple(_value(field, one) for field, one in zip(fields, key, strict=True)), direction == 1
        )
    except (ValueError, TypeError, ValidationError, RecursionError, binascii.Error):
        raise BadCursor(cursor) from None


def page_at(rows: QuerySet[Any], place: Place | None, limit: int) -> list[Any]:
    """The first `limit` rows from there on, in the list's order; backwards: the last ones before it."""
    if place is None:
        return list(rows[:limit])
    order = _order(rows)
    beyond = rows.filter(_beyond(order, place))
    if not place.is_backwards:
        return list(beyond[:limit])
    return list(beyond.reverse()[:limit])[::-1]


def _order(rows: QuerySet[Any]) -> list[tuple[Field[Any, Any], bool]]:
    """(field, descending) of a total order by columns of the model that are never null."""
    columns = {name: field for field in rows.model._meta.concrete_fields for name in _names(field)}
    return [(columns[str(name).removeprefix("-")], str(name).startswith("-")) for name in rows.query.order_by]


def _names(field: Field[Any, Any]) -> list[str]:
    return [field.name, field.attname, *(["pk"] if field.primary_key else [])]


def _beyond(order: list[tuple[Field[Any, Any], bool]], place: Place) -> Q:
    """(a, b) after (x, y): a >= x, for the index, and a > x, or a = x and b > y."""
    condition, equal = Q(), Q()
    for (field, falls), value in zip(order, place.key, strict=True):
        sign = "lt" if falls != place.is_backwards else "gt"
        condition |= equal & Q(**{f"{field.attname}__{sign}": value})
        equal &= Q(**{field.attname: value})
    (first, falls), value = order[0], place.key[0]
    bound = "lte" if falls != place.is_backwards else "gte"
    return Q(**{f"{first.attname}__{bound}": value}) & condition


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value if isinstance(value, int) else str(value)


def _value(field: Field[Any, Any], text: Any) -> Any:
    if not isinstance(text, str | int) or isinstance(text, bool) or "\x00" in str(text):
        raise BadCursor(text)
    value = getattr(field, "target_field", field).to_python(text)
    if isinstance(value, date) and value.year not in _YEARS:
        raise BadCursor(text)
    if isinstance(value, datetime) and value.tzinfo is None:
        raise BadCursor(text)
    return value
