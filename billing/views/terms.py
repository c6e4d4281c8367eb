"""Rates, policies, contracts and masters with their validity, and what waits for a second person."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Subquery
from django.http import Http404, QueryDict
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.api.periods import soon
from billing.models import Approval, Contract, Decision, GpuPrice, Policy, Statement, TokenPrice
from billing.services.approvals import ApprovalError
from billing.services.deeds import decide
from billing.tasks import recompute_open_months
from billing.views.closing_words import refusal
from billing.views.effect import IDLE_PAYERS, preemption_payer
from ledger.core.figures import THIN_SPACE
from ledger.core.units import micro_text, parse_micro
from ledger.models import Pool, Service, ServiceClass, Tenant
from ledger.services.audit import Actor
from ledger.views.acting import ActingPage, Refused, text_of
from ledger.views.page import ledger_of, runs_the_ledger
from ledger.views.tables import CATEGORY, CODE, COUNT, INSTANT, PRICE, TEXT_FILTER, Column, Table, words
from ledger.wording import CONTRACT_KINDS, ON_PREEMPTION, TOKEN_KINDS

_STATES = {
    "current": gettext_lazy("in force"),
    "future": gettext_lazy("to come"),
    "past": gettext_lazy("over"),
}


class SettingsPage(ActingPage):
    """Finance decides what somebody else in finance proposed; the rest of those who run the ledger look on."""

    template = "billing/settings.html"
    allows = staticmethod(runs_the_ledger)

    def may_act(self) -> bool:
        return self.access.is_finance

    def tables(self) -> list[Table]:
        return [
            gpu_prices_table(),
            token_prices_table(),
            policies_table(),
            contracts_table(),
            tenants_table(),
            pools_table(),
            services_table(),
        ]

    def context(self) -> dict[str, Any]:
        waiting = list(Approval.objects.filter(decision=Decision.PENDING).order_by("requested_at"))
        return {
            "may_act": self.may_act(),
            "ledger": ledger_of(self.request),
            "asks_me": [one for one in waiting if one.requested_by != self.access.name],
            "asked_by_me": [one for one in waiting if one.requested_by == self.access.name],
        }

    def do(self, form: QueryDict, by: Actor, **_kwargs: Any) -> str:
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
            raise Refused(refusal(error.code, str(error))) from None
        if not is_approved:
            return _("It stays as it was.")
        soon(recompute_open_months.delay)
        return _("Approved; open months that it touches are computed again.")


@dataclass(frozen=True)
class _Version:
    """A dated version among those of the same thing: in force now, to come, or over."""

    row: Any
    state: str


def _versions(rows: Iterable[Any], thing: Callable[[Any], Any]) -> list[_Version]:
    now, rows = timezone.now(), list(rows)
    begun = [row for row in rows if row.valid_from <= now]
    newest: dict[Any, datetime] = {}
    for row in begun:
        newest[thing(row)] = max(row.valid_from, newest.get(thing(row), row.valid_from))

    def state(row: Any) -> str:
        if row.valid_from > now:
            return str(_STATES["future"])
        is_over = (row.ended_at and row.ended_at <= now) or row.valid_from < newest[thing(row)]
        return str(_STATES["past" if is_over else "current"])

    return [_Version(row, state(row)) for row in rows]


def _class_of(row: GpuPrice) -> str:
    return str(ServiceClass(row.service_class).label) if row.service_class else ""


def gpu_prices_table() -> Table:
    return Table(
        "gpu_prices",
        lambda: list(
            GpuPrice.objects.select_related("rate_card", "pool").order_by(
                "-rate_card__valid_from", "pool__slug", "gpu_model", "category", "service_class"
            )
        ),
        [
            Column("card", _("Rate card"), of="rate_card.name", filter=TEXT_FILTER),
            Column("valid_from", _("From"), INSTANT, of="rate_card.valid_from"),
            Column(
                "pool", _("Pool"), CODE, of=lambda row: row.pool.slug if row.pool else "", filter=TEXT_FILTER
            ),
            Column("gpu_model", _("GPU model"), CODE, filter=TEXT_FILTER),
            Column("category", _("Category"), CATEGORY),
            Column(
                "service_class",
                _("Class"),
                of=_class_of,
            ),
            Column("price", _("Price"), PRICE, of="price_micro", unit=_("per GPU-hour")),
        ],
        label=_("GPU prices"),
        empty=_("There is no price list yet; a month without prices cannot close. Apply one:"),
    )


def token_prices_table() -> Table:
    return Table(
        "token_prices",
        lambda: list(
            TokenPrice.objects.select_related("rate_card", "model").order_by(
                "-rate_card__valid_from", "model__name", "kind"
            )
        ),
        [
            Column("card", _("Rate card"), of="rate_card.name", filter=TEXT_FILTER),
            Column("valid_from", _("From"), INSTANT, of="rate_card.valid_from"),
            Column("model", _("Model"), CODE, of="model.name", filter=TEXT_FILTER),
            Column("kind", _("Kind of token"), words(lambda code: TOKEN_KINDS.get(code, code))),
            Column("price", _("Price"), PRICE, of="price_micro", unit=_("per million tokens")),
        ],
        label=_("Token prices"),
        empty=_("No tokens have a price."),
    )


def policies_table() -> Table:
    return Table(
        "policies",
        lambda: _versions(Policy.objects.order_by("-valid_from"), lambda row: "policy"),
        [
            Column("state", _("State")),
            Column("valid_from", _("From"), INSTANT, of="row.valid_from"),
            Column(
                "preemption_charged_to",
                _("Re-queued time is charged to"),
                words(preemption_payer),
                of="row.preemption_charged_to",
            ),
            Column(
                "unreserved_idle",
                _("Unreserved idle time is paid by"),
                words(lambda code: IDLE_PAYERS.get(code, code)),
                of="row.unreserved_idle",
            ),
            Column("lend_credit", _("Credit for lending"), words(lend_credit), of="row.lend_credit"),
            Column(
                "names_visible",
                _("Names across tenants"),
                of=lambda version: _("Shown") if version.row.names_visible else _("Aliases"),
            ),
            Column("by", _("Recorded by"), of="row.recorded_by"),
            Column("reason", _("Reason"), of="row.reason"),
        ],
        label=_("Policies"),
        empty=_("There is no policy; the defaults of the design hold."),
    )


def contracts_table() -> Table:
    return Table(
        "contracts",
        lambda: _versions(
            Contract.objects.select_related("tenant__holder").order_by("tenant__holder__slug", "-valid_from"),
            lambda row: row.tenant_id,
        ),
        [
            Column("tenant", _("Tenant"), of="row.tenant.slug", filter=TEXT_FILTER),
            Column("state", _("State")),
            Column("valid_from", _("From"), INSTANT, of="row.valid_from"),
            Column("kind", _("Kind of contract"), words(CONTRACT_KINDS.__getitem__), of="row.kind"),
            Column("token_quota", _("Token quota"), COUNT, of="row.token_quota"),
            Column("committed_tokens", _("Committed tokens"), COUNT, of="row.committed_tokens"),
            Column(
                "on_preemption",
                _("On preemption"),
                of="row.on_preemption",
                html=lambda version: ON_PREEMPTION[version.row.on_preemption],
            ),
            Column("by", _("Recorded by"), of="row.recorded_by"),
            Column("reason", _("Reason"), of="row.reason"),
        ],
        label=_("Contracts"),
        empty=_("No tenant has a contract of its own; GPU time at the rate card holds."),
    )


def lend_credit(value: str) -> str:
    """A rule by its name, or the part of the reserved rate that is credited."""
    if value == "borrower_paid":
        return str(_("what the borrower paid"))
    share = f"{micro_text(parse_micro(value) * 100)}{THIN_SPACE}%"
    return _("%(share)s of the reserved rate") % {"share": share}


def _newest_bill(tenant: Any) -> str | None:
    return reverse("billing:statement", args=[tenant.billed, tenant.slug]) if tenant.billed else None


def tenants_table() -> Table:
    newest = Statement.objects.filter(tenant=OuterRef("pk")).order_by("-period")
    return Table(
        "tenants",
        lambda: list(
            Tenant.objects.select_related("holder", "parent__holder")
            .annotate(billed=Subquery(newest.values("period")[:1]))
            .order_by("holder__slug")
        ),
        [
            Column("tenant", _("Tenant"), CODE, of="slug", link=_newest_bill, filter=TEXT_FILTER),
            Column("name", _("Name"), filter=TEXT_FILTER),
            Column("parent", _("Part of"), CODE, of=lambda row: row.parent.slug if row.parent else ""),
            Column("cost_center", _("Cost centre"), CODE),
            Column("gl_code", _("GL code"), CODE),
        ],
        label=_("Tenants"),
        empty=_("No tenant yet."),
    )


def pools_table() -> Table:
    return Table(
        "pools",
        lambda: list(Pool.objects.order_by("slug")),
        [
            Column(
                "pool",
                _("Pool"),
                CODE,
                of="slug",
                link=lambda row: reverse("billing:pool", args=[row.slug]),
                filter=TEXT_FILTER,
            ),
            Column("cluster", _("Cluster"), CODE),
            Column("gpu_model", _("GPU model"), CODE),
            Column("meter", _("Meter"), CODE),
        ],
        label=_("Pools"),
        empty=_("No pool yet."),
    )


def services_table() -> Table:
    return Table(
        "services",
        lambda: list(Service.objects.select_related("holder", "owner__holder").order_by("holder__slug")),
        [
            Column("service", _("Service"), CODE, of="holder.slug", filter=TEXT_FILTER),
            Column("owner", _("Owner"), CODE, of=lambda row: row.owner.slug if row.owner else _("platform")),
        ],
        label=_("Shared services"),
        empty=_("No shared service."),
    )
