"""JSON values from lines: one per line, or documents spread over lines as `kubectl -o json` prints them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ingest.core.adapters.base import Refused

MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""A document that is spread over lines has to be held whole; past this it is refused, not held."""


@dataclass(frozen=True, slots=True)
class JsonRecord:
    value: Any
    position: int
    """Line where it starts, from 1."""
    raw: bytes

    def refused(self, reason: str, detail: str) -> Refused:
        return Refused(position=self.position, record=self.raw, reason=reason, detail=detail)


def read_json(lines: Iterable[bytes]) -> Iterator[JsonRecord | Refused]:
    """The JSON values of `lines`, in order; blank lines are skipped.

    A line that is nothing but an opening bracket starts a printed document. Its inner lines are indented, and it
    ends at the line that is nothing but the closing bracket; a line that is neither shows that the document broke
    off, and is read by itself: so broken input can never swallow its neighbours.
    """
    document: list[bytes] = []
    closing, start, size = b"", 0, 0
    for position, line in enumerate(lines, start=1):
        text = line.strip()
        if document:
            if line.rstrip() == closing or not text or line[:1] in b" \t":
                document.append(line)
                size += len(line)
                if line.rstrip() == closing or size > MAX_DOCUMENT_BYTES:
                    yield _decoded(b"".join(_with_newlines(document)), start)
                    document = []
                continue
            yield _broken_off(document, start)
            document = []
        if text in (b"{", b"["):
            document, start, size = [line], position, len(line)
            closing = b"}" if text == b"{" else b"]"
        elif text:
            yield _decoded(line, position)
    if document:
        yield _broken_off(document, start)


def _broken_off(document: list[bytes], start: int) -> Refused:
    raw = b"".join(_with_newlines(document))
    return Refused(start, raw, "not_json", "the document that starts here never ends")


def _with_newlines(document: list[bytes]) -> Iterator[bytes]:
    for line in document:
        yield line if line.endswith(b"\n") else line + b"\n"


def _decoded(raw: bytes, position: int) -> JsonRecord | Refused:
    if len(raw) > MAX_DOCUMENT_BYTES:
        return Refused(
            position, raw[:4096], "too_large", f"more than {MAX_DOCUMENT_BYTES} bytes in one document"
        )
    try:
        return JsonRecord(msgspec.json.decode(raw), position, raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Refused(position, raw, "not_json", f"not JSON: {error}")
