"""One source event as it was booked: the end of every drill-down, and the way on to its batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _

from ledger.models import Correction, Event, Level, LevelKind, PreemptionReport
from ledger.querysets import visible_to
from ledger.templatetags.figures import event_type
from ledger.views.tables import CODE, GPUS_TOLD, INSTANT, TEXT_FILTER, Column, Table, TablePage
from ledger.wording import EVENT_TYPES

# In an address: the day of a statement's line that the reader came from, as `2026-10/acme/33/2026-10-14`.
LINE = "line"


def way_back(request: HttpRequest) -> str:
    """What a link carries on so that the pages below a line lead back to it; empty for who came from elsewhere."""
    line = request.GET.get(LINE, "")
    return f"?{urlencode({LINE: line})}" if line else ""


class EventPage(TablePage):
    """A tenant sees the events of its own holdings; whoever runs or checks the books sees all."""

    template = "ledger/event.html"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        events = visible_to(Event.objects.select_related("source", "booking"), self.access)
        event = events.filter(source=kwargs["source_id"], event_id=kwargs["event_id"]).first()
        if event is None:
            raise Http404
        self.event = event
        return super().get(request, **kwargs)

    def tables(self, source_id: int, event_id: str) -> list[Table]:
        def levels() -> QuerySet[Level]:
            found = visible_to(self.event.levels.select_related("pool", "identity"), self.access)
            return found.order_by("starts_at", "pk")

        return [
            levels_table(levels, way_back(self.request), leads_to_pools=self.access.sees_all_tenants),
        ]

    def _work(self) -> tuple[str, str] | None:
        """Workload and address of its page, where the event tells of one alone: the way back up."""
        levels = visible_to(self.event.levels.filter(kind=LevelKind.OCCUPANCY), self.access)
        found = list(levels.order_by().values_list("pool__slug", "subject").distinct()[:2])
        if len(found) != 1 or not found[0][1]:
            return None
        return found[0][1], reverse("billing:workload", args=found[0]) + way_back(self.request)

    def context(self, source_id: int, event_id: str) -> dict[str, Any]:
        event = self.event
        return {
            "event": event,
            "work": self._work(),
            "type_name": EVENT_TYPES[event.get_type_display()],
            "hash": bytes(event.content_hash).hex(),
            "body": json.dumps(event.body, indent=2, ensure_ascii=False, sort_keys=True),
            "report": self._report(event),
            "corrections": Correction.objects.filter(
                supersedes_source=event.source.uri, supersedes_event_id=event.event_id
            ).select_related("event__source"),
        }

    def _report(self, event: Event) -> PreemptionReport | None:
        """What the event says of a preemption of a workload: both sides stand there, so not for tenants."""
        if not self.access.may_read_ingest:
            return None
        reports = PreemptionReport.objects.filter(event=event, victim_workload__isnull=False)
        return reports.select_related("pool").first()


def level_columns() -> list[Column]:
    """Since when, and of what kind: how every table of levels begins."""
    return [
        Column("from", _("From"), INSTANT, of="starts_at", field="starts_at"),
        Column(
            "kind",
            _("Kind"),
            of=lambda row: row.get_kind_display(),
            html=lambda row: event_type(row.get_kind_display()),
            field="kind",
        ),
    ]


def levels_table(rows: Callable[[], QuerySet[Level]], back: str, *, leads_to_pools: bool) -> Table:
    """What the event says of GPUs: one event may tell of many workloads or holders."""

    def workload(row: Level) -> str | None:
        if row.kind != LevelKind.OCCUPANCY or not row.subject:
            return None
        return reverse("billing:workload", args=[row.pool.slug, row.subject]) + back

    def pool(row: Level) -> str | None:
        return reverse("billing:pool", args=[row.pool.slug]) if leads_to_pools else None

    return Table(
        "levels",
        rows,
        [
            *level_columns(),
            Column(
                "pool",
                _("Pool"),
                of="pool.slug",
                field="pool__slug",
                link=pool,
                filter=TEXT_FILTER,
            ),
            Column("subject", _("Subject"), CODE, field="subject", link=workload, filter=TEXT_FILTER),
            Column(
                "identity",
                _("Identity"),
                CODE,
                of=lambda row: str(row.identity) if row.identity else "",
                can_sort=False,
            ),
            Column("gpus", _("GPUs"), GPUS_TOLD, of="milli_gpus", field="milli_gpus"),
        ],
        label=_("Booked as"),
    )
