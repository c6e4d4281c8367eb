"""The tables of a statement line's page: what the line is the sum of, down to the work and the requests of a day."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _

from billing.models import StatementLine
from billing.selectors.pages_lines import LineDetail, Slot, SlotDay, WorkloadPart
from billing.selectors.pages_workloads import DayOfLine
from ledger.templatetags.figures import slot_clock
from ledger.views.events import LINE
from ledger.views.tables import (
    CODE,
    COUNT,
    DAY,
    GPU_HOURS,
    GPU_US,
    INSTANT,
    TEXT_FILTER,
    Column,
    Table,
)


def line_tables(
    line: StatementLine, detail: Callable[[], LineDetail], *, leads_to_pools: bool, zone: ZoneInfo
) -> list[Table]:
    """Those that the line has rows for are on its page; every one of them is a file."""
    return [
        days_table(detail),
        hours_table(line, detail, leads_to_pools=leads_to_pools),
        workloads_table(line, detail, two_days=zone.key != "UTC"),
        requests_table(detail),
        tokens_table(detail, zone),
    ]


def _figures() -> list[Column]:
    return [
        Column("gpu_hours", _("GPU-hours"), GPU_HOURS, of="gpu_us"),
        Column("gpu_us", "gpu_us", GPU_US),
    ]


def days_table(detail: Callable[[], LineDetail]) -> Table:
    def day(row: SlotDay) -> Any:
        chosen = detail().chosen
        is_chosen = chosen is not None and row.day == chosen.day
        link = (
            '<a href="?day={}#hours" aria-current="true">{}</a>'
            if is_chosen
            else '<a href="?day={}#hours">{}</a>'
        )
        return format_html(link, row.day.isoformat(), DAY.show(row.day))

    return Table(
        "days",
        lambda: detail().days,
        [
            Column("day", _("Day"), DAY, html=day),
            Column("starts_at", _("From"), INSTANT, on_page=False),
            *_figures(),
        ],
        label=_("By day"),
        totals=lambda: {"gpu_hours": detail().gpu_us, "gpu_us": detail().gpu_us},
        totals_label=_("Line"),
    )


def hours_table(line: StatementLine, detail: Callable[[], LineDetail], *, leads_to_pools: bool) -> Table:
    def slots() -> list[Slot]:
        chosen = detail().chosen
        return chosen.slots if chosen is not None else []

    def clock(row: Slot) -> Any:
        if row.ends_at is None:
            return slot_clock(row.starts_at)
        return format_html("{} – {}", slot_clock(row.starts_at), slot_clock(row.ends_at))

    def to_the_hour(row: Slot) -> str | None:
        if not leads_to_pools or not line.pool:
            return None
        at = urlencode({"zoom": "hour", "at": INSTANT.export(row.starts_at)})
        return f"{reverse('billing:pool', args=[line.pool])}?{at}#over-time"

    def sums() -> dict[str, int]:
        gpu_us = sum(slot.gpu_us for slot in slots())
        return {"gpu_hours": gpu_us, "gpu_us": gpu_us}

    return Table(
        "hours",
        slots,
        [
            Column("slot", _("Slot"), INSTANT, of="starts_at", html=clock, link=to_the_hour),
            Column("until", _("Until"), INSTANT, of="ends_at", on_page=False),
            *_figures(),
        ],
        label=_("Hours"),
        totals=sums,
        totals_label=_("Day"),
    )


def workloads_table(line: StatementLine, detail: Callable[[], LineDetail], *, two_days: bool) -> Table:
    """Work is booked by UTC day; a day of another zone touches two of them, so each row says which it is of."""

    def to_workload(row: WorkloadPart) -> str:
        chosen = detail().chosen
        back = {LINE: DayOfLine(line, chosen.day.isoformat()).name} if chosen else {}
        return f"{reverse('billing:workload', args=[line.pool, row.workload.workload])}?{urlencode(back)}"

    return Table(
        "workloads",
        lambda: detail().workloads,
        [
            Column(
                "workload",
                _("Workload"),
                CODE,
                of="workload.workload",
                link=to_workload,
                filter=TEXT_FILTER,
            ),
            Column("name", _("Name"), of="workload.name", filter=TEXT_FILTER),
            Column("user", _("User"), of="workload.user", filter=TEXT_FILTER),
            Column("attempt", _("Attempt"), COUNT, of="workload.attempt"),
            Column(
                "utc_day",
                _("UTC day"),
                DAY,
                of=lambda row: row.workload.starts_at.astimezone(UTC).date(),
                on_page=two_days,
            ),
            Column("gpu_hours", _("GPU-hours"), GPU_HOURS, of="gpu_us"),
            Column("gpu_us", "gpu_us", GPU_US, on_page=False),
        ],
        label=_("Workloads"),
        totals=lambda: {"gpu_hours": detail().workloads_gpu_us},
        totals_label=_("Both UTC days") if two_days else _("Day"),
    )


def _asked(at: Column) -> list[Column]:
    return [
        at,
        Column("model", _("Model"), of=lambda row: row.dimensions["model"], filter=TEXT_FILTER),
        Column("requests", _("Requests"), COUNT),
        Column("input_tokens", _("Input tokens"), COUNT),
        Column("cached_input_tokens", _("of them cached"), COUNT),
        Column("output_tokens", _("Output tokens"), COUNT),
    ]


def requests_table(detail: Callable[[], LineDetail]) -> Table:
    hour = Column("hour", _("Hour"), INSTANT, of="starts_at", html=lambda row: slot_clock(row.starts_at))
    measured = Column("measured_gpu_hours", _("Measured"), GPU_HOURS, of="gpu_us", unit=_("GPU-hours"))
    return Table("requests", lambda: detail().asked, [*_asked(hour), measured], label=_("Requests"))


def tokens_table(detail: Callable[[], LineDetail], zone: ZoneInfo) -> Table:
    def day(row: Any) -> date:
        found: date = row.starts_at.astimezone(zone).date()
        return found

    return Table(
        "tokens",
        lambda: detail().tokens,
        _asked(Column("day", _("Day"), DAY, of=day)),
        label=_("Tokens by day"),
    )
