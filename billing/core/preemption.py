"""What a preemption cost in GPU time: drain, waiting, lost, recompute (domain.md section 6).

Each measure carries its evidence. Unknown is None, never 0, and a negative span is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from billing.core.preemption_merge import Preemption
from billing.core.preemption_workload import Holding, victim_holding
from ledger.core.periods import Span
from ledger.core.units import round_half_even

REPORTED = "reported"
FROM_REQUESTS = "from_requests"
FROM_OCCUPANCY = "from_occupancy"
FROM_CALIBRATION = "from_calibration"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Known:
    """A measure in gpu_us with its evidence; None exactly where the evidence is `unknown`."""

    gpu_us: int | None
    evidence: str


NOT_KNOWN = Known(None, UNKNOWN)


@dataclass(frozen=True, slots=True)
class Wait:
    """Work that waits for the pool it lost, during [starts_ms, ends_ms); ends_ms None = it still waits."""

    pool: str
    milli_gpus: int
    starts_ms: int
    ends_ms: int | None

    def gpu_us(self, within: Span) -> int:
        """The part of the waiting inside a slot, a month, or up to a horizon: a level like any other."""
        ends_ms = within.end_ms if self.ends_ms is None else min(self.ends_ms, within.end_ms)
        return self.milli_gpus * max(ends_ms - max(self.starts_ms, within.start_ms), 0)

    def so_far_gpu_us(self, known_ms: int) -> int:
        """All of the waiting where its end is known, whenever that is; else up to `known_ms`."""
        return self.gpu_us(Span(0, known_ms if self.ends_ms is None else self.ends_ms))


@dataclass(frozen=True, slots=True)
class Voided:
    """The requests of the victim that ended `preempted` in [decided_at, released_at].

    gpu_us: their GPU time, None if one of them lacks it.
    """

    requests: int
    gpu_us: int | None


NO_VOIDED = Voided(0, None)


@dataclass(frozen=True, slots=True)
class Measures:
    """drain, lost, recompute: gpu_us. resumed_at_ms and resumed_pool: as reported, else from occupancy."""

    released_at_ms: int
    drain_gpu_us: int
    wait: Wait | None
    lost: Known
    recompute: Known
    resumed_at_ms: int | None
    resumed_pool: str | None

    @property
    def requeued_gpu_us(self) -> int | None:
        """Lost plus recompute, of what is known; None if nothing is."""
        known = [part.gpu_us for part in (self.lost, self.recompute) if part.gpu_us is not None]
        return sum(known) if known else None

    @property
    def is_partial(self) -> bool:
        return UNKNOWN in (self.lost.evidence, self.recompute.evidence)


def released_at_ms(preemption: Preemption, history: Sequence[Holding]) -> int:
    """When its GPUs were really freed: as reported, else the next drop in its occupancy, else the decision."""
    if preemption.released_at_ms is not None:
        return preemption.released_at_ms
    decided_at_ms = preemption.decided_at_ms
    hit = [
        holding
        for holding in history
        if holding.pool == preemption.pool and preemption.victim_attempt in (None, holding.attempt)
    ]
    drops = (holding.next_drop_ms(decided_at_ms) for holding in hit)
    return min((drop for drop in drops if drop is not None), default=decided_at_ms)


def measure(
    preemption: Preemption,
    history: Sequence[Holding],
    voided: Voided = NO_VOIDED,
    input_gpu_us_per_1k: int | None = None,
) -> Measures:
    """All measures of one preemption.

    history: everything its workload ever held, in all pools. voided: see `Voided`. input_gpu_us_per_1k: the
    calibration of its model on the GPU model it resumed on, at that instant; None where there is none.
    """
    released_ms = released_at_ms(preemption, history)
    if preemption.queued_only:
        # A deferral: nothing ran, so nothing is drained, lost or run again.
        zero = Known(0, REPORTED)
        return Measures(released_ms, 0, None, zero, zero, preemption.resumed_at_ms, preemption.resumed_pool)
    again = _runs_again(preemption, history, released_ms)
    resumed_at, resumed_pool = preemption.resumed_at_ms, preemption.resumed_pool
    if resumed_at is None and again is not None:
        resumed_at, resumed_pool = again
    return Measures(
        released_at_ms=released_ms,
        drain_gpu_us=preemption.milli_gpus * max(released_ms - preemption.decided_at_ms, 0),
        wait=_wait(preemption, released_ms, again),
        lost=lost(preemption, history, released_ms, voided),
        recompute=recompute(preemption, input_gpu_us_per_1k),
        resumed_at_ms=resumed_at,
        resumed_pool=resumed_pool,
    )


def _runs_again(
    preemption: Preemption, history: Sequence[Holding], released_ms: int
) -> tuple[int, str] | None:
    """The next occupancy of the workload in any pool, as (instant, pool).

    Another attempt or another pool may take over during the drain already; what was hit itself only after it.
    """
    if not preemption.waits:
        return None
    hit = victim_holding(history, preemption.pool, preemption.victim_attempt, preemption.decided_at_ms)
    rises = (
        (holding.next_rise_ms(released_ms if holding is hit else preemption.decided_at_ms), holding.pool)
        for holding in history
    )
    return min(((at_ms, pool) for at_ms, pool in rises if at_ms is not None), default=None)


def _wait(preemption: Preemption, released_ms: int, again: tuple[int, str] | None) -> Wait | None:
    if not preemption.waits or preemption.milli_gpus == 0:
        return None
    ends = [at_ms for at_ms in (preemption.resumed_at_ms, again and again[0]) if at_ms is not None]
    ends_ms = max(min(ends), released_ms) if ends else None
    return Wait(preemption.pool, preemption.milli_gpus, released_ms, ends_ms)


def lost(preemption: Preemption, history: Sequence[Holding], released_ms: int, voided: Voided) -> Known:
    """GPU time of work thrown away, capped at the GPU time booked for the attempt."""
    hit = victim_holding(history, preemption.pool, preemption.victim_attempt, preemption.decided_at_ms)
    found = _uncapped_lost(preemption, hit, released_ms, voided)
    if found.gpu_us is None or preemption.victim_workload is None:
        return found
    booked = hit.gpu_us_until(max(released_ms, preemption.decided_at_ms)) if hit else 0
    return Known(min(found.gpu_us, booked), found.evidence)


def _uncapped_lost(preemption: Preemption, hit: Holding | None, released_ms: int, voided: Voided) -> Known:
    if preemption.lost_gpu_us is not None:
        return Known(preemption.lost_gpu_us, REPORTED)
    if voided.requests and voided.gpu_us is not None:
        return Known(voided.gpu_us, FROM_REQUESTS)
    if hit is None or hit.serving:
        # A replica that was up for 20 days did not lose 20 days.
        return NOT_KNOWN
    since_ms = _work_kept_until_ms(preemption, hit, released_ms)
    if since_ms is None:
        return NOT_KNOWN
    return Known(preemption.milli_gpus * max(preemption.decided_at_ms - since_ms, 0), FROM_OCCUPANCY)


def _work_kept_until_ms(preemption: Preemption, hit: Holding, released_ms: int) -> int | None:
    """The instant from which on the attempt's work was thrown away: its start, or its latest checkpoint."""
    admitted_ms = preemption.admitted_at_ms
    if admitted_ms is None:
        admitted_ms = hit.unbroken_since_ms(preemption.decided_at_ms)
    if admitted_ms is None:
        return None
    # A part of the workload may run on and make checkpoints that come too late for what was taken.
    checkpoints = (
        at_ms for at_ms in hit.checkpoints_ms if at_ms <= max(released_ms, preemption.decided_at_ms)
    )
    return max(admitted_ms, *checkpoints, admitted_ms)


