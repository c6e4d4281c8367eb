"""From the bytes of a body to single events, still undecoded: unpack, cut, keep every limit (events.md, Doors).

Everything streams: memory stays bounded whatever the body claims to be. What cannot be read further ends the
stream with `Broken`; everything before it has been given by then.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec
import zstandard

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one body may be; each limit has a reason code of its own."""

    body_bytes: int = 64 * MIB
    unpacked_bytes: int = 512 * MIB
    event_bytes: int = MIB
    events: int = 500_000
    depth: int = 32


class Broken(Exception):
    """The rest of the body cannot be read. `rest` holds its first bytes, where there are any to show."""

    def __init__(self, reason: str, detail: str, rest: bytes = b"") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.rest = rest


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive events of a body; `raw[i]` is line (or array element) `first + i`. Blank ones are no events."""

    first: int
    raw: list[bytes]
    oversize_bytes: int = 0  # not 0: the only line here was this long, and `raw` holds its beginning


# --- unpacking ----------------------------------------------------------------------------------------------

ENCODINGS = frozenset({"", "identity", "gzip", "x-gzip", "zstd"})
BLOCK_BYTES = 512 * 1024
# A zstd block of 4 bytes can unpack to 128 KiB, and the library has no output limit: so feed it in small bites.
ZSTD_BITE_BYTES = 2048


def unpack(chunks: Iterable[bytes], encoding: str, limit_bytes: int) -> Iterator[bytes]:
    """The unpacked body in blocks of moderate size.

    Raises:
        Broken: `broken_compression` or `unpacked_too_large`, after all that could be unpacked was given.
    """
    unpacked = _UNPACKERS[encoding](chunks)
    total = 0
    for block in unpacked:
        total += len(block)
        if total > limit_bytes:
            kept = block[: len(block) - (total - limit_bytes)]
            if kept:
                yield kept
            raise Broken("unpacked_too_large", f"the body unpacks to more than {limit_bytes} bytes")
        yield block


def _plain(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), BLOCK_BYTES):
            yield chunk[start : start + BLOCK_BYTES]


def _gunzip(chunks: Iterable[bytes]) -> Iterator[bytes]:
    inflate = zlib.decompressobj(wbits=31)
    begun = False
    for chunk in chunks:
        data = chunk
        while data:
            if inflate.eof:  # another member follows, or the padding that tape-minded tools write
                data = data.lstrip(b"\0")
                if not data:
                    break
                inflate = zlib.decompressobj(wbits=31)
            begun = True
            try:
                block = inflate.decompress(data, BLOCK_BYTES)
            except zlib.error as error:
                raise Broken("broken_compression", f"gzip: {error}") from None
            if block:
                yield block
            data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        # What the limit held back inside of zlib comes out with the next input; at the end it must be asked for.
    while not inflate.eof and (block := inflate.decompress(b"", BLOCK_BYTES)):
        yield block
    if begun and not inflate.eof:
        raise Broken("broken_compression", "gzip: the body breaks off")


def _unzstd(chunks: Iterable[bytes]) -> Iterator[bytes]:
    frame = zstandard.ZstdDecompressor().decompressobj()
    begun = False
    gathered: list[bytes] = []
    gathered_bytes = 0
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), ZSTD_BITE_BYTES):
            bite = bytes(view[start : start + ZSTD_BITE_BYTES])
            while bite:
                if frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
                begun = True
                try:
                    block = frame.decompress(bite)
                except zstandard.ZstdError as error:
                    yield b"".join(gathered)
                    raise Broken("broken_compression", f"zstd: {error}") from None
                bite = frame.unused_data if frame.eof else b""
                gathered.append(block)
                gathered_bytes += len(block)
            if gathered_bytes >= BLOCK_BYTES:
                yield b"".join(gathered)
                gathered, gathered_bytes = [], 0
    yield b"".join(gathered)
    if begun and not frame.eof:
        raise Broken("broken_compression", "zstd: the body breaks off")


_UNPACKERS: dict[str, Callable[[Iterable[bytes]], Iterator[bytes]]] = {
    "": _plain,
    "identity": _plain,
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "zstd": _unzstd,
}


# --- forms --------------------------------------------------------------------------------------------------

SINGLE = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
NDJSON = "application/x-ndjson"
JSON = "application/json"
CONTENT_TYPES = frozenset({SINGLE, BATCH, NDJSON, JSON})
_BOM = b"\xef\xbb\xbf"


def media_type(content_type: str) -> str:
    """The media type without parameters such as `charset`."""
    return content_type.partition(";")[0].strip().lower()


def cut(blocks: Iterable[bytes], content_type: str, limits: Limits) -> Iterator[Lines]:
    """Single events of an unpacked body. `JSON`, and anything unknown, is told by its first character.

    Raises:
        Broken: from `unpack`, or `too_many_events`, or `not_an_array`.
    """
    first, rest = _first_block(iter(blocks))
    form = media_type(content_type)
    if form not in (SINGLE, BATCH, NDJSON):
        form = BATCH if first.lstrip()[:1] == b"[" else SINGLE if form == JSON else NDJSON
    whole = _chain(first, rest)
    cutters: dict[str, Callable[[Iterator[bytes], Limits], Iterator[Lines]]] = {
        SINGLE: _whole_body,
        BATCH: cut_array,
        NDJSON: cut_lines,
    }
    return _counted(cutters[form](whole, limits), limits.events)


def _first_block(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first block with something in it, without a byte-order mark, and what follows."""
    first = b""
    try:
        for block in blocks:
            first += block
            if (len(first) >= len(_BOM) and first.strip()) or len(first) > MIB:
                break  # after so many blanks the form no longer matters, and memory does
    except Broken as broken:
        return first.removeprefix(_BOM), _failing(broken)
    return first.removeprefix(_BOM), blocks


