"""What the search box finds: tenants, workloads and preemptions that the asker may see."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from django.db.models import Max, Q

from billing.models import PreemptionRecord, WorkloadDay
from billing.selectors.pages_preemptions import shows_victim
from billing.selectors.statements import preemption_records
from ledger.access import Access
from ledger.models import Pool, Tenant
from ledger.querysets import visible_to

FOUND_A_KIND = 20


@dataclass(frozen=True)
class Found:
    """Up to FOUND_A_KIND of each."""

    tenants: list[Tenant] = field(default_factory=list)
    workloads: list[dict[str, object]] = field(default_factory=list)
    preemptions: list[PreemptionRecord] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tenants or self.workloads or self.preemptions)


def search(text: str, access: Access) -> Found:
    """Four queries; workloads and preemptions match from the start of their id or name, tenants anywhere.

    Only what the asker is shown is matched: to find by what stays hidden would tell whose it is.
    """
    if not text:
        return Found()
    tenants = visible_to(Tenant.objects.select_related("holder"), access).filter(
        Q(holder__slug__icontains=text) | Q(name__icontains=text)
    )
    workloads = (
        visible_to(WorkloadDay.objects.all(), access)
        .filter(Q(workload__startswith=text) | Q(name__istartswith=text))
        .values("pool", "workload", "name", "holder__slug")
        .annotate(last=Max("starts_at"))
        .order_by("-last", "workload")
    )
    # The source's key mostly begins with the victim's workload, so both are for those who are shown them.
    is_named = Q(preemption__startswith=text) | Q(victim_workload__startswith=text)
    preemptions = preemption_records(access).filter(is_named & shows_victim(access) | Q(pk=_uuid(text)))
    pools = dict(Pool.objects.values_list("pk", "slug"))
    rows = [{**row, "pool": pools[row["pool"]]} for row in workloads[:FOUND_A_KIND]]
    return Found(
        list(tenants.order_by("holder__slug")[:FOUND_A_KIND]), rows, list(preemptions[:FOUND_A_KIND])
    )


def _uuid(text: str) -> UUID | None:
    """What stands for the key of a preemption in front of those who may not read it."""
    try:
        return UUID(text)
    except ValueError:
        return None