def recompute(preemption: Preemption, input_gpu_us_per_1k: int | None) -> Known:
    """GPU time spent again on work that was kept: reported, else prefilled tokens by the calibration."""
    if preemption.recompute_gpu_us is not None:
        return Known(preemption.recompute_gpu_us, REPORTED)
    tokens = _prefilled_again(preemption)
    if tokens is None or input_gpu_us_per_1k is None:
        return NOT_KNOWN
    return Known(round_half_even(tokens * input_gpu_us_per_1k, 1000), FROM_CALIBRATION)


def _prefilled_again(preemption: Preemption) -> int | None:
    """Context tokens less cached prefix tokens; a missing count is unknown, not 0."""
    if preemption.context_tokens is not None and preemption.cached_prefix_tokens is not None:
        return max(preemption.context_tokens - preemption.cached_prefix_tokens, 0)
    return preemption.recompute_prefill_tokens


def notice_ms(decided_at_ms: int, announced_at_ms: int | None) -> int | None:
    """How long before the decision the capacity change was announced as planned; None if it was not."""
    return None if announced_at_ms is None else max(decided_at_ms - announced_at_ms, 0)


def lead_time_ms(decided_at_ms: int, short_since_ms: int | None) -> int | None:
    """From the start of the pool's shortage to the decision; None if no shortage was visible."""
    return None if short_since_ms is None else max(decided_at_ms - short_since_ms, 0)


def waiting_gpu_us(waits: Iterable[Wait | None], within: Span) -> int:
    return sum(wait.gpu_us(within) for wait in waits if wait is not None)
