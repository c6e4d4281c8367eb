"""What the inbox still holds of a month, and facts that follow from what the ledger itself was told.

The record must know the former before a month closes, and billing books the latter; neither may import doors. The
composition root names the functions that answer (settings INBOX_EVIDENCE, RAW_BATCHES, BOOK_EVENTS, dotted paths);
whoever provides the doors provides the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string


@dataclass(frozen=True, slots=True)
class InboxEvidence:
    """unprocessed: ids of batches that are not booked yet. quarantined: reason -> number of events of the month
    that wait for a person; one whose instant nobody could read counts where the newest instant that it speaks of lies,
    else where it came in. elsewhere: the same of other months, as far as it may concern this one: what came later
    without a time, and what is of a month before."""

    unprocessed: tuple[int, ...] = ()
    quarantined: tuple[tuple[str, int], ...] = ()
    elsewhere: tuple[tuple[str, int], ...] = ()


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


def book_events(source: str, events: Sequence[dict[str, Any]], door: str, by: str) -> int:
    """Book canonical events (events.md) as one batch of a source inside the ledger, in the caller's transaction.

    Returns how many are in the record by it: fewer than were given mean that the rest was refused or known.
    """
    provider: Callable[[str, Sequence[dict[str, Any]], str, str], int] = import_string(settings.BOOK_EVENTS)
    return provider(source, events, door, by)
