"""The fast way for what comes by the million: well-formed `ledger.request.v1` events, a chunk of lines at once.

`line_shapes` tells where in each line the value of each field stands, `columns` reads the values of one field of all
lines. Nothing is an object per line. Lines of shapes that few share go through a decoder instead (`request_structs`).
What is not plainly sound (an escape, an odd spelling, an old clock, a wrong value) is left to `parse.parse_line`, whose
verdict counts; so the ways can differ in speed only. Tests compare them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from ingest.core import columns, fields
from ingest.core.body import Limits
from ingest.core.events import FUTURE_TOLERANCE_MS, LONGEST_REQUEST_MS, OUTCOMES, read_service_class
from ingest.core.fields import Refusal
from ingest.core.line_shapes import Found, Path, Scalar, Shape, outline, scalars
from ingest.core.request_content import ABSENT, HASHED_NUMBERS, NUMBERS, REQUEST_TYPE, TEXTS
from ingest.core.request_hashes import NO_DIGESTS, hashes
from ingest.core.request_rows import OWN_TEXTS, WHO, Requests
from ingest.core.request_structs import read_structs
from ingest.core.spans import Bools, Coded, Int64s, Spans

_NAMES: dict[Path, str] = {
    ("id",): "id",
    ("source",): "source",
    ("time",): "time",
    ("data", "started_at"): "started_at",
    ("data", "queued_at"): "queued_at",
    ("data", "attempt"): "attempt",
    ("data", "deferrals"): "deferrals",
    ("data", "identity", "kind"): "identity_kind",
    ("data", "identity", "value"): "identity_value",
    **{("data", name): name for name in (*NUMBERS, *TEXTS) if not name.startswith("identity")},
}
_SECONDS = frozenset({"gpu_seconds", "prefill_gpu_seconds", "recompute_gpu_seconds"})
_INSTANTS = frozenset({"time", "started_at", "queued_at"})
_NUMERIC = frozenset({*NUMBERS, "attempt", "deferrals"})
_NEEDED = {"id", "source", "time", "request", "pool", "model", "started_at", "outcome"}

_read_labels = msgspec.json.Decoder(dict[str, str]).decode
_TEXT_READERS: dict[str, fields.Reader] = {
    "source": fields.source_uri,
    "tenant": fields.slug_text,
    "identity_kind": fields.identity_kind,
    "identity_value": fields.identity_value,
    "pool": fields.slug_text,
    "service": fields.slug_text,
    "model": fields.name_text,
    "outcome": fields.one_of(*OUTCOMES),
    "service_class": read_service_class,
}


def _remembered(read: fields.Reader) -> Callable[[bytes], Any]:
    """Reads a text from its bytes; the same few come with every chunk."""
    return lru_cache(maxsize=4096)(lambda text: read(text.decode()))


def _labels(text: bytes) -> dict[str, str]:
    try:
        found: dict[str, str] = fields.labels(_read_labels(text))
    except msgspec.MsgspecError as error:
        raise Refusal("bad_value", str(error)) from None
    return found


_CODED_READERS: dict[str, Callable[[bytes], Any]] = {
    "labels": _labels,
    **{name: _remembered(read) for name, read in _TEXT_READERS.items()},
}
_SHORTEST_ID = 5  # longer than the words for a missing one

Left = list[tuple[int, bytes]]
"""Lines that `parse_line` has to judge, with their numbers."""


def request_shape(line: bytes) -> Shape | None:
    """The shape of a line that is a request, whatever its values are; None if it is anything else."""
    found = scalars(line)
    if found is None:
        return None
    values: list[Scalar] = []
    labels: list[Scalar] = []
    for one in found:
        literal = line[one.start : one.end]
        if one.path in _NAMES:
            name = _NAMES[one.path]
            if one.is_object and name == "labels":
                labels.append(one)
            elif literal == b"null" and not one.is_text:
                continue  # as if it were not there; and `_NEEDED` misses it
            elif one.is_object or name == "labels" or not (one.is_text or name in _NUMERIC):
                return None
            else:
                values.append(one)
        elif not _may_be(one, literal):
            return None
        elif one.is_text and one.path[0] not in ("specversion", "type"):
            values.append(one)  # of a label, or an attribute that requests do not keep
    texts = {one.path: line[one.start : one.end] for one in found if one.is_text}
    if (texts.get(("specversion",)), texts.get(("type",))) != (b"1.0", b"ledger.request.v1"):
        return None
    names = {_NAMES[one.path] for one in values if one.path in _NAMES}
    has_identity = any(one.is_object and one.path == ("data", "identity") for one in found)
    if not names >= _NEEDED or names & set(WHO) != set(WHO[1:] if has_identity else WHO[:1]):
        return None
    return Shape.of(line, values, labels, _NAMES, _INSTANTS)


def _may_be(one: Scalar, literal: bytes) -> bool:
    """Whether something that is no field may be there."""
    is_word = one.is_text or literal in (b"null", b"true", b"false")
    if one.path[0] != "data":
        return is_word
    if one.path == ("data",):
        return one.is_object
    if one.path == ("data", "identity"):
        return one.is_object or (literal == b"null" and not one.is_text)
    return one.path[:2] == ("data", "labels")


class RequestReader:
    """Reads lines that are probably requests, and remembers the shapes it met.

    Lines of a shape that many share are walked together. The others are decoded one by one, but read in columns
    (`request_structs`), which costs less than walks for a few lines each.

    `fewest`: of how many lines alike a walk is worth its while.
    """

    _SHAPES = 256  # to remember
    _SAMPLE = 64  # lines to tell from which shapes there are
    _MOST_SHAPES = 6  # to walk in a chunk, because a walk also costs for lines of other shapes

    def __init__(self, now_ms: int, fewest: int = 400) -> None:
        self._latest_ms = now_ms + FUTURE_TOLERANCE_MS
        self._fewest = fewest
        self._shapes: dict[bytes, Shape | None] = {}
        self._usual: Shape | None = None
        self._shared: dict[str, bytes] = {}  # texts that all lines of the last chunk shared
        self._fixed: Shape | None = None  # the usual shape with those texts in it

    def read(self, first: int, raw: Sequence[bytes], limits: Limits) -> tuple[Requests | None, Left]:
        """(requests, the lines left to `parse_line`), both in order. Blank lines are in neither."""
        lines = raw if isinstance(raw, Spans) else Spans.of(raw, between=b"\n")
        ends = _without_carriage_returns(lines)
        plain = np.flatnonzero(_are_plain(lines, ends, limits))
        rows, found, fixed = self._find(lines, ends, plain)
        requests = None
        is_left = lines.ends > lines.starts
        if len(rows):
            requests, is_sound = self._judge(first + rows, lines.take(rows), found, fixed)
            is_left[rows[is_sound]] = False
            self._fix(
                requests, lines.buffer, {name: (s[is_sound], e[is_sound]) for name, (s, e) in found.items()}
            )
        rows = plain[is_left[plain]]
        if len(rows):
            others, is_sound = self._decode(first + rows, lines.take(rows))
            is_left[rows[is_sound]] = False
            requests = others if requests is None else requests if others is None else requests.joined(others)
        left = np.flatnonzero(is_left).tolist()
        return requests, [(first + row, lines[row]) for row in left]

    # --- shapes ---------------------------------------------------------------------------------------------

    def _find(self, lines: Spans, ends: Int64s, rows: Int64s) -> tuple[Int64s, Found, Mapping[str, bytes]]:
        """(which of the rows have a shape that many have, the places of their fields, texts that all of them share)

        Places of absent fields end before they start.
        """
        groups: list[tuple[Int64s, Found]] = []
        count = len(rows)
        if self._fixed is not None and count >= self._fewest:
            places, found = self._fixed.match(lines.buffer, lines.starts[rows], ends[rows])
            if len(places) == count:
                return rows, found, self._shared
            groups.append((rows[places], found))
            rows = np.delete(rows, places)
        if self._usual is not None and len(rows) >= self._fewest:  # it nearly always takes all
            places, found = self._usual.match(lines.buffer, lines.starts[rows], ends[rows])
            groups.append((rows[places], found))
            if sum(len(group) for group, _ in groups) * 2 < count:
                self._usual = self._fixed = None
            rows = np.delete(rows, places)
        if len(rows) >= self._fewest:
            shapes = self._frequent(lines, ends, rows)
            self._usual = self._usual or (shapes[0] if shapes else None)
            quotes = _quotes(lines) if shapes else np.zeros(0, np.int64)
            for shape in shapes:
                likely = rows[quotes[rows] == shape.quotes]
                places, found = shape.match(lines.buffer, lines.starts[likely], ends[likely])
                groups.append((likely[places], found))
                rows = np.setdiff1d(rows, likely[places], assume_unique=True)
        return *_in_order([group for group in groups if len(group[0])]), {}

    def _fix(self, requests: Requests | None, buffer: bytes, found: Found) -> None:
        """Have the next chunk walked with the texts that were the same throughout this one: most lines share some."""
        shared: dict[str, bytes] = {}
        if requests is not None and self._usual is not None:
            columns = requests.texts | {"source": requests.sources}
            for name in _TEXT_READERS.keys() & found.keys():
                column, (starts, ends) = columns[name], found[name]
                if isinstance(column, Coded) and len(column.values) == 1 and ends[0] >= starts[0]:
                    shared[name] = buffer[starts[0] : ends[0]]
        if self._usual is None or not shared:
            self._fixed, self._shared = None, {}
        elif self._fixed is None or shared != self._shared:
            self._fixed, self._shared = self._usual.fixed(shared), shared

    def _frequent(self, lines: Spans, ends: Int64s, rows: Int64s) -> list[Shape]:
        """Shapes that enough of the rows have, as far as a sample of them shows, most frequent first."""
        sample = rows[:: -(-len(rows) // self._SAMPLE)].tolist()
        texts = [lines.buffer[lines.starts[row] : ends[row]] for row in sample]
        outlines = [outline(text) for text in texts]
        examples = dict(zip(outlines, texts, strict=True))
        found = []
        for one, count in Counter(outlines).most_common():
            if count * min(len(rows) / self._fewest, self._MOST_SHAPES) < len(sample):
                break
            if one not in self._shapes:
                if len(self._shapes) == self._SHAPES:
                    self._shapes.clear()
                self._shapes[one] = request_shape(examples[one])
            if (shape := self._shapes[one]) is not None:
                found.append(shape)
        return found

    # --- values ---------------------------------------------------------------------------------------------

    def _judge(
        self, lines: Int64s, raw: Spans, found: Found, shared: Mapping[str, bytes]
    ) -> tuple[Requests | None, Bools]:
        """(requests of the rows that are plainly sound, which those are)"""
        reading = _Reading(raw.buffer, found, len(lines), shared)
        count = len(lines)
        absent = np.full(count, ABSENT, np.int64)
        numbers = {name: reading.number(name) for name in ("deferrals", *NUMBERS) if name in found}
        texts = {name: reading.own_text(name) if name in OWN_TEXTS else reading.text(name) for name in TEXTS}
        requests = Requests(
            line=lines,
            raw=raw,
            sources=reading.text("source"),
            event_ids=reading.own_text("id", _SHORTEST_ID),
            type=np.full(count, REQUEST_TYPE, np.int64),
            ends_ms=reading.instant("time"),
            starts_ms=reading.instant("started_at"),
            queued_ms=reading.instant("queued_at") if "queued_at" in found else absent,
            attempt=reading.number("attempt", 1) if "attempt" in found else np.full(count, 1, np.int64),
            requests=np.full(count, 1, np.int64),
            concurrency_us=absent,
            numbers=numbers,
            texts=texts,
            digests=NO_DIGESTS,
        )
        return self._finished(requests, reading.is_sound)

    def _decode(self, lines: Int64s, raw: Spans) -> tuple[Requests | None, Bools]:
        """As `_judge`, of lines without a shape that many have."""
        requests, is_sound = read_structs(lines, raw, _CODED_READERS)
        if requests is not None:
            rows = np.flatnonzero(is_sound)
            requests, is_sound[rows] = self._finished(requests, np.ones(len(rows), bool))
        return requests, is_sound

    def _finished(self, requests: Requests, is_sound: Bools) -> tuple[Requests | None, Bools]:
        """(those that are sound and possible, with their digests; which those are)"""
        is_sound = is_sound & self._is_possible(requests)
        if not is_sound.all():
            if not is_sound.any():
                return None, is_sound
            requests = _without_unused(requests.take(np.flatnonzero(is_sound), digests=False))
        requests.digests = hashes([requests.hashed_number(name) for name in HASHED_NUMBERS], requests.texts)
        return requests, is_sound

    def _is_possible(self, requests: Requests) -> Bools:
        """What `events.check` and `events.check_instant` ask, for all at once."""
        took_ms = requests.ends_ms - requests.starts_ms
        possible: Bools = (took_ms >= 0) & (took_ms <= LONGEST_REQUEST_MS)
        possible &= (requests.ends_ms <= self._latest_ms) & (requests.queued_ms <= requests.ends_ms)
        given = {name: requests.number(name) for name in NUMBERS[:5]}
        cached = np.maximum(given["cached_input_tokens"], 0) + np.maximum(given["cache_write_tokens"], 0)
        possible &= (cached <= given["input_tokens"]) | (given["input_tokens"] == ABSENT)
        possible &= (given["reasoning_tokens"] <= given["output_tokens"]) | (given["output_tokens"] == ABSENT)
        return possible


def _without_unused(requests: Requests) -> Requests:
    """Without columns of numbers that only the rows left out had."""
    requests.numbers = {name: values for name, values in requests.numbers.items() if (values != ABSENT).any()}
    return requests


def _quotes(lines: Spans) -> Int64s:
    """How many quotes each line has."""
    places = np.flatnonzero(np.frombuffer(lines.buffer, np.uint8) == ord('"'))
    return np.searchsorted(places, lines.ends) - np.searchsorted(places, lines.starts)


def _are_plain(lines: Spans, ends: Int64s, limits: Limits) -> Bools:
    """Lines without an escape or a control character, of valid UTF-8, not too long."""
    lengths = lines.lengths
    are_plain: Bools = (lengths > 0) & (lengths <= limits.event_bytes)
    letters = np.frombuffer(lines.buffer, np.uint8)
    # Line ends are the only control characters in nearly every chunk: as many as there are lines, and the padding.
    odd = letters < 0x20
    start, end = int(lines.starts[0]), int(lines.ends[-1])
    if np.count_nonzero(odd[start:end]) != np.count_nonzero(lines.starts[1:] > lines.ends[:-1]):
        _leave_out(lines, ends, np.flatnonzero(odd), are_plain)
    if b"\\" in lines.buffer:
        _leave_out(lines, lines.ends, np.flatnonzero(letters == ord("\\")), are_plain)
    if not lines.buffer.isascii():
        try:
            lines.buffer.decode()
        except UnicodeDecodeError:
            _leave_out(lines, lines.ends, np.flatnonzero(letters >= 0x80), are_plain)
    return are_plain


def _leave_out(lines: Spans, ends: Int64s, places: Int64s, are_plain: Bools) -> None:
    """Lines with one of the places, which are in order, before their end."""
    rows = np.searchsorted(lines.starts, places, side="right") - 1
    within = (rows >= 0) & (places < ends[rows])
    are_plain[rows[within]] = False


def _without_carriage_returns(lines: Spans) -> Int64s:
    """Ends of lines before a carriage return: what JSON takes for a blank."""
    if b"\r" not in lines.buffer:
        return lines.ends
    letters = np.frombuffer(lines.buffer, np.uint8)
    has_one = (lines.ends > lines.starts) & (letters[lines.ends - 1] == ord("\r"))
    ends: Int64s = lines.ends - has_one
    return ends


def _in_order(groups: list[tuple[Int64s, Found]]) -> tuple[Int64s, Found]:
    """Rows of several shapes put together in the order of their lines."""
    if len(groups) == 1:
        return groups[0]
    if not groups:
        return np.zeros(0, np.int64), {}
    rows = np.concatenate([group for group, _ in groups])
    order = np.argsort(rows, kind="stable")

    def column(name: str) -> tuple[Int64s, Int64s]:
        nowhere = [(np.zeros(len(group), np.int64), np.full(len(group), -1)) for group, _ in groups]
        places = [found.get(name, none) for (_, found), none in zip(groups, nowhere, strict=True)]
        starts, ends = (np.concatenate(one)[order] for one in zip(*places, strict=True))
        return starts, ends

    return rows[order], {name: column(name) for name in {name for _, found in groups for name in found}}


class _Reading:
    """Reads the fields of some lines; `is_sound` tells which lines had nothing odd so far."""

    def __init__(self, buffer: bytes, found: Found, count: int, shared: Mapping[str, bytes]) -> None:
        self._shared = shared
        self._buffer = buffer
        self._found = found
        self._count = count
        self.is_sound = np.ones(count, bool)

    def _spans(self, name: str) -> Spans:
        return Spans(self._buffer, *self._found[name])

    def number(self, name: str, absent: int = ABSENT) -> Int64s:
        spans = self._spans(name)
        values, is_sound = columns.seconds_us(spans) if name in _SECONDS else columns.counts(spans)
        if name == "attempt":
            is_sound &= values >= 1
        return self._unless_absent(spans, values, is_sound, absent)

    def instant(self, name: str) -> Int64s:
        spans = self._spans(name)
        return self._unless_absent(spans, *columns.instants_ms(spans), ABSENT)

    def _unless_absent(self, spans: Spans, values: Int64s, is_sound: Bools, absent: int) -> Int64s:
        is_absent = spans.ends < spans.starts
        if is_absent.any():
            self.is_sound &= is_sound | is_absent
            return np.where(is_absent, absent, values)
        self.is_sound &= is_sound
        return values

    def own_text(self, name: str, shortest: int = 1) -> Spans:
        """A text that differs from line to line, of as many bytes as any text of ours may have."""
        if name not in self._found:
            return Spans.nulls(self._buffer, self._count)
        spans = self._spans(name)
        lengths = spans.lengths
        if name not in ("user", "api_key"):
            self.is_sound &= (lengths >= shortest) | (lengths < 0)
        return spans

    def text(self, name: str) -> Coded:
        if name not in self._found:
            return Coded.constant(None, self._count)
        if (text := self._shared.get(name)) is not None:
            return Coded.constant(_CODED_READERS[name](text), self._count)
        column, is_sound = columns.coded(self._spans(name), _CODED_READERS[name])
        self.is_sound &= is_sound
        return column
