"""Month to date, what the month will come to, and which budgets that fits; with a form to set one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from billing.charts.planning import forecast_chart
from billing.models import Budget
from billing.models.budget import DEFAULT_THRESHOLDS
from billing.selectors.forecast import BudgetStanding, TenantForecast, budget_standings, forecasts
from billing.selectors.periods import ledger_and_now
from billing.services.budgets import BudgetError, remove_budget, set_budget
from ledger.core.figures import THIN_SPACE
from ledger.core.periods import Month, to_datetime
from ledger.core.units import fixed_decimal, gpu_hours_text, micro_text, parse_micro, round_half_even
from ledger.models import Tenant
from ledger.querysets import visible_to
from ledger.services.audit import Actor
from ledger.templatetags.figures import gpu_hours_cell, instant, money_cell, month_name
from ledger.views.acting import ActingPage, Refused, text_of
from ledger.views.tables import (
    COUNT,
    GPU_HOURS,
    INSTANT,
    NOWRAP,
    PERCENT,
    TEXT_FILTER,
    Column,
    Kind,
    Table,
    micro_in,
)

US_PER_MICRO_HOUR = 3_600
FORECAST_MONTHS = 2


class BudgetsPage(ActingPage):
    """`?month=2026-10`, the running month by default. Finance sets any budget, a tenant's admin its own."""

    template = "billing/budgets.html"
    month_parameter: ClassVar[str] = "month"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.ledger, self.now_ms = ledger_and_now()
        self.month = self._month()
        return super().get(request, **kwargs)

    def _month(self) -> Month:
        """What is no month, or out of reach of the calendar, is the running one."""
        try:
            month = Month.parse(self.request.GET.get("month", ""))
            month.plus(-FORECAST_MONTHS).span(self.ledger.billing_time_zone)
            month.span(self.ledger.billing_time_zone)
        except (ValueError, OverflowError):
            return Month.containing(self.now_ms, self.ledger.billing_time_zone)
        return month

    @cached_property
    def budgets(self) -> list[BudgetStanding]:
        return budget_standings(
            self.month, self.ledger, self.now_ms, self.access, made=lambda: self.forecasts
        )

    @cached_property
    def forecasts(self) -> list[TenantForecast]:
        return forecasts(self.month, self.ledger, self.now_ms, self.access)

    @cached_property
    def quotas(self) -> list[TenantForecast]:
        return [row for row in self.forecasts if row.tokens is not None]

    def may_act(self) -> bool:
        return self.access.is_finance or bool(self.access.admin_of)

    @cached_property
    def settable(self) -> dict[str, int]:
        """Slug -> id of the tenants whose budgets this person sets."""
        rows = visible_to(Tenant.objects.all(), self.access)
        if not self.access.is_finance:
            rows = rows.filter(pk__in=self.access.admin_of)
        return dict(rows.order_by("holder__slug").values_list("holder__slug", "pk"))

    def tables(self) -> list[Table]:
        currency = self.ledger.currency
        return [
            budgets_table(lambda: self.budgets, currency),
            forecasts_table(lambda: self.forecasts, currency),
            quotas_table(lambda: self.quotas),
        ]

    def context(self) -> dict[str, Any]:
        allowed = set(self.settable.values()) if self.may_act() else set()
        spent = [row.amount for row in self.forecasts]
        return {
            "month": str(self.month),
            "currency": self.ledger.currency,
            "horizon": min((row.horizon for row in self.forecasts), default=to_datetime(self.now_ms)),
            "exceeded": [row for row in self.budgets if row.spending.left < 0],
            "expected_over": [
                row
                for row in self.budgets
                if row.spending.left >= 0 and (row.spending.expected or 0) > row.spending.limit
            ],
            "used_up": [row for row in self.quotas if row.tokens and row.tokens.is_used_up],
            "exhausting": [
                row
                for row in self.quotas
                if row.tokens and row.tokens.exhausted_at and not row.tokens.is_used_up
            ],
            "to_date_micro": sum(one.to_date for one in spent),
            "expected_micro": _sum([one.expected for one in spent]),
            "low_micro": _sum([one.low for one in spent]),
            "high_micro": _sum([one.high for one in spent]),
            "forecast_bars": len(self.forecasts),
            "chart": forecast_chart(self.forecasts, self.ledger.currency)
            if any(one.to_date or one.expected for one in spent)
            else None,
            "largest": max(
                (row for row in self.forecasts if row.amount.expected),
                key=lambda row: row.amount.expected or 0,
                default=None,
            ),
            "settable": list(self.settable) if self.may_act() else [],
            "removable": [row.budget for row in self.budgets if row.budget.tenant_id in allowed],
            "thresholds": ", ".join(str(percent) for percent in DEFAULT_THRESHOLDS),
        }

    def do(self, form: QueryDict, by: Actor, **_kwargs: Any) -> str:
        self.ledger, self.now_ms = ledger_and_now()
        deeds = {"set": self._set, "remove": self._remove}
        deed = deeds.get(form.get("deed", ""))
        if deed is None:
            raise Http404
        return deed(form, by)

    def _set(self, form: QueryDict, by: Actor) -> str:
        pk = self.settable.get(text_of(form, "tenant"))
        if pk is None:
            raise Http404
        tenant = Tenant.objects.select_related("holder").get(pk=pk)
        limit = _limit_of(form)
        is_money = form.get("kind") == "amount"
        try:
            _budget, changed = set_budget(
                tenant,
                _month_of(form),
                by,
                amount_micro=limit if is_money else None,
                gpu_us=None if is_money else limit * US_PER_MICRO_HOUR,
                thresholds=_thresholds_of(form),
            )
        except BudgetError:
            raise Refused(_("Thresholds are at most ten percentages from 1 to 1000.")) from None
        said = _("The budget of %(tenant)s is set.") if changed else _("It was so already: %(tenant)s.")
        return said % {"tenant": tenant.slug}

    def _remove(self, form: QueryDict, by: Actor) -> str:
        try:
            wanted = UUID(form.get("budget", ""))
        except ValueError:
            raise Http404 from None
        rows = visible_to(Budget.objects.select_related("tenant__holder"), self.access)
        budget = rows.filter(pk=wanted).first()
        if budget is None:
            raise Http404
        if not self.access.is_finance and budget.tenant_id not in self.access.admin_of:
            raise PermissionDenied
        remove_budget(budget, by)
        return _("The budget of %(tenant)s is taken away.") % {"tenant": budget.tenant.slug}


