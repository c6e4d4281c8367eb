"""What one line of a bill is the sum of, and disputes: opened on the line that was shown, answered wherever it went."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.api.periods import soon
from billing.core.rating_lines import Line
from billing.models import Dispute, DisputeState, Statement, StatementLine
from billing.selectors.disputes import disputes_for, name_of_line
from billing.selectors.pages_lines import LineDetail, line_detail
from billing.selectors.pages_statements import months_with_statement, preemptions_named
from billing.selectors.statements import statements_for
from billing.services.approvals import ApprovalError
from billing.services.disputes import (
    DisputeError,
    adjust_dispute,
    answer_dispute,
    dispute_named,
    reject_dispute,
)
from billing.tasks import recompute_open_months
from billing.views.line_tables import line_tables
from billing.views.statement_tables import dispute_place
from ledger.access import Access
from ledger.core.units import parse_micro
from ledger.models import PeriodState
from ledger.services.audit import Actor
from ledger.views.acting import ActingPage, text_of
from ledger.views.page import shown_zone
from ledger.views.tables import Table
from ledger.wording import DISPUTE_PROBLEMS


def statement_or_404(month: str, tenant: str, access: Access, *, with_content: bool = False) -> Statement:
    """The same 404 whether there is no such statement or it is somebody else's."""
    rows = statements_for(access).filter(period=month, tenant__holder__slug=tenant)
    statement = (rows.defer(None) if with_content else rows).first()
    if statement is None:
        raise Http404
    return statement


class MoneyPage(ActingPage):
    """What a person's word about money can be refused for, in words."""

    refused = (DisputeError, ApprovalError)

    def may_act(self) -> bool:
        return True  # who sees a statement may say something about it; each step asks for its own right

    def words_for(self, error: Exception) -> str:
        return str(DISPUTE_PROBLEMS.get(getattr(error, "code", ""), error))


class StatementLinePage(MoneyPage):
    """What one line is the sum of: days, then the hours of a day, and the work that ran then; and its dispute.

    The address names the line by the number that is printed. Facts can give that to another line at any time, so the
    form of a dispute names it by itself.
    """

    template = "billing/line.html"

    @cached_property
    def line(self) -> StatementLine:
        statement = statement_or_404(self.kwargs["month"], self.kwargs["tenant"], self.access)
        lines = statement.lines.order_by("position")
        if self.request.method == "POST":
            name = self.request.POST.get("line", "")
            line = next((one for one in lines if name_of_line(one) == name), None)
        else:
            line = lines.filter(position=self.kwargs["position"]).first()
        if line is None:
            raise Http404
        return line

    @cached_property
    def detail(self) -> LineDetail:
        day = self.request.GET.get("day", "")
        return line_detail(self.line.statement, self.line, self.access, day, shown_zone(self.request))

    def tables(self, month: str, tenant: str, position: int) -> list[Table]:
        return line_tables(
            self.line,
            lambda: self.detail,
            leads_to_pools=self.access.sees_all_tenants,
            zone=shown_zone(self.request),
        )

    def context(self, month: str, tenant: str, position: int) -> dict[str, Any]:
        line, statement = self.line, self.line.statement
        disputes = list(disputes_for(self.access).filter(statement=statement, line_key=line.key))
        return {
            "month": month,
            "statement": statement,
            "tenant": statement.tenant,
            "line": line,
            "line_name": name_of_line(line),
            "records": preemptions_named([line], self.access),
            "detail": self.detail,
            "zone": shown_zone(self.request).key,
            "switchable_months": months_with_statement(statement.tenant, self.access),
            "disputes": disputes,
            "may_dispute": statement.tenant_id in self.access.tenant_ids
            and all(one.state in ("adjusted", "rejected") for one in disputes),
            "may_answer": self.access.is_finance,
            "may_adjust": True,
            "typed": self.request.POST,
        }

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str | HttpResponseBase:
        """The tenant disputes the line that it looked at."""
        statement = statement_or_404(kwargs["month"], kwargs["tenant"], self.access)
        if form.get("deed") != "dispute" or statement.tenant_id not in self.access.tenant_ids:
            raise PermissionDenied
        try:
            dispute_named(statement, form.get("line", ""), form.get("amount", ""), text_of(form, "text"), by)
        except DisputeError as error:
            if error.code != "line_gone":
                raise
            messages.error(self.request, self.words_for(error))
            place = reverse("billing:statement", args=[kwargs["month"], kwargs["tenant"]])
            return HttpResponseRedirect(place, status=303)
        return _("The dispute is open. Finance answers it here; what is said stays on record.")

    def way_back(self) -> str:
        """To the line, where it stands by now."""
        named = [self.kwargs["month"], self.kwargs["tenant"], self.line.position]
        return reverse("billing:statement-line", args=named)


class DisputePage(MoneyPage):
    """A dispute by itself, whether its line still stands or facts have left nothing of it; finance answers here."""

    template = "billing/dispute.html"

    @cached_property
    def dispute(self) -> Dispute:
        statement = statement_or_404(self.kwargs["month"], self.kwargs["tenant"], self.access)
        found = disputes_for(self.access).filter(statement=statement, pk=self.kwargs["dispute_id"]).first()
        if found is None:
            raise Http404
        return found

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        # Read anew after a refusal, which may have been of a state that somebody else has changed.
        self.__dict__.pop("dispute", None)
        return super().get(request, **kwargs)

    def tables(self, **kwargs: Any) -> list[Table]:
        return []

    def context(self, **kwargs: Any) -> dict[str, Any]:
        dispute = self.dispute
        category, pool = Line.category_and_pool(dispute.line_key)
        return {
            "month": kwargs["month"],
            "statement": dispute.statement,
            "tenant": dispute.statement.tenant,
            "dispute": dispute,
            "category": category,
            "pool": pool,
            "place": dispute_place(dispute) if dispute.line_position is not None else "",
            "may_answer": self.access.is_finance,
            "may_adjust": dispute.line_position is not None,
            "typed": self.request.POST,
        }

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str:
        dispute, deed, text = self.dispute, form.get("deed", ""), text_of(form, "text")
        if not self.access.is_finance:
            raise PermissionDenied
        if deed == "answer":
            answer_dispute(dispute, text, by)
            return _("Answered; the dispute stays open.")
        if deed == "reject":
            reject_dispute(dispute, text, by)
            return _("The dispute is rejected.")
        if deed != "adjust":
            raise PermissionDenied
        state = adjust_dispute(dispute, amount_of(form), text, by).state
        soon(recompute_open_months.delay)
        if state == DisputeState.ADJUSTED:
            if dispute.statement.period.state == PeriodState.CLOSED:
                return _(
                    "The adjustment is granted. This statement is closed and stays as it is: the statement of the "
                    "earliest month that is not closed shows it, once it is computed."
                )
            return _("The adjustment is granted; the statement shows it once it is computed.")
        return _("The adjustment is proposed. A second person in finance decides it on the statement.")

    def way_back(self) -> str:
        return dispute_place(self.dispute)


def amount_of(form: QueryDict) -> int:
    """The amount that was typed, in micro units. Raises DisputeError `bad_amount`."""
    try:
        amount_micro = parse_micro(text_of(form, "amount", 30))
    except ValueError:
        raise DisputeError("bad_amount", "not a decimal number") from None
    if not 0 < amount_micro < 2**63:
        raise DisputeError("bad_amount", "a credit is more than 0")
    return amount_micro
