"""Closing a month, step by step: what blocks, who agreed, and how far the close is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from billing.api.periods import soon
from billing.core.sentences import sentence
from billing.models import Approval, ApprovalKind, CloseRun, Decision, RunState
from billing.selectors.pages_closing import closing_of, last_run
from billing.services.approvals import ApprovalError, approve_drafts
from billing.services.closing import start_close
from billing.services.deeds import decide
from billing.services.overrides import request_override
from billing.services.periods import PeriodError, open_review
from billing.tasks import close_month, recompute_open_months
from billing.views.closing_words import STEPS, refusal, shown_items
from billing.views.months import period_or_404
from billing.views.progress import how_far
from ledger.core.periods import Month
from ledger.models import Period
from ledger.services.audit import Actor
from ledger.views.acting import Refused, refuse_nul, text_of
from ledger.views.page import Page, runs_the_ledger
from ledger.wording_sentences import in_words, kept_in_words

PROGRESS = "close-progress"


class ClosingPage(Page):
    """The closing checklist of a month, its steps as buttons, and the progress of the close while it runs.

    `GET` is the section of the month's page (asked for by it), its progress alone (asked for by itself), or a page.
    `POST` takes one step, named by `step`, and leads back to the month.
    """

    template = "billing/closing.html"
    allows = staticmethod(runs_the_ledger)
    http_method_names = ["get", "head", "options", "post"]

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        period = period_or_404(kwargs["month"], self.access)
        target = request.headers.get("HX-Target", "")
        if target == PROGRESS:
            return self._progress(request, period)
        context = {"month": period.month, "period": period, **self._closing(period)}
        if target == "closing":
            response = render(request, "billing/_closing.html", {**context, "access": self.access})
            response["Cache-Control"] = "private, no-store"
        else:
            response = self.answer(request, context)
        response["Vary"] = "HX-Target"
        return response

    def _closing(self, period: Period) -> dict[str, Any]:
        closing = closing_of(period)
        return {
            "closing": closing,
            "items": shown_items(closing.items, period.month),
            "progress": progress(closing.run),
            "asks_me": [asked(one) for one in closing.waiting if one.requested_by != self.access.name],
            "asked_by_me": [one for one in closing.waiting if one.requested_by == self.access.name],
        }

    def _progress(self, request: HttpRequest, period: Period) -> HttpResponse:
        """Once it has ended, the browser is told to fetch the page anew: everything on it may have changed."""
        run = last_run(period)
        context = {"month": period.month, "progress": progress(run)}
        response = render(request, "billing/_closing_progress.html", context)
        response["Cache-Control"] = "private, no-store"
        if run is None or run.state != RunState.RUNNING:
            response["HX-Refresh"] = "true"
        return response

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        period = period_or_404(kwargs["month"], self.access)
        step = self._steps().get(request.POST.get("step", ""))
        if not self.access.is_finance or step is None:
            raise Http404
        try:
            refuse_nul(request.POST)
            messages.success(request, step(period, self.actor))
        except Refused as refused:
            messages.error(request, str(refused))
        except (PeriodError, ApprovalError) as error:
            messages.error(request, refusal(error))
        return HttpResponseRedirect(reverse("billing:month", args=[period.month]) + "#closing")

    def _steps(self) -> dict[str, Callable[[Period, Actor], str]]:
        return {
            "review": self._review,
            "approve": self._approve,
            "close": self._close,
            "override": self._override,
            "decide": self._decide,
        }

    def _review(self, period: Period, by: Actor) -> str:
        open_review(Month.parse(period.month), by)
        return _("The month is in review: its statements are drafts to look at, and follow late facts.")

    def _approve(self, period: Period, by: Actor) -> str:
        count = approve_drafts(period, self.request.POST.get("digest", ""), by)
        return _("%(count)s drafts are approved as they are now.") % {"count": count}

    def _close(self, period: Period, by: Actor) -> str:
        run = start_close(Month.parse(period.month), by)
        soon(lambda: close_month.delay(run.pk))
        return _("The close has begun; you can leave this page.")

    def _override(self, period: Period, by: Actor) -> str:
        approval = request_override(period, text_of(self.request.POST, "reason"), by)
        if approval is None:
            return self._close(period, by)
        return _("The override is asked for. A second person in finance sees it here and decides.")

    def _decide(self, period: Period, by: Actor) -> str:
        """Only what concerns this month; approving an override does not yet close anything."""
        approval = self._asked_for(period)
        is_approved = self.request.POST.get("decision") == Decision.APPROVED
        decision = Decision.APPROVED if is_approved else Decision.REJECTED
        decide(approval.pk, decision, by, text_of(self.request.POST, "note"))
        soon(recompute_open_months.delay)
        if is_approved:
            return _("The override is approved: what it names does not block any more. Close the month next.")
        return _("The override is off; what it named still blocks.")

    def _asked_for(self, period: Period) -> Approval:
        try:
            wanted = UUID(self.request.POST.get("approval", ""))
        except ValueError:
            raise Http404 from None
        approval = Approval.objects.filter(
            pk=wanted, kind=ApprovalKind.OVERRIDE, payload__month=period.month
        ).first()
        if approval is None:
            raise Http404
        return approval


def asked(approval: Approval) -> dict[str, Any]:
    """What the second person has to know: who wants to close over what, and why."""
    items = [
        (in_words(sentence(f"checklist_{one['item']}")), kept_in_words(one["evidence"]))
        for one in approval.payload["items"]
    ]
    return {"approval": approval, "over": items}


def progress(run: CloseRun | None) -> dict[str, Any] | None:
    """How far the close is: steps done of all, each with its words; None before the first attempt."""
    if run is None:
        return None
    return {
        **how_far(run),
        "message": kept_in_words(run.outcome),
        "steps": [
            {
                **step,
                "title": STEPS.get(step["name"], step["name"]),
                "detail": kept_in_words(step.get("detail", "")),
            }
            for step in run.steps
        ],
    }
