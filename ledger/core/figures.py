"""Numbers as people read them: the digits of the exports, set for the eye (visual design, "Figures first").

Every figure on a page starts from the same text as in the CSV and the API (`ledger.core.units`); here it only gets
its typography: groups of three, a real minus sign, a dash for zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.core.apportion import largest_remainder
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND, fixed_decimal

MINUS = "\u2212"
THIN_SPACE = "\u202f"  # narrow and never broken at the end of a line
DASH = "\u2013"


def set_digits(text: str) -> str:
    """A plain decimal with groups of three before the point: '-1864.17' -> '−1 864.17'."""
    sign = MINUS if text.startswith("-") else ""
    whole, point, fraction = text.removeprefix("-").partition(".")
    first = len(whole) % 3
    groups = [whole[:first]] if first else []
    groups += [whole[i : i + 3] for i in range(first, len(whole), 3)]
    return f"{sign}{THIN_SPACE.join(groups)}{point}{fraction}"


def is_zero(text: str) -> bool:
    """Whether a printed decimal shows nothing but zeros."""
    return not text.strip("-0.")


def percentages(parts: Sequence[int], places: int = 1) -> list[str]:
    """Shares of the sum of `parts` (each >= 0) in percent that add up to exactly 100; zeros if there is nothing."""
    shares = largest_remainder(100 * 10**places, list(parts))
    return [fixed_decimal(share, places) for share in shares]


def percent_change(now: int, before: int, places: int = 1) -> str | None:
    """Change against `before` in percent, rounded half away from zero; None where there is nothing to compare."""
    if before == 0:
        return None
    scaled = abs(now - before) * 100 * 10**places
    rounded = (2 * scaled + abs(before)) // (2 * abs(before))
    return fixed_decimal(rounded if (now > before) == (before > 0) else -rounded, places)


def duration_parts(milliseconds: int) -> list[tuple[int, str]]:
    """The two largest units of a span of time: 4 200 000 -> [(1, 'h'), (10, 'min')]. Shorter than a second: 'ms'."""
    units = ((MS_PER_DAY, "d"), (MS_PER_HOUR, "h"), (MS_PER_MINUTE, "min"), (MS_PER_SECOND, "s"), (1, "ms"))
    left = abs(milliseconds)
    parts = []
    for size, unit in units:
        count, left = divmod(left, size)
        if count:
            parts.append((count, unit))
    return parts[:2] or [(0, "s")]


# Chinese counts by ten thousands: (exponent, the unit's code), largest first.
MYRIADS = ((8, "yi"), (4, "wan"))


def in_myriads(scaled: int, places: int) -> tuple[str, str] | None:
    """scaled / 10^places in 亿 or 万 with two decimals, rounded half away from zero, and the unit's code; None below
    ten thousand: 14 267 629 600 with 4 places is ('142.68', 'wan')."""
    for exponent, unit in MYRIADS:
        size = 10 ** (exponent + places)
        if abs(scaled) >= size:
            hundredths = (2 * 100 * abs(scaled) + size) // (2 * size)
            return fixed_decimal(-hundredths if scaled < 0 else hundredths, 2), unit
    return None
