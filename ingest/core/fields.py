"""Readers of single values: each turns what JSON carried into the canonical value, or says why it cannot.

Canonical values (domain.md section 2): instants are int milliseconds UTC, GPUs int milli-GPU, seconds int
microseconds, so that "1.5", 1.5 and "1.500" are one value wherever events are compared or hashed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any

from ledger.core.contract_words import IDENTITY_KINDS as IDENTITY_KINDS
from ledger.core.contract_words import is_identity_kind
from ledger.core.units import INT64_MAX

INT32_MAX = 2**31 - 1
# Texts that stand in B-tree keys: an index row cannot hold more than a third of a page.
KEY_BYTES = 1024
LONG_TEXT_BYTES = 65_536

LATEST_YEAR = 9998
EARLIEST_YEAR = 2000  # also catches the zero times that programs write for "not set"

Reader = Callable[[Any], Any]


class Refusal(ValueError):
    """One value or event cannot be booked. `reason` is a code of `reasons.REASONS`, `detail` is for a person."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def shown(value: Any) -> str:
    """A value in a message: short, and never a second place where the input is kept."""
    if isinstance(value, int) and value.bit_length() > 256:
        return "a whole number of more than 256 bits"  # Python refuses to print the largest of them
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# --- numbers ------------------------------------------------------------------------------------------------

_POWERS = tuple(10**places for places in range(7))
_DIGITS = re.compile(r"[0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40}", re.ASCII)


def scaled(value: Any, places: int, maximum: int = INT64_MAX) -> int:
    """`value` x 10^places, exactly. Digits in JSON strings count as numbers; floats never get here.

    Raises:
        Refusal: `bad_number` for anything else: booleans, negatives, NaN, too many places, too large.
    """
    if type(value) is int:
        if value < 0:
            raise Refusal("bad_number", f"{shown(value)} is negative")
        result = value * _POWERS[places] if value <= maximum else maximum + 1
    else:
        result = _scaled_decimal(_plain(value), places)
    if result > maximum:
        raise Refusal("bad_number", f"{shown(value)} is too large")
    return result


def _scaled_decimal(number: Decimal, places: int) -> int:
    if number < 0:
        raise Refusal("bad_number", f"{shown(str(number))} is negative")
    if number and number.adjusted() + places > 19:
        raise Refusal("bad_number", f"{shown(str(number))} is too large")
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + places
    unscaled = int("".join(map(str, digits)))
    if shift >= 0:
        return unscaled * 10**shift if unscaled else 0
    # A tiny number with a huge exponent must not make us compute 10^(10^6).
    result, rest = divmod(unscaled, 10**-shift) if -shift <= len(digits) else (0, unscaled)
    if rest:
        what = f"more than {places} decimal places" if places else "a fraction"
        raise Refusal("bad_number", f"{shown(str(number))} has {what}")
    return result


def _plain(value: Any) -> Decimal:
    if isinstance(value, str):
        if not _DIGITS.fullmatch(value):
            raise Refusal("bad_number", f"{shown(value)} is not a number")
        return Decimal(value)
    if isinstance(value, Decimal) and value.is_finite():
        return value
    raise Refusal("bad_number", f"{shown(value)} is not a number")


# Bounds far beyond any cluster, so that a month's sum of such values still fits a bigint.
MAX_MILLI_GPUS = 10**9
MAX_SECONDS_US = 10**14
MAX_COUNT = 10**12


def milli_gpus(value: Any) -> int:
    """A `gpus` field: decimal with at most 3 places, >= 0; gives milli-GPU."""
    return scaled(value, 3, MAX_MILLI_GPUS)


def seconds_us(value: Any) -> int:
    """A `*_seconds` field: decimal with at most 6 places, >= 0; gives microseconds (GPU-seconds: gpu_us)."""
    return scaled(value, 6, MAX_SECONDS_US)


def long_seconds_us(value: Any) -> int:
    """Seconds of a whole workload, which may have held thousands of GPUs for weeks."""
    return scaled(value, 6)


def count(value: Any) -> int:
    """Tokens and other whole numbers that are summed in a bigint."""
    return scaled(value, 0, MAX_COUNT)


def small_count(value: Any) -> int:
    """Whole numbers that fill an integer: attempts, requests."""
    return scaled(value, 0, INT32_MAX)


def attempt_number(value: Any) -> int:
    number = small_count(value)
    if number < 1:
        raise Refusal("bad_number", "attempts count from 1")
    return number


def milli_amount(value: Any) -> int:
    """A quota's limit or use, in thousandths of its unit."""
    return scaled(value, 3)


def fraction_ppm(value: Any) -> int:
    """A confidence between 0 and 1, in millionths."""
    ppm = scaled(value, 6)
    if ppm > 1_000_000:
        raise Refusal("bad_number", f"{shown(value)} is more than 1")
    return ppm


def http_status(value: Any) -> int:
    status = small_count(value)
    if not 100 <= status <= 599:
        raise Refusal("bad_number", f"{status} is no HTTP status")
    return status


def flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Refusal("bad_value", f"{shown(value)} is neither true nor false")


# --- instants -----------------------------------------------------------------------------------------------

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:([Zz])|([+-])(\d\d):(\d\d))?", re.ASCII
)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
MS_PER_DAY = 86_400_000


