"""What a collector hands over: events and refusals as batches, notices as findings. Inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import zstandard

from ingest.core.adapters.base import Event, Notice, Refused, SourceConfig
from ingest.core.parse import Rejected, refused_line
from ingest.core.unpack import NDJSON
from ingest.services.inbox import Body, accept_batch
from ledger.core.periods import to_datetime
from ledger.models import FactFinding

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
        yield refused_line(Rejected(one.position, one.reason, one.detail, one.record, source=source.uri))


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
    content = zstandard.ZstdCompressor(level=3).compress(b"\n".join(lines))
    batch, _ = accept_batch(
        Body(content, NDJSON, "zstd"), door=DOOR, submitted_by=f"{DOOR}:{source.name}", origin=source.name
    )
    return int(batch.pk)


def keep_notices(source: SourceConfig, notices: list[Notice], now_ms: int) -> None:
    """Gaps and resets become findings. A notice that speaks of no span (a total, a remark) is only shown."""
    FactFinding.objects.bulk_create(
        [
            FactFinding(
                code=notice.reason,
                occurred_at=to_datetime(notice.starts_ms),
                subject=f"{source.name}: {notice.subject}",
                detail={
                    "source": source.uri,
                    "detail": notice.detail,
                    "starts_ms": notice.starts_ms,
                    "ends_ms": notice.ends_ms,
                },
                blocks_close=False,
            )
            for notice in notices
            if notice.starts_ms is not None
        ],
        ignore_conflicts=True,
    )
