"""The platform's own side of a month."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.selectors.pages_platform import PARTS, Charged, PlatformMonth, platform_month
from billing.views.months import period_or_404
from ledger.views.page import billing_zone, ledger_of, runs_the_ledger
from ledger.views.tables import GPU_HOURS, NOWRAP, Column, Table, TablePage, micro_in, words
from ledger.wording import CHARGED_STEPS


class PlatformPage(TablePage):
    """Unsold idle, undelivered, absorbed losses, conversion, and cost against billed, per pool."""

    template = "billing/platform.html"
    allows = staticmethod(runs_the_ledger)

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.period = period_or_404(kwargs["month"], self.access)
        return super().get(request, **kwargs)

    @cached_property
    def side(self) -> PlatformMonth:
        return platform_month(self.period, billing_zone(self.request), ledger_of(self.request).currency)

    def tables(self, month: str) -> list[Table]:
        currency = ledger_of(self.request).currency
        return [
            cost_table(lambda: self.side, currency),
            charged_table(lambda: self.side.charged, currency),
            losses_table(lambda: self.side, currency),
        ]

    def context(self, month: str) -> dict[str, Any]:
        return {
            "month": month,
            "period": self.period,
            "currency": ledger_of(self.request).currency,
            "side": self.side,
            "broken": [one.pool for one in self.side.pools if not one.adds_up],
            "without_cost": [one.pool for one in self.side.pools if one.cost_micro is None],
        }


def _amount(part: str) -> Any:
    return lambda row: row.amounts[part]


def _columns(columns: list[Column], side: Any) -> Any:
    """Totals of these columns over all pools."""
    return lambda: {column.key: column.value(side().whole) for column in columns[1:]}


def cost_table(side: Any, currency: str) -> Table:
    """Every row adds up: cost = tenants + platform + conversion + suspense + difference."""
    money = micro_in(currency)
    names = {
        "tenants": _("Billed"),
        "unsold": _("Unsold idle"),
        "undelivered": _("Undelivered"),
        "own": _("Own work"),
        "conversion": _("Conversion"),
        "suspense": _("Suspense"),
        "difference": _("Difference"),
    }
    columns = [
        Column("pool", _("Pool"), NOWRAP),
        Column("capacity_gpu_hours", _("Capacity"), GPU_HOURS, of="capacity_gpu_us", on_page=False),
        Column("cost", _("Cost"), money, of="cost_micro"),
        *[Column(part, names[part], money, of=_amount(part)) for part in PARTS],
        Column(
            "margin",
            _("Billed less cost"),
            money,
            of="margin_micro",
            help=_("What tenants are billed less the cost of the pool; negative: the platform bears it."),
            css=lambda row: "" if row.margin_micro is None or row.margin_micro >= 0 else "alarm",
        ),
    ]
    return Table(
        "cost",
        lambda: side().pools,
        columns,
        label=_("Cost against billed, per pool"),
        caption=_("In %(currency)s; hover for the exact amount.") % {"currency": currency},
        totals=_columns(columns, side),
        totals_label=_("All pools"),
    )


def charged_table(charged: Callable[[], Charged], currency: str) -> Table:
    """Its rows add up to what the month's page says is charged."""
    columns = [
        Column("step", _("Step"), words(lambda name: CHARGED_STEPS[name]), of="name", can_sort=False),
        Column("amount", _("Amount"), micro_in(currency), of="amount_micro", unit=currency, can_sort=False),
    ]
    return Table(
        "charged",
        lambda: charged().steps,
        columns,
        label=_("From billed to charged"),
        totals=lambda: {"amount": charged().total_micro},
        totals_label=_("Charged on statements"),
    )


def losses_table(side: Any, currency: str) -> Table:
    hours, money = _("GPU-hours"), micro_in(currency)

    def gpu_us(part: str) -> Any:
        return lambda row: row.gpu_us[part]

    columns = [
        Column("pool", _("Pool"), NOWRAP),
        Column("unsold_gpu_hours", _("Unsold idle"), GPU_HOURS, of=gpu_us("unsold"), unit=hours),
        Column("unsold", _("Unsold idle"), money, of=_amount("unsold"), unit=currency),
        Column("undelivered_gpu_hours", _("Undelivered"), GPU_HOURS, of=gpu_us("undelivered"), unit=hours),
        Column("undelivered", _("Undelivered"), money, of=_amount("undelivered"), unit=currency),
        Column("absorbed_gpu_hours", _("Absorbed losses"), GPU_HOURS, of=gpu_us("absorbed"), unit=hours),
        Column("absorbed", _("Absorbed losses"), money, of=_amount("absorbed"), unit=currency),
    ]
    return Table(
        "losses",
        lambda: side().pools,
        columns,
        label=_("What the platform takes upon itself"),
        totals=_columns(columns, side),
        totals_label=_("All pools"),
    )
