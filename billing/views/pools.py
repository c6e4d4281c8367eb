"""One pool: its capacity over time from a month down to a minute, and what it holds, promises and expects now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.charts.usage import pool_chart
from billing.core.shortage import GivesWay
from billing.selectors.names import Names
from billing.selectors.pages_months import PARTS_OF_CAPACITY
from billing.selectors.pages_pools import (
    BUCKETS,
    CLOSER,
    ZOOMS,
    Bucket,
    Frame,
    buckets_of,
    frame_of,
    newest_slot_at,
    planned_changes,
    workloads_now,
)
from billing.selectors.prices import price_book
from billing.selectors.reservations import ReservationRow, reservations
from billing.selectors.shortages import PoolHeadroom, gives_way, headrooms
from billing.views.heat import Choice
from ledger.core.windows import BadWindow, parse_instant
from ledger.models import Level, Pool
from ledger.templatetags.figures import event_type
from ledger.views.page import ledger_of, runs_the_ledger, shown_zone
from ledger.views.tables import (
    CODE,
    COUNT,
    GPU_HOURS,
    GPUS,
    INSTANT,
    NOWRAP,
    TEXT_FILTER,
    Column,
    Filter,
    Table,
    TablePage,
    micro_in,
    words,
)
from ledger.wording import SERVICE_CLASSES, category_name


class PoolPage(TablePage):
    """`?zoom=month|week|day|hour&at=` an instant; without it the week of the newest slot."""

    template = "billing/pool.html"
    allows = staticmethod(runs_the_ledger)

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        pool = Pool.objects.filter(slug=kwargs["pool"]).first()
        if pool is None:
            raise Http404
        self.pool, self.now = pool, timezone.now()
        return super().get(request, **kwargs)

    @cached_property
    def frame(self) -> Frame:
        zoom = self.request.GET.get("zoom", "")
        return frame_of(zoom if zoom in ZOOMS else "week", self._at(), shown_zone(self.request))

    def _at(self) -> datetime:
        """A wrong instant, or one out of reach of the calendar, is the newest slot."""
        try:
            at_ms = parse_instant(self.request.GET.get("at", ""))
            if 0 < at_ms < 4_000_000_000_000:
                return datetime.fromtimestamp(at_ms / 1000, timezone.get_default_timezone())
        except (BadWindow, OverflowError, OSError):
            pass
        return newest_slot_at(self.pool) or self.now

    @cached_property
    def buckets(self) -> list[Bucket]:
        return buckets_of(self.pool, self.frame, shown_zone(self.request))

    @cached_property
    def names(self) -> Names:
        return Names(self.access, at=self.now)

    def url(self, zoom: str, at: datetime) -> str:
        return f"?{urlencode({'zoom': zoom, 'at': at.isoformat()})}"

    def tables(self, pool: str) -> list[Table]:
        closer = CLOSER[self.frame.zoom]
        link = (lambda bucket: self.url(closer, bucket.starts_at) + "#over-time") if closer else None
        return [
            buckets_table(lambda: self.buckets, link),
            reservations_table(lambda: reservations(self.now, until=None, pools=[pool]), self.names),
            planned_table(lambda: list(planned_changes(self.pool, self.now))),
            gives_way_table(self._gives_way, pool, ledger_of(self.request).currency),
            workloads_table(lambda: workloads_now(self.pool, self.now), pool),
        ]

    def context(self, pool: str) -> dict[str, Any]:
        frame, buckets = self.frame, self.buckets
        closer = CLOSER[frame.zoom]
        urls = [self.url(closer, bucket.starts_at) for bucket in buckets] if closer else []
        occupied = ("reserved_used", "on_demand", "borrowed")
        return {
            "pool": self.pool,
            "now": self.now,
            "frame": frame,
            "bucket": BUCKETS[frame.zoom],
            "zooms": [
                Choice(name, self.url(zoom, frame.starts_at), zoom == frame.zoom)
                for zoom, name in _zoom_names().items()
            ],
            "earlier_url": self.url(frame.zoom, frame.before),
            "later_url": self.url(frame.zoom, frame.after),
            "chart": pool_chart(buckets, shown_zone(self.request), urls) if buckets else None,
            "busiest": max(buckets, key=lambda one: sum(one.gpu_us[name] for name in occupied), default=None),
            "idlest": max(buckets, key=lambda one: one.gpu_us["reserved_idle"], default=None),
            "state": self.room,
        }

    @cached_property
    def room(self) -> PoolHeadroom:
        (found,) = headrooms(self.now, [self.pool])
        return found

    def _gives_way(self) -> list[GivesWay]:
        return gives_way(self.now, self.room, price_book())


def _zoom_names() -> dict[str, str]:
    return {
        "month": _("month, by day"),
        "week": _("week, by hour"),
        "day": _("day, by minute"),
        "hour": _("hour, by minute"),
    }


def buckets_table(rows: Callable[[], Sequence[Bucket]], link: Callable[[Bucket], str] | None) -> Table:
    def part(name: str) -> Callable[[Bucket], int]:
        return lambda bucket: bucket.gpu_us[name]

    names = ["capacity", *PARTS_OF_CAPACITY, "over_reserved", "excess", "oversold"]
    titles = {"capacity": _("Capacity"), "over_reserved": _("Over-reserved")}
    return Table(
        "buckets",
        rows,
        [
            Column("from", _("From"), INSTANT, of="starts_at", link=link),
            *[
                Column(f"{name}_gpu_hours", titles.get(name) or category_name(name), GPU_HOURS, of=part(name))
                for name in names
            ],
            Column("difference_gpu_hours", _("Difference"), GPU_HOURS, of="difference_gpu_us"),
        ],
        label=_("Capacity over time by category"),
        caption=_("In GPU-hours"),
        totals=lambda: {f"{name}_gpu_hours": sum(bucket.gpu_us[name] for bucket in rows()) for name in names},
    )


def reservations_table(rows: Callable[[], Sequence[ReservationRow]], names: Names) -> Table:
    return Table(
        "reservations",
        rows,
        [
            Column("reservation", _("Reservation"), CODE, filter=TEXT_FILTER),
            Column(
                "holder",
                _("Holder"),
                NOWRAP,
                of=lambda row: names.shown(row.holder_id) or None,
                filter=TEXT_FILTER,
            ),
            Column("gpus", _("GPUs"), GPUS, of="milli_gpus"),
            Column(
                "lendable",
                _("Lendable"),
                words(lambda value: _("yes") if value == "yes" else _("no")),
                of=lambda row: "yes" if row.lendable else "no",
            ),
            Column("from", _("From"), INSTANT, of="starts_at"),
            Column("until", _("Until"), INSTANT, of="ends_at"),
        ],
        label=_("Reservations"),
        totals=lambda: {"gpus": sum(row.milli_gpus for row in rows())},
        empty=_("Nothing is reserved."),
    )


def planned_table(rows: Callable[[], Sequence[Level]]) -> Table:
    return Table(
        "planned",
        rows,
        [
            Column(
                "from",
                _("From"),
                INSTANT,
                of="starts_at",
                link=lambda row: reverse("ledger:event", args=[row.event.source_id, row.event.event_id]),
            ),
            Column(
                "kind",
                _("Kind"),
                of=lambda row: row.get_kind_display(),
                html=lambda row: event_type(row.get_kind_display()),
            ),
            Column("subject", _("Subject"), CODE),
            Column("gpus", _("GPUs"), GPUS, of="milli_gpus"),
            Column("known_since", _("Known since"), INSTANT, of="event.booking.booked_at"),
        ],
        label=_("Planned changes"),
        empty=_("No change is announced."),
    )


def gives_way_table(rows: Callable[[], Sequence[GivesWay]], pool: str, currency: str) -> Table:
    return Table(
        "way",
        rows,
        [
            Column(
                "workload",
                _("Workload"),
                CODE,
                of="running.workload",
                link=lambda row: reverse("billing:workload", args=[pool, row.running.workload]),
            ),
            Column("holder", _("Holder"), NOWRAP, of="running.holder", filter=TEXT_FILTER),
            Column(
                "class",
                _("Class"),
                words(lambda code: SERVICE_CLASSES[code]),
                of=lambda row: "preemptible" if row.running.preemptible else "guaranteed",
            ),
            Column("gpus", _("Holds"), GPUS, of="running.milli", unit=_("GPUs")),
            Column("beyond_gpus", _("Beyond entitlement"), GPUS, of="beyond_milli", unit=_("GPUs")),
            Column("price", _("Price"), micro_in(currency), of="price_micro", unit=_("per GPU-hour")),
            Column("loss_gpu_hours", _("Would lose"), GPU_HOURS, of="loss_gpu_us", unit=_("GPU-hours")),
            Column("loss", _("Would lose"), micro_in(currency), of="loss_micro", unit=currency),
        ],
        label=_("Who would give way"),
        empty=_("Nobody holds more than is entitled."),
    )


def workloads_table(rows: Callable[[], Any], pool: str) -> Table:
    return Table(
        "workloads",
        rows,
        [
            Column(
                "workload",
                _("Workload"),
                CODE,
                of="subject",
                field="subject",
                link=lambda row: reverse("billing:workload", args=[pool, row.subject]),
                filter=Filter(),
            ),
            Column("attempt", _("Attempt"), COUNT, field="attempt"),
            Column("gpus", _("GPUs"), GPUS, of="last_milli_gpus", field="last_milli_gpus"),
            Column("since", _("Since"), INSTANT, of="last_at", field="last_at"),
        ],
        label=_("Workloads now"),
        rows_a_page=25,
        empty=_("Nothing holds a GPU."),
    )
