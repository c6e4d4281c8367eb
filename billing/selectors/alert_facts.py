"""The facts that the alert rules look at, as rows of billing.core.alerts. One query each unless said otherwise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from django.db import connection
from django.db.models import Max, Q

from billing.core import alerts as core
from billing.core.alert_episodes import ShortStretch
from billing.core.calibration import TokenCost
from billing.core.shortage import shortages
from billing.models import Budget
from billing.selectors.forecast import budget_standings
from billing.selectors.quota import quota_drift
from billing.selectors.shortages import pools_where_work_waits
from billing.services.allocation_facts import HolderIndex, void_events
from billing.services.preemption_moments import read_changes, service_owners
from billing.sql import alerts as sql
from ledger.access import Access
from ledger.core.periods import Month, Span, to_datetime, to_ms
from ledger.core.units import MS_PER_SECOND
from ledger.models import Ledger, Pool, Role, Source
from ledger.selectors.silence import heard_at, with_silence_waivers


@dataclass
class Facts:
    """What is known at `now_ms`, read when a rule asks for it and kept for the next rule of the same look."""

    now_ms: int
    since_ms: int

    @cached_property
    def void(self) -> list[int]:
        return void_events()

    def _rows(self, statement: str, lasting_s: int, **more: Any) -> list[tuple[Any, ...]]:
        parameters = {
            "from": to_datetime(self.now_ms - lasting_s * MS_PER_SECOND),
            "to": to_datetime(self.now_ms),
            **more,
        }
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    @cached_property
    def short(self) -> list[ShortStretch]:
        """Shortages since `since_ms`, changes at `now_ms` itself included; one sweep per pool where work waits."""
        window = Span(self.since_ms, self.now_ms + 1)
        pools = list(Pool.objects.filter(pk__in=pools_where_work_waits(window)).order_by("slug"))
        if not pools:
            return []
        index, owners = HolderIndex.load(), service_owners()
        return [
            ShortStretch(pool.slug, one.starts_ms, one.ends_ms, one.deficit, one.deficit_gpu_us)
            for pool in pools
            for one in shortages(read_changes(pool, window, self.void, index), owners, window)
        ]

    @cached_property
    def drifting(self) -> list[core.DriftStretch]:
        """Quota drift since `since_ms`; what is still so at `now_ms` has no end."""
        return [
            core.DriftStretch(
                one.tenant, one.drift.full_layer, one.drift.starts_ms, one.drift.ends_ms, one.drift.gpu_us
            )
            for one in quota_drift(Span(self.since_ms, self.now_ms + 1))
        ]

    def reserved(self, lasting_s: int) -> list[core.ReservedUse]:
        return [core.ReservedUse(*row) for row in self._rows(sql.RESERVED, lasting_s)]

    def preempted(self, lasting_s: int) -> list[core.Preempted]:
        return [core.Preempted(*row) for row in self._rows(sql.PREEMPTIONS, lasting_s, void=self.void)]

    def rejected(self, lasting_s: int) -> list[core.Rejected]:
        return [core.Rejected(*row) for row in self._rows(sql.REJECTIONS, lasting_s, void=self.void)]

    def unattributed(self, lasting_s: int) -> dict[str, int]:
        return dict(self._rows(sql.UNATTRIBUTED, lasting_s))  # type: ignore[arg-type]

    def converted(self, lasting_s: int) -> Iterator[core.Converted]:
        for row in self._rows(sql.CONVERSION, lasting_s):
            model, gpu_model, tokens, measured, costs = row[0], row[1], row[2:5], row[5], row[6:9]
            predicted = TokenCost(*costs).predict_gpu_us(*tokens)
            yield core.Converted(model, gpu_model, predicted, measured, row[9])

    def planned(self, ahead_s: int) -> Iterator[core.PlannedCapacity]:
        span = {"from": to_datetime(self.now_ms), "to": to_datetime(self.now_ms + ahead_s * MS_PER_SECOND)}
        for pool, at, booked, after, before in self._rows(sql.PLANNED, 0, void=self.void, **span):
            label = f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
            yield core.PlannedCapacity(pool, to_ms(at), to_ms(booked), before or 0, after, label)

    @cached_property
    def budgets(self) -> list[core.BudgetMonth]:
        """Budgets of the month that `now_ms` lies in; nothing is forecast where there is none."""
        ledger = Ledger.objects.filter(id=1).first()
        if ledger is None or not Budget.objects.exists():
            return []
        month = Month.containing(self.now_ms, ledger.billing_time_zone)
        return [
            core.BudgetMonth(
                one.budget.tenant.slug,
                one.month,
                ledger.currency if one.budget.kind == "amount" else "GPU-hour",
                one.spending.limit,
                one.spending.spent,
                one.spending.expected,
                tuple(one.budget.thresholds),
            )
            for one in budget_standings(month, ledger, self.now_ms, Access(roles=frozenset({Role.AUDITOR})))
        ]

    @cached_property
    def newest_ms(self) -> int | None:
        newest: datetime | None = Source.objects.filter(retired_at=None).aggregate(
            newest=Max("watermark_at")
        )["newest"]
        return None if newest is None else to_ms(newest)

    @cached_property
    def sources(self) -> list[core.SourceClock]:
        """Those in use that have sent something, or that the configuration names: the latter are waited for."""
        in_use = Source.objects.filter(Q(watermark_at__isnull=False) | Q(name__isnull=False), retired_at=None)
        return [_clock(source) for source in with_silence_waivers(in_use).order_by("uri")]

    @cached_property
    def reserving(self) -> dict[int, set[int]]:
        """Pool id -> ids of the tenants with a claim on its GPUs now."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for pool, tenant in self._rows(sql.RESERVING, 0, at=to_datetime(self.now_ms), void=self.void):
            found[pool].add(tenant)
        return found


def _clock(source: Source) -> core.SourceClock:
    if source.watermark_at is not None:
        return core.SourceClock(str(source), to_ms(source.watermark_at), source.silence_after_s)
    since = max(source.registered_at, heard_at(source) or source.registered_at)
    return core.SourceClock(str(source), to_ms(since), source.silence_after_s, is_new=True)
