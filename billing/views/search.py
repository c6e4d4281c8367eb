"""The search box."""

from __future__ import annotations

from typing import Any

from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.selectors.names import Names
from billing.selectors.pages_preemptions import ShownPreemption, shown
from billing.selectors.pages_search import Found, search
from billing.selectors.statements import statements_for
from billing.views.preemption_table import preemption_table
from ledger.views.tables import Table, TablePage


class SearchPage(TablePage):
    """Finds tenants, workloads and preemptions; each leads on to its page."""

    template = "billing/search.html"

    @cached_property
    def found(self) -> Found:
        return search(self.request.GET.get("q", "").strip(), self.access)

    def tables(self) -> list[Table]:
        return [preemption_table("preemptions", _("Preemptions"), self._sides, self.access)]

    def _sides(self) -> list[ShownPreemption]:
        if not self.found.preemptions:
            return []
        names = Names(self.access, at=self.found.preemptions[0].decided_at)
        return [shown(record, names, self.access)[0] for record in self.found.preemptions]

    def context(self) -> dict[str, Any]:
        query, found = self.request.GET.get("q", "").strip(), self.found
        latest: dict[int, str] = {}
        wanted = statements_for(self.access).filter(tenant__in=[tenant.pk for tenant in found.tenants])
        for tenant, month in wanted.order_by("period").values_list("tenant", "period"):
            latest[tenant] = month
        return {"query": query, "found": found, "latest": latest}
