"""Bodies of requests, taken at their word: JSON's own types, no unknown fields, no NUL."""

from __future__ import annotations

import re
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request

from ledger.api.parameters import INSTANT
from ledger.api.problems import Problem
from ledger.core.units import is_plain_decimal

Kind = type[serializers.Serializer[Any]]
MAX_TEXT = 10_000


class TextOfForm(serializers.CharField):
    """A text whose form the schema states; whoever it is for refuses the rest, with a code of its own."""

    def __init__(self, form: str, **options: Any) -> None:
        super().__init__(**options)
        self.form = form


def checked_body(request: Request, kind: Kind) -> serializers.Serializer[Any]:
    """The valid serializer of the body. Raises Problem, or DRF's ValidationError, each a 400."""
    body = kind(data=request.data)
    if isinstance(request.data, dict):
        for name in request.data:
            if name not in body.fields:
                raise Problem(400, "unknown_field", f"There is no field '{name}' here.", field=str(name))
        for name, field in body.fields.items():
            if name in request.data:
                _refuse_wrong_types(field, request.data[name], name)
    body.is_valid(raise_exception=True)
    return body


def body_of(request: Request, kind: Kind) -> dict[str, Any]:
    """The validated body; an unknown field is refused. Raises Problem or ValidationError, each a 400."""
    return dict(checked_body(request, kind).validated_data)


def _refuse_wrong_types(field: Any, value: Any, name: str) -> None:
    """DRF would take 5 for "5" and "yes" for true: a sender that confuses types is told so."""
    if value is None:
        return
    if isinstance(value, str):
        if "\x00" in value:
            raise Problem(400, "bad_text", f"{name}: text cannot contain NUL.", field=name)
        if len(value) > MAX_TEXT:
            raise Problem(400, "bad_text", f"{name}: at most {MAX_TEXT} characters.", field=name)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Problem(400, "bad_text", f"{name}: this is no valid Unicode.", field=name) from None
    wanted = _json_type(field)
    if wanted is int and isinstance(value, float) and value.is_integer():
        return  # to JSON Schema 7.0 is a whole number
    if wanted is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is int)):
        raise Problem(400, "wrong_type", f"{name}: {_NAMES[wanted]} is wanted.", field=name)
    if is_instant(field) and not _INSTANT.fullmatch(value):
        raise Problem(
            400, "bad_instant", f"{name}: an instant with an offset is wanted, RFC 3339.", field=name
        )
    if isinstance(field, serializers.DecimalField) and isinstance(value, str) and not is_plain_decimal(value):
        raise Problem(400, "bad_number", f"{name}: a plain decimal is wanted, such as 1000.50.", field=name)
    if isinstance(value, list):
        for item in value:
            _refuse_wrong_types(getattr(field, "child", None), item, name)
    elif isinstance(value, dict):
        inner = field.fields if isinstance(field, serializers.Serializer) else {}
        for key, item in value.items():
            _refuse_wrong_types(None, key, name)
            _refuse_wrong_types(inner.get(key, getattr(field, "child", None)), item, f"{name}.{key}"[:200])


_INSTANT = re.compile(INSTANT)


def is_instant(field: Any) -> bool:
    return isinstance(field, serializers.DateTimeField) or getattr(field, "is_instant", False)


_NAMES = {str: "text", int: "a whole number", bool: "true or false"}


def _json_type(field: Any) -> type | None:
    if isinstance(field, serializers.BooleanField):
        return bool
    if isinstance(field, serializers.IntegerField):
        return int
    if isinstance(field, serializers.CharField | serializers.UUIDField) or is_instant(field):
        return str
    return None
