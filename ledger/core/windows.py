"""The `window` of a question: a month, a day, the last days, or two instants."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from ledger.core.periods import Month, Span, to_ms

_MONTH = re.compile(r"\d{4}-\d{2}")
_LAST = re.compile(r"last(\d{1,3})([dh])")


class BadWindow(ValueError):
    """The text names no window; its message says what would."""


def parse_window(text: str, zone: str, now_ms: int) -> Span:
    """The half-open span [start, end) in UTC milliseconds that `text` names.

    `2026-10` is the billing month in `zone`; `today` and `yesterday` are local days of `zone`; `last7d` and
    `last24h` end now; `start,end` are two RFC 3339 instants with offsets.

    Raises:
        BadWindow: anything else, an instant without an offset, or an end before its start.
    """
    if _MONTH.fullmatch(text):
        return _month(text, zone)
    if text in ("today", "yesterday"):
        return _local_day(now_ms, zone, back=0 if text == "today" else 1)
    last = _LAST.fullmatch(text)
    if last is not None:
        hours = int(last[1]) * (24 if last[2] == "d" else 1)
        return Span(now_ms - hours * 3_600_000, now_ms)
    start_text, comma, end_text = text.partition(",")
    if not comma:
        raise BadWindow(
            "window is a month such as 2026-10, today, yesterday, last7d, or start,end in RFC 3339"
        )
    span = Span(parse_instant(start_text), parse_instant(end_text))
    if span.end_ms <= span.start_ms:
        raise BadWindow("window ends before it starts")
    return span


def _month(text: str, zone: str) -> Span:
    try:
        return Month.parse(text).span(zone)
    except ValueError:
        raise BadWindow(f"{text!r} is not a month") from None


def _local_day(now_ms: int, zone: str, back: int) -> Span:
    tz = ZoneInfo(zone)
    today = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(tz).date() - timedelta(days=back)
    starts = datetime(today.year, today.month, today.day, tzinfo=tz)
    tomorrow = today + timedelta(days=1)
    ends = datetime(tomorrow.year, tomorrow.month, tomorrow.day, tzinfo=tz)
    return Span(to_ms(starts), to_ms(ends))


def parse_instant(text: str) -> int:
    """An RFC 3339 instant with an offset, in UTC ms.

    Raises:
        BadWindow: it is none, or has no offset.
    """
    try:
        instant = datetime.fromisoformat(text.strip().replace(" ", "+"))
    except ValueError:
        raise BadWindow(f"{text!r} is not an RFC 3339 instant") from None
    if instant.tzinfo is None:
        raise BadWindow(f"{text!r} has no offset; write Z or +08:00")
    return to_ms(instant)
