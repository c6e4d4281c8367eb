"""A workload's days and the facts it was booked by, and so whether it has a page for a reader."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Max, Min, QuerySet

from billing.models import Statement, StatementLine, WorkloadDay
from billing.selectors.statements import statements_for
from ledger.access import Access
from ledger.models import Level, LevelKind, Pool
from ledger.querysets import visible_to

_POSITION = re.compile("[0-9]{1,9}")
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


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


def statements_of_days(days: QuerySet[WorkloadDay], access: Access) -> list[Statement]:
    """Those that charge the workload's time, newest first: of the tenants that held it, in the months that it ran in.

    Two queries. What a shared service ran is divided over many statements, and leads to none.
    """
    held = days.order_by().values("holder").annotate(first=Min("starts_at"), last=Max("starts_at"))
    found: set[Statement] = set()
    for row in held:
        found |= set(
            statements_for(access).filter(
                tenant=row["holder"], period__starts_at__lte=row["last"], period__ends_at__gt=row["first"]
            )
        )
    return sorted(found, key=lambda statement: (statement.period_id, statement.number), reverse=True)


@dataclass(frozen=True)
class DayOfLine:
    """A line of a statement, and the day of it that was looked at."""

    line: StatementLine
    day: str

    @property
    def name(self) -> str:
        """What `day_of_line` reads: `2026-10/acme/33/2026-10-14`."""
        statement = self.line.statement
        return f"{statement.period_id}/{statement.tenant.slug}/{self.line.position}/{self.day}"


def day_of_line(name: str, access: Access) -> DayOfLine | None:
    """What an address names, to lead back to it; None where there is none that the reader may see. One query."""
    month, tenant, position, day = (*name.split("/"), "", "", "", "")[:4]
    if not _POSITION.fullmatch(position) or not _DAY.fullmatch(day):
        return None
    seen = visible_to(Statement.objects.filter(period=month, tenant__holder__slug=tenant), access)
    lines = StatementLine.objects.filter(statement__in=seen, position=int(position))
    line = lines.select_related("statement__tenant__holder").defer("statement__content").first()
    return None if line is None else DayOfLine(line, day)
