"""One event's bytes -> a typed event, or the reason why not. Never raises for what it reads.

`parse_line` is the judge of everything that enters; `request_lines` is a faster way to the same verdict for
well-formed requests, and asks here about anything else.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec

from ingest.core import fields
from ingest.core.body import KEPT_OF_OVERSIZE, MIB
from ingest.core.events import TYPES, Correction, Record, Request, Usage, check_instant, settle
from ingest.core.fields import Refusal, shown
from ingest.core.request_content import HASH_BYTES, encode_texts, request_hash
from ingest.core.unpack import Broken, Limits, Lines, cut, unpack


@dataclass(slots=True)
class ParsedEvent:
    """An event that is sound in itself; whether its pool or tenant exists is not known here."""

    line: int
    source: str
    id: str
    type: str
    time_ms: int
    record: Record
    digest: bytes
    raw: bytes
    attributes: dict[str, str] = field(default_factory=dict)  # envelope attributes that are not ours
    replacement: ParsedEvent | None = None  # of a correction: the event that takes the other's place

    def rejected(self, reason: str, detail: str) -> Rejected:
        """The same event, sound in itself and refused all the same."""
        return Rejected(
            self.line, reason, detail, self.raw, id=self.id, source=self.source, time_ms=self.time_ms
        )


@dataclass(slots=True)
class Rejected:
    """An event that goes to quarantine, with as much of its key as could be read."""

    line: int
    reason: str
    detail: str
    raw: bytes
    id: str = ""
    source: str = ""
    time_ms: int | None = None
    adapter: str = ""  # that refused it: raw is a native record, and no event


def parse_body(
    chunks: Iterable[bytes], encoding: str, content_type: str, now_ms: int, limits: Limits | None = None
) -> Iterator[ParsedEvent | Rejected]:
    """Every event of a body in order; the unreadable rest of one, if any, as a last `Rejected`."""
    limits = limits or Limits()
    last = 0
    try:
        for group in cut(unpack(chunks, encoding, limits.unpacked_bytes), content_type, limits):
            last = group.first + len(group.raw) - 1
            yield from parse_lines(group, now_ms, limits)
    except Broken as broken:
        yield rejected_rest(last + 1, broken)


def rejected_rest(line: int, broken: Broken) -> Rejected:
    return Rejected(line, broken.reason, broken.detail, broken.rest[: Limits().event_bytes])


def parse_lines(group: Lines, now_ms: int, limits: Limits) -> Iterator[ParsedEvent | Rejected]:
    if group.oversize_bytes:
        yield _oversize(group.first, group.raw[0], group.oversize_bytes, limits)
        return
    for line, raw in enumerate(group.raw, group.first):
        if raw:
            yield parse_line(line, raw, now_ms, limits)


def parse_line(line: int, raw: bytes, now_ms: int, limits: Limits) -> ParsedEvent | Rejected:
    """The verdict on one event. `now_ms` is the ledger's clock, for the rule on future times."""
    if len(raw) > limits.event_bytes and not raw.startswith(_REFUSED_START):
        return _oversize(line, raw, len(raw), limits)
    envelope: dict[str, Any] = {}
    try:
        _check_depth(raw, limits.depth)
        for name, part in _decode(_envelope_parts, raw).items():
            envelope[name] = part if name == "data" else _decode(_plain_values, part)
        if envelope.get("type") == REFUSED_TYPE:
            return _refused_before(line, raw)
        return _event(line, raw, envelope, now_ms, limits)
    except Refusal as refusal:
        return _rejected(line, raw, envelope, refusal)


def _oversize(line: int, raw: bytes, size: int, limits: Limits) -> Rejected:
    detail = f"the event has {size} bytes, more than {limits.event_bytes}"
    return Rejected(line, "event_too_large", detail, raw, id=_guess_id(raw[:4096]))


_ID_NEARBY = re.compile(rb'"id"\s*:\s*"([^"\\]{1,200})"')


def _guess_id(raw: bytes) -> str:
    """The id of something that is no JSON, so that its sender finds it again."""
    match = _ID_NEARBY.search(raw)
    return match.group(1).decode("utf-8", "replace").replace("\x00", "") if match else ""