def _limit_of(form: QueryDict) -> int:
    """In millionths of the currency's unit or of a GPU-hour."""
    try:
        limit = parse_micro(text_of(form, "limit"))
    except ValueError:
        limit = 0
    if not 0 < limit < 10**15:
        raise Refused(_("The limit is a decimal number above 0 with at most 6 places, such as 50000."))
    return limit


def _month_of(form: QueryDict) -> str:
    text = text_of(form, "month")
    try:
        return str(Month.parse(text)) if text else ""
    except ValueError:
        raise Refused(_("That is no month such as 2026-10.")) from None


def _thresholds_of(form: QueryDict) -> list[int] | None:
    """None: the usual ones."""
    text = text_of(form, "thresholds").replace("%", " ").replace(",", " ").replace("，", " ")
    try:
        return [int(part) for part in text[:200].split()] or None
    except ValueError:
        raise Refused(_("Thresholds are at most ten percentages from 1 to 1000.")) from None


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


_EXACT = Kind(is_number=True)


def budgets_table(rows: Callable[[], Sequence[BudgetStanding]], currency: str) -> Table:
    def figure(key: str, title: Any, of: Callable[[BudgetStanding], int | None], unit: Any = "") -> Column:
        """Money and GPU-hours stand under one head, each row in its own unit."""

        def text(row: BudgetStanding) -> str | None:
            value = of(row)
            if value is None:
                return None
            return micro_text(value) if row.budget.kind == "amount" else gpu_hours_text(value)

        def shown(row: BudgetStanding) -> Any:
            value = of(row)
            return money_cell(value, currency) if row.budget.kind == "amount" else gpu_hours_cell(value)

        return Column(key, title, _EXACT, of=text, html=shown, unit=unit)

    def percents(values: Sequence[int]) -> str:
        return ", ".join(str(value) for value in values)

    return Table(
        "budgets",
        rows,
        [
            Column("tenant", _("Tenant"), NOWRAP, of="budget.tenant.slug", filter=TEXT_FILTER),
            Column(
                "for",
                _("For"),
                NOWRAP,
                of="budget.month",
                html=lambda row: month_name(row.budget.month) if row.budget.month else _("every month"),
            ),
            Column(
                "unit",
                _("Unit"),
                of=lambda row: currency if row.budget.kind == "amount" else "GPU-hours",
                html=lambda row: currency if row.budget.kind == "amount" else _("GPU-hours"),
            ),
            figure("limit", _("Budget"), lambda row: row.spending.limit),
            figure("month_to_date", _("Month to date"), lambda row: row.spending.spent),
            Column(
                "used_percent",
                _("Used"),
                PERCENT,
                of=lambda row: fixed_decimal(round_half_even(row.spending.share_ppm, 1000), 1),
                css=lambda row: "alarm" if row.spending.left < 0 else "",
            ),
            figure("left", _("Left"), lambda row: row.spending.left),
            figure("expected", _("Expected"), lambda row: row.spending.expected, _("at the month's end")),
            figure("high", _("At most"), lambda row: row.spending.high, _("at the month's end")),
            Column(
                "thresholds",
                _("Thresholds"),
                of=lambda row: percents(row.budget.thresholds),
                html=_thresholds,
                unit="%",
                help=_("✓ is passed, ↗ is expected to be passed by the month's end"),
            ),
            Column("passed", _("Passed"), of=lambda row: percents(row.passed), on_page=False),
            Column(
                "expected_to_pass",
                _("Expected to pass"),
                of=lambda row: percents(row.expected),
                on_page=False,
            ),
        ],
        label=_("Budgets of the month"),
        caption=_("Of the thresholds, ✓ is passed and ↗ is expected to be passed by the month's end."),
        empty=_("No budget counts in this month."),
    )


