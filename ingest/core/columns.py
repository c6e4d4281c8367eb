"""Values inside of a buffer, such as all `time` of some lines -> one array, with arithmetic on machine words.

Eight digits are one 64-bit word: whether all eight are digits, and which number they make, are a dozen operations on
whole arrays. Each reader also tells which values are of the plain form that it knows; of the others the number is
meaningless, and the caller has them read the careful way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.core import fields
from ingest.core.fields import Refusal
from ingest.core.spans import WORD, Bools, Coded, Int64s, Spans, Words, first_in_words, words_at

_ZEROS = np.uint64(0x3030303030303030)
_HIGH_HALVES = np.uint64(0xF0F0F0F0F0F0F0F0)
_LOW_HALVES = np.uint64(0x0F0F0F0F0F0F0F0F)
_SIXES = np.uint64(0x0606060606060606)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def _u(number: int) -> np.uint64:
    return np.uint64(number)


def _are_digits(words: Words) -> Bools:
    """Whether all eight bytes are digits: 0x30 to 0x39, so that adding 6 leaves the upper half at 3."""
    is_three: Bools = (words & _HIGH_HALVES) == _ZEROS
    is_three &= ((words + _SIXES) & _HIGH_HALVES) == _ZEROS
    return is_three


def _digits(buffer: bytes, starts: Int64s, lengths: Int64s) -> tuple[Int64s, Bools]:
    """(number, whether it is one) of one to eight digits each."""
    is_sound = (lengths >= 1) & (lengths <= WORD)
    missing = ((WORD - np.clip(lengths, 1, WORD)) * 8).astype(np.uint64)
    # Moved to the end of the word, with zeros before them; a shift by 64 gives 0.
    words = (words_at(buffer, starts) << missing) | (_ZEROS >> (_u(64) - missing))
    is_sound &= _are_digits(words)
    words = (words & _LOW_HALVES) * _u(10 * 2**8 + 1) >> _u(8)  # pairs of digits
    words = (words & _u(0x00FF00FF00FF00FF)) * _u(100 * 2**16 + 1) >> _u(16)
    words = (words & _u(0x0000FFFF0000FFFF)) * _u(10_000 * 2**32 + 1) >> _u(32)
    return words.view(np.int64), is_sound


def counts(numbers: Spans) -> tuple[Int64s, Bools]:
    """Whole numbers of at most eight digits, written as JSON writes them: without zeros before them."""
    lengths = numbers.lengths
    found, is_sound = _digits(numbers.buffer, numbers.starts, lengths)
    return found, is_sound & _is_json_whole(numbers.buffer, numbers.starts, lengths)


def _is_json_whole(buffer: bytes, starts: Int64s, lengths: Int64s) -> Bools:
    letters = np.frombuffer(buffer, np.uint8)
    is_whole: Bools = (lengths == 1) | (letters[starts] != ord("0"))
    return is_whole


def seconds_us(numbers: Spans) -> tuple[Int64s, Bools]:
    """Microseconds of decimals such as 1.270440: up to seven digits, and up to six more behind a point."""
    buffer, starts, lengths = numbers.buffer, numbers.starts, numbers.lengths
    whole = first_in_words(words_at(buffer, starts), ord("."))
    has_point = whole < lengths
    whole = np.where(has_point, whole, lengths)
    seconds, is_sound = _digits(buffer, starts, whole)
    is_sound &= _is_json_whole(buffer, starts, whole)
    found: Int64s = seconds * 1_000_000
    if has_point.any():
        places = np.where(has_point, lengths - whole - 1, 1)
        parts, are_digits = _digits(buffer, starts + np.where(has_point, whole + 1, 0), places)
        is_sound &= (are_digits & (places <= 6)) | ~has_point
        found += np.where(has_point, parts * _POWERS[6 - np.clip(places, 0, 6)], 0)
    return found, is_sound


_POWERS = np.array([10**places for places in range(9)], np.int64)
_SECOND_END = 19  # of 2026-10-03T04:00:02
_LONGEST_FRACTION = 10  # a point and nine digits
# 2026-10-|03T04:00|:02: which bytes are no digits, and what they are.
_DATE_MARKS, _TIME_MARKS = _u(0xFF0000FF00000000), _u(0x0000FF0000FF0000)
_DATE, _TIME = _u(0x2D00002D00000000), _u(0x00003A0000540000)


def instants_ms(instants: Spans) -> tuple[Int64s, Bools]:
    """Epoch milliseconds of instants written as `2026-10-03T04:00:02.450Z`, or with `+08:00`; finer digits floored."""
    buffer, starts, lengths = instants.buffer, instants.starts, instants.lengths
    letters = np.frombuffer(buffer, np.uint8)
    offsets, zone, is_sound = _offsets_ms(letters, instants)
    fraction = lengths - _SECOND_END - zone
    is_sound &= (fraction >= 0) & (fraction <= _LONGEST_FRACTION)
    date, time = words_at(buffer, starts), words_at(buffer, starts + 8)
    is_sound &= ((date & _DATE_MARKS) == _DATE) & _are_digits((date & ~_DATE_MARKS) | (_ZEROS & _DATE_MARKS))
    is_sound &= ((time & _TIME_MARKS) == _TIME) & _are_digits((time & ~_TIME_MARKS) | (_ZEROS & _TIME_MARKS))
    is_sound &= letters[starts + 16] == ord(":")
    second, are_digits = _digits(buffer, starts + 17, np.full(len(instants), 2))
    dates, times = _pairs(date), _pairs(time)
    hour, minute = _pair(times, 3), _pair(times, 6)
    is_sound &= are_digits & (hour <= 23) & (minute <= 59) & (second <= 59)
    days = (_pair(dates, 0) * 100 + _pair(dates, 2)) * 10_000 + _pair(dates, 5) * 100 + _pair(times, 0)
    midnights, are_days = _midnights_ms(np.where(is_sound, days, days[0] if len(days) else 0))
    milli, is_fraction = _milliseconds(letters, buffer, starts + _SECOND_END, fraction)
    of_day: Int64s = ((hour * 60 + minute) * 60 + second) * 1000
    return midnights + of_day + milli - offsets, is_sound & are_days & is_fraction


def _offsets_ms(letters: NDArray[np.uint8], instants: Spans) -> tuple[Int64s | int, Int64s | int, Bools]:
    """(how far the clock is before UTC, how many bytes tell it, whether it is told): Z, +08:00 or -03:30."""
    ends = np.maximum(instants.ends, 1)
    is_zulu: Bools = letters[ends - 1] == ord("Z")
    if is_zulu.all():
        return 0, 1, is_zulu
    at = np.maximum(instants.ends - 6, 0)
    two = np.full(len(at), 2)
    hour, is_hour = _digits(instants.buffer, at + 1, two)
    minute, is_minute = _digits(instants.buffer, at + 4, two)
    is_behind: Bools = letters[at] == ord("-")
    is_told = is_hour & is_minute & (hour <= 23) & (minute <= 59) & (letters[at + 3] == ord(":"))
    is_told &= is_behind | (letters[at] == ord("+"))
    offsets = (hour * 60 + minute) * np.where(is_behind, -60_000, 60_000)
    return np.where(is_zulu, 0, offsets), np.where(is_zulu, 1, 6), is_zulu | is_told


def _pairs(words: Words) -> Words:
    """In each byte the two-digit number that it and the next one make."""
    digits = words & _LOW_HALVES
    return digits * _u(10) + (digits >> _u(8))


def _pair(pairs: Words, place: int) -> Int64s:
    return ((pairs >> _u(8 * place)) & _u(0xFF)).view(np.int64)


def _midnights_ms(days: Int64s) -> tuple[Int64s, Bools]:
    """Starts of UTC days written as the number 20261003; few of them differ."""
    if (days == days[:1]).all():  # nearly always, and cheaper than sorting
        distinct, place = days[:1], np.zeros(len(days), np.int64)
    else:
        distinct, place = np.unique(days, return_inverse=True)
    found, is_sound = np.zeros(len(distinct), np.int64), np.ones(len(distinct), bool)
    for number, day in enumerate(distinct.tolist()):
        try:
            text = f"{day // 10000:04}-{day // 100 % 100:02}-{day % 100:02}T00:00:00Z"
            found[number] = fields.instant_ms(text)
        except Refusal:
            is_sound[number] = False
    return found[place], is_sound[place]


def _milliseconds(
    letters: NDArray[np.uint8], buffer: bytes, points: Int64s, lengths: Int64s
) -> tuple[Int64s, Bools]:
    """What stands between seconds and Z, if anything: a point and one to nine digits. `lengths` with the point."""
    if not lengths.any():
        return np.zeros(len(points), np.int64), np.ones(len(points), bool)
    places = lengths - 1
    found, is_sound = _digits(buffer, points + 1, np.minimum(places, WORD))
    is_sound &= letters[points] == ord(".")
    longest = places == WORD + 1
    if longest.any():
        is_sound &= ~longest | ((letters[points + WORD + 1] - np.uint8(ord("0"))) <= 9)
    places = np.clip(places, 0, WORD)
    milli = np.where(places < 3, found * _POWERS[np.maximum(3 - places, 0)], found // _POWERS[places - 3])
    return np.where(lengths == 0, 0, milli), is_sound | (lengths == 0)


# --- few different texts ------------------------------------------------------------------------------------

_MULTIPLIER = _u(0x9E3779B97F4A7C15)
LONGEST_CODED = 512


def coded(texts: Spans, read: Callable[[bytes], Any]) -> tuple[Coded, Bools]:
    """The column with each different text read once; null stays None. `Refusal`: not sound.

    Texts are told apart by a hash of their words; those of one hash are compared word by word with one of them, and
    are not sound where they differ. So equal codes always mean equal texts.
    """
    lengths = texts.lengths
    is_sound = lengths <= LONGEST_CODED
    masked = masked_words(texts, np.minimum(lengths, LONGEST_CODED))
    hashes = lengths.view(np.uint64) * _MULTIPLIER
    for words in masked:
        hashes = (hashes ^ words) * _MULTIPLIER
        hashes ^= hashes >> _u(32)
    if (hashes == hashes[0]).all():
        codes, some = np.zeros(len(texts), np.int64), np.zeros(1, np.int64)
        same: Int64s | int = 0
    else:
        distinct, codes = np.unique(hashes, return_inverse=True)
        some = np.zeros(len(distinct), np.int64)
        some[codes] = np.arange(len(texts))
        same = some[codes]
    is_sound &= lengths == lengths[same]
    for words in masked:
        is_sound &= words == words[same]
    values, are_sound = _read_each(texts.take(some), read)
    if not are_sound.all():
        is_sound &= are_sound[codes]
    return Coded(values, codes), is_sound


def masked_words(texts: Spans, lengths: Int64s) -> list[Words]:
    """The texts' words, with zeros behind their ends."""
    found = []
    longest = max(int(lengths.max()), 0)
    shortest = int(lengths.min())
    last = len(texts.buffer) - WORD
    for offset in range(0, longest, WORD):
        words = words_at(texts.buffer, np.minimum(texts.starts + offset, last))
        if shortest < offset + WORD:
            missing = np.clip(offset + WORD - lengths, 0, WORD) * 8
            words &= _ALL >> missing.astype(np.uint64)
        found.append(words)
    return found


def _read_each(texts: Spans, read: Callable[[bytes], Any]) -> tuple[list[Any], Bools]:
    values: list[Any] = []
    is_sound = np.ones(len(texts), bool)
    for number, (text, length) in enumerate(zip(texts, texts.lengths.tolist(), strict=True)):
        value = None
        if length >= 0:
            try:
                value = read(text)
            except (Refusal, ValueError):
                is_sound[number] = False
        values.append(value)
    return values, is_sound
