"""The cluster now, or at an instant that is over, for those who run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext as _

from billing.selectors.names import Names
from billing.selectors.pages_cluster import (
    HolderNow,
    PoolNow,
    Preempting,
    RepeatVictim,
    newest_fact_at,
    pools_now,
    recent_preemptions,
    recent_window,
    repeat_victims,
    who_is_preempting,
)
from billing.selectors.pages_preemptions import shown
from billing.selectors.shortages import PoolHeadroom, PoolShortage, headrooms, shortages_of
from billing.views.preemption_table import preemption_table
from ledger.core.periods import Span, to_datetime
from ledger.models import Pool
from ledger.selectors.silence import silent_sources
from ledger.views.page import runs_the_ledger
from ledger.views.tables import (
    CODE,
    COUNT,
    DURATION,
    GPU_HOURS,
    GPUS,
    INSTANT,
    NOWRAP,
    TEXT_FILTER,
    Column,
    Filter,
    Table,
    TablePage,
)


class ClusterPage(TablePage):
    """What each pool has, holds, keeps waiting and could still give; who preempts, and who is hit again and again.

    `?at=` an instant that is over; without it, or where it is none, now.
    """

    template = "billing/cluster.html"
    allows = staticmethod(runs_the_ledger)

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.now = timezone.now()
        self.at = self._past()
        self.now = self.at or self.now
        return super().get(request, **kwargs)

    def _past(self) -> datetime | None:
        """As an address says it with its offset, or a browser's field in the zone that the page is shown in."""
        try:
            found = datetime.fromisoformat(self.request.GET.get("at", "").strip().replace(" ", "+"))
            found = timezone.make_aware(found) if timezone.is_naive(found) else found
            return found if to_datetime(0) < found < self.now else None
        except (ValueError, OverflowError):
            return None

    @cached_property
    def pools(self) -> list[PoolNow]:
        return pools_now(self.now)

    @cached_property
    def headrooms(self) -> dict[int, PoolHeadroom]:
        found = headrooms(self.now, [row.pool for row in self.pools])
        return {one.pool.pk: one for one in found}

    @cached_property
    def window(self) -> Span:
        return recent_window(self.now)

    @cached_property
    def names(self) -> Names:
        return Names(self.access, at=self.now)

    def shortages(self) -> list[PoolShortage]:
        return shortages_of(self.window, Pool.objects.order_by("slug"))[::-1]

    def tables(self) -> list[Table]:
        def recent() -> list[Any]:
            records = recent_preemptions(self.access, self.at)
            return [side for record in records for side in shown(record, self.names, self.access)]

        return [
            pools_table(lambda: self.pools, lambda: self.headrooms, self.at),
            shortages_table(self.shortages),
            preempting_table(lambda: who_is_preempting(self.access, self.window), self.names),
            victims_table(lambda: repeat_victims(self.access, self.window), self.names),
            preemption_table("recent", _("Recent preemptions"), recent, self.access),
            holders_table(lambda: self.pools),
        ]

    def context(self) -> dict[str, Any]:
        return {
            "now": self.now,
            "at": self.at,
            "newest": newest_fact_at(),
            "pools": self.pools,
            "silent": silent_sources(self.now) if self.at is None else [],
            "window_from": to_datetime(self.window.start_ms),
            "window_to": to_datetime(self.window.end_ms),
        }


def pool_column(filter: Filter = TEXT_FILTER, at: datetime | None = None) -> Column:
    """The pool of a row, leading to its page, to the day around `at` where that is given."""
    day = f"?{urlencode({'zoom': 'day', 'at': at.isoformat()})}#over-time" if at is not None else ""
    return Column(
        "pool",
        _("Pool"),
        NOWRAP,
        of="pool.slug",
        link=lambda row: reverse("billing:pool", args=[row.pool.slug]) + day,
        filter=filter,
    )


def pools_table(
    rows: Callable[[], Sequence[PoolNow]],
    rooms: Callable[[], dict[int, PoolHeadroom]],
    at: datetime | None = None,
) -> Table:
    def room(name: str) -> Callable[[PoolNow], Any]:
        return lambda row: (
            None if row.capacity_milli is None else getattr(rooms()[row.pool.pk].headroom, name)
        )

    columns = [
        pool_column(at=at),
        Column("gpu_model", _("GPU model"), of="pool.gpu_model", filter=TEXT_FILTER),
        Column("capacity", _("Capacity"), GPUS, of="capacity_milli"),
        Column("reserved", _("Reserved"), GPUS, of="reserved_milli"),
        Column("occupied", _("Occupied"), GPUS, of="held_milli"),
        Column("pending", _("Pending"), GPUS, of="pending_milli"),
        Column("headroom", _("Headroom"), GPUS, of=room("total"), css=_alarm_if_short(rooms)),
        Column("unreserved", _("Unreserved"), GPUS, of=room("unreserved")),
        Column("lendable", _("Lendable"), GPUS, of=room("lendable")),
        Column("preemptible", _("Preemptible"), GPUS, of=room("preemptible")),
        Column("state", _("State"), of=_state_of(rooms), html=_state_in_words(rooms)),
        Column("last_change", _("Last change"), INSTANT, of="newest_fact_at"),
    ]
    return Table(
        "pools",
        rows,
        columns,
        label=_("Pools"),
        caption=_(
            "In GPUs. Headroom = unreserved + lendable + preemptible; a pool is short while more waits."
        ),
        totals=lambda: {
            column.key: sum(column.value(row) or 0 for row in rows()) for column in columns[2:10]
        },
        totals_label=_("All pools"),
    )


