"""One source event as it was booked: the end of every drill-down, and the way on to its batch."""

from __future__ import annotations

import json
from typing import Any

from django.http import Http404

from ledger.models import Correction, Event, PreemptionReport
from ledger.querysets import visible_to
from ledger.views.page import Page
from ledger.wording import EVENT_TYPES


class EventPage(Page):
    """A tenant sees the events of its own holdings; whoever runs or checks the books sees all."""

    template = "ledger/event.html"

    def context(self, source_id: int, event_id: str, **_: Any) -> dict[str, Any]:
        events = visible_to(Event.objects.select_related("source", "booking"), self.access)
        event = events.filter(source=source_id, event_id=event_id).first()
        if event is None:
            raise Http404
        levels = visible_to(event.levels.select_related("pool", "identity"), self.access)
        return {
            "event": event,
            "type_name": EVENT_TYPES[event.get_type_display()],
            "hash": bytes(event.content_hash).hex(),
            "body": json.dumps(event.body, indent=2, ensure_ascii=False, sort_keys=True),
            "report": self._report(event),
            "levels": levels.order_by("starts_at", "pk"),
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
