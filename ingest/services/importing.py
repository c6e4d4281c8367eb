"""Files of any size -> batches -> books, in constant memory, in the caller's own process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from django.db import transaction

from ingest.core.parse import Rejected, parse_lines, refused_line, rejected_rest
from ingest.core.unpack import BATCH, NDJSON, Broken, Limits, Lines, cut, unpack_file
from ingest.models import Batch, BatchState
from ingest.services.booking import Judged, Receipt, book_batch
from ingest.services.inbox import Body, accept_batch
from ledger.core import zstd

DOOR = "import_events"
BATCH_EVENTS = 50_000
BATCH_BYTES = 24 * 1024 * 1024
# A file has no limit on its events or its size; each of its batches keeps those of one.
_FILE_LIMITS = replace(Limits(), unpacked_bytes=2**63, events=2**63)

# A whole Kubernetes list can be one line.
LONGEST_NATIVE_LINE = 256 * 1024 * 1024


@dataclass(slots=True)
class Part:
    """Consecutive lines of a file that become one batch."""

    first_line: int
    raw: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, raw: bytes) -> None:
        self.raw.append(raw)
        self.size += len(raw) + 1

    @property
    def is_full(self) -> bool:
        return len(self.raw) >= BATCH_EVENTS or self.size >= BATCH_BYTES


def parts_of(chunks: Iterable[bytes]) -> Iterator[Part]:
    """Cut a file into parts at the ends of events. An unreadable rest becomes a last line that says so.

    Raises:
        NotText: before the first part.
    """
    part = Part(1)
    last = 0
    try:
        for group in cut(unpack_file(chunks, _FILE_LIMITS.unpacked_bytes), "", _FILE_LIMITS):
            last = group.first + len(group.raw) - 1
            for raw in _lines(group):
                part.add(raw)
                if part.is_full:
                    yield part
                    part = Part(part.first_line + len(part.raw))
    except Broken as broken:
        part.add(refused_line(rejected_rest(last + 1, broken)))
    if any(part.raw):
        yield part


def native_lines(chunks: Iterable[bytes], too_long: list[bytes]) -> Iterator[bytes]:
    """The lines of a file in a native format, for its adapter; what is too long for any goes to `too_long`, as lines
    of its batch. Raises `Broken` where the file cannot be unpacked, and `NotText` before the first line."""
    limits = replace(_FILE_LIMITS, event_bytes=LONGEST_NATIVE_LINE)
    for group in cut(unpack_file(chunks, limits.unpacked_bytes), NDJSON, limits):
        if group.oversize_bytes:
            detail = f"the line has {group.oversize_bytes} bytes, more than {LONGEST_NATIVE_LINE}"
            too_long.append(refused_line(Rejected(group.first, "too_large", detail, group.raw[0])))
            yield b""
        else:
            yield from group.raw


def parts_of_lines(lines: Iterable[bytes]) -> Iterator[Part]:
    """Canonical events, one per line, cut into parts."""
    part = Part(1)
    for raw in lines:
        part.add(raw)
        if part.is_full:
            yield part
            part = Part(part.first_line + len(part.raw))
    if part.raw:
        yield part


def _lines(group: Lines) -> Iterator[bytes]:
    if group.oversize_bytes:
        for verdict in parse_lines(group, 0, _FILE_LIMITS):
            assert isinstance(verdict, Rejected)
            yield refused_line(verdict)
        return
    yield from group.raw


def import_parts(
    parts: Iterable[Part], origin: str, *, dry_run: bool = False, judged: Judged | None = None
) -> Iterator[Receipt]:
    """Book each part as a batch. A part that was booked before counts as duplicates, and is not read again."""
    for part in parts:
        if dry_run:
            with transaction.atomic():
                yield _import_part(part, origin, judged)
                transaction.set_rollback(True)
        else:
            yield _import_part(part, origin, judged)


def _import_part(part: Part, origin: str, judged: Judged | None) -> Receipt:
    batch, _ = accept_batch(
        _body_of(part), door=DOOR, submitted_by=DOOR, origin=origin, first_line=part.first_line
    )
    receipt = book_batch(batch.pk, wait=True, judged=judged)
    return receipt if receipt is not None else _repeated(batch)


def _body_of(part: Part) -> Body:
    # Elements of an array may span lines; those of a file by lines never do.
    is_by_lines = not any(b"\n" in raw for raw in part.raw)
    content = b"\n".join(part.raw) if is_by_lines else b"[" + b",".join(filter(None, part.raw)) + b"]"
    packed = zstd.compress(content, 3)
    return Body(packed, NDJSON if is_by_lines else BATCH, "zstd")


def _repeated(batch: Batch) -> Receipt:
    batch.refresh_from_db(fields=["state", "received", "quarantined", "conflict"])
    assert batch.state == BatchState.BOOKED, f"batch {batch.pk} is {batch.state}"
    received, conflict, quarantined = batch.received or 0, batch.conflict or 0, batch.quarantined or 0
    return Receipt(batch.pk, received, 0, received - conflict - quarantined, conflict, quarantined)
