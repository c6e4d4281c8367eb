"""The order in which a month's events reach the ledger: nearly by time, some late, some twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import msgspec

from ingest.core.demo.journal import Journal
from ledger.core.units import MS_PER_HOUR

LATE_SHARE = 0.01
TWICE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Delivered:
    """One line as it is sent. time_ms: when the fact holds from, or happened. sent_ms: when it reaches the ledger."""

    time_ms: int
    line: bytes
    sent_ms: int


def delivered(journal: Journal, random: Random) -> list[Delivered]:
    """Every event as one NDJSON line (with its newline), in order of delivery."""
    encode = msgspec.json.Encoder().encode
    sent: list[tuple[int, int, Delivered]] = []
    for number, entry in enumerate(journal.numbered()):
        line = encode(journal.cloud_event(entry)) + b"\n"
        sent_ms = entry.announced_ms or entry.time_ms + random.randrange(200, 5000)
        if random.random() < LATE_SHARE:
            sent_ms += random.randrange(MS_PER_HOUR, 40 * MS_PER_HOUR)
        sent.append((sent_ms, number, Delivered(entry.time_ms, line, sent_ms)))
        if random.random() < TWICE_SHARE:
            again_ms = sent_ms + random.randrange(1000, 3 * MS_PER_HOUR)
            sent.append((again_ms, number, Delivered(entry.time_ms, line, again_ms)))
    return [event for _, _, event in sorted(sent, key=lambda one: one[:2])]


def batches(events: list[Delivered], size: int) -> Iterator[bytes]:
    """NDJSON bodies of at most `size` events."""
    for first in range(0, len(events), size):
        yield b"".join(event.line for event in events[first : first + size])
