"""`budgets/`, `forecast/` and `plan/`: what a month may cost, what it will, and what it would have."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import Http404
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.actors import actor_of
from billing.api.questions import filters_of
from billing.api.reservations import TENANT
from billing.core.forecast import Forecast
from billing.core.plan import CATEGORIES, Rerated
from billing.models import Budget
from billing.selectors.forecast import BudgetStanding, TenantForecast, budget_standings, forecasts
from billing.selectors.periods import ledger_and_now
from billing.selectors.plan import PlannedMonth, plan
from billing.services.budgets import BudgetError, remove_budget, set_budget
from ledger.access import Access
from ledger.api import parameters as forms
from ledger.api.bodies import body_of
from ledger.api.problems import Problem
from ledger.api.views import LedgerView, ListView
from ledger.core.periods import Month
from ledger.core.units import (
    GPU_US_PER_GPU_HOUR,
    MICRO_PER_UNIT,
    fixed_decimal,
    gpu_hours_text,
    micro_text,
    milli_gpus_text,
    parse_milli_gpus,
)
from ledger.models import Ledger, Pool, Tenant
from ledger.querysets import visible_to

MONTH = OpenApiParameter(
    "month", str, pattern=forms.MONTH, description="such as 2026-10; the running month by default"
)


class BudgetRow(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    tenant = serializers.CharField()
    month = serializers.CharField()
    recurring = serializers.BooleanField(help_text="for every month that has none of its own")
    kind = serializers.ChoiceField(choices=["amount", "gpu_hours"])
    limit = serializers.CharField()
    month_to_date = serializers.CharField()
    used_share = serializers.CharField(help_text="decimal; above 1 once it is exceeded")
    left = serializers.CharField()
    expected = serializers.CharField(allow_null=True, help_text="forecast of the whole month")
    high = serializers.CharField(allow_null=True)
    thresholds = serializers.ListField(child=serializers.IntegerField(), help_text="percent")
    passed = serializers.ListField(child=serializers.IntegerField(), help_text="thresholds reached")
    expected_to_pass = serializers.ListField(child=serializers.IntegerField())
    currency = serializers.CharField()


class BudgetBody(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    month = serializers.RegexField(forms.MONTH, required=False, help_text="left out: every month")
    amount = serializers.DecimalField(max_digits=18, decimal_places=6, required=False, min_value=0)
    gpu_hours = serializers.DecimalField(max_digits=12, decimal_places=6, required=False, min_value=0)
    thresholds = serializers.ListField(child=serializers.IntegerField(), required=False)


class SetBudgetRow(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    changed = serializers.BooleanField()


class ForecastRow(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    month = serializers.CharField()
    horizon = serializers.DateTimeField(help_text="up to when the books are computed")
    amount_to_date = serializers.CharField()
    amount_expected = serializers.CharField(allow_null=True, help_text="null: nothing to go by yet")
    amount_low = serializers.CharField(allow_null=True)
    amount_high = serializers.CharField(allow_null=True)
    currency = serializers.CharField()
    gpu_hours_to_date = serializers.CharField(help_text="GPU time held")
    gpu_hours_expected = serializers.CharField(allow_null=True)
    gpu_hours_low = serializers.CharField(allow_null=True)
    gpu_hours_high = serializers.CharField(allow_null=True)
    token_quota = serializers.CharField(allow_null=True)
    tokens_used = serializers.CharField(allow_null=True)
    token_quota_exhausted_at = serializers.DateTimeField(
        allow_null=True, help_text="at the last week's rate; null: not this month"
    )


_PLAN_SIDE = {f"{name}_gpu_hours": serializers.CharField() for name in CATEGORIES}
PlanSide = type(
    "PlanSide", (serializers.Serializer,), {**_PLAN_SIDE, "amount": serializers.CharField(allow_null=True)}
)


class PlanRow(serializers.Serializer[Any]):
    month = serializers.CharField()
    tenant = serializers.CharField()
    pool = serializers.CharField()
    reservation_gpus = serializers.CharField()
    as_it_was = PlanSide()
    re_rated = PlanSide()
    difference = serializers.CharField(allow_null=True, help_text="below 0: the other size is cheaper")
    currency = serializers.CharField()


class BudgetsView(ListView):
    """Budgets that count in a month, with month to date, forecast and thresholds passed."""

    parameters = frozenset({"month", "tenant"})

    @extend_schema(operation_id="budgets_list", parameters=[MONTH, TENANT], responses=BudgetRow(many=True))
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        month = _month_of(request, ledger, now_ms)
        tenants = filters_of(request, ("tenant",)).get("tenant")
        rows = budget_standings(month, ledger, now_ms, self.access, tenants)
        return self.page(
            lambda offset, limit: rows[offset : offset + limit], lambda row: _budget_row(row, ledger.currency)
        )

    @extend_schema(
        operation_id="budgets_set",
        request=BudgetBody,
        responses={200: SetBudgetRow},
        examples=[
            OpenApiExample(
                "every month",
                request_only=True,
                value={"tenant": "acme", "amount": "50000", "thresholds": [50, 80, 100]},
            )
        ],
    )
    def post(self, request: Request) -> Response:
        """Set a tenant's budget of a month, or of every month: by finance, or an admin of the tenant."""
        body = body_of(request, BudgetBody)
        tenant = (
            visible_to(Tenant.objects.select_related("holder"), self.access)
            .filter(holder__slug=body["tenant"])
            .first()
        )
        if tenant is None:
            raise Http404
        _allow(self.access, tenant.pk)
        amount, hours = body.get("amount"), body.get("gpu_hours")
        try:
            budget, changed = set_budget(
                tenant,
                body.get("month", ""),
                actor_of(request),
                amount_micro=None if amount is None else int(amount * MICRO_PER_UNIT),
                gpu_us=None if hours is None else int(hours * GPU_US_PER_GPU_HOUR),
                thresholds=body.get("thresholds"),
            )
        except BudgetError as error:
            raise Problem(422, "bad_budget", str(error)) from None
        return Response({"id": str(budget.pk), "changed": changed})