def _rejected(line: int, raw: bytes, envelope: dict[str, Any], refusal: Refusal) -> Rejected:
    result = Rejected(line, refusal.reason, refusal.detail, raw)
    result.id = _readable(fields.event_id, envelope.get("id")) or _guess_id(raw[:4096])
    result.source = _readable(fields.source_uri, envelope.get("source")) or ""
    result.time_ms = _readable(fields.instant_ms, envelope.get("time"))
    return result


def _readable(read: fields.Reader, value: Any) -> Any:
    try:
        return read(value)
    except Refusal:
        return None


# --- JSON ---------------------------------------------------------------------------------------------------

# Numbers with a point become Decimal: a float is not what the sender wrote.
_plain_values = msgspec.json.Decoder(float_hook=Decimal)
_envelope_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_data = {name: msgspec.json.Decoder(record, float_hook=Decimal) for name, record in TYPES.items()}
_encode_json = msgspec.json.Encoder(decimal_format="number").encode

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def _check_depth(raw: bytes, limit: int) -> None:
    if raw.count(b"{") + raw.count(b"[") <= limit:
        return
    depth = 0
    for match in _TOKENS.finditer(raw):
        letter = match.group()
        if letter in b"[{":
            depth += 1
            if depth > limit:
                raise Refusal("too_deep", f"nested more than {limit} deep")
        elif letter in b"]}":
            depth -= 1


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes | msgspec.Raw) -> Any:
    """Decode, turning whatever is wrong with the JSON or its shape into a refusal."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        if decoder is _envelope_parts:
            raise Refusal("not_object", str(error)) from None
        raise _shape_refusal(str(error)) from None
    except msgspec.DecodeError as error:
        text = str(error)
        bad_text = "utf-8" in text.lower() or "surrogate" in text.lower()
        raise Refusal("bad_encoding" if bad_text else "not_json", text) from None
    except RecursionError:
        raise Refusal("too_deep", "nested too deep to be read") from None
    except (ValueError, ArithmeticError) as error:  # such as an integer of more digits than Python converts
        raise Refusal("bad_number", str(error)) from None


def _shape_refusal(message: str) -> Refusal:
    problem, _, path = message.partition(" - at `$")
    detail = f"data{path.rstrip('`')}: {problem}" if path else f"data: {problem}"
    if "unknown field" in problem:
        return Refusal("unknown_field", detail)
    if "missing required field" in problem:
        return Refusal("missing_field", detail)
    return Refusal("bad_number" if "out of range" in problem else "bad_value", detail)


# --- refused before ------------------------------------------------------------------------------------------

REFUSED_TYPE = "ledger.refused.v1"
_REFUSED_START = b'{"type":"ledger.refused.v1",'
REFUSED_LINE_BYTES = 32 * MIB
"""How long a line may be that stands for a refused record: a native one can be larger than any event."""
_LARGEST_RECORD_BYTES = REFUSED_LINE_BYTES // 2  # base64 makes four bytes of three


def refused_line(refused: Rejected) -> bytes:
    """A line that stands for something a door could not take in as it was, so that its batch accounts for it too."""
    raw, reason, detail = refused.raw, refused.reason, refused.detail
    if len(raw) > _LARGEST_RECORD_BYTES:
        detail = f"{detail}; of its {len(raw)} bytes the first {KEPT_OF_OVERSIZE} are kept"
        raw, reason = raw[:KEPT_OF_OVERSIZE], "too_large"
    record = base64.b64encode(raw).decode()
    data = {"reason": reason, "detail": detail, "record": record, "id": refused.id}
    data |= {"source": refused.source, "adapter": refused.adapter}
    return msgspec.json.encode({"type": REFUSED_TYPE, "data": data})


class _RefusedData(msgspec.Struct):
    reason: str
    detail: str
    record: bytes  # msgspec reads base64
    id: str = ""
    source: str = ""
    adapter: str = ""


class _RefusedLine(msgspec.Struct):
    data: _RefusedData


_refused_line = msgspec.json.Decoder(_RefusedLine)


def _refused_before(line: int, raw: bytes) -> Rejected:
    told = _decode(_refused_line, raw).data
    told_texts = (told.reason[:40], told.detail, told.id[:256], told.source[:512], told.adapter[:40])
    reason, detail, event_id, source, adapter = [text.replace("\x00", "") for text in told_texts]
    return Rejected(line, reason, detail, told.record, id=event_id, source=source, adapter=adapter)


# --- one event ----------------------------------------------------------------------------------------------

OUR_ATTRIBUTES = frozenset({"specversion", "id", "source", "type", "time", "data"})


def _event(line: int, raw: bytes, envelope: dict[str, Any], now_ms: int, limits: Limits) -> ParsedEvent:
    event_id, source, event_type, time_ms = _envelope(envelope)
    record = _decode(_data[event_type], _data_part(envelope))
    settle(record)
    check_instant(record, event_type, time_ms, now_ms)
    event = ParsedEvent(line, source, event_id, event_type, time_ms, record, b"", raw)
    event.attributes = {
        name: _attribute(value) for name, value in envelope.items() if name not in OUR_ATTRIBUTES
    }
    if isinstance(record, Correction):
        event.replacement = _replacement(event, record, now_ms, limits)
    event.digest = content_hash(event_type, time_ms, record)
    return event


def _envelope(envelope: dict[str, Any]) -> tuple[str, str, str, int]:
    """(id, source, type, time_ms); raises `Refusal` with the code of the first attribute that is wrong."""
    event_id = fields.event_id(envelope.get("id"))
    if envelope.get("specversion") != "1.0":
        raise Refusal("bad_specversion", f"specversion is {shown(envelope.get('specversion'))}, not '1.0'")
    if not envelope.get("source"):
        raise Refusal("missing_source", "the event has no source")
    source = fields.source_uri(envelope["source"])
    event_type = envelope.get("type")
    if not isinstance(event_type, str) or event_type not in TYPES:
        raise Refusal("unknown_type", f"{shown(event_type)} is not a type this ledger knows")
    if envelope.get("time") is None:
        raise Refusal("missing_time", "the event has no time")
    try:
        time_ms = fields.instant_ms(envelope["time"])
    except Refusal as refusal:
        raise Refusal(refusal.reason, f"time: {refusal.detail}") from None
    return event_id, source, event_type, time_ms


def _data_part(envelope: dict[str, Any]) -> msgspec.Raw:
    data: msgspec.Raw | None = envelope.get("data")
    if data is None:
        raise Refusal("missing_field", "the event has no data")
    return data


def _is_foreign(name: str, value: Any) -> bool:
    return name not in OUR_ATTRIBUTES and (name, value) != ("datacontenttype", "application/json")


def _attribute(value: Any) -> str:
    """CloudEvents attributes are text, whole numbers or booleans; all are kept as bounded text."""
    text = value if isinstance(value, str) else _encode_json(value).decode()
    return text[:1024].replace("\x00", "")


def _replacement(
    event: ParsedEvent, correction: Correction, now_ms: int, limits: Limits
) -> ParsedEvent | None:
    """The replacement event inside a correction, read like any other; its canonical form joins the hash."""
    if correction.event is None:
        return None
    if not isinstance(correction.event, dict):
        raise Refusal("bad_value", "data.event: a replacement is a whole event")
    found = parse_line(event.line, _encode_json(correction.event), now_ms, limits)
    if isinstance(found, Rejected):
        raise Refusal(found.reason, f"data.event: {found.detail}")
    if isinstance(found.record, Correction):
        raise Refusal("bad_value", "data.event: a correction cannot be the replacement")
    replaced = correction.supersedes
    if (found.source, found.id) in ((replaced.source, replaced.id), (event.source, event.id)):
        raise Refusal("bad_value", "data.event: the replacement needs an id of its own")
    correction.event = [found.source, found.id, found.type, found.time_ms, found.record]
    return found


def event_body(event: ParsedEvent) -> bytes:
    """The event as JSON for the register: as it came, except that foreign attributes are bounded text."""
    if not event.attributes:
        return event.raw
    data = _envelope_parts.decode(event.raw)["data"]
    ours = {"specversion": "1.0", "id": event.id, "source": event.source, "type": event.type}
    time = _plain_values.decode(_envelope_parts.decode(event.raw)["time"])
    return msgspec.json.encode({**event.attributes, **ours, "time": time, "data": data})


# --- content hash -------------------------------------------------------------------------------------------


def content_hash(event_type: str, time_ms: int, record: Record) -> bytes:
    """16 bytes that two events share exactly if they state the same facts, however they were spelled.

    Foreign envelope attributes stay out: brokers stamp them anew at each delivery.
    """
    if isinstance(record, Request | Usage):
        return request_hash(record, time_ms)
    content = encode_texts((event_type, time_ms, record))
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()
