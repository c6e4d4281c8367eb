"""What a change of terms would do to a month, before it is proposed and before it is approved (domain.md section 8)."""

from __future__ import annotations

import json
import math
import tomllib
from datetime import date, datetime, time
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.shortcuts import render
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.api.periods import soon
from billing.core.configuration import ConfigurationError, from_document
from billing.models import Approval, ApprovalKind, EffectRun, Policy, RunState
from billing.services.approvals import ApprovalError
from billing.services.effects import WORKER_DIED, compared_rows, start_effect
from billing.services.policy_comparison import Compared
from billing.services.proposals import TERMS, propose
from billing.tasks import go_on_comparing, recompute_open_months
from billing.views.closing_words import refusal
from billing.views.days import start_of_day
from ledger.core.units import micro_text
from ledger.models import Period
from ledger.services.audit import Actor
from ledger.views.acting import ActingPage, Refused, text_of
from ledger.views.page import ledger_of, runs_the_ledger
from ledger.views.tables import TEXT_FILTER, Column, Table, micro_in
from ledger.wording import PAYERS
from ledger.wording_sentences import in_words, kept_in_words

LONGEST = 100_000
LONGEST_NUMBER = 18
PROGRESS = "effect-progress"
FIELDS = (
    "deed",
    "preemption_charged_to",
    "unreserved_idle",
    "lend_credit",
    "lend_share",
    "valid_from",
    "document",
)
PROBLEMS = {
    "unknown_version": gettext_lazy("There is no such version any more."),
    "failed": gettext_lazy("It could not be computed; the worker's log says why."),
    WORKER_DIED: gettext_lazy(
        "Each worker that began to compute it was killed, most likely for want of memory. It is given up: give workers "
        "more memory, then ask anew."
    ),
    "not_computed": gettext_lazy("That month has not been computed yet; choose another."),
    "counts_differ": gettext_lazy(
        "undelivered_counts_pending changes how time is split, not who bears it; its effect cannot be shown."
    ),
    "not_comparable": gettext_lazy(
        "This changes how time is split, not who bears it; its effect cannot be shown beforehand."
    ),
    "no_change": gettext_lazy("It is so already; nothing would change."),
    "not_month_start": gettext_lazy("A contract changes only at the start of a month, in the billing zone."),
}
_STEPS = {
    "now": gettext_lazy("the month as it stands"),
    "then": gettext_lazy("the month with the change"),
}
PREEMPTION_PAYERS = ("entitlement", "victim", "preemptor", "platform")
IDLE_PAYERS = {
    "platform": gettext_lazy("the platform"),
    "proportional": gettext_lazy("tenants, by what they held"),
    "even": gettext_lazy("tenants, evenly"),
}
LEND_CREDITS = {
    "borrower_paid": gettext_lazy("what the borrower paid"),
    "share": gettext_lazy("a share of the reserved rate"),
}


