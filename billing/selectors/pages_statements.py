"""Reads of one statement as its page shows it: lines by pool, time by day, and the month before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from zoneinfo import ZoneInfo

from django.db import connection

from billing.models import AnnexName, PreemptionRecord, Statement, StatementLine
from billing.selectors.annexes import annex_of, annex_rows
from billing.selectors.pages_months import HOLDER_CATEGORIES, OCCUPIED
from billing.selectors.usage_rows import COLUMNS as USAGE_COLUMNS
from billing.sql.pages import TENANT_DAYS
from ledger.access import NOBODY, Access
from ledger.core.figures import percent_change
from ledger.models import Tenant
from ledger.querysets import visible_to
from ledger.wording import CATEGORIES

OF_TIME = ("usage", "shared")
RESERVED = ("reserved_used", "lent", "reserved_idle", "undelivered", "oversold")


@dataclass
class LineGroup:
    """Lines of one pool, or of one kind where there is no pool, with their subtotal."""

    name: str
    pool: str = ""
    cluster: str = ""
    gpu_model: str = ""
    lines: list[StatementLine] = field(default_factory=list)

    @property
    def gpu_us(self) -> int:
        """GPU time held or reserved; credits and transfers move money, not time."""
        return sum(
            int(line.quantity) for line in self.lines if line.unit == "gpu_us" and line.kind in OF_TIME
        )

    @property
    def amount_minor(self) -> int | None:
        """None if a line has no price."""
        amounts = [line.amount_minor for line in self.lines]
        return None if None in amounts else sum(amount or 0 for amount in amounts)


@dataclass(frozen=True)
class Lines:
    """A statement's lines in the order in which it is read."""

    pools: list[LineGroup]
    others: list[LineGroup]

    @property
    def groups(self) -> list[LineGroup]:
        return [*self.pools, *self.others]


def lines_by_group(lines: Sequence[StatementLine]) -> Lines:
    """Pools by slug, then tokens, transfers, credits and adjustments."""
    pools: dict[str, LineGroup] = {}
    others: dict[str, LineGroup] = {}
    for line in lines:
        if line.pool and line.kind in (*OF_TIME, "credit"):
            group = pools.setdefault(line.pool, LineGroup(line.pool, line.pool, line.cluster, line.gpu_model))
        else:
            group = others.setdefault(line.kind, LineGroup(line.kind))
        group.lines.append(line)
    for group in (*pools.values(), *others.values()):
        group.lines.sort(key=_reading_order)
    ordered = [pools[slug] for slug in sorted(pools)]
    return Lines(ordered, [others[kind] for kind in _KIND_ORDER if kind in others])


def _reading_order(line: StatementLine) -> tuple[int, str, int, str, str, bool, int]:
    """Own time before that of services, categories as in every table, credits last; the bill's order within."""
    known = _CATEGORY_ORDER.get(line.category, len(_CATEGORY_ORDER))
    is_money = int(line.kind not in OF_TIME)
    return (
        is_money,
        line.service,
        known,
        line.service_class,
        line.purpose,
        line.service_idle,
        line.position,
    )


_CATEGORY_ORDER = {name: place for place, name in enumerate(CATEGORIES)}
_KIND_ORDER = ("usage", "shared", "tokens", "credit", "transfer", "adjustment")


@dataclass(frozen=True)
class Day:
    """One day of the billing zone."""

    day: date
    gpu_us: dict[str, int]

    @property
    def reserved_gpu_us(self) -> int:
        return sum(self.gpu_us[name] for name in RESERVED)

    @property
    def occupied_gpu_us(self) -> int:
        return sum(self.gpu_us[name] for name in OCCUPIED)


@dataclass(frozen=True)
class MonthOfDays:
    """A tenant's month by day; its sums are the month's (domain.md 11.8)."""

    days: list[Day]

    @cached_property
    def gpu_us(self) -> dict[str, int]:
        return {name: sum(day.gpu_us[name] for day in self.days) for name in HOLDER_CATEGORIES}

    @property
    def categories(self) -> list[str]:
        """Those that occurred."""
        return [name for name in HOLDER_CATEGORIES if self.gpu_us[name]]

    @property
    def occupied_gpu_us(self) -> int:
        return sum(self.gpu_us[name] for name in OCCUPIED)

    @property
    def reserved_gpu_us(self) -> int:
        return sum(self.gpu_us[name] for name in RESERVED)

    @property
    def busiest(self) -> Day | None:
        return max(self.days, key=lambda day: day.occupied_gpu_us, default=None)

    @property
    def idlest(self) -> Day | None:
        idle = max(self.days, key=lambda day: day.gpu_us["reserved_idle"], default=None)
        return idle if idle and idle.gpu_us["reserved_idle"] else None


def month_of_days(statement: Statement, zone: str) -> MonthOfDays:
    """The tenant's slots of the month, summed by day; of an issued statement, those it was issued with.

    One query, over allocation_of_account, or the statement's file.
    """
    annex = annex_of(statement, AnnexName.USAGE, NOBODY)
    if annex is not None:
        return MonthOfDays(_days_of_file(annex_rows(annex), ZoneInfo(zone)))
    parameters = {
        "tenant": statement.tenant_id,
        "from": statement.period.starts_at,
        "to": statement.period.ends_at,
        "zone": zone,
    }
    with connection.cursor() as cursor:
        cursor.execute(TENANT_DAYS, parameters)
        days = [
            Day(day, dict(zip(HOLDER_CATEGORIES, map(int, sums), strict=True)))
            for day, *sums in cursor.fetchall()
        ]
    return MonthOfDays(days)


def _days_of_file(rows: Iterable[Sequence[object]], zone: ZoneInfo) -> list[Day]:
    sums: dict[date, dict[str, int]] = {}
    hour, category, gpu_us = (USAGE_COLUMNS.index(name) for name in ("hour", "category", "gpu_us"))
    for row in rows:
        day = datetime.fromisoformat(str(row[hour])).astimezone(zone).date()
        of_day = sums.setdefault(day, dict.fromkeys(HOLDER_CATEGORIES, 0))
        of_day[str(row[category])] += int(str(row[gpu_us]))
    return [Day(day, sums[day]) for day in sorted(sums)]


@dataclass(frozen=True)
class Comparison:
    """The month before, and by how much this one differs from it."""

    before: Statement
    difference_minor: int
    percent: str | None


def compared_with_before(statement: Statement) -> Comparison | None:
    before = (
        Statement.objects.filter(tenant=statement.tenant_id, period__starts_at__lt=statement.period.starts_at)
        .defer("content")
        .order_by("-period__starts_at")
        .first()
    )
    if before is None or before.currency != statement.currency:
        return None
    return Comparison(
        before,
        statement.total_minor - before.total_minor,
        percent_change(statement.total_minor, before.total_minor),
    )


def months_with_statement(tenant: Tenant, access: Access) -> list[str]:
    rows = visible_to(Statement.objects.filter(tenant=tenant), access)
    return list(rows.values_list("period", flat=True))


def preemptions_named(lines: Sequence[StatementLine], access: Access) -> dict[str, PreemptionRecord]:
    """Record id -> record, of the preemptions that the lines name. One query."""
    ids = {name for line in lines for name in line.preemptions}
    rows = visible_to(PreemptionRecord.objects.filter(pk__in=ids), access) if ids else []
    return {str(record.pk): record for record in rows}
