"""The tables of the pages of ingest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ingest.core.adapters.base import REASONS as NATIVE_REASONS
from ingest.core.details import told
from ingest.core.reasons import REASONS
from ingest.models import Batch, BatchState, QuarantinedEvent
from ingest.selectors.identities import Unmapped
from ingest.selectors.sources import Gap, SourceRow
from ingest.services.retrying import HOPELESS
from ledger.core.units import gpu_hours_text
from ledger.models import Event, IdentityMapping, SourceTotal
from ledger.selectors.silence import OpenHolder
from ledger.templatetags.figures import batch_state, count, gpu_hours, instant, moment
from ledger.views.tables import (
    CODE,
    COUNT,
    GPUS,
    INSTANT,
    TEXT_FILTER,
    Column,
    Filter,
    Table,
    choices_of,
    words,
)
from ledger.wording import EVENT_TYPES, MEASURES, QUARANTINE_STATES, SOURCE_STATES, UNITS
from ledger.wording_sentences import in_words

HOLDERS_A_PAGE = 200  # are ended at once: those that can be seen with their boxes


def quarantine_table(rows: Callable[[], Sequence[Mapping[str, Any]]], *, can_act: bool = False) -> Table:
    """What waits for a person, by reason and source. Its buttons belong to the form `retry` of the page."""
    return Table(
        "quarantine",
        rows,
        [
            Column("reason", _("Reason"), CODE, filter=TEXT_FILTER, link=_to_lines, help=_("See the lines.")),
            Column("meaning", _("Meaning"), of=_meaning, css=lambda row: "wide"),
            Column("source", _("Source"), CODE, of="source_uri", filter=TEXT_FILTER),
            Column("events", _("Events"), COUNT, of="count", css=lambda row: "alarm"),
            Column("newest", _("Newest"), INSTANT),
            *([Column("again", _("Try again"), html=_try_again, can_sort=False, in_csv=False)] * can_act),
        ],
        label=_("Quarantine"),
        empty=_("Nothing is in quarantine."),
    )


def _to_lines(row: Mapping[str, Any]) -> str:
    return f"{reverse('ingest:quarantine')}?{urlencode({'lines.reason': row['reason'], 'lines.state': 'open'})}#lines"


def _meaning(row: Mapping[str, Any]) -> str:
    return meaning_of(row["reason"])


def _detail(row: QuarantinedEvent) -> str:
    """In the reader's language; files have what was kept."""
    return in_words(told(row.detail))


def meaning_of(reason: str) -> str:
    """What a code of quarantine means, for a person; adapters bring their own."""
    meaning = REASONS.get(reason) or NATIVE_REASONS.get(reason)
    return _(meaning) if meaning else ""


def _try_again(row: Mapping[str, Any]) -> Any:
    if row["reason"] in HOPELESS:
        return _("cannot help")
    return format_html(
        '<button class="nowrap" form="retry" name="reason" value="{}">{}</button>',
        row["reason"],
        _("All of this reason"),
    )


def quarantine_lines_table(rows: Callable[[], QuerySet[QuarantinedEvent]], *, can_act: bool) -> Table:
    """Line by line; its boxes belong to the form `retry` of the page."""
    return Table(
        "lines",
        rows,
        [
            *([Column("choose", _("Choose"), of="pk", html=_choose, can_sort=False, in_csv=False)] * can_act),
            Column("batch", _("Batch"), COUNT, of="batch_id", field="batch_id", html=_batch_of, filter=EXACT),
            Column("line", _("Line"), COUNT, field="line"),
            Column("event", _("Event"), CODE, of="event_id", field="event_id", filter=TEXT_FILTER),
            Column("source", _("Source"), CODE, of="source_uri", field="source_uri", filter=TEXT_FILTER),
            Column("reason", _("Reason"), CODE, field="reason", filter=Filter(exact=True)),
            Column("detail", _("Detail"), html=_detail, css=lambda row: "wide"),
            Column("adapter", _("Adapter"), field="adapter"),
            Column("time", _("Time"), INSTANT, of="occurred_at", field="occurred_at", html=_time_of),
            Column(
                "state",
                _("State"),
                of=lambda row: row.resolution if row.resolved_at else "open",
                html=_resolution,
                filter=Filter(choices=lambda: QUARANTINE_STATES.items(), where=_in_state),
                can_sort=False,
                css=lambda row: "nowrap",
            ),
        ],
        label=_("Lines in quarantine"),
        empty=_("Nothing was ever in quarantine."),
    )


