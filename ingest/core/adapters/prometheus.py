"""Prometheus samples from every form they are stored in, as scrapes in order of time.

Read are answers of the query API (matrix and vector), the JSON lines of an export (`metric`, `values`,
`timestamps`), and the text exposition. The text carries no time of its own: either each line has a
timestamp, or a comment `# scraped <instant> [label="value", ...]` opens each scrape and may add labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec

from ingest.core.adapters.base import (
    Refusal,
    Refused,
    SourceConfig,
    decimal_of,
    unix_seconds_ms,
)
from ingest.core.adapters.native import as_object, child, children, in_calendar, native_ms

_MAX_BUFFERED = 100_000
_SECONDS_BELOW = 100_000_000_000
"""A bare timestamp below this is in seconds (OpenMetrics), else in milliseconds (the older text form)."""

_LINE = re.compile(r"([A-Za-z_:][\w:.]*)?\s*(?:\{(.*)\})?\s+(\S+)(?:\s+(-?[\d.]+))?\s*(?:#.*)?\Z", re.ASCII)
_LABEL = re.compile(r'\s*"?([A-Za-z_][\w.]*)"?\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|\Z)', re.ASCII)
_SCRAPED = re.compile(r"#\s*scraped\s+(\S+)(?:\s+(.*))?\Z")
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: dict[str, str]
    at_ms: int
    value: Any
    """As it came: text, or a JSON number."""
    position: int

    def number(self) -> Decimal:
        """The value, exact. Raises `Refusal` for NaN and infinities, which no counter has."""
        return decimal_of(self.value)

    def raw(self) -> bytes:
        """This sample alone, in a form that can be read again: a whole matrix in quarantine would help nobody."""
        metric = {"__name__": self.name, **self.labels}
        seconds = f"{self.at_ms // 1000}.{self.at_ms % 1000:03d}"
        return msgspec.json.encode({"metric": metric, "values": [[seconds, str(self.value)]]})

    def refused(self, refusal: Refusal) -> Refused:
        """A series that stays as it is says one thing, however often it is scraped."""
        says = msgspec.json.encode([self.name, sorted(self.labels.items()), str(self.value)])
        return refusal.at(self.position, self.raw(), says)


@dataclass(slots=True)
class Scrape:
    """Samples that may be judged together, in order of time."""

    samples: list[Sample] = field(default_factory=list)

    def in_order(self) -> list[Sample]:
        return sorted(self.samples, key=lambda sample: sample.at_ms)


def read_scrapes(lines: Iterable[bytes], source: SourceConfig) -> Iterator[Scrape | Refused]:
    """The scrapes of `lines`; a line that cannot be read is refused alone."""
    open_scrape = Scrape()
    header_ms: int | None = None
    header_labels: dict[str, str] = {}
    for position, line in enumerate(lines, start=1):
        try:
            text = line.decode().strip()
            if text.startswith(("{", "[")) and not text.startswith("{__name__"):
                yield _json_scrape(text, position, source)
                continue
            header = _SCRAPED.match(text)
            if header is not None:
                yield open_scrape
                open_scrape = Scrape()
                # Until the new header is understood, no sample may fall under the old one.
                header_ms, header_labels = None, {}
                header_ms, header_labels = _header_ms(header[1], source), _labels(header[2] or "")
            elif text and not text.startswith("#"):
                open_scrape.samples.append(_text_sample(text, position, header_ms, header_labels))
        except UnicodeDecodeError as error:
            yield Refused(position, line, "bad_record", f"not UTF-8: {error.reason}")
        except Refusal as refusal:
            yield refusal.at(position, line)
        if len(open_scrape.samples) >= _MAX_BUFFERED:
            yield open_scrape
            open_scrape = Scrape()
    yield open_scrape


def _header_ms(text: str, source: SourceConfig) -> int:
    return in_calendar(unix_seconds_ms(text)) if re.fullmatch(r"[\d.]+", text) else native_ms(text, source)


def _labels(text: str) -> dict[str, str]:
    labels, at = {}, 0
    while at < len(text.rstrip()):
        match = _LABEL.match(text, at)
        if match is None:
            raise Refusal("bad_record", f"labels cannot be read from {text[at : at + 40]!r}")
        labels[match[1]] = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), match[2])
        at = match.end()
    return labels


def _text_sample(text: str, position: int, header_ms: int | None, header_labels: dict[str, str]) -> Sample:
    match = _LINE.match(text)
    if match is None:
        raise Refusal("bad_record", "not a line of a Prometheus exposition")
    labels = {**header_labels, **_labels(match[2] or "")}
    name = match[1] or labels.pop("__name__", "")
    if not name:
        raise Refusal("bad_record", "the sample has no name")
    at_ms = header_ms if match[4] is None else _timestamp_ms(match[4])
    if at_ms is None:
        raise Refusal("no_instant", "no timestamp on the line and no '# scraped <instant>' line before it")
    return Sample(name, labels, at_ms, match[3], position)


def _timestamp_ms(text: str) -> int:
    number = decimal_of(text)
    in_seconds = "." in text or abs(number) < _SECONDS_BELOW
    return in_calendar(math.floor(number * 1000) if in_seconds else int(number))


def _json_scrape(text: str, position: int, source: SourceConfig) -> Scrape:
    try:
        value = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal("not_json", f"not JSON: {error}") from error
    answer = as_object(value, "the answer")
    if answer.get("status") == "error":
        raise Refusal("bad_record", f"Prometheus answered with an error: {answer.get('error')}")
    series = children(child(answer, "data"), "result") if "data" in answer else [answer]
    return Scrape([sample for entry in series for sample in _series_samples(entry, position)])


def _series_samples(entry: dict[str, Any], position: int) -> Iterator[Sample]:
    labels = {str(name): str(value) for name, value in child(entry, "metric").items()}
    name = labels.pop("__name__", "")
    if not name:
        raise Refusal("bad_record", "a series without __name__: query plain metrics, not an expression")
    for at_ms, value in _points(entry):
        yield Sample(name, labels, at_ms, value, position)


def _points(entry: dict[str, Any]) -> Iterator[tuple[int, Any]]:
    values, stamps = entry.get("values"), entry.get("timestamps")
    if isinstance(values, list) and isinstance(stamps, list) and len(values) == len(stamps):
        for stamp, value in zip(stamps, values, strict=True):
            yield in_calendar(int(decimal_of(stamp))), value
        return
    points = values if isinstance(values, list) else [entry.get("value")]
    for point in points:
        if not isinstance(point, list) or len(point) != 2:
            raise Refusal("bad_record", "a point of a series is not [time, value]")
        yield in_calendar(unix_seconds_ms(point[0])), point[1]