class BudgetView(LedgerView):
    """One budget, to take it away."""

    @extend_schema(operation_id="budgets_remove", responses={204: None})
    def delete(self, request: Request, budget_id: UUID) -> Response:
        budget = visible_to(Budget.objects.select_related("tenant__holder"), self.access)
        found = budget.filter(pk=budget_id).first()
        if found is None:
            raise Http404
        _allow(self.access, found.tenant_id)
        remove_budget(found, actor_of(request))
        return Response(status=204)


def _allow(access: Access, tenant_id: int) -> None:
    if not access.is_finance and tenant_id not in access.admin_of:
        raise Problem(403, "not_allowed", "Finance and the tenant's admins set its budgets.")


def _month_of(request: Request, ledger: Ledger, now_ms: int) -> Month:
    text = request.query_params.get("month")
    if text is None:
        return Month.containing(now_ms, ledger.billing_time_zone)
    try:
        month = Month.parse(text)
        month.plus(-2).span(ledger.billing_time_zone)
        month.span(ledger.billing_time_zone)
    except (ValueError, OverflowError):
        raise Problem(
            422, "bad_month", f"{text!r} is not a month such as 2026-10.", parameter="month"
        ) from None
    return month


def _budget_row(row: BudgetStanding, currency: str) -> dict[str, Any]:
    def text(value: int | None) -> str | None:
        if value is None:
            return None
        return micro_text(value) if row.budget.kind == "amount" else gpu_hours_text(value)

    spending = row.spending
    return {
        "id": str(row.budget.pk),
        "tenant": row.budget.tenant.slug,
        "month": row.month,
        "recurring": not row.budget.month,
        "kind": row.budget.kind,
        "limit": text(spending.limit),
        "month_to_date": text(spending.spent),
        "used_share": fixed_decimal(spending.share_ppm, 6),
        "left": text(spending.left),
        "expected": text(spending.expected),
        "high": text(spending.high),
        "thresholds": list(row.budget.thresholds),
        "passed": row.passed,
        "expected_to_pass": row.expected,
        "currency": currency,
    }


