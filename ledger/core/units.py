"""Units of the ledger, and the only places where decimals become integers and integers become decimals.

GPUs are counted in milli-GPU, time in milliseconds, so GPU time is their product, the GPU-microsecond
(`gpu_us`); money is counted in micro currency units (domain.md section 2). Everything in between is integers.
"""

from __future__ import annotations

import re
from decimal import Decimal

MILLI_PER_GPU = 1_000
MS_PER_SECOND = 1_000
MS_PER_MINUTE = 60 * MS_PER_SECOND
MS_PER_HOUR = 60 * MS_PER_MINUTE
MS_PER_DAY = 24 * MS_PER_HOUR
US_PER_SECOND = 1_000_000
US_PER_HOUR = 3_600 * US_PER_SECOND
GPU_US_PER_GPU_HOUR = MILLI_PER_GPU * MS_PER_HOUR
MICRO_PER_UNIT = 1_000_000

INT64_MAX = 2**63 - 1

# 1 gpu_us is 2.78e-10 GPU-hours, so ten places tell any two integers apart: the text can be turned back.
GPU_HOUR_PLACES = 10

_PLAIN = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_DECIMAL = re.compile(_PLAIN.pattern + r"([eE][+-]?[0-9]{1,3})?")


def is_plain_decimal(text: str) -> bool:
    """Digits with at most a sign and a point: how people write amounts. `1e3` is what programs write for counters."""
    return _PLAIN.fullmatch(text) is not None


def parse_scaled(value: str | int | Decimal, places: int) -> int:
    """`value` x 10^places as an int, exactly.

    Takes text, ints and Decimals (never floats: 0.1 is not a tenth). Raises ValueError with a reason fit for
    a person where the value is not a plain decimal, is negative, has more than `places` places, or does not
    fit a 64-bit column.
    """
    scaled = _plain_decimal(value).scaleb(places)
    if scaled < 0:
        raise ValueError(f"{value} is negative")
    if scaled.adjusted() > 19:
        raise ValueError(f"{value} is too large")
    if scaled != scaled.to_integral_value():
        raise ValueError(f"{value} has more than {places} decimal places")
    number = int(scaled)
    if number > INT64_MAX:
        raise ValueError(f"{value} is too large")
    return number


def _plain_decimal(value: str | int | Decimal) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise ValueError(f"{value!r} is not a decimal number")
    if isinstance(value, str):
        if not _DECIMAL.fullmatch(value) or len(value) > 64:
            raise ValueError(f"{value[:64]!r} is not a decimal number")
        return Decimal(value)
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError(f"{value} is not a finite number")
    return number


def parse_milli_gpus(value: str | int | Decimal) -> int:
    """A `gpus` field (decimal with at most 3 places, >= 0) in milli-GPU."""
    return parse_scaled(value, 3)


def parse_seconds_us(value: str | int | Decimal) -> int:
    """A `*_seconds` field (decimal with at most 6 places, >= 0) in microseconds; GPU-seconds in gpu_us."""
    return parse_scaled(value, 6)


def parse_micro(value: str | int | Decimal) -> int:
    """A price or an amount of at most 6 places, >= 0, in micro currency units. Raises ValueError, also where text is
    no plain decimal: nobody means a thousand by `1e3` in a form."""
    if isinstance(value, str) and not is_plain_decimal(value):
        raise ValueError(f"{value[:64]!r} is not a decimal number")
    return parse_scaled(value, 6)


def round_half_even(numerator: int, denominator: int) -> int:
    """numerator / denominator to the nearest integer, ties to the even one; works for either sign."""
    if denominator == 0:
        raise ZeroDivisionError("rounding a fraction with denominator 0")
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    quotient, remainder = divmod(numerator, denominator)
    twice = 2 * remainder
    if twice > denominator or (twice == denominator and quotient % 2 == 1):
        return quotient + 1
    return quotient


def fixed_decimal(scaled: int, places: int) -> str:
    """The text of scaled / 10^places with exactly `places` decimals: fixed_decimal(-1500, 3) == '-1.500'."""
    sign = "-" if scaled < 0 else ""
    whole, fraction = divmod(abs(scaled), 10**places)
    return f"{sign}{whole}.{fraction:0{places}d}" if places else f"{sign}{whole}"


def _shortest(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def milli_gpus_text(milli_gpus: int) -> str:
    """Milli-GPU as the shortest exact decimal of GPUs: 1500 -> '1.5'."""
    return _shortest(fixed_decimal(milli_gpus, 3))


def seconds_text(microseconds: int) -> str:
    """Microseconds as the shortest exact decimal of seconds; gpu_us as GPU-seconds: 640500000 -> '640.5'."""
    return _shortest(fixed_decimal(microseconds, 6))


def gpu_hours_text(gpu_us: int) -> str:
    """GPU-hours with full precision: exact where ten places can hold it, else the nearest such decimal.

    Ten places determine the integer, so nothing is lost: multiply by 3.6e9, round, and gpu_us is back.
    """
    scaled = round_half_even(gpu_us * 10**GPU_HOUR_PLACES, GPU_US_PER_GPU_HOUR)
    return _shortest(fixed_decimal(scaled, GPU_HOUR_PLACES))


def gpu_hours_fixed(gpu_us: int, places: int = 2) -> str:
    """GPU-hours with fixed places, rounded half-even once, for tables."""
    return fixed_decimal(round_half_even(gpu_us * 10**places, GPU_US_PER_GPU_HOUR), places)


def micro_text(amount_micro: int) -> str:
    """Micro currency units as the shortest exact decimal: 1250000 -> '1.25'."""
    return _shortest(fixed_decimal(amount_micro, 6))


def money_fixed(amount_micro: int, minor_places: int = 2) -> str:
    """An amount rounded half-even to the currency's minor unit, with fixed places."""
    return fixed_decimal(round_half_even(amount_micro * 10**minor_places, MICRO_PER_UNIT), minor_places)
