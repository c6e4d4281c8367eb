from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from ledger.core.periods import Month, Span, slot_edges, to_datetime, to_ms, utc_days
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR


def ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("month", "zone", "start", "hours"),
    [
        ("2026-10", "UTC", "2026-10-01T00:00Z", 744),
        ("2026-02", "UTC", "2026-02-01T00:00Z", 672),
        ("2026-10", "Europe/Berlin", "2026-09-30T22:00Z", 745),
        ("2026-03", "Europe/Berlin", "2026-02-28T23:00Z", 743),
        ("2026-11", "America/New_York", "2026-11-01T04:00Z", 721),
        ("2026-10", "Asia/Kolkata", "2026-09-30T18:30Z", 744),
        # 00:00 to 01:00 of 2017-10-01 was skipped: the month began with the jump.
        ("2017-10", "America/Asuncion", "2017-10-01T04:00Z", 743),
        # 01:00 went back to 00:00: midnight of the 1st was shown twice, and the earlier one counts.
        ("2015-11", "America/Havana", "2015-11-01T04:00Z", 721),
    ],
)
def test_a_month_starts_when_its_first_date_first_shows(month, zone, start, hours):
    span = Month.parse(month).span(zone)
    assert span.start_ms == ms(start)
    assert span.length_ms == hours * MS_PER_HOUR


def test_a_jump_over_midnight_starts_the_month_at_the_first_instant_after_it():
    # Manila skipped the whole of 31 December 1844, so January 1845 began where 30 December ended.
    start = Month(1845, 1).starts_ms("Asia/Manila")
    assert to_datetime(start - 1).astimezone(ZoneInfo("Asia/Manila")).day == 30
    assert to_datetime(start).astimezone(ZoneInfo("Asia/Manila")).day == 1
    assert Month.containing(start, "Asia/Manila") == Month(1845, 1)


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Havana"]
)
def test_months_touch_and_contain_their_instants(zone):
    month = Month(2025, 12)
    for _ in range(14):
        span = month.span(zone)
        assert span.end_ms == month.next().starts_ms(zone)
        assert Month.containing(span.start_ms, zone) == month
        assert Month.containing(span.end_ms - 1, zone) == month
        assert Month.containing(span.end_ms, zone) == month.next()
        assert month.next().previous() == month
        month = month.next()


@pytest.mark.parametrize("text", ["2026-13", "2026-1", "0000-01", "2026-10-01", "２０２６-10"])
def test_what_is_not_a_month_is_refused(text):
    with pytest.raises(ValueError, match="is not a month"):
        Month.parse(text)


def test_slots_are_utc_hours_cut_at_the_ends_and_at_the_cuts():
    start = ms("2026-09-30T18:30Z")
    end = start + 2 * MS_PER_HOUR
    cut = ms("2026-09-30T19:15Z")
    edges = slot_edges(start, end, [cut, start, end + 1]).tolist()
    assert edges == [start, ms("2026-09-30T19:00Z"), cut, ms("2026-09-30T20:00Z"), end]
    assert slot_edges(start, start).tolist() == [start]


def test_days_are_utc_days_cut_to_the_span():
    span = Month.parse("2026-10").span("Asia/Kolkata")
    days = list(utc_days(span))
    assert len(days) == 32
    assert days[0] == Span(span.start_ms, ms("2026-10-01T00:00Z"))
    assert days[1].length_ms == MS_PER_DAY
    assert days[-1].end_ms == span.end_ms
    assert all(a.end_ms == b.start_ms for a, b in pairwise(days))


def test_finer_times_are_floored_also_before_the_epoch():
    assert to_ms(datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC)) == -1
    assert to_ms(datetime(2026, 1, 1, 0, 0, 0, 1_999, UTC)) % 1000 == 1
    assert to_datetime(-1) == datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
    with pytest.raises(ValueError, match="offset"):
        to_ms(datetime(2026, 1, 1))  # noqa: DTZ001
