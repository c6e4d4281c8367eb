"""The tables of a statement's page: the bridge, the split inside the tenant, shares, borne for others, disputes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from billing.core.bridge import Step
from billing.core.rating_lines import Line
from billing.models import Dispute, DisputeState, Statement
from billing.selectors.borne import Borne
from billing.selectors.capacity_shares import PoolShare
from billing.selectors.changes import Cause, ChangedLine
from billing.selectors.pages_bill import LABEL, InsidePart
from billing.selectors.pages_statements import Day, MonthOfDays
from ledger.views.tables import (
    CATEGORY,
    CODE,
    COUNT,
    DAY,
    GPU_HOURS,
    INSTANT,
    PERCENT,
    SHARE,
    TEXT_FILTER,
    Column,
    Table,
    micro_in,
    minor_in,
    words,
)
from ledger.wording import BRIDGE_STEPS, DISPUTE_STATES, category_name


def bridge_table(rows: Callable[[], Sequence[Step]], before: Statement, after: Statement) -> Table:
    """Its last row is this month's total, the caption tells where it starts."""
    currency = after.currency
    columns = [
        Column("step", _("Step"), words(lambda name: BRIDGE_STEPS[name][0]), of="name", can_sort=False),
        Column("amount", _("Amount"), minor_in(currency), of="printed_minor", unit=currency, can_sort=False),
        Column("exact_amount", _("Exact amount"), micro_in(currency), of="amount_micro", on_page=False),
    ]
    return Table(
        "bridge",
        rows,
        columns,
        label=_("From last month's total to this one's"),
        totals=lambda: {"amount": after.total_minor - before.total_minor},
        totals_label=_("Difference"),
        empty=_("The two months do not differ."),
    )


def split_name(split: str) -> str | Promise:
    """What the month is split by, in words."""
    known = {
        "user": _("User"),
        "api_key": _("API key"),
        "model": _("Model"),
        "workload": _("Workload"),
    }
    if split.startswith(LABEL):
        name = split.removeprefix(LABEL)
        return _("Team") if name == "team" else _("Label %(name)s") % {"name": name}
    return known[split]


def inside_table(rows: Callable[[], list[InsidePart]], split: str, currency: str) -> Table:
    """The parts and what no name is known for; the sum is the tenant's month."""
    columns = [
        Column("name", split_name(split), CODE, filter=TEXT_FILTER, html=_part_name),
        Column("gpu_hours", _("GPU time"), GPU_HOURS, of="gpu_us", unit=_("GPU-hours")),
        Column("share", _("Share of the month"), PERCENT, of="percent"),
        Column("amount", _("Amount"), micro_in(currency), of="amount_micro", unit=currency),
        Column("gpu_us", "gpu_us", of="gpu_us", on_page=False),
    ]
    return Table(
        "inside",
        rows,
        columns,
        label=_("Inside the tenant"),
        sort="-gpu_hours",
        rows_a_page=20,
        totals=lambda: {"gpu_hours": sum(row.gpu_us for row in rows()), "amount": _sum_micro(rows())},
        empty=_("Nothing was held or used in this month."),
    )


def _sum_micro(rows: list[InsidePart]) -> int | None:
    amounts = [row.amount_micro for row in rows]
    return None if None in amounts else sum(amount or 0 for amount in amounts)


def _part_name(row: InsidePart) -> Any:
    return row.name or format_html('<span class="muted">{}</span>', _("without one"))


def shares_table(rows: Callable[[], list[PoolShare]]) -> Table:
    columns = [
        Column("pool", _("Pool"), CODE),
        Column("gpu_model", _("GPU model")),
        Column("gpu_hours", _("Occupied"), GPU_HOURS, of="gpu_us", unit=_("GPU-hours")),
        Column("capacity_gpu_hours", _("Capacity"), GPU_HOURS, of="capacity_gpu_us", unit=_("GPU-hours")),
        Column("share_of_capacity", _("Share of capacity"), SHARE, of="ppm"),
    ]
    return Table("shares", rows, columns, label=_("Share of capacity"))


def borne_table(rows: Callable[[], list[Borne]], currency: str) -> Table:
    """Negative where others bore what this tenant used."""
    columns = [
        Column("service", _("Service"), CODE),
        Column("pool", _("Pool"), CODE),
        Column("charged_gpu_hours", _("Charged"), GPU_HOURS, of="charged_gpu_us", unit=_("GPU-hours")),
        Column("measured_gpu_hours", _("Measured"), GPU_HOURS, of="measured_gpu_us", unit=_("GPU-hours")),
        Column("borne_gpu_hours", _("Borne for others"), GPU_HOURS, of="borne_gpu_us", unit=_("GPU-hours")),
        Column("borne_amount", _("Amount"), micro_in(currency), of="borne_micro", unit=currency),
    ]
    return Table(
        "borne",
        rows,
        columns,
        label=_("Borne for others"),
        totals=lambda: _borne_totals(rows()),
    )


def _borne_totals(rows: list[Borne]) -> dict[str, int | None]:
    amounts = [row.borne_micro for row in rows]
    known = [amount for amount in amounts if amount is not None]
    return {
        "charged_gpu_hours": sum(row.charged_gpu_us for row in rows),
        "measured_gpu_hours": sum(row.measured_gpu_us for row in rows),
        "borne_gpu_hours": sum(row.borne_gpu_us for row in rows),
        "borne_amount": sum(known) if len(known) == len(amounts) else None,
    }


