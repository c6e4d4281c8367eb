"""Preemptions of a month as a list, and one of them as a story with its evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.charts.usage import Phase, preemption_chart
from billing.models import PreemptionRecord, WorkloadDay
from billing.selectors.names import Names
from billing.selectors.pages_exceptions import conflicts_of
from billing.selectors.pages_preemptions import (
    ShownPreemption,
    in_words,
    month_records,
    neighbours_of,
    shown,
    span_of,
)
from billing.selectors.pages_workloads import workloads_to_open
from billing.selectors.preemptions import MatrixCell, matrix
from billing.selectors.statements import preemption_records
from billing.views.heat import HeatMap, choose, heat_map
from billing.views.month_tables import preemptions_url
from billing.views.months import period_or_404
from billing.views.preemption_table import preemption_record_table
from billing.views.story import story
from ledger.core.periods import Month, to_ms
from ledger.core.units import MS_PER_MINUTE
from ledger.models import Source
from ledger.templatetags.figures import count_cell, duration, gpu_hours_cell, money_cell
from ledger.views.page import billing_zone, ledger_of, shown_zone
from ledger.views.tables import CODE, GPU_HOURS, GPUS, TEXT_FILTER, Column, Table, TablePage


class MonthPreemptionsPage(TablePage):
    """Who preempted whom: filters in the address, newest first."""

    template = "billing/preemptions.html"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.period = period_or_404(kwargs["month"], self.access)
        return super().get(request, **kwargs)

    def tables(self, month: str) -> list[Table]:
        return [
            preemption_record_table(
                lambda: month_records(self.period, self.access),
                lambda: self.names,
                self.access,
            )
        ]

    @cached_property
    def names(self) -> Names:
        return Names(self.access, at=self.period.starts_at)

    def context(self, month: str) -> dict[str, Any]:
        cells = matrix(preemption_records(self.access), span_of(self.period))
        measure, choices = choose(
            self.request,
            "measure",
            {
                "requeued": _("re-queued GPU-hours"),
                "waiting": _("waiting GPU-hours"),
                "count": _("count"),
                "money": _("money"),
            },
        )
        return {
            "month": month,
            "period": self.period,
            "choices": choices,
            "heat": self._heat(cells, measure) if cells else None,
        }

    def _heat(self, cells: list[MatrixCell], measure: str) -> HeatMap:
        """Who took from whom. A tenant finds itself and, under their aliases, those it has to do with."""
        names = self.names
        currency = ledger_of(self.request).currency
        field, show, caption = {
            "requeued": ("requeued_gpu_us", gpu_hours_cell, _("Re-queued (lost + recompute), in GPU-hours")),
            "waiting": ("waiting_gpu_us", gpu_hours_cell, _("Waiting until it ran again, in GPU-hours")),
            "count": ("preemptions", count_cell, _("Number of preemptions")),
            "money": (
                "amount_micro",
                lambda value: money_cell(value, currency),
                _("Price of re-queued GPU time, in %(currency)s") % {"currency": currency},
            ),
        }[measure]
        return heat_map(
            [
                (
                    in_words(names.shown(cell.preemptor_id)),
                    in_words(names.shown(cell.victim_id)),
                    getattr(cell, field),
                )
                for cell in cells
            ],
            show,
            label=_("Preemptors and victims"),
            caption=caption,
            corner=_("Preemptor ↓  Victim →"),
            css="of-preemption",
            shade="undelivered",
            link=self._to_records if self.access.sees_all_tenants else None,
            nameless=_("unknown or the platform"),
        )

    def _to_records(self, preemptor: str, victim: str) -> str:
        return preemptions_url(self.period.month, preemptor=preemptor, victim=victim) + "#table-preemptions"


@dataclass(frozen=True)
class Moment:
    """A point of the timeline, and how long it was since the one before."""

    name: str
    at: datetime
    since_ms: int | None = None
    is_hit: bool = False


class PreemptionPage(TablePage):
    """One record: its story, its timeline, its measures with their evidence, and the events that told of it."""

    template = "billing/preemption.html"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        record = preemption_records(self.access).filter(pk=kwargs["preemption_id"]).first()
        if record is None:
            raise Http404
        self.record = record
        return super().get(request, **kwargs)

    @cached_property
    def names(self) -> Names:
        return Names(self.access, at=self.record.decided_at)

    def tables(self, preemption_id: UUID) -> list[Table]:
        return [parts_table(lambda: self.parts), events_table(lambda: self.events)]

    def context(self, preemption_id: UUID) -> dict[str, Any]:
        record = self.record
        side = shown(record, self.names, self.access)[0]
        work = self._name_of_work(side)
        month = Month.containing(to_ms(record.decided_at), billing_zone(self.request))
        return {
            "month": str(month),
            "record": record,
            "side": side,
            "work": work,
            "story": story(side, work),
            "timeline": timeline(record),
            "chart": preemption_chart(phases(record), shown_zone(self.request)),
            "shares": self.parts,
            "events": self.events,
            "conflicts": conflicts_of(record) if self.access.may_read_ingest else {},
            "opens": workloads_to_open(
                record.pool, [record.victim_workload, record.preemptor_workload], self.access
            ),
            "others": neighbours_of(record, self.access)[:10],
            "currency": ledger_of(self.request).currency,
        }

    def _name_of_work(self, side: ShownPreemption) -> str:
        workload = side.record.victim_workload or ""
        if not workload or side.hides_victim:
            return ""
        row = WorkloadDay.objects.filter(
            pool=side.record.pool_id, holder=side.record.victim_id, workload=workload
        ).first()
        return row.name if row is not None and row.name else workload

    @cached_property
    def parts(self) -> list[dict[str, Any]]:
        """Where a shared service was hit: whose part was how large. A tenant sees its own part only."""
        all_shares = self.record.shares.all()
        if len(all_shares) < 2:
            return []
        return [
            {"tenant": self.names.shown(share.account.tenant_id), "share": share}
            for share in all_shares
            if self.access.sees_tenant(share.account.tenant_id)
        ]

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The reports name both parties, so only the ledger's own people go on to them."""
        if not self.access.may_read_ingest:
            return []
        uris = {uri for uri, _event_id in self.record.events}
        sources = {source.uri: source for source in Source.objects.filter(uri__in=uris)}
        return [
            {"source": sources[uri], "event_id": event_id}
            for uri, event_id in self.record.events
            if uri in sources
        ]


