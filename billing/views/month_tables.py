"""The tables of the months and of one month."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _

from billing.models import Statement
from billing.selectors.allocations import RequeuedRow
from billing.selectors.pages_months import PARTS_OF_CAPACITY, MonthRow, PoolMonth, TenantMonth, WhoseTime
from billing.selectors.pages_preemptions import CauseRow, Pair
from ledger.access import Access
from ledger.models import Period, PeriodState
from ledger.templatetags.figures import count_cell, month_name, period_state
from ledger.views.tables import (
    CHANGE,
    CODE,
    COUNT,
    GPU_HOURS,
    GPUS,
    INSTANT,
    TEXT_FILTER,
    Column,
    Kind,
    Table,
    choices_of,
    minor_in,
    words,
)
from ledger.wording import CAUSES, STATEMENT_STATES, category_name

STATEMENT_STATE = words(lambda state: STATEMENT_STATES[state])
CAUSE = words(lambda code: CAUSES.get(code, code))


def months_table(rows: Callable[[], Sequence[MonthRow]], currency: str, access: Access) -> Table:
    columns = [
        Column(
            "month",
            _("Month"),
            Kind(month_name),
            of="period.month",
            link=lambda row: reverse("billing:month", args=[row.period.month]),
        ),
        Column("state", _("State"), of=lambda row: PeriodState(row.period.state).label, html=_state),
        Column("capacity_gpu_hours", _("Capacity"), GPU_HOURS, of="capacity_gpu_us", unit=_("GPU-hours")),
        Column("charged", _("Charged"), minor_in(currency), of="total_minor", unit=currency),
        Column("statements", _("Statements"), COUNT),
        Column("exceptions", _("Exceptions"), COUNT, html=_exceptions),
        Column("blocking", _("of them block the close"), COUNT, on_page=False),
        Column("computed_up_to", _("Computed up to"), INSTANT, of="period.horizon_at"),
    ]
    if not access.sees_all_tenants:
        of_the_ledger = {"capacity_gpu_hours", "exceptions", "blocking", "computed_up_to"}
        columns = [column for column in columns if column.key not in of_the_ledger]
    return Table("months", rows, columns, label=_("Months"))


def _state(row: MonthRow) -> Any:
    firm = " firm" if row.period.state == PeriodState.CLOSED else ""
    return format_html('<span class="state{}">{}</span>', firm, period_state(row.period.state))


def _exceptions(row: MonthRow) -> Any:
    return (
        format_html('<span class="alarm">{}</span>', row.exceptions)
        if row.blocking
        else count_cell(row.exceptions)
    )


def statements_table(rows: Callable[[], Sequence[Statement]], currency: str) -> Table:
    """A tenant's own statements."""
    return Table(
        "statements",
        rows,
        [
            Column("tenant", _("Tenant"), of="tenant.name", link=_to_statement, filter=TEXT_FILTER),
            Column("month", _("Month"), Kind(month_name), of="period_id"),
            Column("number", _("Number"), CODE),
            Column("state", _("State"), STATEMENT_STATE),
            Column("total", _("Total"), minor_in(currency), of="total_minor", unit=currency),
        ],
        label=_("Statements"),
    )


def _to_statement(statement: Statement) -> str:
    return reverse("billing:statement", args=[statement.period_id, statement.tenant.slug])


