"""Reads of what a statement's page adds to its lines: the bridge, the split inside the tenant, share of capacity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Func, TextField

from billing.core.bridge import BridgeLine, Printed, Step, bridge
from billing.core.inside import Group, Held, parts_of_bill
from billing.core.rating_lines import GPU_US
from billing.core.statement import micro_per_minor
from billing.models import Statement, StatementLine, WorkloadDay
from billing.selectors.allocations import AllocationQuestion, allocations
from billing.selectors.forecast import TokenQuota, token_quota
from billing.selectors.pages_statements import OF_TIME
from billing.selectors.periods import horizon_of, ledger_and_now
from ledger.core.currency import minor_places
from ledger.core.periods import Month, Span, to_datetime, to_ms
from ledger.core.units import fixed_decimal, round_half_even
from ledger.models import ServiceClass

# What the month can be split by inside the tenant; a label is written label:<name>.
LABEL = "label:"
SPLITS = ("user", "api_key", "model", "workload")


def bridge_between(before: Statement, after: Statement, lines: Iterable[StatementLine]) -> list[Step] | None:
    """Steps from the total of `before` to that of `after`, whose `lines` are given. One query."""
    unit = micro_per_minor(minor_places(after.currency))
    was, now = (Printed(one.total_micro, one.total_minor, unit) for one in (before, after))
    return bridge(map(_bridge_line, before.lines.all()), map(_bridge_line, lines), was, now)


def _bridge_line(line: StatementLine) -> BridgeLine:
    about = (line.pool, line.service, line.service_class, line.purpose, line.model)
    quantity = int(line.quantity)
    return BridgeLine(about, line.kind, line.category, quantity, line.amount_micro, line.service_idle)


@dataclass(frozen=True)
class InsidePart:
    """A part of the tenant's month, and of the amounts of its lines of GPU time. percent: of its GPU time."""

    name: str
    gpu_us: int
    amount_micro: int | None
    percent: str


def labels_inside(statement: Statement) -> list[str]:
    """Names of the labels that the tenant's workloads of the month carry. One query."""
    rows = WorkloadDay.objects.filter(
        holder=statement.tenant_id,
        starts_at__gte=statement.period.starts_at,
        starts_at__lt=statement.period.ends_at,
        labels__isnull=False,
    )
    names = rows.annotate(label=Func(F("labels"), function="jsonb_object_keys", output_field=TextField()))
    return sorted(set(names.values_list("label", flat=True).distinct()))


def inside(statement: Statement, split: str) -> list[InsidePart]:
    """The tenant's month by `split` (one of SPLITS, or label:<name>), largest first.

    The amounts add up to the statement's lines of GPU time; what no part is known for stands under the empty name. One
    query over the tenant's pools; `statement` with its lines.
    """
    label = split.removeprefix(LABEL) if split.startswith(LABEL) else ""
    by = "label" if label else split
    rows = allocations(_question(statement, (*_GROUP, by), label), [])
    held = [Held(_group_of(row.dimensions), row.dimensions[by] or "", row.gpu_us) for row in rows]
    parts = parts_of_bill(held, _amounts_by_group(statement.lines.all()))
    whole = sum(part.gpu_us for part in parts)
    return [
        InsidePart(part.name, part.gpu_us, part.amount_micro, percent_of(part.gpu_us, whole))
        for part in parts
    ]


def issued_gpu_us(statement: Statement) -> int:
    """The GPU time that an issued statement's lines say, to compare the parts with; `statement` with its lines.

    Unreserved idle time has a share of nobody's workloads, and is no part.
    """
    return sum(
        int(line.quantity)
        for line in statement.lines.all()
        if line.unit == GPU_US and line.kind in OF_TIME and line.category != "unreserved_idle"
    )


_GROUP = ("pool", "service", "service_class", "category")


def _group_of(dimensions: dict[str, Any]) -> Group:
    names = dimensions | {"service_class": str(ServiceClass(dimensions["service_class"]).label)}
    return tuple(names[name] for name in _GROUP)


def _amounts_by_group(lines: Iterable[StatementLine]) -> dict[Group, int | None]:
    """Of the lines of GPU time; None where one of a group has no price."""
    found: dict[Group, int | None] = {}
    for line in lines:
        if line.unit == GPU_US and line.kind in OF_TIME:
            group = (line.pool, line.service, line.service_class, line.category)
            before = found.get(group, 0)
            unknown = before is None or line.amount_micro is None
            found[group] = None if unknown else (before or 0) + (line.amount_micro or 0)
    return found


def _question(statement: Statement, by: tuple[str, ...], label: str = "") -> AllocationQuestion:
    """The tenant's month in the pools of its lines, without amounts."""
    period = statement.period
    span = Span(to_ms(period.starts_at), to_ms(period.ends_at))
    filters = {"pool": sorted({line.pool for line in statement.lines.all() if line.pool})}
    tenants = frozenset({statement.tenant_id})
    return AllocationQuestion(span, "UTC", by, "all", filters, tenant_ids=tenants, label=label)


def percent_of(part: int, whole: int) -> str:
    """'12.5', or '0.0' of nothing."""
    return fixed_decimal(round_half_even(part * 1000, whole), 1) if whole else "0.0"


@dataclass(frozen=True)
class QuotaOfMonth:
    """A token contract's month as its statement shows it first."""

    quota: TokenQuota
    horizon: datetime

    @property
    def left(self) -> int:
        return max(self.quota.quota - self.quota.used, 0)

    @property
    def over(self) -> int:
        return max(self.quota.used - self.quota.quota, 0)

    @property
    def percent(self) -> str:
        return percent_of(self.quota.used, self.quota.quota)


def quota_of(statement: Statement) -> QuotaOfMonth | None:
    """None where the tenant has no token quota in the month. Two queries then, else one."""
    ledger, now_ms = ledger_and_now()
    span = Month.parse(statement.period_id).span(ledger.billing_time_zone)
    horizon = max(horizon_of(span, now_ms), to_datetime(span.start_ms))
    found = token_quota(Month.parse(statement.period_id), ledger.billing_time_zone, horizon, statement.tenant)
    return None if found is None else QuotaOfMonth(found, horizon)
