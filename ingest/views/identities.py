"""Identities: whose facts wait in suspense, saying whose they are, and who maps to whom."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ingest.selectors.identities import mappings, unmapped_identities
from ingest.services.identities import IdentityProblem, Mapped, attribute_identity
from ingest.tables import mappings_table, unmapped_table
from ingest.views.tending import TendingPage, instant_of
from ledger.models import Tenant
from ledger.services.audit import Actor
from ledger.views.acting import Refused, text_of
from ledger.views.tables import Table
from ledger.wording import IDENTITY_PROBLEMS

UNMAPPED_READ = 5_000


class IdentitiesPage(TendingPage):
    """`?kind=…&value=…` fills in the form."""

    template = "ingest/identities.html"

    def tables(self) -> list[Table]:
        return [
            unmapped_table(
                lambda: unmapped_identities(0, UNMAPPED_READ), can_act=self.access.may_tend_sources
            ),
            mappings_table(mappings),
        ]

    def context(self) -> dict[str, Any]:
        tenants = Tenant.objects.order_by("holder__slug").values_list("holder__slug", flat=True)
        return {
            "can_act": self.access.may_tend_sources,
            "tenants": list(tenants) if self.access.may_tend_sources else [],
            "kind": self.request.POST.get("kind") or self.request.GET.get("kind", ""),
            "value": self.request.POST.get("value") or self.request.GET.get("value", ""),
        }

    def way_back(self) -> str:
        return str(self.request.path)

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str:
        try:
            mapped = attribute_identity(
                text_of(form, "kind"),
                text_of(form, "value"),
                text_of(form, "tenant"),
                valid_from=instant_of(form, "valid_from"),
                valid_to=instant_of(form, "valid_to"),
                reason=text_of(form, "reason"),
                by=by,
            )
        except IdentityProblem as problem:
            raise Refused(str(IDENTITY_PROBLEMS.get(problem.code, problem))) from None
        return told(mapped)


def told(mapped: Mapped) -> str:
    """What a mapping has changed, in a sentence."""
    names = {"identity": f"{mapped.kind}:{mapped.value}", "tenant": mapped.tenant}
    if not mapped.is_new:
        return _("%(identity)s was %(tenant)s's already; nothing has changed.") % names
    if not mapped.facts:
        return _("%(identity)s is %(tenant)s's. It has no facts yet.") % names
    parts = ", ".join(_of_pool(fact.pool, fact.levels, fact.requests) for fact in mapped.facts)
    sentence = _("%(identity)s is %(tenant)s's: %(parts)s. These pools are computed again.")
    return sentence % {**names, "parts": parts}


def _of_pool(pool: str, levels: int, requests: int) -> str:
    of_levels = ngettext("%(count)s level", "%(count)s levels", levels) % {"count": levels}
    of_requests = ngettext("%(count)s request", "%(count)s requests", requests) % {"count": requests}
    return f"{pool} ({of_levels}, {of_requests})"