EXACT = Filter(
    exact=True,
    where=lambda rows, wanted: rows.filter(batch_id=int(wanted)) if _is_id(wanted) else rows.none(),
)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _in_state(rows: QuerySet[Any], wanted: str) -> QuerySet[Any]:
    if wanted == "open":
        return rows.filter(resolved_at=None)
    return rows.filter(resolution=wanted)


def _choose(row: QuarantinedEvent) -> Any:
    if row.resolved_at:
        return ""
    label = _("Batch %(batch)s, line %(line)s") % {"batch": row.batch_id, "line": row.line}
    return format_html(
        '<input type="checkbox" form="retry" name="id" value="{}" aria-label="{}">', row.pk, label
    )


def _batch_of(row: QuarantinedEvent) -> Any:
    return format_html('<a href="{}">{}</a>', reverse("ingest:batch", args=[row.batch_id]), row.batch_id)


def sources_table(rows: Callable[[], Sequence[SourceRow]]) -> Table:
    return Table(
        "sources",
        rows,
        [
            Column(
                "source",
                _("Source"),
                of=lambda row: str(row.source),
                link=lambda row: reverse("ingest:source", args=[row.source.pk]),
                css=lambda row: "nowrap",
                filter=TEXT_FILTER,
            ),
            Column("uri", _("Address"), CODE, of="source.uri", on_page=False),
            Column("adapter", _("Adapter"), of="source.adapter"),
            Column("newest_event", _("Newest event"), INSTANT, of="source.watermark_at"),
            Column("complete_until", _("Complete until"), INSTANT, of="source.complete_until"),
            Column(
                "state",
                _("State"),
                words(lambda state: SOURCE_STATES[state]),
                of=_source_state,
                css=lambda row: "nowrap alarm" if row.silent is not None else "nowrap",
            ),
            Column("gaps", _("Gaps"), COUNT),
            Column(
                "quarantined",
                _("Quarantined"),
                COUNT,
                css=lambda row: "alarm" if row.quarantined else "",
            ),
            Column(
                "last_problem",
                _("Last problem"),
                css=lambda row: "wide alarm" if row.last_problem else "",
            ),
        ],
        label=_("Sources"),
    )


def _source_state(row: SourceRow) -> str:
    if row.source.retired_at:
        return "retired"
    return "silent" if row.silent is not None else "in use"


def gaps_table(rows: Callable[[], Sequence[Gap]]) -> Table:
    """Spans of which a source told too little."""
    return Table(
        "gaps",
        rows,
        [
            Column("from", _("From"), INSTANT, of="starts_at"),
            Column("to", _("To"), INSTANT, of="ends_at"),
            Column("code", _("What"), CODE),
            Column(
                "meaning", _("Meaning"), of=lambda gap: _(gap.meaning) if gap.meaning else "", in_csv=False
            ),
            Column("subject", _("Of")),
            Column("detail", _("Detail"), css=lambda row: "wide"),
        ],
        label=_("Gaps"),
        empty=_("It has told of no gap."),
    )


def totals_table(rows: Callable[[], Sequence[SourceTotal]]) -> Table:
    """What a source adds up to itself, newest first; each month's reconciliation holds the books against it."""
    return Table(
        "totals",
        rows,
        [
            Column("from", _("From"), INSTANT, of="starts_at"),
            Column("to", _("To"), INSTANT, of="ends_at"),
            Column("measure", _("Measure"), of=lambda row: MEASURES.get(row.measure, row.measure)),
            Column("subject", _("Of")),
            Column("quantity", _("Quantity"), COUNT, of=_quantity, html=_quantity_cell),
            Column("unit", _("Unit"), of=lambda row: UNITS.get(row.unit, row.unit)),
        ],
        label=_("What it adds up to itself"),
    )


def _quantity(row: SourceTotal) -> str:
    return gpu_hours_text(row.quantity) if row.unit == "gpu_us" else str(row.quantity)


def _quantity_cell(row: SourceTotal) -> Any:
    return gpu_hours(row.quantity) if row.unit == "gpu_us" else count(row.quantity)


def holders_table(rows: Callable[[], Sequence[OpenHolder]], *, can_act: bool) -> Table:
    """Who holds GPUs by a silent source's last word; its boxes belong to the form `end` of the page."""
    return Table(
        "holders",
        rows,
        [
            *(
                [Column("choose", _("Choose"), of="key", html=_choose_holder, can_sort=False, in_csv=False)]
                * can_act
            ),
            Column("workload", _("Workload"), CODE, filter=TEXT_FILTER),
            Column("pool", _("Pool"), filter=TEXT_FILTER),
            Column("holder", _("Holder"), filter=TEXT_FILTER),
            Column("gpus", _("GPUs"), GPUS, of="milli_gpus"),
            Column("since", _("Since"), INSTANT, of="starts_at"),
        ],
        label=_("Who still holds GPUs"),
        caption=_("Who still holds GPUs by its last word"),
        rows_a_page=HOLDERS_A_PAGE,
    )


