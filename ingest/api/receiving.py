"""What of a posted body is judged before the 202: its form and its limits, each with a reason code of its own."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from ingest.core.parse import Rejected, parse_lines
from ingest.core.unpack import (
    CONTENT_TYPES,
    ENCODINGS,
    SINGLE,
    Broken,
    Limits,
    NotText,
    checked_text,
    cut,
    encoding_of,
    media_type,
    unpack,
)
from ingest.services.inbox import Body
from ledger.api.problems import Problem

READ_BYTES = 1024 * 1024
# Wrong in a way that the sender can mend by sending less or otherwise.
_STATUS = {"unpacked_too_large": 413, "too_many_events": 413, "event_too_large": 413}


def read_body(request: Request, limits: Limits) -> Body:
    """The body as it came; raises `Problem` 415 for forms we cannot read and 413 for too much of it."""
    content_type = request.META.get("CONTENT_TYPE", "")
    if media_type(content_type) not in CONTENT_TYPES:
        known = ", ".join(sorted(CONTENT_TYPES))
        raise Problem(415, "unsupported_type", f"Content-Type must be one of {known}.")
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding not in ENCODINGS:
        raise Problem(415, "unsupported_encoding", "Content-Encoding must be gzip, zstd or none.")
    content = _bytes_of(request, limits.body_bytes)
    if encoding in ("", "identity") and (packed := encoding_of(content)):
        raise Problem(415, "undeclared_encoding", f"The body is {packed}: send Content-Encoding: {packed}.")
    return Body(content, content_type, encoding)


def _bytes_of(request: Request, limit: int) -> bytes:
    too_large = Problem(413, "body_too_large", f"The body has more than {limit} bytes; send it in parts.")
    declared = request.META.get("CONTENT_LENGTH") or "0"
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    stream: Any = request._request
    pieces, size = [], 0
    while piece := stream.read(READ_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise too_large
    return b"".join(pieces)


def count_events(body: Body, limits: Limits) -> int:
    """How many events the body holds; raises `Problem` where its limits are broken or it cannot be unpacked.

    One bad event among others is no problem of the body: it goes to quarantine. A body that is one event is.
    """
    is_single = media_type(body.content_type) == SINGLE
    events = 0
    try:
        unpacked = unpack([body.content], body.encoding, limits.unpacked_bytes)
        for group in cut(checked_text(unpacked), body.content_type, limits):
            events += len(group.raw) - group.raw.count(b"")
            if is_single and any(raw.strip() and raw.lstrip()[:1] != b"{" for raw in map(bytes, group.raw)):
                raise Problem(400, "not_object", "An event is a JSON object.")
            if is_single:
                for verdict in parse_lines(group, 2**62, limits):
                    _refuse_what_is_no_event(verdict)
    except Broken as broken:
        raise Problem(_STATUS.get(broken.reason, 400), broken.reason, broken.detail) from None
    except NotText:
        raise Problem(400, "not_text", "The body is neither text nor a compression of text.") from None
    if not events:
        raise Problem(400, "no_events", "The body holds no event.")
    return events


_NO_EVENT_AT_ALL = frozenset({"event_too_large", "too_deep", "not_json", "not_object", "bad_encoding"})


def _refuse_what_is_no_event(verdict: Any) -> None:
    if isinstance(verdict, Rejected) and verdict.reason in _NO_EVENT_AT_ALL:
        raise Problem(_STATUS.get(verdict.reason, 400), verdict.reason, verdict.detail)
