"""Reads of preemptions for people: a month's sum, a list, and one record as its reader may see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _

from billing.models import PreemptionRecord, Statement
from billing.selectors.allocations import RequeuedRow, requeued
from billing.selectors.names import ANOTHER_TENANT, Names
from billing.selectors.periods import horizon_of, ledger_and_now
from billing.selectors.preemptions import MatrixCell, matrix
from billing.selectors.statements import preemption_records
from ledger.access import Access
from ledger.core.periods import Span, to_ms
from ledger.models import HolderKind, Period

WORST_PAIRS = 8


def span_of(period: Period) -> Span:
    return Span(to_ms(period.starts_at), to_ms(period.ends_at))


def requeued_by_tenant(period: Period, access: Access) -> dict[str, RequeuedRow]:
    """Tenant slug -> its re-queued GPU time of the month. Three queries."""
    _ledger, now_ms = ledger_and_now()
    span = span_of(period)
    tenant_ids = None if access.sees_all_tenants else access.tenant_ids
    return {row.tenant: row for row in requeued(span, horizon_of(span, now_ms), tenant_ids=tenant_ids)}


@dataclass(frozen=True)
class CauseRow:
    """Preemptions of one cause. Sums are over what is known; `partial` says that something is not."""

    cause: str
    count: int
    milli_gpus: int
    lost_gpu_us: int
    recompute_gpu_us: int
    waiting_gpu_us: int
    partial: bool

    @property
    def requeued_gpu_us(self) -> int:
        return self.lost_gpu_us + self.recompute_gpu_us


@dataclass(frozen=True)
class Pair:
    """Who took from whom, by name."""

    preemptor: str
    victim: str
    cell: MatrixCell


@dataclass(frozen=True)
class MonthPreemptions:
    """A month's preemptions in sum. Deferrals (work pushed back before it ran) are counted apart."""

    causes: list[CauseRow]
    pairs: list[Pair]
    deferrals: int

    @property
    def count(self) -> int:
        return sum(row.count for row in self.causes)

    @property
    def milli_gpus(self) -> int:
        return sum(row.milli_gpus for row in self.causes)

    @property
    def requeued_gpu_us(self) -> int:
        return sum(row.requeued_gpu_us for row in self.causes)

    @property
    def waiting_gpu_us(self) -> int:
        return sum(row.waiting_gpu_us for row in self.causes)

    @property
    def partial(self) -> bool:
        return any(row.partial for row in self.causes)


def month_preemptions(period: Period, access: Access, names: Names) -> MonthPreemptions:
    """By cause, and the pairs that cost most. Three queries."""
    decided = Q(decided_at__gte=period.starts_at, decided_at__lt=period.ends_at)
    visible = preemption_records(access)
    records = visible.filter(decided).order_by()
    if records.query.distinct:
        records = PreemptionRecord.objects.filter(pk__in=records.values("pk")).order_by()
    rows = (
        records.filter(queued_only=False)
        .values("cause")
        .annotate(
            count=Count("pk"),
            milli=Sum("milli_gpus"),
            lost=Coalesce(Sum("lost_gpu_us"), 0),
            recompute=Coalesce(Sum("recompute_gpu_us"), 0),
            waiting=Sum("waiting_gpu_us"),
            unknown=Count(
                "pk", filter=Q(lost_gpu_us=None) | Q(recompute_gpu_us=None, resumed_at__isnull=False)
            ),
        )
        .order_by("-count", "cause")
    )
    pairs = [
        Pair(names.shown(cell.preemptor_id), names.shown(cell.victim_id), cell)
        for cell in matrix(visible, span_of(period), worst=WORST_PAIRS)
    ]
    return MonthPreemptions(
        causes=[_cause_row(row) for row in rows],
        pairs=pairs,
        deferrals=records.filter(queued_only=True).count(),
    )


def _cause_row(row: Mapping[str, Any]) -> CauseRow:
    return CauseRow(
        row["cause"],
        row["count"],
        int(row["milli"]),
        int(row["lost"]),
        int(row["recompute"]),
        int(row["waiting"]),
        row["unknown"] > 0,
    )