def _failing(broken: Broken) -> Iterator[bytes]:
    raise broken
    yield b""


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _counted(lines: Iterator[Lines], limit: int) -> Iterator[Lines]:
    """Stops with `too_many_events` where event number `limit` + 1 begins."""
    left = limit
    for group in lines:
        events = len(group.raw) - group.raw.count(b"")
        if events > left:
            kept, rest = _split(group, left)
            if kept.raw:
                yield kept
            raise Broken("too_many_events", f"more than {limit} events in one batch", b"\n".join(rest.raw))
        left -= events
        yield group


def _split(group: Lines, events: int) -> tuple[Lines, Lines]:
    taken = 0
    for index, raw in enumerate(group.raw):
        if raw:
            if taken == events:
                return Lines(group.first, group.raw[:index]), Lines(group.first + index, group.raw[index:])
            taken += 1
    return group, Lines(group.first + len(group.raw), [])


def _whole_body(blocks: Iterator[bytes], limits: Limits) -> Iterator[Lines]:
    body = bytearray()
    total = 0
    for block in blocks:
        total += len(block)
        body += block[: max(limits.event_bytes + 1 - len(body), 0)]
    if total > limits.event_bytes:
        yield Lines(1, [bytes(body[:KEPT_OF_OVERSIZE])], oversize_bytes=total)
    elif body.strip():
        yield Lines(1, [bytes(body)])


# What quarantine keeps of a line that is too large to be an event.
KEPT_OF_OVERSIZE = 64 * 1024


def cut_lines(blocks: Iterator[bytes], limits: Limits) -> Iterator[Lines]:
    """One event per line. Of a line beyond the limit only its beginning is kept in memory."""
    number, tail, oversize = 1, b"", 0
    for block in blocks:
        if oversize:
            end = block.find(b"\n")
            if end < 0:
                oversize += len(block)
                continue
            yield Lines(number, [tail], oversize_bytes=oversize + end)
            number, tail, oversize = number + 1, b"", 0
            block = block[end + 1 :]
        raw = (tail + block).split(b"\n") if tail else block.split(b"\n")
        tail = raw.pop()
        if raw:
            yield Lines(number, _without_blanks(raw))
            number += len(raw)
        if len(tail) > limits.event_bytes:
            tail, oversize = tail[:KEPT_OF_OVERSIZE], len(tail)
    if oversize:
        yield Lines(number, [tail], oversize_bytes=oversize)
    elif tail.strip():
        yield Lines(number, [tail])


def _without_blanks(raw: list[bytes]) -> list[bytes]:
    # One cheap scan finds out that there is nothing to do, which is nearly always.
    if min(map(len, raw)) > SHORTEST_EVENT_BYTES:
        return raw
    return [line if line.strip() else b"" for line in raw]


# --- arrays -------------------------------------------------------------------------------------------------

_BLANKS = re.compile(rb"[ \t\r\n]*")
# Where one object of an array probably ends: rarely inside of an event, and the decoder tells.
_LIKELY_END = re.compile(rb"\}(?=[ \t\r\n]*(?:,[ \t\r\n]*\{|\]))")
_STRUCTURE = re.compile(rb'["\\\[\]{},]')
_complete_value = msgspec.json.Decoder(msgspec.Raw)
GROUP_EVENTS = 2000
SHORTEST_EVENT_BYTES = 64


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
    window = _Window(blocks)
    if not window.next_letter():
        return
    if window.next_letter() != b"[":
        raise Broken("not_an_array", "the body does not begin with [", window.data[:KEPT_OF_OVERSIZE])
    window.position += 1
    number = 1
    group: list[bytes] = []
    if window.next_letter() == b"]":
        window.position += 1
    else:
        more = True
        while more:
            try:
                element = _element(window, limits)
                more = _separator(window)
            except Broken as broken:
                if group:
                    yield Lines(number, group)
                raise broken
            if isinstance(element, Lines):
                if group:
                    yield Lines(number, group)
                number, group = number + len(group), []
                yield Lines(number, element.raw, element.oversize_bytes)
                number += 1
                continue
            group.append(element)
            if len(group) >= GROUP_EVENTS:
                yield Lines(number, group)
                number, group = number + len(group), []
    if group:
        yield Lines(number, group)
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
        try:
            _complete_value.decode(candidate)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            pass  # the exact search below decides
        else:
            window.position = likely.end()
            return candidate
    return _element_exactly(window, limits)


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
