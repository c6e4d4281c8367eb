"""Month to date, forecast, and how budgets stand (domain.md section 9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from django.db.models import F, Q, Sum

from billing.core.budgets import Spending, applies, passed
from billing.core.forecast import DayToCome, Forecast, Seen, certain, exhausted_ms
from billing.core.forecast import forecasts as made
from billing.models import Budget, Statement
from billing.selectors.periods import horizon_of
from billing.selectors.tenant_months import DayFigures, days_of_tenants
from billing.selectors.terms import contracts_of
from billing.selectors.tokens import tokens
from ledger.access import Access
from ledger.core.periods import Month, Span, to_datetime, to_ms
from ledger.models import Ledger, Tenant
from ledger.querysets import visible_to

EARLIER_MONTHS = 2


@dataclass(frozen=True)
class TokenQuota:
    """A token contract's month. exhausted_at: when the quota is used up at the last week's rate, if this month."""

    quota: int
    used: int
    exhausted_at: datetime | None

    @property
    def is_used_up(self) -> bool:
        return self.used >= self.quota


class TenantForecast(NamedTuple):
    """A tenant's month. amount in micro units; gpu_us: GPU time held. horizon: up to when the books are computed."""

    tenant: str
    month: str
    horizon: datetime
    amount: Forecast
    gpu_us: Forecast
    tokens: TokenQuota | None


def forecasts(
    month: Month,
    ledger: Ledger,
    now_ms: int,
    access: Access,
    tenants: Collection[str] | None = None,
) -> list[TenantForecast]:
    """Every visible tenant's month, by slug. About ten queries over what is kept of the days of up to three months, or
    of the month alone if it is over."""
    zone = ledger.billing_time_zone
    span = month.span(zone)
    horizon = horizon_of(span, now_ms)
    horizon_ms = min(max(to_ms(horizon), span.start_ms), span.end_ms)
    visible = visible_to(Tenant.objects.all(), access).order_by("holder__slug")
    if tenants is not None:
        visible = visible.filter(holder__slug__in=tenants)
    seen = list(visible.values_list("pk", "holder__slug"))
    to_come = _days_to_come(horizon_ms, span.end_ms, zone)
    # Of a month that is over nothing is left to guess, and what went before is not read.
    months = [month.plus(-back) for back in range(EARLIER_MONTHS if to_come else 0, -1, -1)]
    everybody = tenants is None and access.sees_all_tenants
    keys = [pk for pk, _slug in seen]
    days = days_of_tenants(months, zone, horizon_ms, keys, of_all=everybody)
    booked = _booked(months, None if everybody else keys)
    quotas = _token_quotas(month, zone, Span(span.start_ms, horizon_ms), span.end_ms, access)
    named, computed_to = str(month), to_datetime(horizon_ms)
    billed = [booked.get(pk, (0, 0))[0] for pk in keys]
    this_month = (date(month.year, month.number, 1) - days.held.first).days
    occupied = days.held.figures[:, this_month:].sum(axis=1).tolist()
    if to_come:
        # Of a month to come nothing before it is known from the horizon on: those days are no days of 0.
        last = _local(min(horizon, computed_to), zone)
        in_all = [booked.get(pk, (0, 0))[1] for pk in keys]
        scale = list(zip(in_all, days.amounts.figures.sum(axis=1).tolist(), strict=True))
        amounts = made(billed, _complete(days.amounts, last), to_come, scale)
        gpu_us = made(occupied, _complete(days.held, last), to_come)
    else:
        amounts, gpu_us = [certain(value) for value in billed], [certain(value) for value in occupied]
    return [
        TenantForecast(slug, named, computed_to, amount, gpu, quotas.get(slug))
        for (_pk, slug), amount, gpu in zip(seen, amounts, gpu_us, strict=True)
    ]


def _complete(days: DayFigures, last: date) -> Seen:
    """Up to the day that has begun."""
    whole = days.figures[:, : max((last - days.first).days, 0)]
    return Seen(days.first, whole, np.minimum(days.since, whole.shape[1]))


def _local(instant: datetime, zone: str) -> date:
    return instant.astimezone(ZoneInfo(zone)).date()


def _booked(months: Sequence[Month], tenant_ids: Collection[int] | None) -> dict[int, tuple[int, int]]:
    """What the books say of the last of the months and of all of them, per tenant (None: of every one): the totals of
    statements, which are the sums of their lines. A line without a price counts 0."""
    bills = Statement.objects.filter(period__in=[str(month) for month in months])
    if tenant_ids is not None:
        bills = bills.filter(tenant__in=tenant_ids)
    rows = bills.values_list("tenant").annotate(
        last=Sum("total_micro", filter=Q(period=str(months[-1]))), total=Sum("total_micro")
    )
    return {tenant: (int(last or 0), int(total or 0)) for tenant, last, total in rows}


