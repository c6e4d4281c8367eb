"""Writing preemption records: merged, measured, and kept up with late facts (domain.md section 6).

`rebuild_preemptions` runs before the month is allocated, because waiting work makes idle reservations undelivered;
`share_preemptions` runs after it, because a shared service is shared out by the slot where no request tells.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from billing.core.preemption import NO_VOIDED, Measures, lead_time_ms, measure, notice_ms, released_at_ms
from billing.core.preemption_charges import PLATFORM, payer_of
from billing.core.preemption_merge import Key, MergeConflict, Preemption, merge
from billing.core.preemption_standing import (
    NOTHING_HELD,
    Elsewhere,
    Standing,
    Taken,
    entitled_milli_gpus,
    idle_elsewhere,
    preemptors_inside_reservation,
    resumed_state,
)
from billing.core.preemption_workload import Holding
from billing.models import Calibration, PreemptionRecord, PreemptionWait
from billing.selectors.accounts import Accounts
from billing.selectors.terms import MonthTerms
from billing.services.allocation_facts import HolderIndex, void_events
from billing.services.preemption_facts import (
    Reported,
    Victim,
    VoidedRequests,
    reported,
    stale_preemptions,
    voided_requests,
    workload_histories,
)
from billing.services.preemption_moments import Moments, announced_changes, announcement_for, read_moments
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import DirtySpan, FactFinding, Holder, Pool

# Fixed for ever: links to a record stay when it is computed again, in this or another database.
NAMESPACE = uuid.UUID("0b7a5a0e-93a7-5e0c-8f0b-3f8b1b6f0d52")
_BATCH = 1000


def record_id(key: Key) -> uuid.UUID:
    return uuid.uuid5(NAMESPACE, "\n".join(key))


@dataclass(frozen=True)
class _Work:
    """One preemption with everything read for it."""

    preemption: Preemption
    history: Sequence[Holding]
    voided: VoidedRequests | None
    measures: Measures

    @property
    def key(self) -> Key:
        return self.preemption.key


def rebuild_preemptions(
    span: Span, horizon_ms: int, terms: MonthTerms, accounts: Accounts, *, everything: bool = False
) -> list[uuid.UUID]:
    """Measure again what is out of date among preemptions decided before the end of `span`; returns their ids.

    Marks pools dirty where the waiting of their preempted work changed. Runs inside the computation's transaction.
    """
    void = void_events()
    keys = stale_preemptions(Span(span.start_ms, min(span.end_ms, horizon_ms)), void, everything=everything)
    if not keys:
        return []
    index = HolderIndex.load()
    said = reported(keys, void, index)
    preemptions, conflicts = merge(said.reports, said.resumes)
    works = _measured(preemptions, void)
    pools = {pool.slug: pool for pool in Pool.objects.all()}
    records = _Records(works, said, pools, void, index, horizon_ms, terms, accounts).build()
    _replace(keys, records, works, pools)
    _note_conflicts(keys, conflicts, works, pools)
    return [record.id for record in records]


def _measured(preemptions: Sequence[Preemption], void: Sequence[int]) -> list[_Work]:
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
    voided = voided_requests(victims)
    calibrations = _Calibrations.load()
    works = []
    for one in preemptions:
        requests = voided.get(one.key)
        total = requests.total if requests else NO_VOIDED
        measures = measure(one, history_of(one), total)
        input_cost = calibrations.input_cost(requests, measures)
        if input_cost is not None:
            measures = measure(one, history_of(one), total, input_cost)
        works.append(_Work(one, history_of(one), requests, measures))
    return works


@dataclass(frozen=True)
class _Calibrations:
    """Costs of uncached input tokens: (model, GPU model) -> versions (valid_from_ms, gpu_us per 1000)."""

    versions: Mapping[tuple[str, str], list[tuple[int, int]]]
    gpu_models: Mapping[str, str]

    @classmethod
    def load(cls) -> _Calibrations:
        versions: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for one in Calibration.objects.select_related("model").order_by("valid_from"):
            versions[one.model.name, one.gpu_model].append((to_ms(one.valid_from), one.input_gpu_us_per_1k))
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


class _Records:
    """Puts records together from measures and from where everybody stood just before each decision."""

    def __init__(
        self,
        works: Sequence[_Work],
        said: Reported,
        pools: Mapping[str, Pool],
        void: list[int],
        index: HolderIndex,
        horizon_ms: int,
        terms: MonthTerms,
        accounts: Accounts,
    ) -> None:
        self.works, self.said, self.pools, self.void, self.index = works, said, pools, void, index
        self.horizon_ms, self.terms, self.accounts = horizon_ms, terms, accounts
        self.holder_ids = dict(Holder.objects.values_list("slug", "pk"))

    def build(self) -> list[PreemptionRecord]:
        moments = read_moments(self._instants(), self.pools, self.void, self.index)
        standings = {
            work.key: self._standing(moments, work.preemption, work.preemption.victim) for work in self.works
        }
        taken = [*self._taken(), *earlier_taken(self.works)]
        for one in taken:
            standings.setdefault(one.preemption.key, NOTHING_HELD)
        entitled = entitled_milli_gpus(taken, standings)
        inside = preemptors_inside_reservation(taken, self._of_preemptors(moments))
        elsewhere = idle_elsewhere([work.preemption for work in self.works], self._idle(moments))
        announced = self._announced()
        return [
            self._record(
                work,
                moments,
                standings[work.key],
                entitled[work.key],
                elsewhere.get(work.key),
                announced,
                self._charged_to(work.preemption, entitled[work.key], work.key in inside),
            )
            for work in self.works
        ]

    def _of_preemptors(self, moments: Moments) -> dict[Key, Standing]:
        return {
            work.key: self._standing(moments, work.preemption, work.preemption.preemptor)
            for work in self.works
            if work.preemption.preemptor is not None
        }

    def _charged_to(self, preemption: Preemption, entitled: int, inside_reservation: bool) -> str:
        """Who answers for what does not stay with the victim: victim (nobody else), preemptor or platform."""
        preemptor = preemption.preemptor
        account = None if preemptor is None else self.accounts.of_holder(preemptor)
        policy = self.terms.preemption_policy_at(preemption.decided_at_ms)
        payer = payer_of(preemption, account, inside_reservation, policy)
        if payer is None or (policy.charged_to == "entitlement" and not entitled):
            return "victim"
        return "platform" if payer == PLATFORM else "preemptor"

    def _taken(self) -> list[Taken]:
        return [Taken(work.preemption, work.measures.released_at_ms) for work in self.works]

    def _instants(self) -> dict[str, list[int]]:
        """Which pools have to be looked at when: at the decision all of the GPU model, at the resume its pool."""
        wanted: defaultdict[str, set[int]] = defaultdict(set)
        same_model: defaultdict[str, list[str]] = defaultdict(list)
        for slug, pool in self.pools.items():
            same_model[pool.gpu_model].append(slug)
        for work in self.works:
            for slug in same_model[self.pools[work.preemption.pool].gpu_model]:
                wanted[slug].add(work.preemption.decided_at_ms)
            if work.measures.resumed_at_ms is not None and work.measures.resumed_pool is not None:
                wanted[work.measures.resumed_pool].add(work.measures.resumed_at_ms)
        return {slug: sorted(instants) for slug, instants in wanted.items()}

    @staticmethod
    def _standing(moments: Moments, preemption: Preemption, holder: str | None) -> Standing:
        moment = moments.get(preemption.pool, preemption.decided_at_ms)
        return NOTHING_HELD if moment is None or holder is None else moment.standing(holder)

    def _idle(self, moments: Moments) -> dict[tuple[int, str], dict[str, int]]:
        found: dict[tuple[int, str], dict[str, int]] = {}
        for work in self.works:
            at_ms, slug = work.preemption.decided_at_ms, work.preemption.pool
            model = self.pools[slug].gpu_model
            found[at_ms, slug] = {
                other: moment.idle_milli
                for other, pool in self.pools.items()
                if pool.gpu_model == model and (moment := moments.get(other, at_ms)) is not None
            }
        return found

    def _announced(self) -> dict[str, list[tuple[int, int]]]:
        decided: defaultdict[str, list[int]] = defaultdict(list)
        for work in self.works:
            decided[work.preemption.pool].append(work.preemption.decided_at_ms)
        return {
            slug: announced_changes(self.pools[slug], min(instants), max(instants), self.void)
            for slug, instants in decided.items()
        }

    def _record(
        self,
        work: _Work,
        moments: Moments,
        standing: Standing,
        entitled: int,
        elsewhere: Elsewhere | None,
        announced: Mapping[str, list[tuple[int, int]]],
        charged_to: str,
    ) -> PreemptionRecord:
        one, measures = work.preemption, work.measures
        moment = moments.get(one.pool, one.decided_at_ms)
        announcement = announcement_for(one.decided_at_ms, announced.get(one.pool, ()))
        wait = measures.wait
        return PreemptionRecord(
            id=record_id(one.key),
            pool=self.pools[one.pool],
            cluster=one.key[0],
            preemption=one.key[1],
            queued_only=one.queued_only,
            decided_at=to_datetime(one.decided_at_ms),
            admitted_at=_instant(one.admitted_at_ms),
            released_at=to_datetime(measures.released_at_ms),
            resumed_at=_instant(measures.resumed_at_ms),
            waits_until=_instant(wait.ends_ms) if wait else to_datetime(measures.released_at_ms),
            victim_workload=one.victim_workload,
            victim_request=one.victim_request,
            victim_attempt=one.victim_attempt,
            victim_identity_id=self.said.identities[one.refs[0]],
            victim_id=self.holder_ids[one.victim],
            preemptor_workload=one.preemptor_workload,
            preemptor_id=self.holder_ids[one.preemptor] if one.preemptor else None,
            preemptor_source=one.preemptor_source,
            confidence_ppm=one.confidence_ppm,
            milli_gpus=one.milli_gpus,
            cause=one.cause,
            disposition=one.disposition,
            degrade_trigger=one.degrade_trigger,
            model=work.voided.model if work.voided else "",
            entitled_milli_gpus=entitled,
            requests_in_flight=one.requests_in_flight,
            requests_voided=_requests_voided(work),
            output_tokens_lost=one.output_tokens_lost,
            context_tokens=one.context_tokens,
            cached_prefix_tokens=one.cached_prefix_tokens,
            recompute_prefill_tokens=one.recompute_prefill_tokens,
            drain_gpu_us=measures.drain_gpu_us,
            waiting_gpu_us=wait.gpu_us(Span(0, self.horizon_ms)) if wait else 0,
            lost_gpu_us=measures.lost.gpu_us,
            lost_evidence=measures.lost.evidence,
            recompute_gpu_us=measures.recompute.gpu_us,
            recompute_evidence=measures.recompute.evidence,
            resumed_pool=self.pools[measures.resumed_pool] if measures.resumed_pool else None,
            resumed_state=self._resumed_state(work, moments),
            idle_elsewhere_milli_gpus=elsewhere.milli_gpus if elsewhere else None,
            idle_elsewhere=_elsewhere_by_pool(elsewhere),
            lead_time_ms=lead_time_ms(one.decided_at_ms, moment.short_since_ms) if moment else None,
            notice_ms=notice_ms(one.decided_at_ms, announcement),
            on_demand_milli_gpus=standing.on_demand,
            borrowed_milli_gpus=standing.borrowed,
            excess_milli_gpus=standing.excess,
            charged_to=charged_to,
            events=[list(ref) for ref in one.refs],
        )

    @staticmethod
    def _resumed_state(work: _Work, moments: Moments) -> str:
        measures = work.measures
        if measures.resumed_at_ms is None or measures.resumed_pool is None:
            return ""
        moment = moments.get(measures.resumed_pool, measures.resumed_at_ms)
        return resumed_state(moment.idle_milli if moment else 0, work.preemption.milli_gpus)


def _instant(instant_ms: int | None) -> datetime | None:
    return None if instant_ms is None else to_datetime(instant_ms)


def _requests_voided(work: _Work) -> int | None:
    if work.preemption.requests_voided is not None or work.voided is None:
        return work.preemption.requests_voided
    return work.voided.total.requests


def _elsewhere_by_pool(elsewhere: Elsewhere | None) -> dict[str, int]:
    if elsewhere is None:
        return {}
    return {elsewhere.pool: elsewhere.milli_gpus} if elsewhere.pool else dict(elsewhere.fragments)


def earlier_taken(works: Sequence[_Work]) -> list[Taken]:
    """Preemptions outside of `works` that are taken in order with them: same holder and pool, not yet released."""
    if not works:
        return []
    first = to_datetime(min(work.preemption.decided_at_ms for work in works))
    last = to_datetime(max(work.preemption.decided_at_ms for work in works))
    rows = (
        PreemptionRecord.objects.filter(decided_at__lte=last, released_at__gte=first, queued_only=False)
        .exclude(pk__in=[record_id(work.key) for work in works])
        .select_related("pool", "victim", "preemptor")
    )
    return [taken_of(record) for record in rows]


def taken_of(record: PreemptionRecord) -> Taken:
    """A stored record, as far as the order of several matters."""
    preemption = Preemption(
        key=(record.cluster, record.preemption),
        refs=(),
        decided_at_ms=to_ms(record.decided_at),
        pool=record.pool.slug,
        milli_gpus=record.milli_gpus,
        cause=record.cause,
        victim=record.victim.slug,
        preemptor=record.preemptor.slug if record.preemptor else None,
        preemptor_source=record.preemptor_source,
        confidence_ppm=record.confidence_ppm,
        queued_only=record.queued_only,
    )
    return Taken(preemption, to_ms(record.released_at or record.decided_at))


WaitRow = tuple[int, int, int, object, object]


def _replace(
    keys: Sequence[Key],
    records: Sequence[PreemptionRecord],
    works: Sequence[_Work],
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
            ends_at=_instant(wait.ends_ms),
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
    keys: Sequence[Key], conflicts: Sequence[MergeConflict], works: Sequence[_Work], pools: Mapping[str, Pool]
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
