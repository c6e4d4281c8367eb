"""One workload: its days, the facts it was booked by, and what happened to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.models import WorkloadDay
from billing.selectors.names import Names
from billing.selectors.pages_preemptions import ShownPreemption, shown
from billing.selectors.pages_workloads import (
    day_of_line,
    days_of_workloads,
    facts_of_workloads,
    statements_of_days,
)
from billing.selectors.statements import preemption_records
from billing.views.preemption_table import preemption_table
from ledger.models import Level, Pool
from ledger.templatetags.figures import date_utc
from ledger.views.events import LINE, level_columns, way_back
from ledger.views.tables import (
    CODE,
    COUNT,
    DAY,
    GPU_HOURS,
    GPUS_TOLD,
    TEXT_FILTER,
    Column,
    Table,
    TablePage,
)
from ledger.wording import CATEGORIES

PREEMPTIONS_SHOWN = 200
ROWS_A_PAGE = 100
OCCUPIED = ("reserved_used", "on_demand", "borrowed", "excess")


class WorkloadPage(TablePage):
    template = "billing/workload.html"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        """The 404 of a workload that is not there is also that of one that is somebody else's."""
        workload = kwargs["workload"]
        place = Pool.objects.filter(slug=kwargs["pool"]).first()
        if place is None:
            raise Http404
        self.place = place
        self.days = days_of_workloads(place, [workload], self.access)
        self.facts = facts_of_workloads(place, [workload], self.access)
        self.newest_day, self.newest_fact = self.days.first(), self.facts.first()
        newest = self.newest_fact or self.newest_day
        if newest is None:
            raise Http404
        self.newest_at = newest.starts_at
        return super().get(request, **kwargs)

    @cached_property
    def names(self) -> Names:
        """Others are named as the policy says of the newest instant that is known of the workload."""
        return Names(self.access, at=self.newest_at)

    @cached_property
    def sides(self) -> list[ShownPreemption]:
        """Of the work of its holders: another's of the same id in another pool of the cluster has a page of its own.
        What never ran has no days that say whose it was."""
        workload = self.kwargs["workload"]
        as_victim, as_preemptor = Q(victim_workload=workload), Q(preemptor_workload=workload)
        if self.newest_day is not None:
            holders = self.days.order_by().values("holder")
            as_victim &= Q(victim__in=holders)
            as_preemptor &= Q(preemptor__in=holders) | Q(preemptor=None)
        hits = preemption_records(self.access).filter(as_victim | as_preemptor, cluster=self.place.cluster)
        hits = hits[:PREEMPTIONS_SHOWN]
        return [side for record in hits for side in shown(record, self.names, self.access)]

    def tables(self, pool: str, workload: str) -> list[Table]:
        return [
            preemption_table("preemptions", _("Preemptions"), lambda: self.sides, self.access),
            days_table(lambda: self.days),
            facts_table(lambda: self.facts, way_back(self.request)),
        ]

    def context(self, pool: str, workload: str) -> dict[str, Any]:
        newest, fact = self.newest_day, self.newest_fact
        named = self.days.exclude(name="").first()
        charged_on = statements_of_days(self.days, self.access)
        came_from = day_of_line(self.request.GET.get(LINE, ""), self.access)
        return {
            "came_from": came_from,
            "statement": came_from.line.statement if came_from else next(iter(charged_on), None),
            "charged_on": charged_on,
            "pool": self.place,
            "workload": workload,
            "name": named.name if named is not None else "",
            "holder": self.names.shown(newest.holder_id) if newest else str(fact.identity if fact else ""),
            "has_days": newest is not None,
            "has_facts": fact is not None,
            "sides": self.sides,
        }


def days_table(rows: Callable[[], QuerySet[WorkloadDay]]) -> Table:
    return Table(
        "days",
        rows,
        [
            Column(
                "day",
                _("Day"),
                DAY,
                of="starts_at",
                html=lambda row: date_utc(row.starts_at),
                field="starts_at",
            ),
            Column("attempt", _("Attempt"), COUNT, field="attempt"),
            Column("user", _("User"), field="user", filter=TEXT_FILTER),
            *[
                Column(
                    f"{name}_gpu_hours",
                    CATEGORIES[name],
                    GPU_HOURS,
                    of=f"{name}_gpu_us",
                    field=f"{name}_gpu_us",
                    unit=_("GPU-hours"),
                )
                for name in OCCUPIED
            ],
        ],
        label=_("By day"),
        caption=_("GPU-hours, by UTC day"),
        rows_a_page=ROWS_A_PAGE,
    )


def facts_table(rows: Callable[[], QuerySet[Level]], back: str) -> Table:
    return Table(
        "facts",
        rows,
        [
            *level_columns(),
            Column("attempt", _("Attempt"), COUNT, field="attempt"),
            Column("gpus", _("GPUs"), GPUS_TOLD, of="milli_gpus", field="milli_gpus"),
            Column("identity", _("Identity"), CODE, of=lambda row: str(row.identity)),
            Column(
                "event",
                _("Event"),
                CODE,
                of="event.event_id",
                link=lambda row: (
                    reverse("ledger:event", args=[row.event.source_id, row.event.event_id]) + back
                ),
            ),
            Column("source", _("Source"), CODE, of="event.source.uri", on_page=False),
        ],
        label=_("Facts it was booked by"),
        rows_a_page=ROWS_A_PAGE,
    )