class EffectPage(ActingPage):
    """`?run=`: a preview, its progress while a worker computes it, and what came out. `?approval=`: what waits for a
    second person, with the newest preview of it. Else a form for a policy, or for a row of the file.
    """

    template = "billing/effect.html"
    allows = staticmethod(runs_the_ledger)
    refused = (ConfigurationError, ApprovalError)

    def may_act(self) -> bool:
        return True  # looking is for whoever runs the ledger; proposing asks for more

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if request.headers.get("HX-Target") == PROGRESS and self.run is not None:
            return self._progress(request, self.run)
        response = super().get(request, **kwargs)
        response["Vary"] = "HX-Request, HX-Target"
        return response

    def _progress(self, request: HttpRequest, run: EffectRun) -> HttpResponse:
        """Once it has ended, the browser is told to fetch the page anew: then there is a result."""
        response = render(request, "billing/_effect_progress.html", {"progress": progress(run)})
        response["Cache-Control"] = "private, no-store"
        if run.state != RunState.RUNNING:
            response["HX-Refresh"] = "true"
        return response

    def words_for(self, error: Exception) -> str:
        if isinstance(error, ConfigurationError):
            return _("That cannot be used: %(why)s") % {"why": in_words(error.told)}
        code = getattr(error, "code", "")
        return str(PROBLEMS[code]) if code in PROBLEMS else refusal(error)

    @cached_property
    def run(self) -> EffectRun | None:
        runs = EffectRun.objects.exclude(asked__has_key="policies").select_related("period", "approval")
        asked = self.request.GET.get("run", "")
        if asked:
            is_number = asked.isascii() and asked.isdecimal() and len(asked) <= LONGEST_NUMBER
            found = runs.filter(pk=int(asked)).first() if is_number else None
            if found is None:
                raise Http404
            return found
        if self.asked_approval is None:
            return None
        return runs.filter(approval=self.asked_approval).order_by("pk").last()

    @cached_property
    def asked_approval(self) -> Approval | None:
        text = self.request.GET.get("approval", "")
        if not text:
            return None
        try:
            found = Approval.objects.filter(pk=UUID(text), kind=ApprovalKind.TERMS).first()
        except ValueError:
            found = None
        if found is None:
            raise Http404
        return found

    @property
    def approval(self) -> Approval | None:
        return self.asked_approval or (self.run.approval if self.run is not None else None)

    @property
    def can_propose(self) -> bool:
        """Once its effect has been seen, or cannot be."""
        run = self.run
        return run is not None and run.state == RunState.DONE and self.approval is None and "row" in run.asked

    @cached_property
    def months(self) -> list[Period]:
        """The newest first; those that are over before the running one: a whole month says more than its first days."""
        rows = list(Period.objects.filter(horizon_at__isnull=False).order_by("-month"))
        now = timezone.now()
        return sorted(rows, key=lambda period: period.ends_at > now)

    def period_named(self, month: str) -> Period | None:
        return next((one for one in self.months if one.month == month), next(iter(self.months), None))

    @cached_property
    def compared(self) -> list[Compared]:
        return [] if self.run is None else compared_rows(self.run)

    def tables(self) -> list[Table]:
        return [effect_table(lambda: self.compared, ledger_of(self.request).currency)]

    def context(self) -> dict[str, Any]:
        run, rows = self.run, self.compared
        fields = self.request.POST if self.problem else run.typed if run is not None else {}
        policy = _policy_in_force()
        return {
            "approval": self.approval,
            "run": run,
            "progress": progress(run) if run is not None else None,
            "period": run.period if run is not None else self.period_named(self.request.GET.get("month", "")),
            "months": [one.month for one in self.months],
            "is_compared": bool(rows),
            "touched": sum(1 for one in rows if one.difference_micro),
            "fields": fields,
            "shown_row": json.dumps(run.asked.get("row", {}), ensure_ascii=False) if run is not None else "",
            "may_propose": self.access.is_finance and self.can_propose,
            "preemption_payers": [
                (code, PAYERS.get(code, _("by entitlement"))) for code in PREEMPTION_PAYERS
            ],
            "idle_payers": list(IDLE_PAYERS.items()),
            "lend_credits": list(LEND_CREDITS.items()),
            "lending": {
                **_lending(policy),
                **{name: fields[name] for name in _lending(policy) if fields.get(name)},
            },
            "policy": policy,
            "unshown": _unshown(run) if run is not None and run.problem else "",
        }

    def do(self, form: QueryDict, by: Actor, **_kwargs: Any) -> str | HttpResponseBase:
        deed = form.get("deed", "")
        if deed == "propose":
            return self._propose(form, by)
        if deed == "approval" and self.approval is not None:
            return self._start(form, by, self.approval.payload, approval=self.approval)
        if deed not in ("policy", "document"):
            raise Http404
        zone = ledger_of(self.request).billing_time_zone
        table, row = _policy_of(form, zone) if deed == "policy" else _document_of(form)
        from_document({table: [row]})
        typed = {name: text_of(form, name, LONGEST) for name in FIELDS}
        return self._start(form, by, {"table": table, "row": row}, typed=typed)

    def _start(self, form: QueryDict, by: Actor, asked: dict[str, Any], **about: Any) -> HttpResponseBase:
        period = self.period_named(text_of(form, "month", 7))
        if period is None:
            raise Refused(_("There are no books of that month."))
        run = start_effect(period, asked, by, **about)
        if run.state == RunState.RUNNING:
            soon(go_on_comparing.delay)
        query = urlencode({"run": run.pk})
        return HttpResponseRedirect(f"{self.request.path}?{query}", status=303)

    def _propose(self, form: QueryDict, by: Actor) -> str:
        if not self.access.is_finance:
            raise PermissionDenied
        if self.run is None or not self.can_propose:
            raise Refused(_("Look at its effect first."))
        approval, _changes = propose(
            self.run.asked["table"], self.run.asked["row"], text_of(form, "reason"), by
        )
        if approval is None:
            soon(recompute_open_months.delay)
            return _("It is in force; open months that it touches are computed again.")
        return _("It is proposed: a second person in finance decides in the settings.")

    def way_back(self) -> str:
        return self.request.path


def progress(run: EffectRun) -> dict[str, Any]:
    steps = list(EffectRun.STEPS)
    return {
        "run": run,
        "is_running": run.state == RunState.RUNNING,
        "has_begun": bool(run.step),
        "done": steps.index(run.step) if run.step in steps else 0,
        "all": len(steps),
        "at_work": str(_STEPS.get(run.step, "")),
    }


