"""One pool over one run of days: read what it needs, split it, put the rows in place of the old ones.

The three are apart because splitting, which takes a processor, needs no database and runs beside the other two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from billing.core.allocation import PoolSplit, split_pool
from billing.core.allocation_shares import Pending
from billing.core.allocation_within import mixed_holders, split_within_holders
from billing.models import Policy, PoolCost, RateCard
from billing.selectors.undated import undated_terms
from billing.services.allocation_facts import (
    HolderIndex,
    PoolFacts,
    load_timeline,
    mapping_cuts,
    read_pool_facts,
    void_events,
    with_waits,
)
from billing.services.allocation_findings import estimated, held_without_capacity_ms, write_findings
from billing.services.allocation_pending import pending_counts, read_pending
from billing.services.allocation_rows import (
    Accounts,
    ServiceFinding,
    allocation_rows,
    write_allocation_days,
    write_allocations,
    write_lending,
    write_pool_slots,
    write_token_days,
)
from billing.services.allocation_usage import Terms, pruned_slots, read_usage, usage_by_slot
from billing.services.allocation_workloads import ByWorkload, WorkloadDays, workload_days, write_workload_days
from billing.sql import computing
from ledger.core.levels import HolderTimeline, resolve_holders
from ledger.core.periods import Month, Span, local_midnights, slot_edges, to_datetime, to_ms, utc_days
from ledger.models import Pool, ServiceClass

Int64s = NDArray[np.int64]

# By group (class x 8 + purpose): what is filled last within a holder.
_PREEMPTIBLE = np.repeat([kind == ServiceClass.PREEMPTIBLE for kind in sorted(ServiceClass.values)], 8)


@dataclass(frozen=True)
class Context:
    """What all pools of a computation share."""

    month: Month
    zone: str
    index: HolderIndex
    accounts: Accounts
    void: list[int]
    rate_cuts: list[int]
    policy_cuts: list[int]
    pending_counts: list[tuple[int, int]]

    @classmethod
    def load(cls, month: Month) -> Context:
        undated = undated_terms()
        index = HolderIndex.load(undated.at(month.span(undated.zone).start_ms).owned)
        return cls(
            month,
            undated.zone,
            index,
            Accounts.load(index),
            void_events(),
            _cuts(RateCard.objects),
            _cuts(Policy.objects),
            pending_counts(),
        )


def _cuts(versions: Any) -> list[int]:
    dates = versions.values_list("valid_from", "ended_at")
    return [to_ms(instant) for version in dates for instant in version if instant is not None]


@dataclass(frozen=True)
class Inputs:
    """All that the split of a pool over a run of days needs. edges: of the slots. lending_cuts: see `split_pool`.
    day_cuts: those, and where days of the billing zone begin. pruned: slots whose requests are gone."""

    pool: Pool
    span: Span
    facts: PoolFacts
    terms: Terms
    timeline: HolderTimeline
    usage: dict[str, Int64s]
    pending: Pending
    edges: Int64s
    lending_cuts: list[int]
    day_cuts: list[int]
    pruned: set[int]


@dataclass(frozen=True)
class Result:
    """Rows to be written, and what was noticed on the way."""

    inputs: Inputs
    split: PoolSplit
    rows: dict[str, Int64s]
    days: WorkloadDays
    noticed: list[ServiceFinding]
    missed_ms: int


@dataclass(frozen=True)
class Written:
    """How many rows were written. accounts: those that had or have a part of that time."""

    slots: int
    rows: int
    findings: int
    accounts: frozenset[int]


def read_inputs(pool: Pool, span: Span, context: Context) -> Inputs:
    facts = read_pool_facts(pool.pk, span, context.void, context.index)
    terms = Terms.load(pool)
    timeline = load_timeline(np.unique(facts.effective.levels.who).tolist(), context.index)
    price_cuts = context.rate_cuts + _cuts(PoolCost.objects.filter(pool=pool))
    cuts = [*price_cuts, *context.policy_cuts, *terms.cuts(), *mapping_cuts(timeline)]
    usage = read_usage(pool, slot_edges(span.start_ms, span.end_ms, cuts))
    strangers = np.setdiff1d(usage["who"], timeline.identity)
    if len(strangers):
        timeline = load_timeline([*timeline.identity.tolist(), *strangers.tolist()], context.index)
        cuts += mapping_cuts(timeline)
        usage = read_usage(pool, slot_edges(span.start_ms, span.end_ms, cuts))
    edges = slot_edges(span.start_ms, span.end_ms, cuts)
    lending_cuts = [
        *(day.start_ms for day in utc_days(span)),
        *(t for t in price_cuts if span.start_ms < t < span.end_ms),
    ]
    day_cuts = sorted({*lending_cuts, *local_midnights(span, context.zone)})
    pending = read_pending(pool.pk, span, context.void, context.index, context.pending_counts)
    return Inputs(
        pool, span, facts, terms, timeline, usage, pending, edges, lending_cuts, day_cuts, pruned_slots(edges)
    )


def split_inputs(inputs: Inputs, context: Context) -> Result:
    """Everything that is computed; without the database, so that it may run in another thread."""
    facts, index, span = inputs.facts, context.index, inputs.span
    levels = with_waits(resolve_holders(facts.effective.levels, inputs.timeline), facts.waits)
    workloads = ByWorkload.of(levels)
    split = split_pool(
        levels,
        index.holders,
        inputs.edges,
        facts.effective.capacity_from_ms,
        inputs.lending_cuts,
        mixed_holders(workloads.levels, span.start_ms, span.end_ms),
        inputs.pending,
    )
    groups = split_within_holders(split, levels, _PREEMPTIBLE)
    served = usage_by_slot(inputs.usage, inputs.terms, inputs.timeline, index)
    rows, noticed = allocation_rows(split, groups, served, inputs.terms, index, context.accounts)
    noticed += estimated(inputs.usage, inputs.pruned, inputs.edges, index)
    days = workload_days(span, split, workloads, facts.subjects)
    return Result(inputs, split, rows, days, noticed, held_without_capacity_ms(levels, split))


def write_result(result: Result, context: Context) -> Written:
    """Put the rows in place of the old ones."""
    inputs, split, index = result.inputs, result.split, context.index
    pool = inputs.pool
    had = _delete(pool, inputs.span)
    slots = write_pool_slots(pool.pk, split)
    rows = write_allocations(pool.pk, split.edges, result.rows, index)
    write_allocation_days(pool.pk, split.edges, result.rows, inputs.day_cuts)
    write_lending(pool.pk, split, index)
    write_token_days(pool.pk, sorted({*inputs.lending_cuts}), inputs.span.end_ms)
    write_workload_days(pool.pk, result.days, index)
    findings = write_findings(
        pool, inputs.span, context.month, index, split, result.noticed,
        inputs.facts.conflicting_events, result.missed_ms,
    )  # fmt: skip
    return Written(slots, rows, findings, had.union(np.unique(result.rows["account"]).tolist()))


def _delete(pool: Pool, span: Span) -> frozenset[int]:
    """Take the rows of that time away. The accounts they were on."""
    params: dict[str, Any] = {
        "pool": pool.pk,
        "from": to_datetime(span.start_ms),
        "to": to_datetime(span.end_ms),
    }
    with connection.cursor() as cursor:
        for statement in computing.DELETE_SLOTS:
            cursor.execute(statement, params)
        cursor.execute(computing.DELETE_DAYS, params)
        return frozenset(account for (account,) in cursor.fetchall())
