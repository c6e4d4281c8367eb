"""The months, and one month at a glance."""

from __future__ import annotations

from typing import Any

from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict, StreamingHttpResponse
from django.shortcuts import redirect
from django.utils.functional import cached_property

from billing.exports.files import MONTH_FORMATS, month_file, month_file_name
from billing.models import Dispute, Statement, StatementLine
from billing.selectors.allocations import RequeuedRow
from billing.selectors.changes import changed_since_close
from billing.selectors.disputes import disputes_for
from billing.selectors.episodes import (
    MonthOfPreempting,
    PoolBalance,
    pool_balances,
    preempting,
    preempting_of,
    worst_first,
)
from billing.selectors.names import Names
from billing.selectors.pages_exceptions import exceptions_of
from billing.selectors.pages_months import (
    PARTS_OF_CAPACITY,
    MonthRow,
    PoolMonth,
    TenantMonth,
    gpu_us_by_tenant,
    month_rows,
    neighbour_before,
    pool_months,
    tenant_months,
    whole_of,
    whose_time,
)
from billing.selectors.pages_preemptions import MonthPreemptions, month_preemptions, requeued_by_tenant
from billing.selectors.pages_proofs import month_proofs
from billing.selectors.reconciliation import Line, month_lines
from billing.selectors.residuals import ResidualRow, residuals
from billing.selectors.statements import statements_for
from billing.services.periods import PeriodError
from billing.views.as_of import KnownThenPage
from billing.views.episode_tables import balance_table, episodes_table
from billing.views.month_tables import (
    causes_table,
    months_table,
    pairs_table,
    pools_table,
    statements_table,
    tenants_table,
    whose_table,
)
from billing.views.reconciliation_tables import (
    explain_from_form,
    explainable,
    explanation_refused,
    reconciliation_table,
    residuals_table,
)
from billing.views.statement_tables import month_disputes_table
from ledger.access import Access
from ledger.core.periods import Span, to_ms
from ledger.models import Period, PeriodState
from ledger.querysets import visible_to
from ledger.services.audit import Actor
from ledger.views.acting import ActingPage
from ledger.views.page import Page, ledger_of
from ledger.views.tables import Table, TablePage

WORST_EPISODES = 10  # of a month, on its page; the API has all


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
            # A month that has only just begun says nothing yet: the one before it is what a tenant comes for.
            seen = statements_for(self.access)
            current = (
                seen.filter(Exists(StatementLine.objects.filter(statement=OuterRef("pk")))).first()
                or seen.first()
            )
            if current is None or len(self.access.tenant_ids) > 1:
                return redirect("billing:months")
            return redirect("billing:statement", month=current.period_id, tenant=current.tenant.slug)
        return self.answer(request, {})


class MonthsPage(TablePage):
    """Every month: its state, its capacity, what was charged and what needs a person."""

    template = "billing/months.html"

    def tables(self) -> list[Table]:
        currency = ledger_of(self.request).currency
        found = [months_table(lambda: self.rows, currency, self.access)]
        if not self.access.sees_all_tenants:
            found.append(statements_table(lambda: list(statements_for(self.access)), currency))
        return found

    @cached_property
    def rows(self) -> list[MonthRow]:
        return month_rows(self.access)

    def context(self) -> dict[str, Any]:
        return {"rows": self.rows}


def period_or_404(month: str, access: Access) -> Period:
    """The month; to a tenant only those that it has a statement of exist."""
    period = Period.objects.filter(month=month).first()
    if period is None:
        raise Http404
    if not access.sees_all_tenants and not visible_to(Statement.objects.filter(period=period), access):
        raise Http404
    return period


