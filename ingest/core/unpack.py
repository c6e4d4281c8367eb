"""From the bytes of a body to single events, still undecoded: unpack, cut, keep every limit (events.md, Doors).

Everything streams: memory stays bounded whatever the body claims to be. What cannot be read further ends the
stream with `Broken`; everything before it has been given by then.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np

from ingest.core.body import KEPT_OF_OVERSIZE, MIB
from ingest.core.body import Broken as Broken
from ingest.core.body import Limits as Limits
from ingest.core.body import Lines as Lines
from ingest.core.json_array import cut_array
from ingest.core.spans import PADDING, Spans
from ledger.core import zstd

# --- unpacking ----------------------------------------------------------------------------------------------

ENCODINGS = frozenset({"", "identity", "gzip", "x-gzip", "zstd"})
BLOCK_BYTES = 2 * MIB
SHORTEST_EVENT_BYTES = 64


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


class NotText(ValueError):
    """What is to be read is no text and no known compression of it: not one bad line among others, but most of it."""


_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    # Frames to skip, which parallel packers begin with.
    **{bytes([n, 0x2A, 0x4D, 0x18]): "zstd" for n in range(0x50, 0x60)},
}


def encoding_of(beginning: bytes) -> str:
    """The compression that the first bytes tell; none where they tell none."""
    return next((encoding for magic, encoding in _MAGIC.items() if beginning.startswith(magic)), "")


def unpack_file(chunks: Iterable[bytes], limit_bytes: int) -> Iterator[bytes]:
    """`unpack` of what nobody has said the compression of. The first chunk has its first bytes.

    Raises:
        Broken: as `unpack`.
        NotText: before anything is given.
    """
    rest = iter(chunks)
    first = next(rest, b"")
    return checked_text(unpack(chain((first,), rest), encoding_of(first), limit_bytes))


def checked_text(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same blocks; raises `NotText` where the first is none. Lines that begin as JSON does are left to `parse`."""
    is_judged = False
    for block in blocks:
        if not is_judged and block:
            *lines, broken_off = block.split(b"\n")
            bad = sum(len(line) for line in lines if not _may_be_text(line))
            bad += 0 if _may_be_text(broken_off, is_whole=False) else len(broken_off)
            if 2 * bad > len(block):
                raise NotText("neither text nor gzip or zstd of text")
            is_judged = True
        yield block


def _may_be_text(line: bytes, is_whole: bool = True) -> bool:
    if line.lstrip()[:1] in (b"{", b"["):
        return True
    try:
        codecs.utf_8_decode(line, "strict", is_whole)
    except UnicodeDecodeError:
        return False
    return b"\0" not in line


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
    frame = zstd.ZstdDecompressor()
    begun = False
    gathered: list[bytes] = []
    missing = BLOCK_BYTES
    for chunk in chunks:
        data = chunk
        while data or not (frame.eof or frame.needs_input):
            if frame.eof:  # another frame follows
                frame = zstd.ZstdDecompressor()
            begun = True
            try:
                block = frame.decompress(data, missing)
            except zstd.ZstdError as error:
                yield b"".join(gathered)
                raise Broken("broken_compression", f"zstd: {error}") from None
            data = frame.unused_data if frame.eof else b""
            gathered.append(block)
            missing -= len(block)
            if not missing:
                yield b"".join(gathered)
                gathered, missing = [], BLOCK_BYTES
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


def cut_lines(blocks: Iterator[bytes], limits: Limits) -> Iterator[Lines]:
    """One event per line. Of a line beyond the limit only its beginning is kept in memory."""
    number, oversize = 1, 0
    tail: list[
        bytes
    ] = []  # in pieces, since joining them with every block would copy a long line again and again
    held = 0
    for block in blocks:
        if oversize:
            end = block.find(b"\n")
            if end < 0:
                oversize += len(block)
                continue
            yield Lines(number, tail, oversize_bytes=oversize + end)
            number, tail, held, oversize = number + 1, [], 0, 0
            block = block[end + 1 :]
        end = block.rfind(b"\n") + 1
        if end:
            raw = _lines_of(b"".join((*tail, block[:end], PADDING)))
            yield Lines(number, raw)
            number += len(raw)
            tail, held = [], 0
        tail.append(block[end:])
        held += len(block) - end
        if held > limits.event_bytes:
            tail, oversize = [_beginning(tail)], held
    if oversize:
        yield Lines(number, tail, oversize_bytes=oversize)
    elif (rest := b"".join(tail)).strip():
        yield Lines(number, [rest])


def _beginning(pieces: list[bytes]) -> bytes:
    kept = bytearray()
    for piece in pieces:
        kept += piece[: KEPT_OF_OVERSIZE - len(kept)]
        if len(kept) >= KEPT_OF_OVERSIZE:
            break
    return bytes(kept)


def _lines_of(buffer: bytes) -> Spans:
    """The lines of a padded buffer that ends with a line; those of blanks only are empty."""
    ends = np.flatnonzero(np.frombuffer(buffer, np.uint8, len(buffer) - len(PADDING)) == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts
    short = np.flatnonzero((lengths > 0) & (lengths < SHORTEST_EVENT_BYTES))
    for line in short.tolist():
        if not buffer[starts[line] : ends[line]].strip():
            starts[line] = ends[line]
    return Spans(buffer, starts, ends)
