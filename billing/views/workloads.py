"""One workload: its days, the facts it was booked by, and what happened to it."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http import Http404

from billing.models import WorkloadDay
from billing.selectors.names import Names
from billing.selectors.pages_preemptions import shown
from billing.selectors.statements import preemption_records
from ledger.models import Level, LevelKind, Pool
from ledger.querysets import visible_to
from ledger.views.page import Page, ledger_of

FACTS_SHOWN = 200
DAYS_SHOWN = 100


class WorkloadPage(Page):
    template = "billing/workload.html"

    def context(self, pool: str, workload: str, **_: Any) -> dict[str, Any]:
        place = Pool.objects.filter(slug=pool).first()
        if place is None:
            raise Http404
        days = visible_to(WorkloadDay.objects.select_related("holder"), self.access)
        days = days.filter(pool=place, workload=workload).order_by("-starts_at", "attempt")[:DAYS_SHOWN]
        levels = visible_to(Level.objects.select_related("event__source", "identity"), self.access).filter(
            pool=place, subject=workload, kind__in=[LevelKind.OCCUPANCY, LevelKind.PENDING]
        )
        facts = list(levels.order_by("-starts_at", "kind")[:FACTS_SHOWN])
        if not days and not facts:
            raise Http404
        hits = preemption_records(self.access).filter(cluster=place.cluster)
        hits = hits.filter(Q(victim_workload=workload) | Q(preemptor_workload=workload))[:FACTS_SHOWN]
        names = Names(self.access, at=ledger_now(facts, days))
        return {
            "pool": place,
            "workload": workload,
            "name": next((day.name for day in days if day.name), ""),
            "holder": names.shown(days[0].holder_id) if days else str(facts[0].identity),
            "days": days,
            "levels": facts,
            "sides": [side for record in hits for side in shown(record, names, self.access)],
            "currency": ledger_of(self.request).currency,
        }


def ledger_now(facts: list[Level], days: Any) -> Any:
    """The instant whose policy says how others are named: the newest that is known of the workload."""
    return facts[0].starts_at if facts else days[0].starts_at
