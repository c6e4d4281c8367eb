"""Episodes and the preemption balance: did taking those GPUs pay (domain.md section 6)?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from billing.core.preemption import Measures
from billing.core.preemption_merge import Key, Preemption
from billing.core.preemption_workload import Holding, rises
from billing.core.released import PoolUse, Release, unused_gpu_us
from ledger.core.units import MS_PER_MINUTE

GAP_MS = 10 * MS_PER_MINUTE


@dataclass(frozen=True, slots=True)
class Episode:
    """All preemptions decided for one preemptor workload, with gaps under 10 minutes.

    needed and taken in milli-GPU, overshoot = what was taken beyond the need; None where the preemptor never ran, so
    that its need is unknown. ran_gpu_us: what it ran on the GPUs it took, up to the horizon. unused_gpu_us: GPU time
    of what it released until anybody occupied it (up to the horizon; `released.unused_gpu_us` has the rule).
    hits: victim workload -> how often it was hit.
    """

    cluster: str
    preemptor_workload: str
    preemptor: str | None
    starts_ms: int
    ends_ms: int
    preemptions: tuple[Key, ...]
    taken_milli_gpus: int
    needed_milli_gpus: int | None
    unused_gpu_us: int
    ran: bool
    ran_gpu_us: int
    hits: tuple[tuple[str, int], ...]

    @property
    def overshoot_milli_gpus(self) -> int | None:
        if self.needed_milli_gpus is None:
            return None
        return max(self.taken_milli_gpus - self.needed_milli_gpus, 0)


Measured = tuple[Preemption, Measures]


def episodes(
    measured: Sequence[Measured],
    holdings: Mapping[tuple[str, str], Sequence[Holding]],
    uses: Mapping[str, PoolUse],
    horizon_ms: int,
) -> list[Episode]:
    """Group by preemptor workload and gap, in order of their start.

    holdings: (cluster, workload) -> everything the workload ever held. uses: of every pool of `releasing_from`, from
    there up to the horizon. Deferrals and preemptions whose preemptor workload is unknown belong to no episode.
    """
    of_preemptor: defaultdict[tuple[str, str], list[Measured]] = defaultdict(list)
    for one in sorted(measured, key=lambda one: one[0].order):
        preemption = one[0]
        if preemption.preemptor_workload is not None and not preemption.queued_only:
            of_preemptor[preemption.key[0], preemption.preemptor_workload].append(one)
    groups = [(name, group) for name, ones in of_preemptor.items() for group in _by_gap(ones)]
    unused = _unused(groups, holdings, uses, horizon_ms)
    found = [
        _episode(name, group, holdings.get(name, ()), unused[number], horizon_ms)
        for number, (name, group) in enumerate(groups)
    ]
    return sorted(found, key=lambda episode: (episode.starts_ms, episode.cluster, episode.preemptor_workload))


def _by_gap(ones: Sequence[Measured]) -> list[list[Measured]]:
    groups: list[list[Measured]] = []
    for one in ones:
        if groups and one[0].decided_at_ms - groups[-1][-1][0].decided_at_ms < GAP_MS:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def releasing_from(measured: Sequence[Measured]) -> dict[str, int]:
    """Pool -> when GPUs were first released there for a preemptor workload that is known."""
    found: dict[str, int] = {}
    for preemption, measures in measured:
        if preemption.preemptor_workload is not None and _frees_gpus(preemption):
            at_ms = measures.released_at_ms
            found[preemption.pool] = min(found.get(preemption.pool, at_ms), at_ms)
    return found


def _frees_gpus(preemption: Preemption) -> bool:
    """Neither work that was still queued nor a request inside an engine gives GPUs away."""
    return not preemption.queued_only and preemption.victim_request is None


Group = tuple[tuple[str, str], Sequence[Measured]]
"""((cluster, preemptor workload), the preemptions of one episode)"""


def _unused(
    groups: Sequence[Group],
    holdings: Mapping[tuple[str, str], Sequence[Holding]],
    uses: Mapping[str, PoolUse],
    horizon_ms: int,
) -> Counter[int]:
    """Place of each group -> GPU time that what it released was unused; together, as they share the pools."""
    releases: defaultdict[str, list[Release]] = defaultdict(list)
    own_rises: defaultdict[str, dict[int, Mapping[int, int]]] = defaultdict(dict)
    for number, (name, group) in enumerate(groups):
        for preemption, measures in group:
            if _frees_gpus(preemption):
                releases[preemption.pool].append(
                    Release(measures.released_at_ms, preemption.milli_gpus, number)
                )
        for pool in {preemption.pool for preemption, _ in group}:
            own_rises[pool][number] = rises(holdings.get(name, ()), pool)
    unused: Counter[int] = Counter()
    for pool, of_pool in releases.items():
        unused.update(unused_gpu_us(of_pool, uses[pool], own_rises[pool], horizon_ms))
    return unused


def _episode(
    name: tuple[str, str],
    group: Sequence[Measured],
    history: Sequence[Holding],
    unused: int,
    horizon_ms: int,
) -> Episode:
    preemptions = [preemption for preemption, _ in group]
    starts_ms, ends_ms = preemptions[0].decided_at_ms, preemptions[-1].decided_at_ms
    runs_ms = _next_run_ms(history, starts_ms)
    ran = runs_ms is not None and runs_ms < horizon_ms
    hits = Counter(
        preemption.victim_workload or preemption.victim_request or "" for preemption in preemptions
    )
    taken = sum(preemption.milli_gpus for preemption in preemptions)
    return Episode(
        cluster=name[0],
        preemptor_workload=name[1],
        preemptor=preemptions[0].preemptor,
        starts_ms=starts_ms,
        ends_ms=ends_ms,
        preemptions=tuple(preemption.key for preemption in preemptions),
        taken_milli_gpus=taken,
        needed_milli_gpus=_need(history, starts_ms, runs_ms) if ran else None,
        unused_gpu_us=unused,
        ran=ran,
        ran_gpu_us=_ran_gpu_us(history, starts_ms, taken, horizon_ms) if ran else 0,
        hits=tuple(sorted(hits.items(), key=lambda hit: (-hit[1], hit[0]))),
    )


def _next_run_ms(history: Sequence[Holding], from_ms: int) -> int | None:
    """When the preemptor first holds more than when it began to take."""
    rises = (holding.next_rise_ms(from_ms) for holding in history)
    return min((at_ms for at_ms in rises if at_ms is not None), default=None)


def _need(history: Sequence[Holding], from_ms: int, runs_ms: int | None) -> int | None:
    """By how much its occupancy grew when it ran: what it really put to use of what it had taken."""
    if runs_ms is None:
        return None
    return sum(max(holding.at(runs_ms) - holding.just_before(from_ms), 0) for holding in history)


def _ran_gpu_us(history: Sequence[Holding], from_ms: int, taken_milli_gpus: int, horizon_ms: int) -> int:
    """The integral of what it held beyond what it held when it began to take, at most what it took."""
    base = sum(holding.just_before(from_ms) for holding in history)
    changes = {at_ms for holding in history for at_ms, _ in holding.steps if from_ms < at_ms < horizon_ms}
    total = 0
    for starts_ms, ends_ms in pairwise([from_ms, *sorted(changes), horizon_ms]):
        held = sum(holding.at(starts_ms) for holding in history)
        total += min(max(held - base, 0), taken_milli_gpus) * max(ends_ms - starts_ms, 0)
    return total


@dataclass(frozen=True, slots=True)
class Balance:
    """Preemption balance of one pool and month: what preempting bought and what it cost; all gpu_us."""

    gained: int
    lost: int
    recomputed: int
    drained: int
    unused: int
    undelivered: int

    @property
    def net(self) -> int:
        return self.gained - self.lost - self.recomputed - self.drained - self.unused - self.undelivered


def balance(
    measured: Sequence[Measured], gained_gpu_us: int, unused_gpu_us: int, undelivered_gpu_us: int
) -> Balance:
    """gained: time run by preemptors on reclaimed or lent GPUs. Unknown losses count as none here: the sum of the
    preemptions says that it is partial."""
    measures = [one for _, one in measured]
    return Balance(
        gained=gained_gpu_us,
        lost=sum(one.lost.gpu_us or 0 for one in measures),
        recomputed=sum(one.recompute.gpu_us or 0 for one in measures),
        drained=sum(one.drain_gpu_us for one in measures),
        unused=unused_gpu_us,
        undelivered=undelivered_gpu_us,
    )


# Invariant: returns findings.


def every_preemption_is_in_one_episode(measured: Sequence[Measured], found: Sequence[Episode]) -> list[str]:
    counted = Counter(key for episode in found for key in episode.preemptions)
    wanted = {
        preemption.key
        for preemption, _ in measured
        if preemption.preemptor_workload is not None and not preemption.queued_only
    }
    return [
        f"{key}: in {counted[key]} episodes"
        for key in wanted | set(counted)
        if counted[key] != (key in wanted)
    ]