def _is_short(row: PoolNow, rooms: Callable[[], dict[int, PoolHeadroom]]) -> bool:
    return row.capacity_milli is not None and rooms()[row.pool.pk].headroom.deficit > 0


def _alarm_if_short(rooms: Callable[[], dict[int, PoolHeadroom]]) -> Callable[[PoolNow], str]:
    return lambda row: "alarm" if _is_short(row, rooms) else ""


def _state_of(rooms: Callable[[], dict[int, PoolHeadroom]]) -> Callable[[PoolNow], str]:
    def state(row: PoolNow) -> str:
        if row.capacity_milli is None:
            return "unknown"
        return "short" if _is_short(row, rooms) else "enough"

    return state


def _state_in_words(rooms: Callable[[], dict[int, PoolHeadroom]]) -> Callable[[PoolNow], Any]:
    state = _state_of(rooms)

    def in_words(row: PoolNow) -> Any:
        if state(row) == "short":
            return format_html('<span class="alarm">{}</span>', _("short"))
        return _("capacity unknown") if state(row) == "unknown" else _("enough")

    return in_words


def shortages_table(rows: Callable[[], Sequence[PoolShortage]]) -> Table:
    def first(row: PoolShortage) -> str | None:
        return None if row.first is None else reverse("billing:preemption", args=[row.first.pk])

    return Table(
        "shortages",
        rows,
        [
            Column("from", _("From"), INSTANT, of="starts_at"),
            Column("until", _("Until"), INSTANT, of="ends_at"),
            pool_column(),
            Column("deficit", _("Greatest deficit"), GPUS, of="shortage.deficit", unit=_("GPUs")),
            Column(
                "deficit_gpu_hours",
                _("Deficit"),
                GPU_HOURS,
                of="shortage.deficit_gpu_us",
                unit=_("GPU-hours"),
            ),
            Column("waiting", _("Who waited"), of=lambda row: ", ".join(row.shortage.waiting)),
            Column("preemptions", _("Preemptions"), COUNT, link=first),
            Column(
                "lead_time_s",
                _("Lead time"),
                DURATION,
                of="lead_time_ms",
                html=lambda row: "–" if row.lead_time_ms is None else DURATION.show(row.lead_time_ms),
            ),
        ],
        label=_("Shortages"),
        rows_a_page=15,
        empty=_("No pool was short."),
    )


@dataclass(frozen=True)
class HeldIn:
    """What one holder has in one pool."""

    pool: Pool
    holder: HolderNow


def holders_table(pools: Callable[[], Sequence[PoolNow]]) -> Table:
    def rows() -> list[HeldIn]:
        return [HeldIn(row.pool, holder) for row in pools() for holder in row.holders]

    return Table(
        "holders",
        rows,
        [
            Column("holder", _("Holder"), of="holder.name", filter=TEXT_FILTER),
            pool_column(Filter(choices=lambda: [(row.pool.slug, row.pool.slug) for row in pools()])),
            Column("reserved", _("Reserved"), GPUS, of="holder.reserved_milli"),
            Column("occupied", _("Occupied"), GPUS, of="holder.held_milli"),
            Column("pending", _("Pending"), GPUS, of="holder.pending_milli"),
        ],
        label=_("Who holds what"),
        rows_a_page=30,
        empty=_("Nobody holds, reserves or waits for anything."),
    )


def preempting_table(rows: Callable[[], Sequence[Preempting]], names: Names) -> Table:
    return Table(
        "preempting",
        rows,
        [
            Column(
                "holder",
                _("Preemptor"),
                of=lambda row: names.shown(row.holder_id),
                html=lambda row: names.shown(row.holder_id) or _("unknown or the platform"),
            ),
            Column("preemptions", _("Preemptions"), COUNT),
            Column("gpus", _("GPUs"), GPUS, of="milli_gpus"),
            Column("victims", _("Workloads hit"), COUNT),
            Column("last", _("Last"), INSTANT, of="last_at"),
        ],
        label=_("Who is preempting"),
        rows_a_page=15,
    )


def victims_table(rows: Callable[[], Sequence[RepeatVictim]], names: Names) -> Table:
    hours = _("GPU-hours")
    return Table(
        "victims",
        rows,
        [
            Column(
                "workload",
                _("Workload"),
                CODE,
                link=lambda row: reverse("billing:workload", args=[row.pool, row.workload]),
                filter=TEXT_FILTER,
            ),
            Column("holder", _("Holder"), of=lambda row: names.shown(row.holder_id), filter=TEXT_FILTER),
            Column("pool", _("Pool"), NOWRAP, filter=TEXT_FILTER),
            Column("preemptions", _("Preemptions"), COUNT),
            Column("requeued_gpu_hours", _("Re-queued"), GPU_HOURS, of="requeued_gpu_us", unit=hours),
            Column("waiting_gpu_hours", _("Waiting"), GPU_HOURS, of="waiting_gpu_us", unit=hours),
            Column("last", _("Last"), INSTANT, of="last_at"),
        ],
        label=_("Repeat victims"),
        rows_a_page=15,
        empty=_("No work was hit more than once."),
    )
