"""Sources as people and programs see them: how far they are, what is missing, what they hold while silent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, F, QuerySet
from django.utils import timezone

from ingest.core.adapters.base import NOTICES
from ingest.models import Batch, QuarantinedEvent
from ledger.core.periods import to_datetime
from ledger.models import FactFinding, Source, SourceTotal
from ledger.selectors.silence import SilentSource, silent_sources, with_silence_waivers

# Notices after which something of a span is not known.
GAPS = (
    "missed_samples",
    "missed_steps",
    "watch_gap",
    "counter_reset",
    "counter_unknown_start",
    "incomplete_stream",
)
GAPS_SHOWN = 20
TOTALS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Gap:
    """A span of which a source told too little; instants None where the notice names no end."""

    code: str
    subject: str
    detail: str
    starts_at: datetime
    ends_at: datetime | None

    @property
    def meaning(self) -> str:
        return NOTICES.get(self.code, "")


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One source with everything that was ever wrong with it. `silent`: only while it is."""

    source: Source
    silent: SilentSource | None
    gaps: int
    newest_gap: Gap | None
    batches: int
    quarantined: int

    @property
    def cluster(self) -> str:
        return str(self.source.config.get("cluster", ""))

    @property
    def last_problem(self) -> str:
        """Why its collector could not read it, or only in part, at its last try; '' if all went well."""
        last = self.source.state.get("last") or {}
        return str(last.get("error") or "; ".join(last.get("problems") or ()))

    @property
    def last_collected_at(self) -> datetime | None:
        at_ms = (self.source.state.get("last") or {}).get("at_ms")
        return None if at_ms is None else to_datetime(at_ms)

    @property
    def silence_after_ms(self) -> int | None:
        seconds = self.source.silence_after_s
        return None if seconds is None else seconds * 1000

    @property
    def collected_until(self) -> datetime | None:
        """Everything up to here was asked for by its collector, whether or not anything was there."""
        reached_ms = (self.source.state.get("last") or {}).get("reached_ms")
        return None if reached_ms is None else to_datetime(reached_ms)

    @property
    def pools(self) -> list[tuple[str, str]]:
        """Native name -> pool; '' stands for everything that is not named."""
        config = self.source.config
        single = [("", str(config["pool"]))] if config.get("pool") else []
        return [*sorted((config.get("pools") or {}).items()), *single]


def known_sources() -> QuerySet[Source]:
    """Those in use first, by address, each with its waiver of silence."""
    return with_silence_waivers(Source.objects.order_by(F("retired_at").asc(nulls_first=True), "uri"))


def find_source(name: str) -> Source | None:
    """By the name of its configuration; a source that none names, by its number."""
    found = known_sources().filter(name=name).first()
    if found is None and name.isascii() and name.isdigit() and len(name) < 19:
        found = known_sources().filter(pk=int(name)).first()
    return found


def source_rows(sources: Iterable[Source], now: datetime | None = None) -> list[SourceRow]:
    """Four queries, however many sources (batch_once's columns are scanned once)."""
    rows = list(sources)
    silent = {one.source.pk: one for one in silent_sources(now or timezone.now())}
    uris, names = [row.uri for row in rows], [row.name for row in rows if row.name]
    quarantined = _counts(
        QuarantinedEvent.objects.filter(resolved_at=None, source_uri__in=uris), "source_uri"
    )
    batches = _counts(Batch.objects.filter(origin__in=names), "origin")
    found = FactFinding.objects.filter(code__in=GAPS, detail__source__in=uris)
    gaps = _counts(found, "detail__source")
    newest = found.order_by("detail__source", "-occurred_at", "-pk").distinct("detail__source")
    latest = {finding.detail["source"]: _gap(finding) for finding in newest}
    return [
        SourceRow(
            source=row,
            silent=silent.get(row.pk),
            gaps=gaps.get(row.uri, 0),
            newest_gap=latest.get(row.uri),
            batches=batches.get(row.name or "", 0),
            quarantined=quarantined.get(row.uri, 0),
        )
        for row in rows
    ]


def gaps_of(source: Source) -> list[Gap]:
    """The newest gaps of one source."""
    found = FactFinding.objects.filter(code__in=GAPS, detail__source=source.uri)
    return [_gap(finding) for finding in found.order_by("-occurred_at", "-pk")[:GAPS_SHOWN]]


def totals_of(source: Source) -> list[SourceTotal]:
    """The newest totals of one source, in its own words."""
    return list(SourceTotal.objects.filter(source=source).order_by("-ends_at", "-pk")[:TOTALS_SHOWN])


def _gap(finding: FactFinding) -> Gap:
    ends_ms = finding.detail.get("ends_ms")
    return Gap(
        code=finding.code,
        subject=finding.subject,
        detail=str(finding.detail.get("detail", "")),
        starts_at=finding.occurred_at,
        ends_at=None if ends_ms is None else to_datetime(ends_ms),
    )


def _counts(rows: QuerySet[Any], by: str) -> dict[str, int]:
    return dict(rows.order_by().values_list(by).annotate(Count("pk")))
