"""The forms of query parameters, said once: the schema shows them, and what has another form is a 400 that names it.

What has the right form and still cannot be answered (a window that ends before it starts) is a 422 of the view.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from drf_spectacular.utils import OpenApiParameter

from ledger.api.problems import Problem

# Any text; PostgreSQL has none with NUL.
TEXT = r"^[^\u0000]*$"
SOME_TEXT = r"^[^\u0000]+$"
NOT_BLANK = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"
_MONTH = r"(19|20|21)[0-9]{2}-(0[1-9]|1[0-2])"
MONTH = f"^{_MONTH}$"
_DAY = (
    r"((19|20|21)[0-9]{2}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))|20([02468][048]|[13579][26])-02-29)"
)
_CLOCK = r"T([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?"
_OFFSET = r"(0[0-9]|1[0-4]):[0-5][0-9]"
# RFC 3339 with an offset: the ledger guesses no zone.
INSTANT = f"^{_DAY}{_CLOCK}(Z|[+-]{_OFFSET})$"
# A plus that nobody escaped arrives as a space.
_ASKED = f"{_DAY}{_CLOCK}(Z|[+ -]{_OFFSET})"
ASKED_INSTANT = f"^{_ASKED}$"
WINDOW = f"^({_MONTH}|today|yesterday|last[1-9][0-9]{{0,2}}[dh]|{_ASKED},{_ASKED})$"
PRICE = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"
GPUS = r"^[0-9]{1,7}(\.[0-9]{1,3})?$"
# How far into the rows, or the key of the row that a page ended with (`keyset`).
CURSOR = r"^(o[0-9]{1,11}|az[A-Za-z0-9_-]{1,4000})?$"

# Reason codes where "bad_filter" says too little.
_CODES = {"at": "bad_instant", "fields": "unknown_field"}
_NAMED = frozenset(
    {"window", "by", "step", "include", "as_of", "month", "reservation", "language", "excel", "cursor"}
    | {"ordering", "page_size", "format"}
)


def some_of(names: Iterable[str], more: str = "", *, may_be_empty: bool = False) -> str:
    """The pattern of a comma-separated list of `names`, and of what `more` matches."""
    word = _alternatives(names, more)
    return f"^({word}(,{word})*)?$" if may_be_empty else f"^{word}(,{word})*$"


def ordering_by(names: Iterable[str], more: str = "") -> str:
    return f"^(-?{_alternatives(names, more)})?$"


def _alternatives(names: Iterable[str], more: str = "") -> str:
    return (
        "("
        + "|".join([*(re.escape(name).replace(r"\-", "-") for name in names), *([more] if more else [])])
        + ")"
    )


def refuse_malformed(parameters: Iterable[OpenApiParameter], given: Any) -> None:
    """Raises Problem for a query parameter of `given` (a QueryDict) that its declaration does not allow."""
    for parameter in parameters:
        if parameter.location != OpenApiParameter.QUERY or parameter.name not in given:
            continue
        text = given[parameter.name]
        if parameter.enum is not None:
            fits = text in [str(value) for value in parameter.enum]
            wanted = "one of " + ", ".join(str(value) for value in parameter.enum)
        else:
            fits = _compiled(form_of(parameter)).fullmatch(text) is not None
            wanted = str(parameter.description) or f"of the form {form_of(parameter)}"
        if not fits:
            raise Problem(
                400,
                _code(parameter),
                f"{parameter.name} cannot be '{text[:100]}'; wanted: {wanted}.",
                parameter=parameter.name,
            )


def _code(parameter: OpenApiParameter) -> str:
    name = parameter.name
    if name in _CODES:
        return _CODES[name]
    return f"bad_{name}" if name in _NAMED or parameter.enum is not None else "bad_filter"


def form_of(parameter: OpenApiParameter) -> str:
    if parameter.pattern:
        return parameter.pattern
    return r"^[0-9]{1,18}$" if parameter.type is int else TEXT


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
