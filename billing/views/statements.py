"""A tenant's bill, its files, and what each of its lines is the sum of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db.models import F, Prefetch, Q, QuerySet, prefetch_related_objects
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    QueryDict,
    StreamingHttpResponse,
)
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.api.periods import soon
from billing.charts.usage import daily_chart
from billing.core.bridge import Step
from billing.exports.files import FORMATS, file_name, statement_file
from billing.exports.statement_pdf import pdf_name, statement_pdf
from billing.models import (
    Approval,
    Decision,
    Dispute,
    PreemptionRecord,
    PreemptionShare,
    Statement,
    StatementApproval,
    StatementLine,
    StatementState,
)
from billing.selectors.borne import BORNE, Borne, borne_for_others, says
from billing.selectors.capacity_shares import SHARES, PoolShare, shares_of_capacity
from billing.selectors.changes import ChangedLine, Changes, Deed, changes_since
from billing.selectors.disputes import credits_asked, credits_waiting, disputes_for
from billing.selectors.names import Names
from billing.selectors.pages_bill import (
    LABEL,
    SPLITS,
    InsidePart,
    bridge_between,
    inside,
    issued_gpu_us,
    labels_inside,
    quota_of,
)
from billing.selectors.pages_months import HOLDER_CATEGORIES
from billing.selectors.pages_preemptions import ShownPreemption, requeued_of, shown
from billing.selectors.pages_proofs import statement_proofs
from billing.selectors.pages_statements import (
    Comparison,
    Lines,
    MonthOfDays,
    compared_with_before,
    lines_by_group,
    month_of_days,
    months_with_statement,
    preemptions_named,
)
from billing.selectors.preemption_rows import preemptions_of
from billing.services.approvals import approve_statement
from billing.services.credits import request_credit
from billing.services.deeds import decide
from billing.tasks import recompute_open_months
from billing.views.as_of import KnownThenPage
from billing.views.bill_lines import lines_table
from billing.views.disputes import MoneyPage, amount_of, statement_or_404
from billing.views.heat import Choice, choose
from billing.views.preemption_table import preemption_side_table
from billing.views.statement_tables import (
    borne_table,
    bridge_table,
    changes_table,
    daily_table,
    disputes_table,
    inside_table,
    known_since_table,
    shares_table,
    split_name,
)
from ledger.models import PeriodState, Role
from ledger.services.audit import Actor
from ledger.views.acting import text_of
from ledger.views.page import Page, billing_zone
from ledger.views.tables import Table
from ledger.wording import BRIDGE_STEPS, CATEGORY_MEANINGS
from ledger.wording_deeds import deed_name, object_name

PREEMPTIONS_A_SIDE = 12


class StatementPage(KnownThenPage, MoneyPage):
    """The bill, top to bottom as a person reads it."""

    template = "billing/statement.html"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        # Whoever may not see it now may not see what it was, nor have it computed.
        statement_or_404(kwargs["month"], kwargs["tenant"], self.access)
        return super().get(request, **kwargs)

    def page(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        self.statement = statement_or_404(kwargs["month"], kwargs["tenant"], self.access, with_content=True)
        in_order = Prefetch("lines", StatementLine.objects.order_by("position"))
        prefetch_related_objects([self.statement], in_order)
        return super().page(request, **kwargs)

    @cached_property
    def lines(self) -> list[StatementLine]:
        return list(self.statement.lines.all())

    @cached_property
    def groups(self) -> Lines:
        return lines_by_group(self.lines)

    @cached_property
    def records(self) -> dict[str, PreemptionRecord]:
        """Preemptions that lines name."""
        return preemptions_named(self.lines, self.access)

    @cached_property
    def comparison(self) -> Comparison | None:
        return compared_with_before(self.statement)

    @cached_property
    def bridge(self) -> list[Step] | None:
        if self.comparison is None:
            return None
        return bridge_between(self.comparison.before, self.statement, self.lines)

    @cached_property
    def inside(self) -> list[InsidePart]:
        return inside(self.statement, self.split[0])

    @cached_property
    def split(self) -> tuple[str, list[Choice]]:
        """What the month is split by, and what it can be: teams first where workloads name them."""
        names = [f"{LABEL}{label}" for label in labels_inside(self.statement)]
        names.sort(key=lambda name: name != f"{LABEL}team")
        ordered = [*names[:1], *SPLITS, *names[1:]]
        return choose(self.request, "split", {name: str(split_name(name)) for name in ordered})

    @cached_property
    def borne(self) -> list[Borne]:
        return borne_for_others(self.statement)

    @cached_property
    def shares(self) -> list[PoolShare]:
        return shares_of_capacity(self.statement)

    @property
    def not_frozen(self) -> list[str]:
        """Figures that an issued statement was issued without: they follow the books as they stand."""
        if self.statement.state != StatementState.ISSUED:
            return []
        return [name for name in (BORNE, SHARES) if not says(self.statement, name)]

    @cached_property
    def disputes(self) -> list[Dispute]:
        return list(disputes_for(self.access).filter(statement=self.statement))

    @cached_property
    def days(self) -> MonthOfDays:
        return month_of_days(self.statement, billing_zone(self.request))

    @cached_property
    def changes(self) -> Changes | None:
        return changes_since(self.statement, self.access)

    def _line_of(self, changed: ChangedLine) -> str | None:
        """What is gone from the statement, or only posted in a later month, has no line here."""
        position = next((line.position for line in self.lines if line.key == changed.key), None)
        of_statement = [self.statement.period_id, self.statement.tenant.slug]
        return None if position is None else reverse("billing:statement-line", args=[*of_statement, position])

    def tables(self, month: str, tenant: str) -> list[Table]:
        statement, currency = self.statement, self.statement.currency
        sees_ingest = self.access.may_read_ingest
        tables = [
            lines_table(statement, lambda: self.groups, lambda: self.records),
            inside_table(lambda: self.inside, self.split[0], currency),
            shares_table(lambda: self.shares),
            borne_table(lambda: self.borne, currency),
            disputes_table(lambda: self.disputes, statement),
            daily_table(self.days),
            changes_table(lambda: self.changes.lines if self.changes else [], currency, self._line_of),
            known_since_table(
                lambda: self.changes.events if self.changes else [], leads_to_batches=sees_ingest
            ),
            *self._preemption_tables(),
        ]
        if self.comparison is not None and self.bridge is not None:
            tables.insert(0, bridge_table(lambda: self.bridge or [], self.comparison.before, statement))
        return tables

    def context(self, month: str, tenant: str) -> dict[str, Any]:
        statement, lines = self.statement, self.lines
        days = self.days
        return {
            "month": month,
            "switchable_months": months_with_statement(statement.tenant, self.access),
            "statement": statement,
            "tenant": statement.tenant,
            "comparison": self.comparison,
            "bridge": self.bridge,
            "bridge_steps": BRIDGE_STEPS,
            "quota": quota_of(statement),
            "splits": self.split[1],
            "inside_gpu_us": sum(part.gpu_us for part in self.inside),
            "issued_gpu_us": issued_gpu_us(statement),
            "not_frozen": self.not_frozen,
            "borne": self.borne,
            "shares": self.shares,
            "disputes": self.disputes,
            "days": days,
            "chart": daily_chart(days),
            "lines": self.groups,
            "unpriced": any(line.amount_minor is None for line in lines),
            "proofs": statement_proofs(statement, lines, days.gpu_us),
            "changes": self.changes,
            "deeds": [_on_the_trail(deed) for deed in self.changes.deeds] if self.changes else [],
            "approval": self._approval(),
            "waiting_credits": self._waiting_credits(),
            "requeued": requeued_of(statement),
            "meanings": [(name, CATEGORY_MEANINGS[name], days.gpu_us[name]) for name in HOLDER_CATEGORIES],
            "formats": list(FORMATS),
        }

    def _approval(self) -> StatementApproval | None:
        """The last one, for whoever runs the ledger; it may be of an earlier draft."""
        if not self.access.sees_all_tenants:
            return None
        return StatementApproval.objects.filter(statement=self.statement).defer("content").last()

    def _waiting_credits(self) -> list[tuple[Approval, int]]:
        """What was asked for and not decided, with its amount in micro units; finance's and auditors' business."""
        if not self.access.roles & {Role.FINANCE, Role.AUDITOR}:
            return []
        return [(one, int(one.payload["amount_micro"])) for one in credits_waiting(self.statement)]

    def _decide(self, statement: Statement, form: QueryDict, by: Actor) -> str:
        """A second person's word on a credit of this statement; whoever asked can only withdraw."""
        try:
            wanted = UUID(form.get("approval", ""))
        except ValueError:
            raise Http404 from None
        if not credits_asked(statement).filter(pk=wanted).exists():
            raise Http404
        is_approved = form.get("decision") == Decision.APPROVED
        decision = Decision.APPROVED if is_approved else Decision.REJECTED
        decide(wanted, decision, by, text_of(form, "note"))
        soon(recompute_open_months.delay)
        if is_approved:
            return _credit_granted(statement)
        return _("The credit is not granted.")

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str:
        """Finance approves the draft as it was looked at, gives money back, or decides on a colleague's credit."""
        statement = statement_or_404(kwargs["month"], kwargs["tenant"], self.access)
        if not self.access.is_finance:
            raise PermissionDenied
        if form.get("deed") == "decide":
            return self._decide(statement, form, by)
        if form.get("deed") == "approve":
            approve_statement(statement, text_of(form, "sha256"), by)
            return _("The draft is approved as it is now.")
        if form.get("deed") != "credit":
            raise PermissionDenied
        amount_micro, reason = amount_of(form), text_of(form, "reason")
        approval = request_credit(statement.tenant, statement.period, amount_micro, reason, by)
        soon(recompute_open_months.delay)
        if approval is None:
            return _credit_granted(statement)
        return _("The credit is asked for. A second person in finance decides it on the statement.")

    @cached_property
    def _sides(self) -> dict[str, QuerySet[PreemptionRecord]]:
        """What befell the tenant, and what it caused, those that cost most first."""
        statement, mine = self.statement, [self.statement.tenant_id]
        worst = preemptions_of([statement.tenant], statement.period).order_by(
            F("lost_gpu_us").desc(nulls_last=True), "-waiting_gpu_us", "-decided_at", "pk"
        )
        hit = PreemptionShare.objects.filter(account__tenant__in=mine).values("record")
        return {
            "victim": worst.filter(pk__in=hit),
            "cause": worst.filter(Q(preemptor__in=mine) | Q(preemptor__service__owner__in=mine)),
        }

    @cached_property
    def _names(self) -> Names:
        return Names(self.access, at=self.statement.period.starts_at)

    def _preemption_tables(self) -> list[Table]:
        """As the tenant itself reads them, also where the ledger's own people look at its bill."""
        mine = frozenset({self.statement.tenant_id})

        def side_table(role: str, label: str, hide: str) -> Table:
            def present(records: Sequence[PreemptionRecord]) -> list[ShownPreemption]:
                sides = [one for record in records for one in shown(record, self._names, self.access, mine)]
                return [one for one in sides if one.role == role]

            return preemption_side_table(
                f"as_{role}",
                label,
                lambda: self._sides[role],
                present,
                lambda: self._names,
                self.access,
                hide=hide,
                rows_a_page=PREEMPTIONS_A_SIDE,
            )

        return [
            side_table("victim", _("Preemptions as victim"), "victim"),
            side_table("cause", _("Preemptions as cause"), "preemptor"),
        ]


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


def _on_the_trail(deed: Deed) -> tuple[Deed, str, str]:
    """With its name and where it stands on the audit trail: such deeds are told only to who may read that."""
    asked = urlencode({"deeds.action": deed.action, "deeds.object_id": deed.object_id})
    name = f"{object_name(deed.object_type)}: {deed_name(deed.action)}"
    return deed, name, f"{reverse('billing:audit')}?{asked}#table-deeds"


def _credit_granted(statement: Statement) -> str:
    """Where the tenant will see it: a closed statement never changes (domain.md section 10)."""
    if statement.period.state == PeriodState.CLOSED:
        return _(
            "The credit is granted. This statement is closed and stays as it is: the statement of the earliest "
            "month that is not closed shows it, once it is computed."
        )
    return _("The credit is granted; the statement shows it once it is computed.")
