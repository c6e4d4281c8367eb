"""Canonical JSON (RFC 8785) of what statements are made of: strings, integers, booleans, null, lists, objects.

Floats do not occur in the books, so their formatting is not needed; integers that a double cannot hold are refused,
because another implementation would read them as another number. They are written as strings by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Any

MAX_SAFE_INTEGER = 2**53 - 1

# `encode_basestring` writes strings as RFC 8785 wants them: short escapes, \u00xx in lower case for the other control
# characters, everything else as it is.


def canonical_json(value: Any) -> bytes:
    """The one spelling of `value`, in UTF-8.

    Raises TypeError for what JSON (as used here) does not have, ValueError for an integer beyond 2^53 or a lone
    surrogate.
    """
    return _text(value).encode("utf-8")


def canonical_sha256(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return sha256(canonical_json(value)).hexdigest()


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            raise ValueError(f"{value} does not fit a double exactly; write it as a string")
        return str(value)
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return "[" + ",".join(_text(item) for item in value) + "]"
    raise TypeError(f"{type(value).__name__} has no canonical form here")


def _object(value: Mapping[Any, Any]) -> str:
    for name in value:
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not a name")
    # RFC 8785 sorts names by their UTF-16 code units, which is not the order of code points.
    names = sorted(value, key=lambda name: name.encode("utf-16-be"))
    return "{" + ",".join(f"{encode_basestring(name)}:{_text(value[name])}" for name in names) + "}"
