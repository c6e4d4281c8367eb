"""What a collector hands over: events and refusals, as batches. Inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ingest.core.adapters.base import Event, Refused, SourceConfig
from ingest.core.unpack import NDJSON
from ingest.services.inbox import Body, accept_batch
from ingest.services.native_records import refused_record
from ledger.core import zstd

DOOR = "collector"
BATCH_EVENTS = 50_000
BATCH_BYTES = 24 * 1024 * 1024


def keep_events(source: SourceConfig, events: list[Event], refused: list[Refused]) -> list[int]:
    """Ids of the batches that hold `events` and, each as a line of its own, what was refused."""
    lines = _lines(source, events, refused)
    return [_accept(source, part) for part in _parts(lines)]


def _lines(source: SourceConfig, events: list[Event], refused: list[Refused]) -> Iterator[bytes]:
    for event in events:
        yield msgspec.json.encode(event)
    for one in refused:
        yield refused_record(source, one)


def _parts(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line) + 1
        if len(part) >= BATCH_EVENTS or size >= BATCH_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _accept(source: SourceConfig, lines: list[bytes]) -> int:
    content = zstd.compress(b"\n".join(lines), 3)
    batch, _ = accept_batch(
        Body(content, NDJSON, "zstd"), door=DOOR, submitted_by=f"{DOOR}:{source.name}", origin=source.name
    )
    return int(batch.pk)
