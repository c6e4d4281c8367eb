"""Who gives way: the choice of victims, as a cohort scheduler makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ingest.core.demo.cast import PRIORITIES, SERVICES
from ingest.core.demo.pool import Pool, minus, plus
from ingest.core.demo.workload import State, Workload

Choice = tuple[str, list[Workload]]
NOBODY: Choice = ("", [])

CRITICAL = PRIORITIES["launch-critical"]


def victims_for(pool: Pool, newcomer: Workload) -> Choice:
    """(cause, victims) that make room for `newcomer`, or NOBODY where it has to wait.

    A holder takes its own reservation back from whoever borrows it; launch-critical work takes from anybody whose
    reservation may be lent; interactive work sends opportunistic batch away.
    """
    if newcomer.priority >= CRITICAL:
        others = _others(
            pool, newcomer, lambda victim: victim.priority < CRITICAL and _may_be_hit(pool, victim)
        )
        return _or_nobody("priority", _enough(pool, newcomer, others, may_hit_entitled=True))
    if pool.is_entitled(newcomer):
        others = _others(pool, newcomer, lambda victim: victim.priority <= newcomer.priority)
        return _or_nobody("reclaim_own_reservation", _enough(pool, newcomer, others))
    if newcomer.priority >= PRIORITIES["interactive"]:
        others = _others(pool, newcomer, lambda victim: victim.priority <= PRIORITIES["batch-low"])
        return _or_nobody("priority", _enough(pool, newcomer, others))
    return NOBODY


def fair_share_victims(pool: Pool, waiting: Workload) -> Choice:
    """Take from the holder furthest beyond its reservation, if that is still fair after the exchange."""
    over = {workload.holder: pool.over(workload.holder) for workload in pool.can_be_told_to_go()}
    over.pop(waiting.holder, None)
    if not over:
        return NOBODY
    greediest = max(sorted(over), key=lambda holder: over[holder])
    after = pool.over(waiting.holder) + waiting.milli_gpus
    if over[greediest] < 2 * after:
        return NOBODY
    others = _others(
        pool,
        waiting,
        lambda victim: (
            victim.holder == greediest and not victim.is_serving and victim.priority <= waiting.priority
        ),
    )
    return _or_nobody("fair_share", _enough(pool, waiting, others))


def overuser(pool: Pool) -> Workload | None:
    """The largest opportunistic workload of a holder that sits on more than a fifth of the pool unreserved."""
    candidates = [
        workload
        for workload in pool.can_be_told_to_go()
        if workload.is_preemptible and pool.over(workload.holder) > pool.capacity // 5
    ]
    return max(candidates, key=lambda workload: (workload.milli_gpus, workload.id), default=None)


def victims_of_lost_capacity(pool: Pool) -> list[Workload]:
    """Who must go so that the capacity left backs what stays; whoever is beyond its reservation first."""
    victims: list[Workload] = []
    held, planned = pool.held, pool.planned()
    by_entitlement = sorted(
        _in_order(pool.can_be_told_to_go()), key=lambda victim: pool.over(victim.holder) == 0
    )
    for victim in by_entitlement:
        if pool.backs_now(held) and pool.backs(planned):
            break
        held, planned = minus(held, victim), minus(planned, victim)
        victims.append(victim)
    return victims


def _may_be_hit(pool: Pool, victim: Workload) -> bool:
    return victim.holder not in SERVICES and not pool.fixed.get(victim.holder)


def _others(pool: Pool, newcomer: Workload, may_go: Callable[[Workload], bool]) -> list[Workload]:
    candidates = (victim for victim in pool.can_be_told_to_go() if victim.holder != newcomer.holder)
    return _in_order(victim for victim in candidates if may_go(victim))


def _in_order(candidates: Iterable[Workload]) -> list[Workload]:
    """Preemptible before guaranteed, low priority first, and of equals the one that has run least."""
    return sorted(
        (candidate for candidate in candidates if candidate.state is State.RUNNING),
        key=lambda victim: (not victim.is_preemptible, victim.priority, -victim.admitted_ms, victim.id),
    )


def _enough(
    pool: Pool, newcomer: Workload, candidates: list[Workload], may_hit_entitled: bool = False
) -> list[Workload]:
    """The first candidates whose going makes room, none if all of them would not."""
    planned = plus(pool.planned(), newcomer)
    chosen: list[Workload] = []
    for victim in candidates:
        if pool.backs(planned):
            break
        if may_hit_entitled or planned.get(victim.holder, 0) > pool.reserved(victim.holder):
            planned = minus(planned, victim)
            chosen.append(victim)
    return chosen if pool.backs(planned) else []


def _or_nobody(cause: str, victims: list[Workload]) -> Choice:
    return (cause, victims) if victims else NOBODY