def instant_ms(value: Any) -> int:
    """RFC 3339 with an offset; gives epoch milliseconds, finer digits floored.

    Raises:
        Refusal: `time_without_offset` where only the offset lacks, `bad_time` otherwise.
    """
    match = _RFC3339.fullmatch(value) if isinstance(value, str) and len(value) <= 64 else None
    if match is None:
        raise Refusal("bad_time", f"{shown(value)} is not an RFC 3339 instant")
    day, hour, minute, second, fraction, zulu, sign, offset_hour, offset_minute = match.groups()
    if zulu is None and sign is None:
        raise Refusal("time_without_offset", f"{shown(value)} lacks its offset from UTC")
    offset_min = 0 if zulu else int(offset_hour) * 60 + int(offset_minute)
    if int(hour) > 23 or int(minute) > 59 or int(second) > 60 or offset_min > 24 * 60 - 1:
        raise Refusal("bad_time", f"{shown(value)} is no time of day")
    if not zulu and int(offset_minute) > 59:
        raise Refusal("bad_time", f"{shown(value)} is no offset")
    minutes = int(hour) * 60 + int(minute) - (-offset_min if sign == "-" else offset_min)
    # Second 60 is a leap second: no clock of ours has it, so it is the first instant after it.
    within_ms = 60_000 if second == "60" else int(second) * 1000 + int((fraction or "")[:3].ljust(3, "0"))
    return _midnight_ms(day) + minutes * 60_000 + within_ms


@lru_cache(maxsize=4096)
def _midnight_ms(day: str) -> int:
    """Start of a UTC day written as 2026-10-03."""
    try:
        ordinal = date.fromisoformat(day).toordinal()
    except ValueError:
        raise Refusal("bad_time", f"{day} is no day of the calendar") from None
    if not EARLIEST_YEAR <= int(day[:4]) <= LATEST_YEAR:
        raise Refusal("bad_time", f"{day} lies outside of the years {EARLIEST_YEAR} to {LATEST_YEAR}")
    return (ordinal - _EPOCH_ORDINAL) * MS_PER_DAY


# --- text ---------------------------------------------------------------------------------------------------


def text_of(*, characters: int = 0, utf8_bytes: int = 0, may_be_empty: bool = False) -> Reader:
    """A reader of text that PostgreSQL can hold (no NUL), of at most so many characters or bytes."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise Refusal("bad_value", f"{shown(value)} is not text")
        if not value and not may_be_empty:
            raise Refusal("bad_value", "the text is empty")
        _refuse_unstorable(value)
        if characters and len(value) > characters:
            raise Refusal("too_long", f"{shown(value)} is longer than {characters} characters")
        if utf8_bytes and len(value) * 4 > utf8_bytes and len(value.encode()) > utf8_bytes:
            raise Refusal("too_long", f"{shown(value)} is longer than {utf8_bytes} bytes")
        return value

    return read


def _refuse_unstorable(value: str) -> None:
    if "\x00" in value:
        raise Refusal("bad_text", f"{shown(value)} holds a NUL character, which no database text can")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refusal("bad_text", f"{shown(value)} holds half of a surrogate pair") from None


key_text = text_of(utf8_bytes=KEY_BYTES)
long_text = text_of(utf8_bytes=LONG_TEXT_BYTES, may_be_empty=True)
slug_text = text_of(characters=63)
name_text = text_of(characters=200)


def one_of(*words: str) -> Reader:
    allowed = {word: word for word in words}

    def read(value: Any) -> str:
        found = allowed.get(value) if isinstance(value, str) else None
        if found is None:
            raise Refusal("bad_value", f"{shown(value)} is not one of {', '.join(words)}")
        return found

    return read


def labels(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Refusal("bad_value", f"{shown(value)} is not an object of labels")
    return {key_text(name): long_text(text) for name, text in value.items()}


def node_names(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise Refusal("bad_value", f"{shown(value)} is not a list of node names")
    return [key_text(name) for name in value]


_kind_text = text_of(characters=80)
_identity_value = text_of(characters=512)


def identity_kind(value: Any) -> str:
    if isinstance(value, str) and is_identity_kind(value):
        kind: str = _kind_text(value)
        return kind
    known = ", ".join([*sorted(IDENTITY_KINDS), "label:<name>"])
    raise Refusal("bad_identity", f"{shown(value)} is not a kind of identity; known: {known}")


def identity_value(value: Any) -> str:
    found: str = _identity_value(value)
    return found


_URI = re.compile(r"[^\s\x00-\x20\x7f-\xa0]+")
_uri_text = text_of(characters=512)


def source_uri(value: Any) -> str:
    """A URI reference: no blanks or control characters; everything else is the emitter's business."""
    uri: str = _uri_text(value)
    if not _URI.fullmatch(uri):
        raise Refusal("bad_source", f"{shown(uri)} is not a URI reference")
    return uri


MISSING_IDS = frozenset({"", "None", "null"})


def event_id(value: Any) -> str:
    """A non-empty id. The words that programs print for "no value" are no ids."""
    if value is None or (isinstance(value, str) and value in MISSING_IDS):
        raise Refusal("missing_id", "the event has no id")
    found: str = key_text(value)
    return found
