"""Writing preemption records: merged, measured, and kept up with late facts (domain.md section 6).

`rebuild_preemptions` runs before the month is allocated, because waiting work makes idle reservations undelivered;
`share_rebuilt` runs after it, because a shared service is shared out by the slot where no request tells.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Max, Q

from billing.core.preemption import NO_VOIDED, Measures, measure, released_at_ms
from billing.core.preemption_merge import Key, MergeConflict, Preemption, merge
from billing.core.preemption_workload import Holding
from billing.models import Calibration, PreemptionRecord, PreemptionWait
from billing.selectors.accounts import Accounts
from billing.selectors.terms import MonthTerms
from billing.selectors.undated import UndatedTerms
from billing.services.allocation_facts import HolderIndex, void_events
from billing.services.preemption_facts import (
    Victim,
    VoidedRequests,
    kept_voided,
    reported,
    stale_preemptions,
    voided_requests,
    workload_histories,
)
from billing.services.preemption_moves import Move, mark_other_months, moves_beyond
from billing.services.preemption_prices import PreemptionPrices
from billing.services.preemption_records import Records, Work, instant, record_id
from billing.services.preemption_shares import share_preemptions
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import DirtySpan, FactFinding, Period, Pool

_BATCH = 1000


@dataclass(frozen=True)
class Rebuilt:
    """ids: of the records that were written again. gone: of those that no report tells of any more. moved: what both
    moved beyond the month before."""

    ids: list[uuid.UUID]
    gone: list[uuid.UUID]
    moved: frozenset[Move] = frozenset()


def rebuild_preemptions(
    span: Span,
    terms: MonthTerms,
    accounts: Accounts,
    undated: UndatedTerms,
    *,
    everything: bool = False,
) -> Rebuilt:
    """Measure again what is out of date among preemptions decided before the end of `span`: the month as far as it is
    computed.

    Marks pools dirty where the waiting of their preempted work changed. Runs inside the computation's transaction.
    """
    void = void_events()
    keys = stale_preemptions(span, void, everything=everything)
    if not keys:
        return Rebuilt([], [])
    named = {record_id(key) for key in keys}
    moved = moves_beyond(named, terms.span)
    index = HolderIndex.load()
    said = reported(keys, void, index)
    preemptions, conflicts = merge(said.reports, said.resumes)
    works = _measured(preemptions, void)
    pools = {pool.slug: pool for pool in Pool.objects.all()}
    known_ms = max(span.end_ms, _latest_horizon_ms())
    records = Records(works, said, pools, void, index, known_ms, terms, accounts, undated).build()
    _replace(keys, records, works, pools)
    _note_conflicts(keys, conflicts, works, pools)
    ids = [record.id for record in records]
    return Rebuilt(ids, sorted(named - set(ids)), moved)


def share_rebuilt(rebuilt: Rebuilt, terms: MonthTerms, accounts: Accounts, prices: PreemptionPrices) -> None:
    """Share out what was measured again, and mark other months in which it moves something else than before."""
    share_preemptions(rebuilt.ids, terms, accounts, prices)
    if rebuilt.ids or rebuilt.gone:
        mark_other_months(rebuilt.moved, rebuilt.ids, terms.span)


def _latest_horizon_ms() -> int:
    """Up to where any month is computed: what still waits is the same in whatever order months are. Whichever moves it
    measures all that still waits again."""
    latest = Period.objects.aggregate(latest=Max("horizon_at"))["latest"]
    return 0 if latest is None else to_ms(latest)


def _measured(preemptions: Sequence[Preemption], void: Sequence[int]) -> list[Work]:
    histories = workload_histories(
        {(one.key[0], one.victim_workload) for one in preemptions if one.victim_workload}, void
    )

    def history_of(one: Preemption) -> Sequence[Holding]:
        return histories.get((one.key[0], one.victim_workload or ""), ())

    victims = {
        one.key: Victim(
            one.key[0], one.victim_workload, one.decided_at_ms, released_at_ms(one, history_of(one))
        )
        for one in preemptions
        if one.victim_workload and not one.queued_only
    }
    kept = kept_voided(victims, {key: record_id(key) for key in victims})
    voided: Mapping[Key, VoidedRequests | None] = {**voided_requests(victims), **kept}
    calibrations = _Calibrations.load()
    works = []
    for one in preemptions:
        requests = voided.get(one.key)
        total = requests.total if requests else NO_VOIDED
        measures = measure(one, history_of(one), total)
        input_cost = calibrations.input_cost(requests, measures)
        if input_cost is not None:
            measures = measure(one, history_of(one), total, input_cost)
        works.append(Work(one, history_of(one), requests, measures))
    return works


@dataclass(frozen=True)
class _Calibrations:
    """Costs of uncached input tokens: (model, GPU model) -> versions (valid_from_ms, gpu_us per 1000)."""

    versions: Mapping[tuple[str, str], list[tuple[int, int | None]]]
    gpu_models: Mapping[str, str]

    @classmethod
    def load(cls) -> _Calibrations:
        versions: defaultdict[tuple[str, str], list[tuple[int, int | None]]] = defaultdict(list)
        for one in Calibration.objects.select_related("model").order_by("valid_from"):
            of = versions[one.model.name, one.gpu_model]
            of.append((to_ms(one.valid_from), one.input_gpu_us_per_1k))
            if one.ended_at is not None:
                of.append((to_ms(one.ended_at), None))
        for of in versions.values():
            # Where one ends as another begins, the other holds.
            of.sort(key=lambda version: (version[0], version[1] is not None))
        return cls(versions, dict(Pool.objects.values_list("slug", "gpu_model")))

    def input_cost(self, requests: VoidedRequests | None, measures: Measures) -> int | None:
        """In force where and when the work resumed; None where model, resume or calibration are unknown."""
        if requests is None or measures.resumed_at_ms is None or measures.resumed_pool is None:
            return None
        name = (requests.model, self.gpu_models[measures.resumed_pool])
        in_force = [
            cost for from_ms, cost in self.versions.get(name, ()) if from_ms <= measures.resumed_at_ms
        ]
        return in_force[-1] if in_force else None


WaitRow = tuple[int, int, int, object, object]


def _replace(
    keys: Sequence[Key],
    records: Sequence[PreemptionRecord],
    works: Sequence[Work],
    pools: Mapping[str, Pool],
) -> None:
    """Write the records instead of the old ones, and mark as dirty where waiting work changed."""
    ids = [record_id(key) for key in keys]
    before = _waits_of(ids)
    PreemptionRecord.objects.filter(pk__in=ids).delete()
    PreemptionRecord.objects.bulk_create(records, batch_size=_BATCH)
    waits = [
        PreemptionWait(
            record=record,
            pool=pools[wait.pool],
            holder_id=record.victim_id,
            milli_gpus=wait.milli_gpus,
            starts_at=to_datetime(wait.starts_ms),
            ends_at=instant(wait.ends_ms),
        )
        for record, work in zip(records, works, strict=True)
        if (wait := work.measures.wait) is not None and wait.ends_ms != wait.starts_ms
    ]
    PreemptionWait.objects.bulk_create(waits, batch_size=_BATCH)
    changed = before ^ _waits_of(ids)
    DirtySpan.objects.bulk_create(
        DirtySpan(pool_id=pool, span=(starts_at, ends_at)) for pool, _, _, starts_at, ends_at in changed
    )


def _waits_of(ids: Iterable[uuid.UUID]) -> set[WaitRow]:
    rows = PreemptionWait.objects.filter(record__in=ids)
    return set(rows.values_list("pool_id", "holder_id", "milli_gpus", "starts_at", "ends_at"))


def _note_conflicts(
    keys: Sequence[Key], conflicts: Sequence[MergeConflict], works: Sequence[Work], pools: Mapping[str, Pool]
) -> None:
    """Replace the findings of these preemptions: values that their reports disagree on."""
    subjects = ["/".join(key) for key in keys]
    FactFinding.objects.filter(Q(code="merge_conflict") & Q(subject__in=subjects)).delete()
    of_key = {work.key: work.preemption for work in works}
    details: defaultdict[Key, dict[str, list[str]]] = defaultdict(dict)
    for conflict in conflicts:
        details[conflict.key][conflict.field] = [
            f"{source} {event}: {value}" for (source, event), value in conflict.values
        ]
    FactFinding.objects.bulk_create(
        FactFinding(
            code="merge_conflict",
            pool=pools[of_key[key].pool],
            occurred_at=to_datetime(of_key[key].decided_at_ms),
            subject="/".join(key),
            detail=detail,
        )
        for key, detail in details.items()
    )
