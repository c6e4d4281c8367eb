"""Rates, policies, contracts and masters with their validity, and what waits for a second person."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import Http404, QueryDict
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.api.periods import soon
from billing.models import Approval, ApprovalKind, Decision
from billing.services.approvals import ApprovalError
from billing.services.deeds import decide
from billing.services.proposals import ENDABLE, propose_end, version_from
from billing.tasks import recompute_open_months
from billing.views.closing import asked
from billing.views.closing_words import refusal
from billing.views.days import start_of_day
from billing.views.term_tables import (
    contracts_table,
    gpu_prices_table,
    policies_table,
    pool_costs_table,
    pools_table,
    rate_cards_table,
    service_policies_table,
    services_table,
    tenants_table,
    token_prices_table,
)
from ledger.core.currency import minor_places
from ledger.core.periods import to_datetime
from ledger.core.units import money_fixed
from ledger.core.windows import BadWindow, parse_instant
from ledger.services.audit import Actor
from ledger.templatetags.figures import month_name
from ledger.views.acting import ActingPage, Refused, text_of
from ledger.views.page import ledger_of, runs_the_ledger
from ledger.views.tables import Table, TablePage
from ledger.wording_sentences import in_words, kept_in_words


class RatesPage(TablePage):
    """What anything costs and by which rules, for who is billed by them; who changed what is the ledger's own."""

    template = "billing/rates.html"

    def tables(self) -> list[Table]:
        shared = [
            rate_cards_table(may_end=False),
            policies_table(may_end=False),
            contracts_table(may_end=False, access=self.access),
        ]
        return [*map(_without_who, shared), gpu_prices_table(), token_prices_table()]

    def context(self) -> dict[str, Any]:
        return {"ledger": ledger_of(self.request)}


def _without_who(table: Table) -> Table:
    columns = [column for column in table.columns if column.key not in ("by", "reason")]
    return replace(table, columns=columns)


class SettingsPage(ActingPage):
    """Finance decides what somebody else in finance proposed; the rest of those who run the ledger look on."""

    template = "billing/settings.html"
    allows = staticmethod(runs_the_ledger)

    def may_act(self) -> bool:
        return self.access.is_finance

    def tables(self) -> list[Table]:
        may_end = self.may_act()
        return [
            rate_cards_table(may_end),
            gpu_prices_table(),
            token_prices_table(),
            pool_costs_table(may_end),
            policies_table(may_end),
            contracts_table(may_end, self.access),
            service_policies_table(may_end),
            tenants_table(),
            pools_table(),
            services_table(),
        ]

    @cached_property
    def ending(self) -> tuple[str, Any] | None:
        """`?end=policy-3`: the table and the version that shall end; None where nobody asked."""
        asked = self.request.GET.get("end", "")
        if not asked or not self.may_act():
            return None
        table, _dash, number = asked.rpartition("-")
        if table not in ENDABLE or not number.isascii() or not number.isdecimal() or len(number) > 18:
            raise Http404
        version = ENDABLE[table].model.objects.filter(pk=int(number)).first()
        if version is None:
            raise Http404
        return table, version

    def context(self) -> dict[str, Any]:
        waiting = list(Approval.objects.filter(decision=Decision.PENDING).order_by("requested_at"))
        return {
            "may_act": self.may_act(),
            "ledger": ledger_of(self.request),
            "ending": self.ending and in_words(version_from(*self.ending)),
            "asks_me": [self._shown(one) for one in waiting if one.requested_by != self.access.name],
            "asked_by_me": [self._shown(one) for one in waiting if one.requested_by == self.access.name],
        }

    def _shown(self, approval: Approval) -> dict[str, Any]:
        """What whoever decides has to know, line by line, and where more of it stands."""
        said = approval.payload
        if approval.kind == ApprovalKind.CREDIT:
            currency = ledger_of(self.request).currency
            amount = f"{money_fixed(int(said['amount_micro']), minor_places(currency))} {currency}"
            words = {"amount": amount, "tenant": said["tenant"], "month": month_name(said["concerns"])}
            about = [_("%(amount)s for %(tenant)s, %(month)s") % words]
            place = reverse("billing:statement", args=[said["concerns"], said["tenant"]]) + "#finance"
            place_is = _("The statement")
        elif approval.kind == ApprovalKind.OVERRIDE:
            about = [f"{title}: {evidence}" for title, evidence in asked(approval)["over"]]
            place = reverse("billing:month", args=[said["month"]]) + "#closing"
            place_is = month_name(said["month"])
        else:
            about = [kept_in_words(change) for change in said.get("changes", ())]
            is_terms = approval.kind == ApprovalKind.TERMS
            place = f"{reverse('billing:effect')}?approval={approval.pk}" if is_terms else ""
            place_is = _("See its effect on a month")
        return {"approval": approval, "about": about, "place": place, "place_is": place_is}

    def do(self, form: QueryDict, by: Actor, **_kwargs: Any) -> str:
        return self._end(form, by) if form.get("deed") == "end" else self._decide(form, by)

    def _end(self, form: QueryDict, by: Actor) -> str:
        if self.ending is None:
            raise Http404
        table, version = self.ending
        ended_at = self._instant_of(text_of(form, "ended_at"))
        try:
            approval, _changes = propose_end(table, version.pk, ended_at, text_of(form, "reason"), by)
        except ApprovalError as error:
            told = _("Give a reason: it stands on the audit trail.")
            raise Refused(told if error.code == "no_reason" else refusal(error)) from None
        if approval is None:
            soon(recompute_open_months.delay)
            return _("It ends then; open months that it touches are computed again.")
        return _("Its end is proposed: a second person in finance decides.")

    def _instant_of(self, text: str) -> datetime:
        """A day means its first instant in the billing zone."""
        zone = ledger_of(self.request).billing_time_zone
        try:
            return start_of_day(text, zone) or to_datetime(parse_instant(text))
        except (BadWindow, OverflowError):
            raise Refused(
                _("Give a day, or an instant with its offset, such as 2027-01-01T00:00:00+08:00.")
            ) from None

    def way_back(self) -> str:
        return self.request.path if self.ending else super().way_back()

    def _decide(self, form: QueryDict, by: Actor) -> str:
        try:
            wanted = UUID(form.get("approval", ""))
        except ValueError:
            raise Http404 from None
        is_approved = form.get("decision") == Decision.APPROVED
        try:
            decide(wanted, Decision.APPROVED if is_approved else Decision.REJECTED, by, text_of(form, "note"))
        except Approval.DoesNotExist:
            raise Http404 from None
        except ApprovalError as error:
            raise Refused(refusal(error)) from None
        if not is_approved:
            return _("It stays as it was.")
        soon(recompute_open_months.delay)
        return _("Approved; open months that it touches are computed again.")