def _thresholds(row: BudgetStanding) -> Any:
    """Each with what became of it."""

    def mark(value: int) -> str:
        if value in row.passed:
            return format_html('{}{}<abbr title="{}">✓</abbr>', value, THIN_SPACE, _("passed"))
        if value in row.expected:
            return format_html('{}{}<abbr title="{}">↗</abbr>', value, THIN_SPACE, _("expected to be passed"))
        return str(value)

    return format_html_join(" · ", "{}", ((mark(value),) for value in row.budget.thresholds))


def forecasts_table(rows: Callable[[], Sequence[TenantForecast]], currency: str) -> Table:
    money = micro_in(currency)
    parts = {
        "to_date": _("Month to date"),
        "low": _("At least"),
        "expected": _("Expected"),
        "high": _("At most"),
    }

    def totals() -> dict[str, Any]:
        return {
            f"{name}_{part}": _sum([getattr(getattr(row, of), part) for row in rows()])
            for name, of in (("amount", "amount"), ("gpu_hours", "gpu_us"))
            for part in parts
        }

    return Table(
        "forecast",
        rows,
        [
            Column("tenant", _("Tenant"), filter=TEXT_FILTER),
            *[
                Column(f"amount_{part}", title, money, of=f"amount.{part}", unit=currency)
                for part, title in parts.items()
            ],
            *[
                Column(f"gpu_hours_{part}", title, GPU_HOURS, of=f"gpu_us.{part}", unit=_("GPU-hours"))
                for part, title in parts.items()
            ],
        ],
        label=_("What the month will come to"),
        totals=totals,
        rows_a_page=30,
        empty=_("Nobody is there to be charged."),
    )


def _used_up_at(row: TenantForecast) -> Any:
    if row.tokens is None or row.tokens.exhausted_at is None:
        return _("not this month")
    return _("used up") if row.tokens.is_used_up else instant(row.tokens.exhausted_at)


def quotas_table(rows: Callable[[], Sequence[TenantForecast]]) -> Table:
    def share(row: TenantForecast) -> str | None:
        tokens = row.tokens
        if tokens is None or not tokens.quota:
            return None
        return fixed_decimal(round_half_even(tokens.used * 1000, tokens.quota), 1)

    return Table(
        "tokens",
        rows,
        [
            Column("tenant", _("Tenant"), filter=TEXT_FILTER),
            Column("quota", _("Quota"), COUNT, of="tokens.quota", unit=_("tokens")),
            Column("used", _("Used"), COUNT, of="tokens.used", unit=_("tokens")),
            Column("used_percent", _("Used"), PERCENT, of=share),
            Column(
                "exhausted_at",
                _("Used up at"),
                INSTANT,
                of="tokens.exhausted_at",
                html=_used_up_at,
                css=lambda row: "alarm" if row.tokens.exhausted_at else "",
            ),
        ],
        label=_("Token quotas"),
        empty=_("No contract of this month has a token quota."),
    )
