"""What a statement line is the sum of: UTC days, the slots of one day, and the work that ran in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from django.db import connection
from django.db.models import Q

from billing.models import PreemptionRecord, Statement, StatementLine, WorkloadDay
from billing.selectors.pages_months import HOLDER_CATEGORIES, OCCUPIED
from billing.selectors.pages_preemptions import span_of
from billing.selectors.pages_statements import OF_TIME
from billing.selectors.statements import preemption_records
from billing.selectors.tokens import TokenRow, tokens
from billing.sql_pages import LINE_SLOTS
from ledger.access import Access
from ledger.core.periods import Span, to_ms
from ledger.core.units import MS_PER_DAY
from ledger.models import Purpose, ServiceClass
from ledger.querysets import visible_to


@dataclass(frozen=True)
class Slot:
    """One slot's part of the line."""

    starts_at: datetime
    ends_at: datetime | None
    gpu_us: int
    capacity_gpu_us: int | None


@dataclass(frozen=True)
class SlotDay:
    """A UTC day's part of the line."""

    day: date
    slots: list[Slot]

    @property
    def gpu_us(self) -> int:
        return sum(slot.gpu_us for slot in self.slots)


@dataclass(frozen=True)
class WorkloadPart:
    """A workload's part of the line on the chosen day."""

    workload: WorkloadDay
    gpu_us: int


@dataclass(frozen=True)
class LineDetail:
    """`days` add up to the line. Empty where the line is not of GPU time; then `tokens` or `records` tell more."""

    days: list[SlotDay] = field(default_factory=list)
    chosen: SlotDay | None = None
    workloads: list[WorkloadPart] = field(default_factory=list)
    asked: list[TokenRow] = field(default_factory=list)
    tokens: list[TokenRow] = field(default_factory=list)
    records: list[PreemptionRecord] = field(default_factory=list)

    @property
    def gpu_us(self) -> int:
        return sum(day.gpu_us for day in self.days)

    @property
    def workloads_gpu_us(self) -> int:
        return sum(part.gpu_us for part in self.workloads)


def line_detail(statement: Statement, line: StatementLine, access: Access, day: str) -> LineDetail:
    """At most six queries. `day` is an ISO date; without one (or with a wrong one) the fullest day is chosen."""
    records = _records(line, access)
    if line.kind == "tokens":
        return LineDetail(tokens=_token_days(statement, line), records=records)
    if line.kind not in OF_TIME or line.category not in HOLDER_CATEGORIES or line.unit != "gpu_us":
        return LineDetail(records=records)
    days = _days(_slots(statement, line))
    chosen = next((one for one in days if one.day.isoformat() == day), None)
    chosen = chosen or max(days, key=lambda one: one.gpu_us, default=None)
    workloads = _workloads(statement, line, chosen.day, access) if chosen else []
    asked = _asked_of_the_service(statement, line, chosen.day) if chosen and line.service else []
    return LineDetail(days, chosen, workloads, asked, records=records)


def _slots(statement: Statement, line: StatementLine) -> list[Slot]:
    parameters = {
        "tenant": statement.tenant_id,
        "pool": line.pool,
        "service": line.service,
        "service_class": ServiceClass[line.service_class.upper() or "NONE"],
        "purpose": Purpose[line.purpose.upper() or "NONE"],
        "service_idle": line.service_idle,
        "from": max(line.version_from, statement.period.starts_at),
        "to": _version_ends_at(statement, line),
    }
    if line.category not in HOLDER_CATEGORIES:
        raise ValueError(f"{line.category} is no category of a holder's time")
    with connection.cursor() as cursor:
        cursor.execute(LINE_SLOTS.format(category=line.category), parameters)
        return [
            Slot(starts_at, ends_at, int(gpu_us), None if capacity is None else int(capacity))
            for starts_at, gpu_us, ends_at, capacity in cursor.fetchall()
        ]


def _version_ends_at(statement: Statement, line: StatementLine) -> datetime:
    """Where the next version of the terms of the pool begins, or the month ends."""
    following = (
        statement.lines.filter(pool=line.pool, version_from__gt=line.version_from, kind__in=OF_TIME)
        .order_by("version_from")
        .values_list("version_from", flat=True)
        .first()
    )
    return following or statement.period.ends_at


def _days(slots: Sequence[Slot]) -> list[SlotDay]:
    days: dict[date, SlotDay] = {}
    for slot in slots:
        day = slot.starts_at.astimezone(UTC).date()
        days.setdefault(day, SlotDay(day, [])).slots.append(slot)
    return list(days.values())


def _workloads(statement: Statement, line: StatementLine, day: date, access: Access) -> list[WorkloadPart]:
    """The work behind the day, largest first; only occupied time has any."""
    if line.category not in OCCUPIED or line.service_idle:
        return []
    holder = Q(holder__slug=line.service) if line.service else Q(holder=statement.tenant_id)
    starts_at = datetime(day.year, day.month, day.day, tzinfo=UTC)
    rows = visible_to(WorkloadDay.objects.select_related("pool"), access).filter(
        holder,
        pool__slug=line.pool,
        starts_at__gte=max(starts_at, statement.period.starts_at),
        starts_at__lt=starts_at + timedelta(days=1),
        service_class=ServiceClass[line.service_class.upper() or "NONE"],
        purpose=Purpose[line.purpose.upper() or "NONE"],
        **{f"{line.category}_gpu_us__gt": 0},
    )
    parts = [WorkloadPart(row, getattr(row, f"{line.category}_gpu_us")) for row in rows]
    return sorted(parts, key=lambda part: (-part.gpu_us, part.workload.workload))


def _asked_of_the_service(statement: Statement, line: StatementLine, day: date) -> list[TokenRow]:
    """The tenant's requests of that day by hour and model: what the service's time is divided by."""
    start_ms = to_ms(datetime(day.year, day.month, day.day, tzinfo=UTC))
    window = Span(start_ms, start_ms + MS_PER_DAY).overlap(span_of(statement.period))
    if window is None:
        return []
    filters = {"tenant": [statement.tenant.slug], "service": [line.service], "pool": [line.pool]}
    return tokens(window, "UTC", by=("model",), step="hour", filters=filters)


def _token_days(statement: Statement, line: StatementLine) -> list[TokenRow]:
    filters = {"tenant": [statement.tenant.slug]}
    if line.model:
        filters["model"] = [line.model]
    return tokens(span_of(statement.period), "UTC", by=("model",), step="day", filters=filters)


def _records(line: StatementLine, access: Access) -> list[PreemptionRecord]:
    """The preemptions that the line names, newest first."""
    return list(preemption_records(access).filter(pk__in=line.preemptions)) if line.preemptions else []
