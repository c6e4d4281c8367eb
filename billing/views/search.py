"""The search box."""

from __future__ import annotations

from typing import Any

from billing.selectors.names import Names
from billing.selectors.pages_preemptions import shown
from billing.selectors.pages_search import search
from billing.selectors.statements import statements_for
from ledger.views.page import Page


class SearchPage(Page):
    """Finds tenants, workloads and preemptions; each leads on to its page."""

    template = "billing/search.html"

    def context(self, **_: Any) -> dict[str, Any]:
        query = self.request.GET.get("q", "").strip()
        found = search(query, self.access)
        latest: dict[int, str] = {}
        wanted = statements_for(self.access).filter(tenant__in=[tenant.pk for tenant in found.tenants])
        for tenant, month in wanted.order_by("period").values_list("tenant", "period"):
            latest[tenant] = month
        sides = []
        if found.preemptions:
            names = Names(self.access, at=found.preemptions[0].decided_at)
            sides = [shown(record, names, self.access)[0] for record in found.preemptions]
        return {"query": query, "found": found, "latest": latest, "sides": sides}