def tenants_table(
    rows: Callable[[], Sequence[TenantMonth]],
    requeued: Callable[[], Mapping[str, RequeuedRow]],
    before: Period | None,
    currency: str,
    *,
    with_totals: bool,
) -> Table:
    """What each tenant is charged, against the month before, and what stands behind it."""

    def again(name: str) -> Callable[[TenantMonth], int]:
        return lambda row: getattr(requeued().get(row.tenant), name, 0)

    def held(name: str) -> Callable[[TenantMonth], int]:
        return lambda row: row.gpu_us.get(name, 0)

    hours = _("GPU-hours")
    columns = [
        Column(
            "tenant",
            _("Tenant"),
            link=lambda row: reverse("billing:statement", args=[row.month, row.tenant]),
            filter=TEXT_FILTER,
        ),
        Column("amount", _("Amount"), minor_in(currency), of="total_minor", unit=currency),
        Column(
            "amount_before",
            _("Amount of the month before"),
            minor_in(currency),
            of="before_minor",
            on_page=False,
        ),
        Column(
            "difference",
            _("Difference"),
            minor_in(currency),
            of="difference_minor",
            unit=currency,
            on_page=before is not None,
            html=_difference(currency),
        ),
        Column(
            "change_percent",
            _("Change"),
            CHANGE,
            of="change",
            unit=_("against %(month)s") % {"month": before.month} if before else "",
            on_page=before is not None,
        ),
        Column("occupied_gpu_hours", _("Occupied"), GPU_HOURS, of="occupied_gpu_us", unit=hours),
        Column(
            "reserved_idle_gpu_hours", _("Reserved-but-idle"), GPU_HOURS, of=held("reserved_idle"), unit=hours
        ),
        Column("lent_gpu_hours", _("Lent"), GPU_HOURS, of=held("lent"), unit=hours),
        Column("undelivered_gpu_hours", _("Undelivered"), GPU_HOURS, of=held("undelivered"), on_page=False),
        Column(
            "requeued_gpu_hours",
            _("Re-queued"),
            GPU_HOURS,
            of=again("requeued_gpu_us"),
            unit=hours,
            partial=lambda row: bool(again("partial")(row)),
        ),
        Column("waiting_gpu_hours", _("Waiting"), GPU_HOURS, of=again("waiting_gpu_us"), unit=hours),
        Column(
            "state",
            _("State"),
            STATEMENT_STATE,
            filter=choices_of(STATEMENT_STATES, lambda state: STATEMENT_STATES[state]),
        ),
    ]

    def totals() -> dict[str, Any]:
        summed = [column for column in columns if column.kind in (GPU_HOURS,)]
        found = {column.key: sum(column.value(row) for row in rows()) for column in summed}
        earlier = [row.before_minor for row in rows() if row.before_minor is not None]
        now = sum(row.total_minor for row in rows())
        return {**found, "amount": now, **({"difference": now - sum(earlier)} if earlier else {})}

    return Table(
        "tenants",
        rows,
        columns,
        label=_("Tenants"),
        totals=totals if with_totals else None,
        totals_label=_("All tenants"),
        rows_a_page=25,
        empty=_("No statement has been drafted for this month yet."),
    )


def whose_table(rows: Callable[[], Sequence[WhoseTime]]) -> Table:
    """From the sums of all tenants to those of the pools, whose bars hold everybody's."""
    hours = _("GPU-hours")

    def held(name: str) -> Callable[[WhoseTime], int]:
        return lambda row: row.gpu_us[name]

    names = {True: _("Tenants"), False: _("The platform's own services, and suspense")}
    columns = [
        Column(
            "whose",
            _("Whose"),
            words(lambda whose: names[whose == "tenants"]),
            of=lambda row: "tenants" if row.of_tenants else "platform",
            can_sort=False,
        ),
        Column(
            "occupied_gpu_hours", _("Occupied"), GPU_HOURS, of="occupied_gpu_us", unit=hours, can_sort=False
        ),
        *[
            Column(
                f"{name}_gpu_hours",
                category_name(name),
                GPU_HOURS,
                of=held(name),
                unit=hours,
                can_sort=False,
            )
            for name in ("reserved_idle", "lent", "undelivered")
        ],
    ]
    return Table(
        "whose",
        rows,
        columns,
        label=_("Whose GPU time it was"),
        totals=lambda: {
            column.key: sum(column.value(row) for row in rows())
            for column in columns
            if column.kind is GPU_HOURS
        },
        totals_label=_("All pools"),
    )


def _difference(currency: str) -> Callable[[TenantMonth], Any]:
    money = minor_in(currency)

    def html(row: TenantMonth) -> Any:
        difference = row.difference_minor
        if difference is None:
            return "–"
        return format_html("{}{}", "+" if difference > 0 else "", money.show(difference))

    return html


