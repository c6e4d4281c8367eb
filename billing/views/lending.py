"""Whose idle reservation ran whose work, and whose reservation nobody used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.selectors.names import Names
from billing.selectors.pages_lending import IdleReservation, LentPair, idle_reservations, lent_pairs_of
from billing.views.heat import choose, heat_map
from billing.views.months import period_or_404
from ledger.templatetags.figures import gpu_hours_cell, money_cell
from ledger.views.page import ledger_of
from ledger.views.tables import (
    GPU_HOURS,
    PERCENT,
    TEXT_FILTER,
    Column,
    Filter,
    Table,
    TablePage,
    micro_in,
)


class LendingPage(TablePage):
    """Lender x borrower as a heat map with its list, and the ranking of reserved-but-idle."""

    template = "billing/lending.html"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.period = period_or_404(kwargs["month"], self.access)
        return super().get(request, **kwargs)

    @cached_property
    def pairs(self) -> list[LentPair]:
        return lent_pairs_of(self.period, Names(self.access, at=self.period.starts_at), self.access)

    @cached_property
    def idle(self) -> list[IdleReservation]:
        return idle_reservations(self.period, self.access)

    def tables(self, month: str) -> list[Table]:
        currency = ledger_of(self.request).currency
        return [pairs_table(lambda: self.pairs, currency), idle_table(lambda: self.idle, month, currency)]

    def context(self, month: str) -> dict[str, Any]:
        currency = ledger_of(self.request).currency
        measure, choices = choose(
            self.request,
            "measure",
            {"gpu_hours": _("GPU-hours"), "paid": _("paid by the borrower"), "credit": _("credited")},
        )
        values = {"gpu_hours": "gpu_us", "paid": "paid_micro", "credit": "credit_micro"}
        cells = [(pair.lender, pair.borrower, getattr(pair, values[measure]) or 0) for pair in self.pairs]
        lent_gpu_us = sum(pair.gpu_us for pair in self.pairs)
        by_tenants = sum(row.gpu_us["lent"] for row in self.idle)
        return {
            "month": month,
            "period": self.period,
            "currency": currency,
            "choices": choices,
            "heat": heat_map(
                cells,
                gpu_hours_cell if measure == "gpu_hours" else lambda value: money_cell(value, currency),
                label=_("Lender and borrower"),
                caption=_("In GPU-hours")
                if measure == "gpu_hours"
                else _("In %(currency)s") % {"currency": currency},
                corner=_("Lender ↓  Borrower →"),
                css="of-lending",
                shade="borrowed",
            ),
            "lent_gpu_us": lent_gpu_us,
            "lent_by_tenants_gpu_us": by_tenants,
            "lent_by_others_gpu_us": lent_gpu_us - by_tenants,
            "worst": self.idle[0] if self.idle and self.idle[0].gpu_us["reserved_idle"] else None,
        }


def pairs_table(rows: Any, currency: str) -> Table:
    def pools() -> Sequence[tuple[str, str]]:
        return [(slug, slug) for slug in sorted({pair.pool for pair in rows()})]

    return Table(
        "pairs",
        rows,
        [
            Column("lender", _("Lender"), filter=TEXT_FILTER),
            Column("borrower", _("Borrower"), filter=TEXT_FILTER),
            Column("pool", _("Pool"), filter=Filter(choices=pools)),
            Column("gpu_hours", _("Lent"), GPU_HOURS, of="gpu_us", unit=_("GPU-hours")),
            Column("paid", _("Paid by the borrower"), micro_in(currency), of="paid_micro", unit=currency),
            Column(
                "credited", _("Credited to the lender"), micro_in(currency), of="credit_micro", unit=currency
            ),
        ],
        label=_("Who lent to whom"),
        totals=lambda: {
            "gpu_hours": sum(pair.gpu_us for pair in rows()),
            "paid": _sum_of([pair.paid_micro for pair in rows()]),
            "credited": _sum_of([pair.credit_micro for pair in rows()]),
        },
        rows_a_page=20,
        empty=_("Nobody's idle reservation ran the work of others in this month."),
    )


def _sum_of(amounts: Sequence[int | None]) -> int | None:
    """Unknown where a part is."""
    return None if None in amounts else sum(amount or 0 for amount in amounts)


def idle_table(rows: Any, month: str, currency: str) -> Table:
    hours = _("GPU-hours")

    def part(name: str) -> Any:
        return lambda row: row.gpu_us[name]

    def totals() -> dict[str, Any]:
        names = {
            "reserved_used": "used",
            "lent": "lent",
            "reserved_idle": "idle",
            "undelivered": "undelivered",
        }
        found = {f"{key}_gpu_hours": sum(row.gpu_us[name] for row in rows()) for name, key in names.items()}
        return {**found, "reserved_gpu_hours": sum(row.reserved_gpu_us for row in rows())}

    return Table(
        "idle",
        rows,
        [
            Column(
                "tenant",
                _("Tenant"),
                link=lambda row: reverse("billing:statement", args=[month, row.tenant]),
                filter=TEXT_FILTER,
            ),
            Column("pool", _("Pool"), filter=TEXT_FILTER),
            Column("reserved_gpu_hours", _("Reserved"), GPU_HOURS, of="reserved_gpu_us", unit=hours),
            Column("used_gpu_hours", _("Used"), GPU_HOURS, of=part("reserved_used"), unit=hours),
            Column("lent_gpu_hours", _("Lent"), GPU_HOURS, of=part("lent"), unit=hours),
            Column("idle_gpu_hours", _("Reserved-but-idle"), GPU_HOURS, of=part("reserved_idle"), unit=hours),
            Column("idle_percent", _("Idle"), PERCENT, unit=_("of reserved")),
            Column("undelivered_gpu_hours", _("Undelivered"), GPU_HOURS, of=part("undelivered"), unit=hours),
            Column("oversold_gpu_hours", _("Oversold"), GPU_HOURS, of=part("oversold"), on_page=False),
            Column("charged", _("Charged for idle"), micro_in(currency), of="amount_micro", unit=currency),
        ],
        label=_("Reserved-but-idle, most first"),
        totals=totals,
        rows_a_page=25,
        empty=_("Nobody had a reservation in this month."),
    )
