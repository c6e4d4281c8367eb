"""What a statement line is the sum of: the days of a zone, the slots of one day, and the work that ran in them.

A slot belongs to the day that it starts in, as on the statement. Work is booked by UTC day and can't be cut again:
below a day of another zone stand the UTC days that it touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import Q

from billing.models import PreemptionRecord, Statement, StatementLine, WorkloadDay
from billing.selectors.pages_months import HOLDER_CATEGORIES, OCCUPIED
from billing.selectors.pages_preemptions import span_of
from billing.selectors.pages_statements import OF_TIME
from billing.selectors.statements import preemption_records
from billing.selectors.tokens import TokenRow, tokens
from billing.sql.pages import LINE_SLOTS
from ledger.access import Access
from ledger.core.periods import Span, to_ms
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
    """A day's part of the line; starts_at, ends_at: its midnights in the zone."""

    day: date
    zone: ZoneInfo
    slots: list[Slot]

    @property
    def starts_at(self) -> datetime:
        return _midnight(self.day, self.zone)

    @property
    def ends_at(self) -> datetime:
        return _midnight(self.day + timedelta(days=1), self.zone)

    @property
    def utc_days(self) -> list[date]:
        """Those that it touches: itself in UTC, two elsewhere."""
        first, last = self.starts_at.date(), (self.ends_at - timedelta.resolution).date()
        return [first] if first == last else [first, last]

    @property
    def gpu_us(self) -> int:
        return sum(slot.gpu_us for slot in self.slots)


@dataclass(frozen=True)
class WorkloadPart:
    """A workload's part of the line on one UTC day."""

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


def line_detail(
    statement: Statement, line: StatementLine, access: Access, day: str, zone: ZoneInfo
) -> LineDetail:
    """At most six queries. `day` is an ISO date of the zone; without one (or with a wrong one) the fullest day is
    chosen."""
    records = _records(line, access)
    if line.kind == "tokens":
        return LineDetail(tokens=_token_days(statement, line, zone), records=records)
    if line.kind not in OF_TIME or line.category not in HOLDER_CATEGORIES or line.unit != "gpu_us":
        return LineDetail(records=records)
    days = _days(_slots(statement, line), zone)
    chosen = next((one for one in days if one.day.isoformat() == day), None)
    chosen = chosen or max(days, key=lambda one: one.gpu_us, default=None)
    workloads = _workloads(statement, line, chosen, access) if chosen else []
    asked = _asked_of_the_service(statement, line, chosen) if chosen and line.service else []
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


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """The first instant of the day, in UTC; where clocks skip midnight, the instant at which they do."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def _days(slots: Sequence[Slot], zone: ZoneInfo) -> list[SlotDay]:
    days: dict[date, SlotDay] = {}
    for slot in slots:
        day = slot.starts_at.astimezone(zone).date()
        days.setdefault(day, SlotDay(day, zone, [])).slots.append(slot)
    return list(days.values())


def _workloads(
    statement: Statement, line: StatementLine, chosen: SlotDay, access: Access
) -> list[WorkloadPart]:
    """The work of the UTC days that the day touches, largest first; only occupied time has any."""
    if line.category not in OCCUPIED or line.service_idle:
        return []
    holder = Q(holder__slug=line.service) if line.service else Q(holder=statement.tenant_id)
    utc = ZoneInfo("UTC")
    first, last = _midnight(chosen.utc_days[0], utc), _midnight(chosen.utc_days[-1], utc)
    rows = visible_to(WorkloadDay.objects.select_related("pool"), access).filter(
        holder,
        pool__slug=line.pool,
        starts_at__gte=max(first, statement.period.starts_at),
        starts_at__lt=min(last + timedelta(days=1), statement.period.ends_at),
        service_class=ServiceClass[line.service_class.upper() or "NONE"],
        purpose=Purpose[line.purpose.upper() or "NONE"],
        **{f"{line.category}_gpu_us__gt": 0},
    )
    parts = [WorkloadPart(row, getattr(row, f"{line.category}_gpu_us")) for row in rows]
    return sorted(parts, key=lambda part: (-part.gpu_us, part.workload.starts_at, part.workload.workload))


def _asked_of_the_service(statement: Statement, line: StatementLine, chosen: SlotDay) -> list[TokenRow]:
    """The tenant's requests of that day by hour and model: what the service's time is divided by."""
    window = Span(to_ms(chosen.starts_at), to_ms(chosen.ends_at)).overlap(span_of(statement.period))
    if window is None:
        return []
    filters = {"tenant": [statement.tenant.slug], "service": [line.service], "pool": [line.pool]}
    return tokens(window, "UTC", by=("model",), step="hour", filters=filters)


def _token_days(statement: Statement, line: StatementLine, zone: ZoneInfo) -> list[TokenRow]:
    filters = {"tenant": [statement.tenant.slug]}
    if line.model:
        filters["model"] = [line.model]
    return tokens(span_of(statement.period), zone.key, by=("model",), step="day", filters=filters)


def _records(line: StatementLine, access: Access) -> list[PreemptionRecord]:
    """The preemptions that the line names, newest first."""
    return list(preemption_records(access).filter(pk__in=line.preemptions)) if line.preemptions else []
