"""Many texts of one kind -> one array, with as little work per text as the format allows.

Each function returns None where a text is not of the plain form it knows; the caller then goes the careful way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ingest.core import fields
from ingest.core.fields import Refusal

Int64s = NDArray[np.int64]
_DIGIT_PLACES = np.array([0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18])
_SHORTEST, _LONGEST = 20, 30  # 2026-10-03T04:00:02Z, and with nine digits of fraction


def instants_ms(texts: Sequence[str]) -> Int64s | None:
    """Epoch milliseconds of instants in UTC (`...Z`) that are all written with the same number of digits."""
    length = len(texts[0])
    joined = "".join(texts)
    if not (_SHORTEST <= length <= _LONGEST and length != 21 and len(joined) == length * len(texts)):
        return None
    if not joined.isascii():
        return None
    letters = np.frombuffer(joined.encode(), np.uint8).reshape(len(texts), length)
    places = {4: "-", 7: "-", 10: "T", 13: ":", 16: ":", length - 1: "Z"}
    if length > _SHORTEST:
        places[19] = "."
    if not all((letters[:, place] == ord(letter)).all() for place, letter in places.items()):
        return None
    digits = letters[:, [*_DIGIT_PLACES, *range(20, length - 1)]] - np.uint8(ord("0"))
    if (digits > 9).any():
        return None
    return _from_digits(digits)


def _from_digits(digits: NDArray[np.uint8]) -> Int64s | None:
    def number(start: int, end: int) -> Int64s:
        value = digits[:, start].astype(np.int64)
        for place in range(start + 1, end):
            value = value * 10 + digits[:, place]
        return value

    hour, minute, second = number(8, 10), number(10, 12), number(12, 14)
    if (hour > 23).any() or (minute > 59).any() or (second > 59).any():
        return None
    fraction = digits[:, 14:17].astype(np.int64)
    milli = fraction @ np.array([100, 10, 1])[: fraction.shape[1]]
    days, place = np.unique(number(0, 8), return_inverse=True)
    try:
        midnights = [_midnight_ms(day) for day in days.tolist()]
    except Refusal:
        return None
    found: Int64s = np.array(midnights, np.int64)[place] + ((hour * 60 + minute) * 60 + second) * 1000 + milli
    return found


def _midnight_ms(day: int) -> int:
    """Start of a UTC day written as the number 20261003."""
    return fields.instant_ms(f"{day // 10000:04}-{day // 100 % 100:02}-{day % 100:02}T00:00:00Z")


_LONGEST_NUMBER = 15


def seconds_us(texts: Sequence[str]) -> Int64s | None:
    """Microseconds of decimals such as 1.270440: digits, at most one point, at most six places, below 10^8."""
    try:
        letters = np.array(texts, f"S{_LONGEST_NUMBER}")
    except UnicodeEncodeError:
        return None
    if max(map(len, texts)) > _LONGEST_NUMBER or min(map(len, texts)) < 1:
        return None
    table = letters.view(np.uint8).reshape(len(texts), _LONGEST_NUMBER)
    is_point = table == ord(".")
    is_blank = table == 0
    is_digit = (table - np.uint8(ord("0"))) <= 9
    if not (is_digit | is_point | is_blank).all() or (is_point.sum(axis=1) > 1).any():
        return None
    length = np.fromiter(map(len, texts), np.int64, len(texts))
    if not (is_blank.sum(axis=1) == _LONGEST_NUMBER - length).all():
        return None  # a NUL inside of a text
    point = np.where(is_point.any(axis=1), is_point.argmax(axis=1), length)
    if (length - point > 7).any() or (point > 8).any() or (point == 0).any() or (point == length - 1).any():
        return None
    # Exact: at most 14 digits, and a double holds 15.
    return np.rint(letters.astype(np.float64) * 1e6).astype(np.int64)