class MonthPage(KnownThenPage, ActingPage):
    """Where every GPU-hour went, who pays for it, what needs a person, and the proof that nothing is missing.

    Its one form explains a difference from what others counted; the closing has a page of its own.
    """

    template = "billing/month.html"
    refused = (PeriodError,)

    def may_act(self) -> bool:
        return self.access.may_tend_sources

    def words_for(self, error: Exception) -> str:
        return explanation_refused(error)

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str:
        if form.get("deed") != "explain":
            raise Http404
        return explain_from_form(period_or_404(kwargs["month"], self.access), form, by)

    def way_back(self) -> str:
        return f"{super().way_back()}#reconciliation"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.period = period_or_404(kwargs["month"], self.access)
        if not self.access.sees_all_tenants:
            mine = list(statements_for(self.access).filter(period=self.period))
            if len(mine) == 1:
                return redirect("billing:statement", month=self.period.month, tenant=mine[0].tenant.slug)
        return super().get(request, **kwargs)

    def page(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.period = period_or_404(kwargs["month"], self.access)
        return super().page(request, **kwargs)

    @cached_property
    def before(self) -> Period | None:
        return neighbour_before(self.period)

    @cached_property
    def tenants(self) -> list[TenantMonth]:
        return tenant_months(self.period, self.before, self.access, self.held)

    @cached_property
    def held(self) -> dict[int | None, dict[str, int]]:
        return gpu_us_by_tenant(self.period, self.access)

    @cached_property
    def requeued(self) -> dict[str, RequeuedRow]:
        return requeued_by_tenant(self.period, self.access)

    @cached_property
    def pools(self) -> list[PoolMonth]:
        return pool_months(self.period)

    @cached_property
    def preemptions(self) -> MonthPreemptions:
        return month_preemptions(self.period, self.access, Names(self.access, at=self.period.starts_at))

    @cached_property
    def comparisons(self) -> list[Line]:
        return month_lines(self.period)

    @cached_property
    def disputes(self) -> list[Dispute]:
        """Finance's and auditors' business alone."""
        return list(disputes_for(self.access).filter(statement__period=self.period))

    @cached_property
    def residuals(self) -> list[ResidualRow]:
        return [
            row
            for row in residuals(Span(to_ms(self.period.starts_at), to_ms(self.period.ends_at)))
            if row.unattributed
        ]

    @cached_property
    def preempting(self) -> MonthOfPreempting:
        if self.known_at is None:
            return preempting_of(self.period)
        # As it was known then: computed again for this look alone.
        ends_at = self.period.horizon_at or self.period.starts_at
        return preempting(Span(to_ms(self.period.starts_at), to_ms(ends_at)))

    def _balances(self) -> list[PoolBalance]:
        window = Span(to_ms(self.period.starts_at), to_ms(self.period.ends_at))
        return pool_balances(window, ledger_of(self.request), self.preempting)

    def tables(self, month: str) -> list[Table]:
        sees_all = self.access.sees_all_tenants
        currency = ledger_of(self.request).currency
        found = [
            tenants_table(
                lambda: self.tenants, lambda: self.requeued, self.before, currency, with_totals=sees_all
            )
        ]
        if sees_all:
            found += [
                whose_table(lambda: whose_time(self.held)),
                pools_table(lambda: self.pools, lambda: whole_of(self.pools), month),
                causes_table(lambda: self.preemptions.causes, month),
                pairs_table(lambda: self.preemptions.pairs, month),
                balance_table(self._balances, currency),
                episodes_table(lambda: worst_first(self.preempting.episodes)[:WORST_EPISODES], month),
                reconciliation_table(lambda: self.comparisons),
                residuals_table(lambda: self.residuals),
                month_disputes_table(lambda: self.disputes, currency),
            ]
        return found

    def context(self, month: str) -> dict[str, Any]:
        """Tenants of several statements see their table, the ledger's people all of it."""
        shared = {
            "month": month,
            "period": self.period,
            "before": self.before,
            "currency": ledger_of(self.request).currency,
            "tenants": self.tenants,
            "formats": list(MONTH_FORMATS),
            "changed": self._changed(),
        }
        return {**shared, **self._whole()} if self.access.sees_all_tenants else shared

    def _changed(self) -> list[str] | None:
        """Slugs of the tenants whose closed month the facts have left behind; None: page and statements agree."""
        changed = None if self.known_at is not None else changed_since_close(self.period, self.access)
        return None if changed is None else [row.tenant for row in self.tenants if row.tenant_id in changed]

    def _whole(self) -> dict[str, Any]:
        return {
            "pools": self.pools,
            "preemptions": self.preemptions,
            "whole": whole_of(self.pools) if len(self.pools) > 1 else None,
            "parts": PARTS_OF_CAPACITY,
            "exceptions": exceptions_of(self.period),
            "has_comparisons": bool(self.comparisons),
            "explainable": explainable(self.comparisons)
            if self.may_act() and self.period.state != PeriodState.CLOSED
            else [],
            "disputes": self.disputes,
            "has_residuals": bool(self.residuals),
            "proofs": month_proofs(self.period, self.pools, self.tenants, self.held),
            "total_minor": sum(row.total_minor for row in self.tenants),
        }


class MonthFile(Page):
    """A download of a month: the same bytes as from the API."""

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        period, name = period_or_404(kwargs["month"], self.access), kwargs["name"]
        if name not in MONTH_FORMATS:
            raise Http404
        pieces = month_file(period, name, self.access, excel=request.GET.get("excel") == "1")
        response = StreamingHttpResponse(pieces, content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{month_file_name(period, name)}"'
        return response
