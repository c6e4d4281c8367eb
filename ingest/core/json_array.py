"""A JSON array as a stream of its elements, each still undecoded.

The decoder at hand reads whole values only. So the end of an element is guessed by what usually follows one, the
decoder confirms the guess, and where it does not, brackets and quotes are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from ingest.core.body import KEPT_OF_OVERSIZE, Broken, Limits, Lines

_BLANKS = re.compile(rb"[ \t\r\n]*")
# Where one object of an array probably ends: rarely inside of an event, and the decoder tells.
_LIKELY_END = re.compile(rb"\}(?=[ \t\r\n]*(?:,[ \t\r\n]*\{|\]))")
_STRUCTURE = re.compile(rb'["\\\[\]{},]')
_complete_value = msgspec.json.Decoder(msgspec.Raw)
GROUP_EVENTS = 2000


class _Scanner:
    """Finds where the element of an array ends, by brackets and quotes alone; can be fed in pieces."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_text = False
        self.skip = -1  # position of a character behind a backslash

    def end_in(self, data: bytes, start: int) -> int:
        """Position of the comma or bracket behind the element, or -1 if it goes on after `data`."""
        for match in _STRUCTURE.finditer(data, start):
            position, letter = match.start(), match.group()
            if position == self.skip:
                continue
            if self.in_text:
                if letter == b"\\":
                    self.skip = position + 1
                elif letter == b'"':
                    self.in_text = False
            elif letter == b'"':
                self.in_text = True
            elif letter in b"[{":
                self.depth += 1
            elif letter in b"]}":
                if self.depth == 0:
                    return position
                self.depth -= 1
            elif letter == b"," and self.depth == 0:
                return position
        # A backslash as the very last byte hides the first one of the next piece.
        self.skip = 0 if self.skip == len(data) else -1
        return -1


class _Window:
    """The part of a stream that is in memory, from `position` on."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks = blocks
        self.data = b""
        self.position = 0

    def more(self) -> bool:
        block = next(self.blocks, None)
        if block is None:
            return False
        self.data = self.data[self.position :] + block
        self.position = 0
        return True

    def next_letter(self) -> bytes:
        """The next character that is not blank, without taking it; b"" at the end."""
        while True:
            self.position = _BLANKS.match(self.data, self.position).end()  # type: ignore[union-attr]
            if self.position < len(self.data):
                return self.data[self.position : self.position + 1]
            if not self.more():
                return b""


def cut_array(blocks: Iterator[bytes], limits: Limits) -> Iterator[Lines]:
    """One event per element of a JSON array, without holding the array in memory.

    Raises:
        Broken: `not_an_array` where the array itself, not an element, is damaged.
    """
    number = 1
    group: list[bytes] = []
    try:
        for element in _elements(_Window(blocks), limits):
            if isinstance(element, bytes):
                group.append(element)
            if group and (len(group) >= GROUP_EVENTS or isinstance(element, Lines)):
                yield Lines(number, group)
                number, group = number + len(group), []
            if isinstance(element, Lines):
                yield Lines(number, element.raw, element.oversize_bytes)
                number += 1
    except Broken:
        if group:
            yield Lines(number, group)
        raise
    if group:
        yield Lines(number, group)


def _elements(window: _Window, limits: Limits) -> Iterator[bytes | Lines]:
    """The elements of the array that begins in the window, one by one."""
    if not window.next_letter():
        return
    if window.next_letter() != b"[":
        raise Broken("not_an_array", "the body does not begin with [", window.data[:KEPT_OF_OVERSIZE])
    window.position += 1
    if window.next_letter() == b"]":
        window.position += 1
    else:
        # Nothing between two commas is an element too, and a bad one.
        yield _element(window, limits) or b" "
        while _separator(window):
            yield _element(window, limits) or b" "
    if window.next_letter():
        rest = window.data[window.position :][:KEPT_OF_OVERSIZE]
        raise Broken("not_an_array", "something follows the end of the array", rest)


def _separator(window: _Window) -> bool:
    """Take the comma (True) or the closing bracket (False) behind an element."""
    letter = window.next_letter()
    window.position += 1
    if letter == b",":
        return True
    if letter == b"]":
        return False
    raise Broken("not_an_array", "the array breaks off")


def _element(window: _Window, limits: Limits) -> bytes | Lines:
    """The next element; as `Lines` with its beginning only where it is larger than an event may be."""
    if not window.next_letter():
        raise Broken("not_an_array", "the array breaks off")
    likely = _LIKELY_END.search(window.data, window.position)
    if likely is not None and likely.end() - window.position <= limits.event_bytes:
        candidate = window.data[window.position : likely.end()]
        if _is_complete(candidate):
            window.position = likely.end()
            return candidate
    return _element_exactly(window, limits)


def _is_complete(candidate: bytes) -> bool:
    try:
        _complete_value.decode(candidate)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return True


def _element_exactly(window: _Window, limits: Limits) -> bytes | Lines:
    scanner = _Scanner()
    start = searched = window.position
    kept, dropped = b"", 0
    while (end := scanner.end_in(window.data, searched)) < 0:
        if dropped or len(window.data) - start > limits.event_bytes:
            kept = kept or window.data[start : start + KEPT_OF_OVERSIZE]
            dropped += len(window.data) - start
            window.position = len(window.data)
        length = len(window.data) - window.position
        if not window.more():
            rest = kept or window.data[window.position :]
            if not dropped and _is_complete(rest):
                window.position = len(window.data)
                return rest  # only the array's end is missing
            raise Broken("not_an_array", "the array breaks off", rest[:KEPT_OF_OVERSIZE])
        start, searched = 0, length
        if scanner.skip == 0:
            scanner.skip = length
    size = dropped + end - start
    if size > limits.event_bytes:
        element = kept or window.data[start : start + KEPT_OF_OVERSIZE]
        window.position = end
        return Lines(0, [element], oversize_bytes=size)
    window.position = end
    return window.data[start:end]
