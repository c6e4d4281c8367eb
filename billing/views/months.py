"""The months, and one month at a glance."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from billing.models import Statement
from billing.selectors.allocations import RequeuedRow
from billing.selectors.names import Names
from billing.selectors.pages_months import (
    HOLDER_CATEGORIES,
    PARTS_OF_CAPACITY,
    TenantMonth,
    exceptions_of,
    month_rows,
    neighbour_before,
    pool_months,
    tenant_months,
    whole_of,
)
from billing.selectors.pages_preemptions import month_preemptions, requeued_by_tenant
from billing.selectors.pages_proofs import month_proofs
from billing.selectors.statements import statements_for
from ledger.access import Access
from ledger.models import Period
from ledger.querysets import visible_to
from ledger.views.page import Page, ledger_of


class Home(Page):
    """`/`: where somebody of this role begins."""

    allows = staticmethod(lambda access: True)
    template = "ledger/no_role.html"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if self.access.is_finance:
            return redirect("billing:months")
        if self.access.is_platform:
            return redirect("billing:cluster")
        if self.access.sees_all_tenants:
            return redirect("billing:months")
        if self.access.tenant_ids:
            current = statements_for(self.access).first()
            if current is None or len(self.access.tenant_ids) > 1:
                return redirect("billing:months")
            return redirect("billing:statement", month=current.period_id, tenant=current.tenant.slug)
        return self.answer(request, {})


class MonthsPage(Page):
    """Every month: its state, its capacity, what was charged and what needs a person."""

    template = "billing/months.html"

    def context(self, **_: Any) -> dict[str, Any]:
        rows = month_rows(self.access)
        context: dict[str, Any] = {"rows": rows, "currency": ledger_of(self.request).currency}
        if not self.access.sees_all_tenants:
            context["statements"] = statements_for(self.access)
        return context


def period_or_404(month: str, access: Access) -> Period:
    """The month; to a tenant only those that it has a statement of exist."""
    period = Period.objects.filter(month=month).first()
    if period is None:
        raise Http404
    if not access.sees_all_tenants and not visible_to(Statement.objects.filter(period=period), access):
        raise Http404
    return period


class MonthPage(Page):
    """Where every GPU-hour went, who pays for it, what needs a person, and the proof that nothing is missing."""

    template = "billing/month.html"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        period = period_or_404(kwargs["month"], self.access)
        if self.access.sees_all_tenants:
            return self.answer(request, self._whole(period))
        mine = list(statements_for(self.access).filter(period=period))
        if len(mine) == 1:
            return redirect("billing:statement", month=period.month, tenant=mine[0].tenant.slug)
        return self.answer(request, self._tables(period))

    def _tables(self, period: Period) -> dict[str, Any]:
        """What both the ledger's people and the tenants of several statements see."""
        before = neighbour_before(period)
        return {
            "month": period.month,
            "period": period,
            "before": before,
            "currency": ledger_of(self.request).currency,
            "tenants": tenant_months(period, before, self.access),
            "requeued": requeued_by_tenant(period, self.access),
        }

    def _whole(self, period: Period) -> dict[str, Any]:
        pools = pool_months(period)
        tables = self._tables(period)
        return {
            **tables,
            "pools": pools,
            "preemptions": month_preemptions(period, self.access, Names(self.access, at=period.starts_at)),
            "sums": _sums(tables["tenants"], tables["requeued"]),
            "whole": whole_of(pools) if len(pools) > 1 else None,
            "parts": PARTS_OF_CAPACITY,
            "categories": HOLDER_CATEGORIES,
            "exceptions": exceptions_of(period),
            "proofs": month_proofs(period, pools, [row.statement for row in tables["tenants"]]),
            "total_minor": sum(row.statement.total_minor for row in tables["tenants"]),
        }


def _sums(tenants: list[TenantMonth], requeued: dict[str, RequeuedRow]) -> dict[str, int]:
    """The last row of the tenants' table."""
    again = [requeued[row.statement.tenant.slug] for row in tenants if row.statement.tenant.slug in requeued]
    return {
        "occupied": sum(row.occupied_gpu_us for row in tenants),
        "reserved_idle": sum(row.gpu_us.get("reserved_idle", 0) for row in tenants),
        "lent": sum(row.gpu_us.get("lent", 0) for row in tenants),
        "requeued": sum(row.requeued_gpu_us for row in again),
        "waiting": sum(row.waiting_gpu_us for row in again),
    }