def parts_table(rows: Callable[[], list[dict[str, Any]]]) -> Table:
    hours = _("GPU-hours")

    def column(name: str, title: str) -> Column:
        return Column(f"{name}_gpu_hours", title, GPU_HOURS, of=f"share.{name}_gpu_us", unit=hours)

    return Table(
        "parts",
        rows,
        [
            Column("tenant", _("Tenant"), filter=TEXT_FILTER),
            Column("gpus", _("GPUs"), GPUS, of="share.milli_gpus"),
            column("lost", _("Lost")),
            column("recompute", _("Recompute")),
            column("waiting", _("Waiting")),
        ],
        label=_("Parts by tenant"),
    )


def events_table(rows: Callable[[], list[dict[str, Any]]]) -> Table:
    return Table(
        "events",
        rows,
        [
            Column(
                "event",
                _("Event"),
                CODE,
                of="event_id",
                link=lambda row: reverse("ledger:event", args=[row["source"].pk, row["event_id"]]),
                filter=TEXT_FILTER,
            ),
            Column("source", _("Source"), CODE, of="source.uri", filter=TEXT_FILTER),
        ],
        label=_("Source events"),
    )


def timeline(record: PreemptionRecord) -> list[Moment]:
    """What is known of it, in order of time."""
    known = [
        (_("The attempt started"), record.admitted_at, False),
        (_("Decided: the GPUs are to be given up"), record.decided_at, True),
        (_("Released: the GPUs are free"), record.released_at, False),
        (_("Running again"), record.resumed_at, False),
    ]
    moments: list[Moment] = []
    for name, at, is_hit in known:
        if at is None:
            continue
        since_ms = to_ms(at) - to_ms(moments[-1].at) if moments else None
        moments.append(Moment(name, at, since_ms, is_hit))
    return moments


def phases(record: PreemptionRecord) -> list[Phase]:
    """Ran, drained, waited, ran again. Of long running before and after only as much is drawn as the rest lasted."""
    if record.queued_only:
        return []
    released = record.released_at or record.decided_at
    until = record.resumed_at or record.waits_until or released
    drain_ms = to_ms(released) - to_ms(record.decided_at)
    wait_ms = max(to_ms(until) - to_ms(released), 0)
    side_ms = max(drain_ms + wait_ms, MS_PER_MINUTE)
    ran_ms = side_ms
    if record.admitted_at is not None:
        ran_ms = min(side_ms, max(to_ms(record.decided_at) - to_ms(record.admitted_at), 0))
    found = [
        Phase(_("Ran"), record.decided_at - timedelta(milliseconds=ran_ms), ran_ms, "accent", _("before")),
        Phase(_("Drained"), record.decided_at, drain_ms, "rule-strong", str(duration(drain_ms))),
        Phase(_("Waited"), released, wait_ms, "rule", str(duration(wait_ms))),
    ]
    if record.resumed_at is not None:
        found.append(Phase(_("Runs again"), record.resumed_at, side_ms, "accent", _("since then")))
    return found
