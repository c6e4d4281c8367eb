"""The cluster now, for those who run it."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from billing.selectors.names import Names
from billing.selectors.pages_cluster import newest_fact_at, pools_now, recent_preemptions
from billing.selectors.pages_preemptions import shown
from ledger.selectors.silence import silent_sources
from ledger.views.page import Page, runs_the_ledger


class ClusterPage(Page):
    """What each pool has, holds and keeps waiting, by the newest facts; and who was preempted last."""

    template = "billing/cluster.html"
    allows = staticmethod(runs_the_ledger)

    def context(self, **_: Any) -> dict[str, Any]:
        now = timezone.now()
        names = Names(self.access, at=now)
        records = recent_preemptions(self.access)
        return {
            "now": now,
            "newest": newest_fact_at(),
            "pools": pools_now(now),
            "silent": silent_sources(now),
            "sides": [side for record in records for side in shown(record, names, self.access)],
        }