def _unshown(run: EffectRun) -> str:
    """Why there is nothing to see."""
    if run.problem in PROBLEMS:
        return str(PROBLEMS[run.problem])
    return _("That cannot be used: %(why)s") % {"why": kept_in_words(run.detail)}


def _policy_in_force() -> Policy:
    """Where there is none, the defaults of the design."""
    return Policy.objects.filter(valid_from__lte=timezone.now()).order_by("valid_from").last() or Policy()


def _lending(policy: Policy) -> dict[str, str]:
    """The policy's credit for lending, as the form asks for it."""
    if policy.lend_credit in LEND_CREDITS:
        return {"lend_credit": policy.lend_credit, "lend_share": ""}
    return {"lend_credit": "share", "lend_share": policy.lend_credit}


def _policy_of(form: QueryDict, zone: str) -> tuple[str, dict[str, Any]]:
    """The policy in force with what was chosen, from an instant on; a day means its first one in the billing zone."""
    now, lend_credit, begins = (
        _policy_in_force(),
        text_of(form, "lend_credit", 20),
        text_of(form, "valid_from", 40),
    )
    if lend_credit == "share":
        lend_credit = text_of(form, "lend_share", 20)
        if not lend_credit:
            raise Refused(_("Give the share of the reserved rate, such as 0.5."))
    day = start_of_day(begins, zone)
    row: dict[str, Any] = {
        "preemption_charged_to": form.get("preemption_charged_to", ""),
        "unreserved_idle": form.get("unreserved_idle", ""),
        "lend_credit": lend_credit or now.lend_credit,
        "min_confidence": micro_text(now.min_confidence_ppm),
        "undelivered_counts_pending": now.undelivered_counts_pending,
        "names_visible": now.names_visible,
        "purpose_payers": now.purpose_payers,
    }
    return "policy", {**row, "valid_from": begins if day is None else day.isoformat()}


def _document_of(form: QueryDict) -> tuple[str, dict[str, Any]]:
    """One row of one table, as in the configuration file."""
    try:
        document = tomllib.loads(text_of(form, "document", LONGEST))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Refused(_("That is no TOML: %(why)s") % {"why": error}) from None
    rows = next(iter(document.values()), None)
    is_row = len(document) == 1 and isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0], dict)
    table = next(iter(document), "")
    if not is_row or table not in TERMS:
        wanted = _("Write one row of one table, such as [[contract]]: %(tables)s.")
        raise Refused(wanted % {"tables": ", ".join(TERMS)})
    return table, _storable(document[table][0])


def _storable(value: Any) -> Any:
    """As everything that waits for a second person is kept: TOML's instants as text, and nothing no column can hold."""
    if isinstance(value, dict):
        return {_storable(key): _storable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_storable(one) for one in value]
    is_beyond = (isinstance(value, float) and not math.isfinite(value)) or (
        isinstance(value, int) and abs(value) >= 2**63
    )
    if is_beyond or (isinstance(value, str) and "\x00" in value):
        raise Refused(_("There is a value in it that cannot be kept: %(value)r.") % {"value": value})
    return value.isoformat() if isinstance(value, datetime | date | time) else value


def effect_table(rows: Any, currency: str) -> Table:
    money = micro_in(currency)
    columns = [
        Column("account", _("Account"), html=lambda row: _account(row.account), filter=TEXT_FILTER),
        Column("now", _("As it stands"), money, of="base_micro", unit=currency),
        Column("then", _("With the change"), money, of="other_micro", unit=currency),
        Column("difference", _("Difference"), money, of="difference_micro", unit=currency),
        Column(
            "preemptions_now", _("Of it moved by preemptions"), money, of="base_moved_micro", unit=currency
        ),
        Column("preemptions_then", _("With the change"), money, of="other_moved_micro", unit=currency),
    ]

    def totals() -> dict[str, int]:
        return {column.key: sum(column.value(row) for row in rows()) for column in columns[1:]}

    return Table(
        "effect",
        rows,
        columns,
        label=_("Effect on the month"),
        totals=totals,
        totals_label=_("Total"),
        empty=_("Choose a change above, then look at its effect."),
    )


def preemption_payer(code: str) -> str:
    return str(PAYERS.get(code, _("by entitlement")))


def _account(name: str) -> str:
    kind, _colon, rest = name.partition(":")
    if kind == "tenant":
        return rest
    words = {"platform": _("platform"), "conversion": _("conversion"), "suspense": _("suspense")}
    return f"{words.get(kind, kind)} {rest}".strip()
