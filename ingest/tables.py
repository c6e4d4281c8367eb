"""The tables of the pages of ingest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ingest.models import Batch, BatchState, QuarantinedEvent
from ledger.models import Source
from ledger.templatetags.figures import batch_state
from ledger.views.tables import (
    CODE,
    COUNT,
    INSTANT,
    TEXT_FILTER,
    Column,
    Filter,
    Table,
    choices_of,
    words,
)


def quarantine_table(rows: Callable[[], Sequence[Mapping[str, Any]]]) -> Table:
    """What waits for a person, by reason and source."""
    return Table(
        "quarantine",
        rows,
        [
            Column("reason", _("Reason"), CODE, filter=TEXT_FILTER),
            Column("source", _("Source"), CODE, of="source_uri", filter=TEXT_FILTER),
            Column("events", _("Events"), COUNT, of="count", css=lambda row: "alarm"),
            Column("newest", _("Newest"), INSTANT),
        ],
        label=_("Quarantine"),
        empty=_("Nothing is in quarantine."),
    )


def sources_table(rows: Callable[[], QuerySet[Source]]) -> Table:
    return Table(
        "sources",
        lambda: list(rows()),
        [
            Column("source", _("Source"), CODE, of="uri", filter=TEXT_FILTER),
            Column("name", _("Name")),
            Column("adapter", _("Adapter")),
            Column("newest_event", _("Newest event"), INSTANT, of="watermark_at"),
            Column("complete_until", _("Complete until"), INSTANT),
            Column(
                "state",
                _("State"),
                words(lambda state: _("retired") if state == "retired" else _("in use")),
                of=lambda source: "retired" if source.retired_at else "in use",
            ),
        ],
        label=_("Sources"),
    )


def batches_table(rows: Callable[[], QuerySet[Batch]]) -> Table:
    """Read by the page: there may be very many."""

    def count(key: str, title: str, css: Callable[[Any], str] | None = None) -> Column:
        return Column(key, title, COUNT, field=key, css=css, html=_once_booked(key))

    return Table(
        "batches",
        rows,
        [
            Column(
                "batch", _("Batch"), COUNT, of="pk", field="pk", link=_to_batch, html=lambda batch: batch.pk
            ),
            Column("received_at", _("Received at"), INSTANT, field="received_at"),
            Column("door", _("Door"), field="door"),
            Column("by", _("By"), of="submitted_by", field="submitted_by", filter=TEXT_FILTER),
            Column("bytes", _("Bytes"), COUNT, of="body_bytes", field="body_bytes"),
            count("received", _("Events")),
            count("booked", _("Booked")),
            count("duplicate", _("Duplicates")),
            count("conflict", _("Conflicts")),
            count("quarantined", _("Quarantined"), lambda batch: "alarm" if batch.quarantined else ""),
            Column(
                "state",
                _("State"),
                field="state",
                html=_state,
                filter=choices_of(BatchState.values, batch_state),
            ),
            Column("refusal", _("Refused"), on_page=False),
        ],
        label=_("Batches"),
        rows_a_page=30,
        empty=_("No batch has come in yet."),
    )


def _to_batch(batch: Batch) -> str:
    return reverse("ingest:batch", args=[batch.pk])


def _once_booked(name: str) -> Callable[[Batch], Any]:
    """Counts are there once the batch is booked; until then a dash, not 'unknown'."""

    def html(batch: Batch) -> Any:
        value = getattr(batch, name)
        return "–" if value is None else COUNT.show(value)

    return html


def _state(batch: Batch) -> Any:
    if not batch.refusal:
        return batch_state(batch.state)
    return format_html('{} · <span class="code">{}</span>', batch_state(batch.state), batch.refusal)


def quarantined_table(rows: Callable[[], QuerySet[QuarantinedEvent]]) -> Table:
    """The events of one batch that could not be booked."""
    return Table(
        "quarantine",
        rows,
        [
            Column("line", _("Line"), COUNT, field="line"),
            Column("event", _("Event"), CODE, of="event_id", field="event_id", filter=TEXT_FILTER),
            Column("reason", _("Reason"), CODE, field="reason", filter=Filter()),
            Column("detail", _("Detail"), css=lambda row: "wide"),
            Column(
                "state",
                _("State"),
                of=lambda row: row.resolution if row.resolved_at else "open",
                html=_resolution,
            ),
        ],
        label=_("Quarantine"),
        empty=_("Nothing is in quarantine."),
    )


def _resolution(row: QuarantinedEvent) -> Any:
    if row.resolved_at:
        return row.resolution
    return format_html('<span class="alarm">{}</span>', pgettext("quarantine", "open"))