def pools_table(
    rows: Callable[[], Sequence[PoolMonth]], whole: Callable[[], PoolMonth | None], month: str
) -> Table:
    """The law of conservation as figures: what stands behind the bars."""

    def part(name: str) -> Callable[[PoolMonth], int]:
        return lambda row: next(one.gpu_us for one in row.parts if one.category == name)

    columns = [
        Column(
            "pool",
            _("Pool"),
            of="pool.slug",
            link=lambda row: (
                reverse("billing:pool", args=[row.pool.slug]) + f"?zoom=month&at={month}-15T00:00:00Z"
            ),
        ),
        Column("capacity_gpu_hours", _("Capacity"), GPU_HOURS, of="capacity_gpu_us"),
        *[
            Column(f"{name}_gpu_hours", category_name(name), GPU_HOURS, of=part(name))
            for name in PARTS_OF_CAPACITY
        ],
        Column("over_reserved_gpu_hours", _("Over-reserved"), GPU_HOURS, of="over_reserved_gpu_us"),
        Column("difference_gpu_hours", _("Difference"), GPU_HOURS, of="difference_gpu_us"),
        Column("excess_gpu_hours", category_name("excess"), GPU_HOURS, of="excess_gpu_us"),
        Column("oversold_gpu_hours", category_name("oversold"), GPU_HOURS, of="oversold_gpu_us"),
    ]

    def totals() -> dict[str, Any]:
        total = whole()
        return {} if total is None else {column.key: column.value(total) for column in columns[1:]}

    return Table(
        "pools",
        rows,
        columns,
        label=_("Capacity by category and pool"),
        caption=_(
            "Capacity = the six parts, less what was used inside reservations beyond capacity. In GPU-hours; "
            "hover for the exact value."
        ),
        totals=totals,
        totals_label=_("All pools"),
    )


def causes_table(rows: Callable[[], Sequence[CauseRow]], month: str) -> Table:
    hours = _("GPU-hours")
    return Table(
        "causes",
        rows,
        [
            Column("cause", _("Cause"), CAUSE, link=lambda row: preemptions_url(month, cause=row.cause)),
            Column("count", _("Count"), COUNT),
            Column("gpus", _("GPUs"), GPUS, of="milli_gpus"),
            Column(
                "lost_gpu_hours",
                _("Lost"),
                GPU_HOURS,
                of="lost_gpu_us",
                unit=hours,
                partial=lambda row: row.partial,
            ),
            Column("recompute_gpu_hours", _("Recompute"), GPU_HOURS, of="recompute_gpu_us", unit=hours),
            Column("waiting_gpu_hours", _("Waiting"), GPU_HOURS, of="waiting_gpu_us", unit=hours),
        ],
        label=_("Preemptions by cause"),
    )


def pairs_table(rows: Callable[[], Sequence[Pair]], month: str) -> Table:
    hours = _("GPU-hours")
    return Table(
        "pairs",
        rows,
        [
            Column(
                "preemptor",
                _("Preemptor"),
                html=lambda row: row.preemptor or _("unknown or the platform"),
            ),
            Column(
                "victim",
                _("Victim"),
                link=lambda row: preemptions_url(month, victim=row.victim, preemptor=row.preemptor),
            ),
            Column("count", _("Count"), COUNT, of="cell.preemptions"),
            Column("requeued_gpu_hours", _("Re-queued"), GPU_HOURS, of="cell.requeued_gpu_us", unit=hours),
            Column("waiting_gpu_hours", _("Waiting"), GPU_HOURS, of="cell.waiting_gpu_us", unit=hours),
        ],
        label=_("Preemptors and victims"),
    )


def preemptions_url(month: str, **filters: str) -> str:
    """The month's preemptions with these filters on."""
    asked = urlencode({name: value for name, value in filters.items() if value})
    url = reverse("billing:month-preemptions", args=[month])
    return f"{url}?{asked}" if asked else url