@dataclass(frozen=True)
class ShownPreemption:
    """A record as one reader sees it: others by alias, their work unnamed, measures its own share where it was hit.

    role: 'victim' or 'cause' from the reader's side; '' for whoever sees all.
    """

    record: PreemptionRecord
    victim: str
    preemptor: str
    role: str
    lost_gpu_us: int | None
    recompute_gpu_us: int | None
    waiting_gpu_us: int
    hides_victim: bool
    hides_preemptor: bool

    @property
    def requeued_gpu_us(self) -> int | None:
        if self.lost_gpu_us is None and self.recompute_gpu_us is None:
            return None
        return (self.lost_gpu_us or 0) + (self.recompute_gpu_us or 0)

    @property
    def partial(self) -> bool:
        """Whether the re-queued time is known in part only."""
        return self.requeued_gpu_us is not None and (
            self.lost_gpu_us is None or self.recompute_gpu_us is None
        )

    @property
    def lasted_ms(self) -> int | None:
        """From the release of the GPUs until the work ran again."""
        record = self.record
        if record.resumed_at is None:
            return None
        return max(to_ms(record.resumed_at) - to_ms(record.released_at or record.decided_at), 0)


def shown(
    record: PreemptionRecord, names: Names, access: Access, tenant_ids: frozenset[int] | None = None
) -> list[ShownPreemption]:
    """The record from every side that the reader is on. `tenant_ids`: the tenants whose statement it stands on.

    Needs `shares` with their accounts, `victim` and `preemptor__service` prefetched; no query of its own.
    """
    mine = tenant_ids if tenant_ids is not None else frozenset(access.tenant_ids)
    if access.sees_all_tenants and tenant_ids is None:
        return [_side(record, names, "", record)]
    sides = [
        _side(record, names, "victim", share)
        for share in record.shares.all()
        if share.account.tenant_id in mine
    ]
    service = getattr(record.preemptor, "service", None) if record.preemptor_id else None
    if record.preemptor_id in mine or (service is not None and service.owner_id in mine):
        sides.append(_side(record, names, "cause", record))
    return sides


def _side(record: PreemptionRecord, names: Names, role: str, measures: Any) -> ShownPreemption:
    return ShownPreemption(
        record=record,
        victim=in_words(names.shown(record.victim_id)),
        preemptor=in_words(names.shown(record.preemptor_id)),
        role=role,
        lost_gpu_us=measures.lost_gpu_us,
        recompute_gpu_us=measures.recompute_gpu_us,
        waiting_gpu_us=measures.waiting_gpu_us,
        hides_victim=names.is_other(record.victim_id),
        hides_preemptor=names.is_other(record.preemptor_id),
    )


def in_words(name: str) -> str:
    """Names are data; only the stand-in for a tenant without an alias has a translation."""
    return _("another tenant") if name == ANOTHER_TENANT else name


def shows_victim(access: Access) -> Q:
    """Records whose victim's workload and key the reader is shown whatever the policy: not another tenant's."""
    if access.sees_all_tenants:
        return Q()
    return Q(victim__in=access.tenant_ids) | ~Q(victim__kind=HolderKind.TENANT)


def month_records(period: Period, access: Access) -> QuerySet[PreemptionRecord]:
    """Records decided in the month that the reader may see, newest first."""
    return preemption_records(access).filter(decided_at__gte=period.starts_at, decided_at__lt=period.ends_at)


def neighbours_of(record: PreemptionRecord, access: Access) -> QuerySet[PreemptionRecord]:
    """Other preemptions of the same victim workload, for the way on from a record."""
    if not record.victim_workload:
        return PreemptionRecord.objects.none()
    same = preemption_records(access).filter(
        victim_workload=record.victim_workload, cluster=record.cluster, victim=F("victim")
    )
    return same.exclude(pk=record.pk)


def requeued_of(statement: Statement) -> RequeuedRow | None:
    """One tenant's re-queued GPU time of its month; None if nothing of it was hit. Three queries."""
    _ledger, now_ms = ledger_and_now()
    span = span_of(statement.period)
    rows = requeued(span, horizon_of(span, now_ms), tenant_ids=frozenset({statement.tenant_id}))
    return rows[0] if rows else None