def _choose_holder(row: OpenHolder) -> Any:
    return format_html(
        '<input type="checkbox" form="end" name="holder" value="{}" checked aria-label="{}">',
        row.key,
        row.workload,
    )


def unmapped_table(rows: Callable[[], Sequence[Unmapped]], *, can_act: bool) -> Table:
    """Identities whose facts belong to nobody."""
    return Table(
        "unmapped",
        rows,
        [
            Column("kind", _("Kind"), CODE, filter=TEXT_FILTER),
            Column("value", _("Value"), CODE, filter=TEXT_FILTER, link=_to_form if can_act else None),
            Column("pools", _("Pools"), of=lambda row: ", ".join(row.pools)),
            Column("levels", _("Levels"), COUNT),
            Column("requests", _("Requests"), COUNT),
            Column("preemptions", _("Preemptions"), COUNT),
            Column("first", _("First"), INSTANT, of="first_fact_at"),
            Column("last", _("Newest"), INSTANT, of="last_fact_at"),
        ],
        label=_("Unmapped identities"),
        empty=_("Every fact belongs to somebody."),
    )


def _to_form(row: Unmapped) -> str:
    return f"?{urlencode({'kind': row.kind, 'value': row.value})}#map"


def mappings_table(rows: Callable[[], QuerySet[IdentityMapping]]) -> Table:
    """Who maps to whom, and when."""
    return Table(
        "mappings",
        rows,
        [
            Column("kind", _("Kind"), CODE, of="identity.kind", field="identity__kind", filter=TEXT_FILTER),
            Column(
                "value", _("Value"), CODE, of="identity.value", field="identity__value", filter=TEXT_FILTER
            ),
            Column(
                "tenant",
                _("Tenant"),
                of="tenant.slug",
                field="tenant__holder__slug",
                filter=TEXT_FILTER,
            ),
            Column("valid_from", _("From"), INSTANT, of="validity.lower"),
            Column("valid_to", _("To"), INSTANT, of="validity.upper"),
            Column("recorded_at", _("Recorded"), INSTANT, field="recorded_at"),
            Column("by", _("By"), of="recorded_by", field="recorded_by"),
        ],
        label=_("Mappings"),
        empty=_("No identity is mapped."),
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
            Column("detail", _("Detail"), html=_detail, css=lambda row: "wide"),
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
    if row.retried_in_id is not None:
        url = reverse("ingest:batch", args=[row.retried_in_id])
        return format_html('<a href="{}">{}</a>', url, QUARANTINE_STATES["retried"])
    if row.resolved_at:
        return QUARANTINE_STATES.get(row.resolution, row.resolution)
    return format_html('<span class="alarm">{}</span>', pgettext("quarantine", "open"))


def _time_of(row: QuarantinedEvent) -> Any:
    """Its time; where it has none, the instant by which it counts to a month, told as such."""
    if row.occurred_at is not None:
        return instant(row.occurred_at)
    why = _(
        "It has no time that could be read: it counts in the month of the newest instant it speaks of, or it came."
    )
    return format_html('<span class="muted" title="{}">≈ {}</span>', why, moment(row.attributed_at))


def booked_table(rows: Callable[[], QuerySet[Event]]) -> Table:
    """The events of a batch, each with the way to its page."""
    return Table(
        "events",
        rows,
        [
            Column("line", _("Line"), COUNT, field="line"),
            Column(
                "event", _("Event"), CODE, of="event_id", field="event_id", link=_to_event, filter=TEXT_FILTER
            ),
            Column("type", _("Kind"), of=lambda row: row.get_type_display(), html=_type_in_words),
            Column("occurred_at", _("Happened"), INSTANT, field="occurred_at"),
            Column("source", _("Source"), CODE, of="source.uri", field="source__uri"),
        ],
        label=_("Events booked from it"),
        rows_a_page=20,
    )


def _to_event(row: Event) -> str:
    return reverse("ledger:event", args=[row.source_id, row.event_id])


def _type_in_words(row: Event) -> Any:
    return EVENT_TYPES[row.get_type_display()]