def _days_to_come(horizon_ms: int, end_ms: int, zone: str) -> list[DayToCome]:
    """The local days from the horizon to the month's end, the first being the rest of the one that has begun."""
    tz = ZoneInfo(zone)
    found: list[DayToCome] = []
    day = to_datetime(horizon_ms).astimezone(tz).date()
    while True:
        starts_ms = to_ms(datetime(day.year, day.month, day.day, tzinfo=tz).astimezone(UTC))
        following = day + timedelta(days=1)
        ends_ms = to_ms(datetime(following.year, following.month, following.day, tzinfo=tz).astimezone(UTC))
        rest = Span(starts_ms, ends_ms).overlap(Span(horizon_ms, end_ms))
        if rest is None:
            return found
        found.append(DayToCome(day, rest.length_ms, ends_ms - starts_ms))
        day = following


def token_quota(month: Month, zone: str, horizon: datetime, tenant: Tenant) -> TokenQuota | None:
    """One tenant's month up to `horizon`; None where its contract has no token quota. Two queries, or one."""
    span = month.span(zone)
    of_tenant = Access(tenant_ids=frozenset({tenant.pk}))
    so_far = Span(span.start_ms, min(max(to_ms(horizon), span.start_ms), span.end_ms))
    return _token_quotas(month, zone, so_far, span.end_ms, of_tenant, {tenant.slug}).get(tenant.slug)


def _token_quotas(
    month: Month,
    zone: str,
    so_far: Span,
    end_ms: int,
    access: Access,
    tenants: Collection[str] | None = None,
) -> dict[str, TokenQuota]:
    contracts = {
        slug: contract.token_quota
        for slug, contract in contracts_of(month, zone, of_quotas=True).items()
        if contract.token_quota is not None and (tenants is None or slug in tenants)
    }
    if not contracts:
        return {}
    daily: defaultdict[str, dict[date, int]] = defaultdict(dict)
    if so_far.length_ms > 0:
        tenant_ids = None if access.sees_all_tenants else access.tenant_ids
        for row in tokens(so_far, zone, by=("tenant", "service"), step="day", tenant_ids=tenant_ids):
            if row.dimensions["service"]:
                day, of = _local(row.starts_at, zone), daily[row.dimensions["tenant"]]
                of[day] = of.get(day, 0) + row.input_tokens + row.output_tokens
    last = _local(to_datetime(so_far.end_ms), zone)
    found = {}
    for slug, quota in contracts.items():
        of = daily[slug]
        complete = [day for day in sorted(of) if day < last]
        recent = []
        if complete:
            days = (last - complete[0]).days
            recent = [of.get(complete[0] + timedelta(days=number), 0) for number in range(days)]
        used = sum(of.values())
        at_ms = exhausted_ms(quota, used, recent, so_far.end_ms, end_ms)
        found[slug] = TokenQuota(quota, used, None if at_ms is None else to_datetime(at_ms))
    return found


@dataclass(frozen=True)
class BudgetStanding:
    """A budget that counts in the month: how it stands, and which thresholds are passed or will be."""

    budget: Budget
    month: str
    spending: Spending
    passed: list[int]
    expected: list[int]


def budget_standings(
    month: Month,
    ledger: Ledger,
    now_ms: int,
    access: Access,
    tenants: Collection[str] | None = None,
    made: Callable[[], Collection[TenantForecast]] | None = None,
) -> list[BudgetStanding]:
    """Visible budgets that count in a month, by tenant and kind. made: the tenants' forecasts, where they are made
    anyway."""
    rows = visible_to(Budget.objects.select_related("tenant__holder"), access)
    budgets = list(rows.order_by("tenant__holder__slug", F("gpu_us").asc(nulls_first=True), "month", "pk"))
    of_kind: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for budget in budgets:
        of_kind[budget.tenant_id, budget.kind].append(budget.month)
    counted = [
        budget
        for budget in budgets
        if applies(budget.month, of_kind[budget.tenant_id, budget.kind], str(month))
        and (tenants is None or budget.tenant.slug in tenants)
    ]
    if not counted:
        return []
    slugs = {budget.tenant.slug for budget in counted}
    rows_made = made() if made else forecasts(month, ledger, now_ms, access, slugs)
    of = {row.tenant: row for row in rows_made}
    return [_standing(budget, of[budget.tenant.slug]) for budget in counted]


def _standing(budget: Budget, row: TenantForecast) -> BudgetStanding:
    made = row.amount if budget.kind == "amount" else row.gpu_us
    spending = Spending(budget.limit, made.to_date, made.expected, made.high)
    return BudgetStanding(
        budget,
        row.month,
        spending,
        passed(spending.spent, spending.limit, budget.thresholds),
        passed(spending.expected, spending.limit, budget.thresholds),
    )
