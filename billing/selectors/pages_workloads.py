"""A workload's days and the facts it was booked by, and so whether it has a page for a reader."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import QuerySet

from billing.models import WorkloadDay
from ledger.access import Access
from ledger.models import Level, LevelKind, Pool
from ledger.querysets import visible_to


def days_of_workloads(pool: Pool, workloads: Collection[str], access: Access) -> QuerySet[WorkloadDay]:
    """Days in the pool that the reader may see, newest first."""
    days = visible_to(WorkloadDay.objects.select_related("holder"), access)
    return days.filter(pool=pool, workload__in=workloads).order_by("-starts_at", "attempt")


def facts_of_workloads(pool: Pool, workloads: Collection[str], access: Access) -> QuerySet[Level]:
    """What the workloads held or waited for in the pool, as the reader may see it, newest first."""
    facts = visible_to(Level.objects.select_related("event__source", "identity"), access)
    kinds = [LevelKind.OCCUPANCY, LevelKind.PENDING]
    return facts.filter(pool=pool, subject__in=workloads, kind__in=kinds).order_by("-starts_at", "kind")


def workloads_to_open(pool: Pool, workloads: Collection[str | None], access: Access) -> set[str]:
    """Those of the workloads whose page the reader can open; others are named without a link. Two queries at most."""
    asked = {workload for workload in workloads if workload}
    if not asked:
        return set()
    days = days_of_workloads(pool, asked, access).order_by()
    found = set(days.values_list("workload", flat=True).distinct())
    if rest := asked - found:
        facts = facts_of_workloads(pool, rest, access).order_by()
        found |= set(facts.values_list("subject", flat=True).distinct())
    return found
