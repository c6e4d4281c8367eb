"""Instants in bytes that nobody can read otherwise, to tell which month a refused line speaks of."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

from ingest.core.fields import EARLIEST_YEAR

LOOKED_AT_BYTES = 1024 * 1024
"""A line may be many times as long; what it speaks of is told early enough."""

_INSTANT = re.compile(
    rb"(?<!\d)(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?"
    rb"(?:[Zz]|([+-])(\d\d):?(\d\d))?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def newest_instant_ms(raw: bytes, until_ms: int) -> int | None:
    """The newest instant written anywhere in the first MiB of `raw`, in epoch ms, that is not after `until_ms`.

    An instant without an offset is taken for UTC: it tells a month and dates nothing. None if there is none.
    """
    found = (_read(match) for match in _INSTANT.finditer(raw[:LOOKED_AT_BYTES]))
    return max((moment for moment in found if moment is not None and moment <= until_ms), default=None)


def _read(match: re.Match[bytes]) -> int | None:
    year, month, day, hour, minute = (int(part) for part in match.groups()[:5])
    second, fraction, sign = match[6], match[7], match[8]
    if year < EARLIEST_YEAR:
        return None
    ahead = timedelta(hours=int(match[9]), minutes=int(match[10])) if sign else timedelta()
    try:
        zone = timezone(-ahead if sign == b"-" else ahead)
        moment = datetime(year, month, day, hour, minute, int(second or 0), tzinfo=zone)
        return (moment - _EPOCH) // timedelta(milliseconds=1) + int((fraction or b"")[:3].ljust(3, b"0"))
    except (ValueError, OverflowError):
        return None
