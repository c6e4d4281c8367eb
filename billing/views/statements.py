"""A tenant's bill, its files, and what each of its lines is the sum of."""

from __future__ import annotations

from typing import Any

from django.db.models import F, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from billing.charts import daily_chart
from billing.exports.files import FORMATS, file_name, statement_file
from billing.exports.statement_pdf import pdf_name, statement_pdf
from billing.models import PreemptionRecord, PreemptionShare, Statement, StatementState
from billing.selectors.changes import changes_since
from billing.selectors.names import Names
from billing.selectors.pages_lines import line_detail
from billing.selectors.pages_months import HOLDER_CATEGORIES
from billing.selectors.pages_preemptions import ShownPreemption, requeued_of, shown
from billing.selectors.pages_proofs import statement_proofs
from billing.selectors.pages_statements import (
    compared_with_before,
    lines_by_group,
    month_of_days,
    months_with_statement,
    preemptions_named,
)
from billing.selectors.preemption_rows import preemptions_of
from billing.selectors.statements import statements_for
from ledger.access import Access
from ledger.views.page import Page, billing_zone
from ledger.wording import CATEGORY_MEANINGS

PREEMPTIONS_A_SIDE = 12


def statement_or_404(month: str, tenant: str, access: Access, *, with_content: bool = False) -> Statement:
    """The same 404 whether there is no such statement or it is somebody else's."""
    rows = statements_for(access).filter(period=month, tenant__holder__slug=tenant)
    statement = (rows.defer(None) if with_content else rows).first()
    if statement is None:
        raise Http404
    return statement


class StatementPage(Page):
    """The bill, top to bottom as a person reads it."""

    template = "billing/statement.html"

    def context(self, month: str, tenant: str, **_: Any) -> dict[str, Any]:
        statement = statement_or_404(month, tenant, self.access, with_content=True)
        days = month_of_days(statement, billing_zone(self.request))
        lines = list(statement.lines.order_by("position"))
        return {
            "month": month,
            "switchable_months": months_with_statement(statement.tenant, self.access),
            "statement": statement,
            "tenant": statement.tenant,
            "comparison": compared_with_before(statement),
            "days": days,
            "chart": daily_chart(days),
            "lines": lines_by_group(lines),
            "unpriced": any(line.amount_minor is None for line in lines),
            "proofs": statement_proofs(statement, lines, days.gpu_us),
            "changes": changes_since(statement, self.access),
            "requeued": requeued_of(statement),
            "records": preemptions_named(lines, self.access),
            "meanings": [(name, CATEGORY_MEANINGS[name], days.gpu_us[name]) for name in HOLDER_CATEGORIES],
            "formats": list(FORMATS),
            **self._preemptions(statement),
        }

    def _preemptions(self, statement: Statement) -> dict[str, Any]:
        """As the tenant itself reads them, also where the ledger's own people look at its bill."""
        records = preemptions_of(statement.tenant, statement.period)
        names = Names(self.access, at=statement.period.starts_at)
        mine = frozenset({statement.tenant_id})
        worst = records.order_by(
            F("lost_gpu_us").desc(nulls_last=True), "-waiting_gpu_us", "-decided_at", "pk"
        )
        hit = worst.filter(pk__in=PreemptionShare.objects.filter(account__tenant__in=mine).values("record"))
        caused = worst.filter(Q(preemptor__in=mine) | Q(preemptor__service__owner__in=mine))
        return {
            "victim_count": hit.count(),
            "victim_of": self._sides(hit, names, mine, "victim"),
            "cause_count": caused.count(),
            "cause_of": self._sides(caused, names, mine, "cause"),
        }

    def _sides(
        self, records: QuerySet[PreemptionRecord], names: Names, mine: frozenset[int], role: str
    ) -> list[ShownPreemption]:
        """The first of them, from the tenant's side."""
        sides = [
            side
            for record in records[:PREEMPTIONS_A_SIDE]
            for side in shown(record, names, self.access, mine)
        ]
        return [side for side in sides if side.role == role]


class StatementFile(Page):
    """A download of a statement: the same bytes as from the API and the command line."""

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        statement = statement_or_404(kwargs["month"], kwargs["tenant"], self.access)
        name = kwargs["name"]
        if name not in FORMATS:
            raise Http404
        excel = request.GET.get("excel") == "1"
        response = StreamingHttpResponse(
            statement_file(statement, name, self.access, excel=excel),
            content_type="text/csv; charset=utf-8",
        )
        response["Content-Disposition"] = f'attachment; filename="{file_name(statement, name)}"'
        fixed = statement.state == StatementState.ISSUED
        response["Cache-Control"] = "private, max-age=31536000, immutable" if fixed else "private, no-cache"
        return response


class StatementPdf(Page):
    """The statement as an A4 document, in the reader's language."""

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        statement = statement_or_404(kwargs["month"], kwargs["tenant"], self.access, with_content=True)
        response = HttpResponse(statement_pdf(statement, self.access), content_type="application/pdf")
        response["Content-Disposition"] = f'inline; filename="{pdf_name(statement)}"'
        # The same address answers in several languages, so it is asked for again.
        response["Cache-Control"] = "private, no-cache"
        return response


class StatementLinePage(Page):
    """What one line is the sum of: days, then the hours of a day, and the work that ran then."""

    template = "billing/line.html"

    def context(self, month: str, tenant: str, position: int, **_: Any) -> dict[str, Any]:
        statement = statement_or_404(month, tenant, self.access)
        line = statement.lines.filter(position=position).first()
        if line is None:
            raise Http404
        return {
            "month": month,
            "statement": statement,
            "tenant": statement.tenant,
            "line": line,
            "records": preemptions_named([line], self.access),
            "detail": line_detail(statement, line, self.access, self.request.GET.get("day", "")),
        }
