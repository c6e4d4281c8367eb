"""What the inbox still holds of a month. The record must know it before a month closes, and must not import doors.

The composition root names the function that answers (setting INBOX_EVIDENCE, a dotted path); whoever provides the
doors provides the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.utils.module_loading import import_string


@dataclass(frozen=True, slots=True)
class InboxEvidence:
    """unprocessed: ids of batches that are not booked yet. quarantined: reason -> number of events of the month
    that wait for a person; an event whose instant nobody could read counts for every month."""

    unprocessed: tuple[int, ...] = ()
    quarantined: tuple[tuple[str, int], ...] = ()


InboxProvider = Callable[[datetime, datetime], InboxEvidence]


def inbox_evidence(starts_at: datetime, ends_at: datetime) -> InboxEvidence:
    """What waits for [starts_at, ends_at). Raises ImportError where nothing is wired: silence would look clean."""
    provider: InboxProvider = import_string(settings.INBOX_EVIDENCE)
    return provider(starts_at, ends_at)


@dataclass(frozen=True, slots=True)
class RawBatch:
    """A delivery as it came. body: None once past retention; its hash stays."""

    id: int
    content_type: str
    content_encoding: str
    adapter: str
    sha256: str
    body: bytes | None


def raw_batches(ids: Iterable[int]) -> Iterator[RawBatch]:
    """The deliveries of these ids, in their order, one body in memory at once (setting RAW_BATCHES)."""
    provider: Callable[[Iterable[int]], Iterator[RawBatch]] = import_string(settings.RAW_BATCHES)
    return provider(ids)
