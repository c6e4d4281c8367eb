"""Records of preemptions, put together from their measures and from where everybody stood (domain.md section 6)."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from billing.core.preemption import Measures, lead_time_ms, notice_ms
from billing.core.preemption_charges import PLATFORM, payer_of
from billing.core.preemption_merge import Key, Preemption
from billing.core.preemption_standing import (
    NOTHING_HELD,
    Elsewhere,
    Standing,
    Taken,
    entitled_milli_gpus,
    held_milli_gpus,
    idle_elsewhere,
    preemptors_inside_reservation,
    resumed_state,
)
from billing.core.preemption_workload import Holding, victim_holding
from billing.models import PreemptionRecord
from billing.selectors.accounts import Accounts
from billing.selectors.terms import MonthTerms
from billing.selectors.undated import UndatedTerms
from billing.services.allocation_facts import HolderIndex
from billing.services.preemption_facts import Reported, VoidedRequests
from billing.services.preemption_moments import IdlePools, Moments, announced_changes, announcement_for
from ledger.core.periods import to_datetime, to_ms
from ledger.models import Holder, Pool, Purpose, ServiceClass

# Fixed for ever: links to a record stay when it is computed again, in this or another database.
NAMESPACE = uuid.UUID("0b7a5a0e-93a7-5e0c-8f0b-3f8b1b6f0d52")

_CLASSES = {str(one.label): one for one in ServiceClass}
_PURPOSES = {str(one.label): one for one in Purpose}


def record_id(key: Key) -> uuid.UUID:
    return uuid.uuid5(NAMESPACE, "\n".join(key))


@dataclass(frozen=True)
class Work:
    """One preemption with everything read for it."""

    preemption: Preemption
    history: Sequence[Holding]
    voided: VoidedRequests | None
    measures: Measures

    @property
    def key(self) -> Key:
        return self.preemption.key


class Records:
    """Puts records together from measures and from where everybody stood just before each decision.

    known_ms: up to where work that still waits has waited.
    """

    def __init__(
        self,
        works: Sequence[Work],
        said: Reported,
        pools: Mapping[str, Pool],
        void: list[int],
        index: HolderIndex,
        known_ms: int,
        terms: MonthTerms,
        accounts: Accounts,
        undated: UndatedTerms,
    ) -> None:
        self.works, self.said, self.pools, self.void, self.index = works, said, pools, void, index
        self.known_ms, self.terms, self.accounts, self.undated = known_ms, terms, accounts, undated
        self.holder_ids = dict(Holder.objects.values_list("slug", "pk"))

    def build(self) -> list[PreemptionRecord]:
        decided, idle_at = self._instants()
        moments = Moments(decided, idle_at, self.pools, self.void, self.index, self.undated)
        standings = {
            work.key: self._standing(moments, work.preemption, work.preemption.victim) for work in self.works
        }
        taken = [*self._taken(), *earlier_taken(self.works)]
        for one in taken:
            standings.setdefault(one.preemption.key, NOTHING_HELD)
        held = held_milli_gpus(taken, standings)
        entitled = entitled_milli_gpus(taken, standings)
        inside = preemptors_inside_reservation(taken, self._of_preemptors(moments))
        elsewhere = idle_elsewhere([work.preemption for work in self.works], self._idle(moments))
        announced = self._announced()
        return [
            self._record(
                work,
                moments,
                standings[work.key],
                held[work.key],
                entitled[work.key],
                elsewhere.get(work.key),
                announced,
                self._charged_to(work.preemption, work.key in inside),
            )
            for work in self.works
        ]

    def _of_preemptors(self, moments: Moments) -> dict[Key, Standing]:
        return {
            work.key: self._standing(moments, work.preemption, work.preemption.preemptor)
            for work in self.works
            if work.preemption.preemptor is not None
        }

    def _charged_to(self, preemption: Preemption, inside_reservation: bool) -> str:
        """Who answers for what does not stay with the victim: victim (nobody else), preemptor or platform.

        That all of it stays, because nothing of it was entitled, is known once it is shared out.
        """
        preemptor = preemption.preemptor
        owners = self.undated.at(preemption.decided_at_ms).owners
        account = None if preemptor is None else self.accounts.of_holder(preemptor, owners)
        policy = self.terms.preemption_policy_at(preemption.decided_at_ms)
        payer = payer_of(preemption, account, inside_reservation, policy)
        if payer is None:
            return "victim"
        return "platform" if payer == PLATFORM else "preemptor"

    def _taken(self) -> list[Taken]:
        return [Taken(work.preemption, work.measures.released_at_ms) for work in self.works]

    def _instants(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Which pools have to be looked at when: at the decision the one that was hit, and for what was idle all of its
        GPU model; at the resume its pool, for what was idle."""
        decided: defaultdict[str, set[int]] = defaultdict(set)
        wanted: defaultdict[str, set[int]] = defaultdict(set)
        same_model: defaultdict[str, list[str]] = defaultdict(list)
        for slug, pool in self.pools.items():
            same_model[pool.gpu_model].append(slug)
        for work in self.works:
            decided[work.preemption.pool].add(work.preemption.decided_at_ms)
            for slug in same_model[self.pools[work.preemption.pool].gpu_model]:
                wanted[slug].add(work.preemption.decided_at_ms)
            if work.measures.resumed_at_ms is not None and work.measures.resumed_pool is not None:
                wanted[work.measures.resumed_pool].add(work.measures.resumed_at_ms)
        every, idle = ({slug: sorted(at) for slug, at in of.items()} for of in (decided, wanted))
        return every, idle

    @staticmethod
    def _standing(moments: Moments, preemption: Preemption, holder: str | None) -> Standing:
        moment = moments.get(preemption.pool, preemption.decided_at_ms)
        return NOTHING_HELD if moment is None or holder is None else moment.standing(holder)

    def _idle(self, moments: Moments) -> dict[tuple[int, str], IdlePools]:
        found = {}
        for work in self.works:
            at_ms, slug = work.preemption.decided_at_ms, work.preemption.pool
            model = self.pools[slug].gpu_model
            alike = [other for other, pool in self.pools.items() if pool.gpu_model == model]
            found[at_ms, slug] = IdlePools(moments, alike, at_ms)
        return found

    def _announced(self) -> dict[str, list[tuple[int, int]]]:
        decided: defaultdict[str, list[int]] = defaultdict(list)
        for work in self.works:
            decided[work.preemption.pool].append(work.preemption.decided_at_ms)
        return announced_changes(self.pools, decided, self.void)

    def _record(
        self,
        work: Work,
        moments: Moments,
        standing: Standing,
        held: int,
        entitled: int,
        elsewhere: Elsewhere | None,
        announced: Mapping[str, list[tuple[int, int]]],
        charged_to: str,
    ) -> PreemptionRecord:
        one, measures = work.preemption, work.measures
        moment = moments.get(one.pool, one.decided_at_ms)
        announcement = announcement_for(one.decided_at_ms, announced.get(one.pool, ()))
        wait = measures.wait
        service_class, purpose = ran_as(work)
        return PreemptionRecord(
            id=record_id(one.key),
            pool=self.pools[one.pool],
            cluster=one.key[0],
            preemption=one.key[1],
            queued_only=one.queued_only,
            decided_at=to_datetime(one.decided_at_ms),
            admitted_at=instant(one.admitted_at_ms),
            released_at=to_datetime(measures.released_at_ms),
            resumed_at=instant(measures.resumed_at_ms),
            waits_until=instant(wait.ends_ms) if wait else to_datetime(measures.released_at_ms),
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
            service_class=_CLASSES[service_class],
            purpose=_PURPOSES[purpose],
            held_milli_gpus=held,
            entitled_milli_gpus=entitled,
            requests_in_flight=one.requests_in_flight,
            requests_voided=_requests_voided(work),
            voided=work.voided.as_json() if work.voided else None,
            output_tokens_lost=one.output_tokens_lost,
            context_tokens=one.context_tokens,
            cached_prefix_tokens=one.cached_prefix_tokens,
            recompute_prefill_tokens=one.recompute_prefill_tokens,
            drain_gpu_us=measures.drain_gpu_us,
            waiting_gpu_us=wait.so_far_gpu_us(self.known_ms) if wait else 0,
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
    def _resumed_state(work: Work, moments: Moments) -> str:
        measures = work.measures
        if measures.resumed_at_ms is None or measures.resumed_pool is None:
            return ""
        idle_milli = moments.idle_milli(measures.resumed_pool, measures.resumed_at_ms)
        return resumed_state(idle_milli, work.preemption.milli_gpus)


def ran_as(work: Work) -> tuple[str, str]:
    """The victim's service class and purpose just before the decision; of a request none is known."""
    one = work.preemption
    hit = victim_holding(work.history, one.pool, one.victim_attempt, one.decided_at_ms)
    return hit.class_just_before(one.decided_at_ms) if hit else ("", "")


def instant(instant_ms: int | None) -> datetime | None:
    return None if instant_ms is None else to_datetime(instant_ms)


def _requests_voided(work: Work) -> int | None:
    if work.preemption.requests_voided is not None or work.voided is None:
        return work.preemption.requests_voided
    return work.voided.total.requests


def _elsewhere_by_pool(elsewhere: Elsewhere | None) -> dict[str, int]:
    if elsewhere is None:
        return {}
    return {elsewhere.pool: elsewhere.milli_gpus} if elsewhere.pool else dict(elsewhere.fragments)


def earlier_taken(works: Sequence[Work]) -> list[Taken]:
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
    return Taken(preemption_of(record), to_ms(record.released_at or record.decided_at))


def preemption_of(record: PreemptionRecord) -> Preemption:
    """A stored record as core knows it: who took what from whom, without the reports behind it."""
    return Preemption(
        key=(record.cluster, record.preemption),
        refs=(),
        decided_at_ms=to_ms(record.decided_at),
        pool=record.pool.slug,
        milli_gpus=record.milli_gpus,
        cause=record.cause,
        victim=record.victim.slug,
        victim_workload=record.victim_workload,
        victim_request=record.victim_request,
        preemptor=record.preemptor.slug if record.preemptor else None,
        preemptor_workload=record.preemptor_workload,
        preemptor_source=record.preemptor_source,
        confidence_ppm=record.confidence_ppm,
        disposition=record.disposition,
        queued_only=record.queued_only,
    )
