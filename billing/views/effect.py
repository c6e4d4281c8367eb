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
from django.http import Http404, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.api.periods import soon
from billing.core.configuration import ConfigurationError, from_document
from billing.models import Approval, ApprovalKind, Policy
from billing.services.approvals import ApprovalError
from billing.services.policy_comparison import Compared, ComparisonError, compare_change
from billing.services.proposals import TERMS, propose
from billing.tasks import recompute_open_months
from billing.views.closing_words import refusal
from ledger.core.units import micro_text
from ledger.models import Period
from ledger.services.audit import Actor
from ledger.views.acting import ActingPage, Refused, text_of
from ledger.views.page import ledger_of, runs_the_ledger
from ledger.views.tables import TEXT_FILTER, Column, Table, micro_in
from ledger.wording import PAYERS

LONGEST = 100_000
IN_SESSION = "effect"
FIELDS = ("deed", "preemption_charged_to", "unreserved_idle", "lend_credit", "valid_from", "document")
PROBLEMS = {
    "busy": gettext_lazy("The books are being computed just now; try again in a minute."),
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
PREEMPTION_PAYERS = ("entitlement", "victim", "preemptor", "platform")
IDLE_PAYERS = {
    "platform": gettext_lazy("the platform"),
    "proportional": gettext_lazy("tenants, by what they held"),
    "even": gettext_lazy("tenants, evenly"),
}


class EffectPage(ActingPage):
    """`?approval=`: what waits for a second person. Else what a form says: a policy, or a row of the file.

    What was typed is kept in the session, so that the table can be sorted, downloaded and looked at for other months.
    """

    template = "billing/effect.html"
    allows = staticmethod(runs_the_ledger)
    refused = (ConfigurationError, ApprovalError)
    unshown = ""

    def may_act(self) -> bool:
        return True  # looking is for whoever runs the ledger; proposing asks for more

    def words_for(self, error: Exception) -> str:
        if isinstance(error, ConfigurationError):
            return _("That cannot be used: %(why)s") % {"why": error}
        code = getattr(error, "code", "")
        return str(PROBLEMS[code]) if code in PROBLEMS else refusal(code, str(error))

    @cached_property
    def approval(self) -> Approval | None:
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

    @cached_property
    def tried(self) -> dict[str, Any]:
        """table, row and the fields of the form, as typed last; empty before."""
        asked = self.request.GET.get("typed") == "1"
        return dict(self.request.session.get(IN_SESSION, {})) if asked else {}

    @cached_property
    def months(self) -> list[Period]:
        """The newest first; those that are over before the running one: a whole month says more than its first days."""
        rows = list(Period.objects.filter(horizon_at__isnull=False).order_by("-month"))
        now = timezone.now()
        return sorted(rows, key=lambda period: period.ends_at > now)

    @cached_property
    def period(self) -> Period | None:
        asked = self.request.GET.get("month", "")
        return next((one for one in self.months if one.month == asked), next(iter(self.months), None))

    @cached_property
    def compared(self) -> list[Compared]:
        """Nothing to compare: nothing; what cannot be compared is said above the page."""
        asked = self.approval.payload if self.approval is not None else self.tried
        if not asked or self.period is None:
            return []
        if "ends" in asked:
            self.unshown = _("What the end of a version would change cannot be shown beforehand.")
            return []
        try:
            return compare_change(self.period, asked["table"], asked["row"])
        except (ComparisonError, ConfigurationError) as error:
            self.unshown = self.words_for(error)
        return []

    def tables(self) -> list[Table]:
        return [effect_table(lambda: self.compared, ledger_of(self.request).currency)]

    def context(self) -> dict[str, Any]:
        rows = self.compared
        return {
            "approval": self.approval,
            "period": self.period,
            "months": [one.month for one in self.months],
            "currency": ledger_of(self.request).currency,
            "is_compared": bool(rows),
            "touched": sum(1 for one in rows if one.difference_micro),
            "tried": self.tried,
            "fields": self.request.POST if self.problem else self.tried.get("form", {}),
            "shown_row": json.dumps(self.tried.get("row", {}), ensure_ascii=False),
            "may_propose": self.access.is_finance,
            "preemption_payers": [
                (code, PAYERS.get(code, _("by entitlement"))) for code in PREEMPTION_PAYERS
            ],
            "idle_payers": list(IDLE_PAYERS.items()),
            "policy": Policy.objects.filter(valid_from__lte=timezone.now()).order_by("valid_from").last(),
            "unshown": self.unshown,
        }

    def do(self, form: QueryDict, by: Actor, **_kwargs: Any) -> str | HttpResponseBase:
        deed = form.get("deed", "")
        if deed == "propose":
            return self._propose(form, by)
        if deed not in ("policy", "document"):
            raise Http404
        table, row = _policy_of(form) if deed == "policy" else _document_of(form)
        from_document({table: [row]})
        fields = {name: text_of(form, name, LONGEST) for name in FIELDS}
        self.request.session[IN_SESSION] = {"table": table, "row": row, "form": fields}
        query = urlencode({"typed": "1", "month": text_of(form, "month", 7)})
        return HttpResponseRedirect(f"{self.request.path}?{query}", status=303)

    def _propose(self, form: QueryDict, by: Actor) -> str:
        if not self.access.is_finance:
            raise PermissionDenied
        if not self.tried:
            raise Refused(_("Look at its effect first."))
        approval, _changes = propose(self.tried["table"], self.tried["row"], text_of(form, "reason"), by)
        del self.request.session[IN_SESSION]
        if approval is None:
            soon(recompute_open_months.delay)
            return _("It is in force; open months that it touches are computed again.")
        return _("It is proposed: a second person in finance decides in the settings.")

    def way_back(self) -> str:
        return self.request.path


def _policy_of(form: QueryDict) -> tuple[str, dict[str, Any]]:
    """The policy in force with what was chosen, from a month's start on."""
    now = Policy.objects.filter(valid_from__lte=timezone.now()).order_by("valid_from").last() or Policy()
    row: dict[str, Any] = {
        "preemption_charged_to": form.get("preemption_charged_to", ""),
        "unreserved_idle": form.get("unreserved_idle", ""),
        "lend_credit": text_of(form, "lend_credit", 20) or now.lend_credit,
        "min_confidence": micro_text(now.min_confidence_ppm),
        "undelivered_counts_pending": now.undelivered_counts_pending,
        "names_visible": now.names_visible,
        "purpose_payers": now.purpose_payers,
    }
    return "policy", {**row, "valid_from": text_of(form, "valid_from", 40)}


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
