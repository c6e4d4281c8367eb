"""Reads over many preemptions: who preempted whom."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, F, QuerySet, Sum
from django.db.models.functions import Coalesce

from billing.models import PreemptionRecord
from ledger.core.periods import Span, to_datetime


@dataclass(frozen=True)
class MatrixCell:
    """What one preemptor (None: unknown) took from one victim; amount: of its re-queued time, as far as it has one."""

    preemptor_id: int | None
    victim_id: int
    preemptions: int
    milli_gpus: int
    requeued_gpu_us: int
    waiting_gpu_us: int
    amount_micro: int = 0


def matrix(visible: QuerySet[PreemptionRecord], window: Span, worst: int | None = None) -> list[MatrixCell]:
    """Cells of preemptions decided in the window, ordered by preemptor and victim slug, an order that who reads
    aliases must not see. Deferrals are not counted. worst: only so many, those with the most re-queued time first, then
    the most preemptions."""
    decided = visible.order_by().filter(
        queued_only=False,
        decided_at__gte=to_datetime(window.start_ms),
        decided_at__lt=to_datetime(window.end_ms),
    )
    # What a tenant sees it sees by several ways; sums must count each record once.
    records = (
        PreemptionRecord.objects.filter(pk__in=decided.values("pk")) if visible.query.distinct else decided
    )
    by_name = (F("preemptor__slug").asc(nulls_first=True), "victim__slug")
    rows = (
        records.values("preemptor_id", "victim_id")
        .annotate(
            hits=Count("pk"),
            gpus=Sum("milli_gpus"),
            requeued=Sum(Coalesce("lost_gpu_us", 0) + Coalesce("recompute_gpu_us", 0)),
            waited=Sum("waiting_gpu_us"),
            amount=Sum(Coalesce("amount_micro", 0)),
        )
        .order_by(*(() if worst is None else ("-requeued", "-hits")), *by_name)[:worst]
    )
    return [
        MatrixCell(
            row["preemptor_id"],
            row["victim_id"],
            row["hits"],
            int(row["gpus"]),
            int(row["requeued"]),
            int(row["waited"]),
            int(row["amount"]),
        )
        for row in rows
    ]