def disputes_table(rows: Callable[[], list[Dispute]], statement: Statement) -> Table:
    currency = statement.currency
    columns = [
        _line_in_dispute(),
        Column("what", _("What"), of=lambda row: category_name(Line.category_and_pool(row.line_key)[0])),
        Column("amount", _("Amount"), micro_in(currency), of="amount_micro", unit=currency),
        Column("state", _("State"), words(DISPUTE_STATES.__getitem__)),
        Column("opened_by", _("Opened by")),
        Column("opened_at", pgettext("dispute", "Opened"), INSTANT),
        Column("last_word", _("Last word"), of=_last_word, css=lambda row: "wide"),
    ]
    return Table("disputes", rows, columns, label=_("Disputes"))


def month_disputes_table(rows: Callable[[], list[Dispute]], currency: str) -> Table:
    """Of a whole month, what still waits for an answer first: for finance, which else would have to look for them."""

    def in_turn() -> list[Dispute]:
        return sorted(rows(), key=lambda row: row.state in (DisputeState.ADJUSTED, DisputeState.REJECTED))

    columns = [
        Column("tenant", _("Tenant"), CODE, of="statement.tenant.slug", filter=TEXT_FILTER),
        _line_in_dispute(),
        Column("amount", _("Amount"), micro_in(currency), of="amount_micro", unit=currency),
        Column("state", _("State"), words(DISPUTE_STATES.__getitem__)),
        Column("opened_by", _("Opened by")),
        Column("opened_at", pgettext("dispute", "Opened"), INSTANT),
        Column("last_word", _("Last word"), of=_last_word, css=lambda row: "wide"),
    ]
    return Table("disputes", in_turn, columns, label=_("Disputes"))


def dispute_place(dispute: Dispute) -> str:
    """On its line, where that stands by now; on a page of its own once the line is gone."""
    of_statement = [dispute.statement.period_id, dispute.statement.tenant.slug]
    if dispute.line_position is None:
        return reverse("billing:statement-dispute", args=[*of_statement, dispute.pk])
    return reverse("billing:statement-line", args=[*of_statement, dispute.line_position]) + "#dispute"


def _line_in_dispute() -> Column:
    """The line where it stands by now: what comes before it moves it, and facts can take it away."""

    def shown(row: Dispute) -> Any:
        gone = format_html('<span class="muted">{}</span>', _("no longer on the statement"))
        return gone if row.line_position is None else row.line_position

    return Column("line", _("Line"), of="line_position", link=dispute_place, html=shown)


def _last_word(dispute: Dispute) -> str:
    events = list(dispute.events.all())
    return events[-1].text if events else ""


def daily_table(days: MonthOfDays) -> Table:
    """The figures of the daily chart: a column for each category that occurred."""
    hours = _("GPU-hours")

    def of(name: str) -> Callable[[Day], int]:
        return lambda day: day.gpu_us[name]

    return Table(
        "daily",
        lambda: days.days,
        [
            Column("day", _("Day"), DAY),
            *[
                Column(f"{name}_gpu_hours", category_name(name), GPU_HOURS, of=of(name), unit=hours)
                for name in days.categories
            ],
        ],
        label=_("GPU-hours by day and category"),
        totals=lambda: {f"{name}_gpu_hours": days.gpu_us[name] for name in days.categories},
        totals_label=_("Month"),
    )


def changes_table(
    rows: Callable[[], Sequence[ChangedLine]], currency: str, link: Callable[[ChangedLine], str | None]
) -> Table:
    """Quantities of GPU time only: what else a line counts is not GPU-hours. link: to the line, while there is one."""

    def quantity(name: str) -> Callable[[ChangedLine], int | None]:
        return lambda row: getattr(row, name) if row.unit == "gpu_us" else None

    def cell(name: str) -> Callable[[ChangedLine], Any]:
        return lambda row: GPU_HOURS.show(getattr(row, name)) if row.unit == "gpu_us" else ""

    hours = _("GPU-hours")
    return Table(
        "changes",
        rows,
        [
            Column("what", _("What"), CATEGORY, of="category", link=link, filter=TEXT_FILTER),
            Column("pool", _("Pool"), filter=TEXT_FILTER),
            *[
                Column(
                    f"gpu_hours_{when}",
                    title,
                    GPU_HOURS,
                    of=quantity(f"quantity_{when}"),
                    html=cell(f"quantity_{when}"),
                    unit=hours,
                )
                for when, title in (("before", _("Before")), ("after", _("After")))
            ],
            *[
                Column(f"amount_{when}", title, micro_in(currency), of=f"amount_micro_{when}", unit=currency)
                for when, title in (("before", _("Amount before")), ("after", _("Amount after")))
            ],
        ],
        label=_("Lines before and after"),
    )


def known_since_table(rows: Callable[[], Sequence[Cause]], *, leads_to_batches: bool) -> Table:
    def batch(row: Cause) -> str | None:
        return reverse("ingest:batch", args=[row.batch]) if leads_to_batches else None

    def event(row: Cause) -> str | None:
        return reverse("ledger:event", args=[row.source_id, row.event_id]) if row.is_open else None

    return Table(
        "known_since",
        rows,
        [
            Column("event", _("Event"), CODE, of="event_id", link=event, filter=TEXT_FILTER),
            Column("source", _("Source"), CODE, filter=TEXT_FILTER),
            Column("occurred_at", _("When it happened"), INSTANT),
            Column("batch", _("Batch"), COUNT, link=batch),
            Column("booked_at", _("When it was booked"), INSTANT),
        ],
        label=_("Events that became known since"),
    )
