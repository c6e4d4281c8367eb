"""Which sources are silent, and who still holds GPUs by their last word (events.md, Sources)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.db.models import OuterRef, QuerySet, Subquery

from ledger.core.periods import to_datetime, to_ms
from ledger.core.silence import heard_until_ms, is_silent
from ledger.models import SilenceWaiver, Source
from ledger.selectors.corrections import void_facts
from ledger.sql import OPEN_HOLDERS


@dataclass(frozen=True, slots=True)
class OpenHolder:
    """A workload that holds `milli_gpus` since `starts_at`, by the last fact there is of it."""

    pool: str
    workload: str
    attempt: int
    starts_at: datetime
    milli_gpus: int
    identity_kind: str
    identity_value: str

    @property
    def key(self) -> str:
        """Names it in forms and requests."""
        return f"{self.pool}/{self.workload}"

    @property
    def holder(self) -> str:
        is_slug = self.identity_kind in ("tenant", "service")
        return self.identity_value if is_slug else f"{self.identity_kind}:{self.identity_value}"


@dataclass(frozen=True, slots=True)
class SilentSource:
    """heard_at: its newest event, or what somebody answered for; None: never heard of."""

    source: Source
    heard_at: datetime | None
    holders: tuple[OpenHolder, ...]

    @property
    def milli_gpus(self) -> int:
        return sum(holder.milli_gpus for holder in self.holders)


def with_silence_waivers(sources: QuerySet[Source]) -> QuerySet[Source]:
    """Each with `waived_until`, and `waived_because` and `waived_by` beside it: what was said last."""
    latest = SilenceWaiver.objects.filter(source=OuterRef("pk")).order_by("-pk")
    return sources.annotate(
        waived_until=Subquery(latest.values("until_at")[:1]),
        waived_because=Subquery(latest.values("reason")[:1]),
        waived_by=Subquery(latest.values("recorded_by")[:1]),
    )


def heard_at(source: Source) -> datetime | None:
    """Of a source `with_silence_waivers`."""
    ms = heard_until_ms(_ms(source.watermark_at), _ms(source.complete_until), _ms(waived_until(source)))
    return to_datetime(ms) if ms else None


def silent_sources(now: datetime) -> list[SilentSource]:
    """Sources in use that were not heard of for longer than they may be, by address. Two queries."""
    rows = with_silence_waivers(
        Source.objects.filter(retired_at=None, silence_after_s__isnull=False)
    ).order_by("uri")
    silent = [source for source in rows if _is_silent(source, now)]
    holders = open_holders([source.pk for source in silent], now)
    return [SilentSource(source, heard_at(source), tuple(holders.get(source.pk, ()))) for source in silent]


def _is_silent(source: Source, now: datetime) -> bool:
    limit_ms = None if source.silence_after_s is None else source.silence_after_s * 1000
    heard = heard_at(source)
    return is_silent(to_ms(heard) if heard else 0, limit_ms, to_ms(now))


def open_holders(source_ids: Iterable[int], now: datetime) -> dict[int, list[OpenHolder]]:
    """Source id -> workloads whose last fact is that source's and says that they hold something."""
    ids = list(source_ids)
    found: dict[int, list[OpenHolder]] = defaultdict(list)
    if not ids:
        return found
    with connection.cursor() as cursor:
        cursor.execute(OPEN_HOLDERS, {"sources": ids, "now": now, "void": void_facts().events})
        for source_id, *columns in cursor.fetchall():
            found[source_id].append(OpenHolder(*columns))
    return found


def waived_until(source: Source) -> datetime | None:
    """Of a source `with_silence_waivers`."""
    found: datetime | None = getattr(source, "waived_until", None)
    return found


def _ms(instant: datetime | None) -> int | None:
    return None if instant is None else to_ms(instant)
