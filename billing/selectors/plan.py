"""The last months re-rated at another reservation size: a dry run that writes nothing (domain.md section 9)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from django.db.models import F

from billing.core.plan import PoolMonth, Rerated, Share, rerate, share_out, with_reservation
from billing.selectors.terms import MonthTerms, month_terms
from billing.services.allocation_facts import (
    HolderIndex,
    load_timeline,
    mapping_cuts,
    read_pool_facts,
    void_events,
    with_waits,
)
from ledger.core.levels import resolve_holders
from ledger.core.periods import Month, Span, slot_edges, to_ms, utc_days
from ledger.models import Ledger, Period, Pool, Purpose, ServiceClass, Tenant

MONTHS = 3
_RUN_DAYS = 7
_GROUPS = len(ServiceClass.values) * 8
_PURPOSES = {choice.value: str(choice.label) for choice in Purpose}


@dataclass(frozen=True)
class PlannedMonth:
    """A month as it was and as it would have been, both split and rated in the same dry run."""

    month: str
    now: Rerated
    then: Rerated

    @property
    def difference_micro(self) -> int | None:
        """Below 0: the other size would have been cheaper."""
        if self.now.amount_micro is None or self.then.amount_micro is None:
            return None
        return self.then.amount_micro - self.now.amount_micro


def plan(tenant: Tenant, pool: Pool, milli_gpus: int, ledger: Ledger) -> list[PlannedMonth]:
    """The last three months that have been computed, oldest first, up to their horizon. About a second per month."""
    periods = list(Period.objects.filter(horizon_at__gt=F("starts_at")).order_by("-month")[:MONTHS])
    index, void = HolderIndex.load(), void_events()
    found = []
    for period in reversed(periods):
        assert period.horizon_at is not None
        terms = month_terms(Month.parse(period.month), ledger.billing_time_zone)
        shares = [
            _shares(pool, run, terms, index, void, tenant.slug, milli_gpus)
            for run in _runs(Span(to_ms(period.starts_at), to_ms(period.horizon_at)))
        ]
        found.append(
            PlannedMonth(
                period.month,
                rerate([now for now, _ in shares], tenant.slug, terms.rating),
                rerate([then for _, then in shares], tenant.slug, terms.rating),
            )
        )
    return found


def _runs(span: Span) -> list[Span]:
    """The span in stretches of at most a week, whole UTC days: bounds memory, as computing does."""
    days = list(utc_days(span))
    return [
        Span(days[start].start_ms, days[min(start + _RUN_DAYS, len(days)) - 1].end_ms)
        for start in range(0, len(days), _RUN_DAYS)
    ]


def _shares(
    pool: Pool,
    run: Span,
    terms: MonthTerms,
    index: HolderIndex,
    void: list[int],
    tenant: str,
    milli_gpus: int,
) -> tuple[Share, Share]:
    """(as it was, as it would have been)"""
    facts = read_pool_facts(pool.pk, run, void, index)
    timeline = load_timeline(np.unique(facts.effective.levels.who).tolist(), index)
    levels = resolve_holders(facts.effective.levels, timeline)
    versions = terms.versions[pool.slug]
    month = PoolMonth(
        pool=pool.slug,
        holders=index.holders,
        edges=slot_edges(run.start_ms, run.end_ms, [*versions, *mapping_cuts(timeline)]),
        capacity_from_ms=facts.effective.capacity_from_ms,
        versions=versions,
        class_names=[str(ServiceClass(group // 8).label) for group in range(_GROUPS)],
        purpose_names=[_PURPOSES.get(group % 8, "") for group in range(_GROUPS)],
        preemptible=np.array([group // 8 == ServiceClass.PREEMPTIBLE for group in range(_GROUPS)]),
    )
    holder = index.holders.slugs.index(tenant)
    changed = with_reservation(levels, holder, milli_gpus, run.start_ms - 1)
    return (
        share_out(with_waits(levels, facts.waits), month),
        share_out(with_waits(changed, facts.waits), month),
    )