class ForecastView(ListView):
    """What the month comes to, as a range, per tenant; and when a token quota will be used up.

    A day to come is taken to be like the days of its weekday in the eight weeks before: median and quartiles.
    """

    parameters = frozenset({"month", "tenant"})

    @extend_schema(operation_id="forecast_list", parameters=[MONTH, TENANT], responses=ForecastRow(many=True))
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        month = _month_of(request, ledger, now_ms)
        tenants = filters_of(request, ("tenant",)).get("tenant")
        rows = forecasts(month, ledger, now_ms, self.access, tenants)
        return self.page(
            lambda offset, limit: rows[offset : offset + limit],
            lambda row: _forecast_row(row, ledger.currency),
        )


def _forecast_row(row: TenantForecast, currency: str) -> dict[str, Any]:
    tokens = row.tokens
    return {
        "tenant": row.tenant,
        "month": row.month,
        "horizon": row.horizon,
        **_range("amount", row.amount, micro_text),
        "currency": currency,
        **_range("gpu_hours", row.gpu_us, gpu_hours_text),
        "token_quota": None if tokens is None else str(tokens.quota),
        "tokens_used": None if tokens is None else str(tokens.used),
        "token_quota_exhausted_at": None if tokens is None else tokens.exhausted_at,
    }


def _range(name: str, made: Forecast, text: Any) -> dict[str, str | None]:
    return {
        f"{name}_to_date": text(made.to_date),
        f"{name}_expected": None if made.expected is None else text(made.expected),
        f"{name}_low": None if made.low is None else text(made.low),
        f"{name}_high": None if made.high is None else text(made.high),
    }


class PlanView(ListView):
    """The last three months re-rated at another reservation size of a tenant in a pool. A dry run: nothing changes."""

    parameters = frozenset({"tenant", "pool", "reservation"})

    @extend_schema(
        operation_id="plan_list",
        parameters=[
            OpenApiParameter("tenant", str, required=True, pattern=forms.SOME_TEXT),
            OpenApiParameter("pool", str, required=True, pattern=forms.SOME_TEXT),
            OpenApiParameter(
                "reservation",
                str,
                required=True,
                pattern=forms.GPUS,
                description="GPUs, a decimal of at most 3 places",
            ),
        ],
        responses=PlanRow(many=True),
    )
    def get(self, request: Request) -> Response:
        ledger, _ = ledger_and_now()
        asked = {name: _required(request, name) for name in ("tenant", "pool", "reservation")}
        try:
            milli = parse_milli_gpus(asked["reservation"])
        except ValueError as error:
            raise Problem(422, "bad_reservation", str(error), parameter="reservation") from None
        if milli > MOST_MILLI_GPUS:
            raise Problem(422, "bad_reservation", "more than a million GPUs", parameter="reservation")
        tenant = (
            visible_to(Tenant.objects.select_related("holder"), self.access)
            .filter(holder__slug=asked["tenant"])
            .first()
        )
        pool = Pool.objects.filter(slug=asked["pool"]).first()
        if tenant is None or pool is None:
            raise Http404
        rows = plan(tenant, pool, milli, ledger)

        def to_row(row: PlannedMonth) -> dict[str, Any]:
            difference = row.difference_micro
            return {
                "month": row.month,
                "tenant": tenant.slug,
                "pool": pool.slug,
                "reservation_gpus": milli_gpus_text(milli),
                "as_it_was": _side(row.now),
                "re_rated": _side(row.then),
                "difference": None if difference is None else micro_text(difference),
                "currency": ledger.currency,
            }

        return self.page(lambda offset, limit: rows[offset : offset + limit], to_row)


MOST_MILLI_GPUS = 1_000_000_000


def _required(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise Problem(400, "missing_parameter", f"{name} is required.", parameter=name)
    return value


def _side(side: Rerated) -> dict[str, str | None]:
    return {
        **{f"{name}_gpu_hours": gpu_hours_text(side.gpu_us[name]) for name in CATEGORIES},
        "amount": None if side.amount_micro is None else micro_text(side.amount_micro),
    }
