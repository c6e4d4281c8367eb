"""A discrete-event simulation of the cluster's schedulers: queue, admission, borrowing, preemption, resume."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from ingest.core.demo import preempting
from ingest.core.demo.pool import Pool
from ingest.core.demo.record import Record, reload_ms
from ingest.core.demo.workload import State, Workload
from ledger.core.units import MS_PER_HOUR, MS_PER_MINUTE

Action = Callable[..., None]

LOOKS_AHEAD = 12  # how far the queue is searched for work that fits
RETRIES = 6
TRIES_ELSEWHERE_AFTER_MS = 40 * MS_PER_MINUTE
UNFAIR_AFTER_MS = 25 * MS_PER_MINUTE
QUIET_END_MS = 20 * MS_PER_MINUTE  # nothing is preempted that could still drain when the month ends


class Scheduler:
    """Runs what is scheduled with `at` until `end_ms`. Instants in ms, quantities in milli-GPU."""

    def __init__(
        self, pools: dict[str, Pool], record: Record, random: Random, start_ms: int, end_ms: int
    ) -> None:
        self.pools = pools
        self.record = record
        self.random = random
        self.now = start_ms
        self.end_ms = end_ms
        self._agenda: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, time_ms: int, action: Action, *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._agenda, (max(time_ms, self.now), self._sequence, action, arguments))

    def after(self, shortest_s: int, longest_s: int, action: Action, *arguments: Any) -> None:
        """Do it after a while, drawn between the two."""
        self.at(self.now + self.random.randrange(shortest_s * 1000, longest_s * 1000), action, *arguments)

    def run(self) -> None:
        for pool in self.pools.values():
            self.after(300, 700, self._retry, pool)
        while self._agenda and self._agenda[0][0] < self.end_ms:
            self.now, _, action, arguments = heapq.heappop(self._agenda)
            action(*arguments)
        self.now = self.end_ms
        self._close()

    # The life of a workload

    def submit(self, workload: Workload) -> None:
        workload.queued_ms = self.now
        pool = self.pools[workload.pools[0]]
        if pool.has_room(workload):
            self._start(workload, pool)
        else:
            self._enqueue(workload, pool)
            self.make_room(pool, workload)

    def stop(self, workload: Workload) -> None:
        """It is done, or no longer wanted; where it drains already it just never comes back."""
        if workload.state is State.ENDED:
            return
        pool = self.pools[workload.pool]
        if workload.state is State.DRAINING:
            workload.work_ms = 0
            return
        if workload.state is State.RUNNING:
            self._leave(workload, pool)
        else:
            if workload.state is State.CLAIMING:
                pool.drop_promise(workload)
            self._dequeue(workload, pool)
            self.record.given_up(workload)
        workload.state = State.ENDED

    def _start(self, workload: Workload, pool: Pool) -> None:
        if workload.is_pending:
            self._dequeue(workload, self.pools[workload.pool])
        reload = reload_ms(workload, self.random)
        workload.attempt += 1
        workload.pool = pool.slug
        workload.state = State.RUNNING
        workload.admitted_ms = self.now
        pool.take(workload)
        self.record.started(workload, self.now)
        if workload.preemption:
            self.record.resumed(workload, self.now, reload)
        if workload.work_ms is not None:
            left_ms = max(workload.work_ms - workload.kept_ms, 5 * MS_PER_MINUTE)
            self.at(self.now + reload + left_ms, self._finish, workload, workload.attempt)

    def _finish(self, workload: Workload, attempt: int) -> None:
        if workload.state is State.RUNNING and workload.attempt == attempt:
            self.stop(workload)

    def _leave(self, workload: Workload, pool: Pool) -> None:
        pool.give_back(workload)
        self.record.ended(workload, self.now)
        self._sweep_soon(pool)

    def _enqueue(self, workload: Workload, pool: Pool) -> None:
        workload.state = State.QUEUED
        workload.pool = pool.slug
        workload.is_pending = True
        pool.queue.append(workload)
        self.record.waits(workload, pool.slug, self.now)

    def _dequeue(self, workload: Workload, pool: Pool) -> None:
        pool.queue.remove(workload)
        workload.is_pending = False
        self.record.waits_no_more(workload, pool.slug, self.now)

    # The queue

    def _sweep_soon(self, pool: Pool) -> None:
        """GPUs came free: look at the queue in a moment, once for all that come free until then."""
        if pool.sweep_at is None:
            pool.sweep_at = self.now + self.random.randrange(1500, 9000)
            self.at(pool.sweep_at, self._sweep, pool)

    def _sweep(self, pool: Pool) -> None:
        pool.sweep_at = None
        for workload in self._waiting(pool)[:LOOKS_AHEAD]:
            if pool.has_room(workload):
                self._start(workload, pool)

    def _waiting(self, pool: Pool) -> list[Workload]:
        """Who may start now: first those whose own reservation has room, then by priority, then by age."""
        ready = [w for w in pool.queue if w.state is State.QUEUED and w.ready_ms <= self.now]
        return sorted(ready, key=lambda w: (not pool.is_entitled(w), -w.priority, w.queued_ms, w.id))

    def _retry(self, pool: Pool) -> None:
        for workload in self._waiting(pool)[:RETRIES]:
            waited_ms = self.now - workload.queued_ms
            if pool.has_room(workload):
                self._start(workload, pool)
            elif pool.is_entitled(workload):
                self.make_room(pool, workload)
            elif waited_ms > TRIES_ELSEWHERE_AFTER_MS and (other := self._room_elsewhere(workload)):
                self._start(workload, other)
            elif waited_ms > UNFAIR_AFTER_MS and self.random.random() < 0.25:
                self._evict_for(pool, workload, preempting.fair_share_victims(pool, workload))
        self.after(540, 840, self._retry, pool)

    def _room_elsewhere(self, workload: Workload) -> Pool | None:
        others = (self.pools[slug] for slug in workload.pools if slug != workload.pool)
        return next((pool for pool in others if pool.has_room(workload)), None)

    # Preemption

    def make_room(self, pool: Pool, newcomer: Workload) -> None:
        self._evict_for(pool, newcomer, preempting.victims_for(pool, newcomer))

    def _evict_for(self, pool: Pool, newcomer: Workload, choice: preempting.Choice) -> None:
        cause, victims = choice
        if not victims or self.now > self.end_ms - QUIET_END_MS:
            return
        pool.promise(newcomer)
        newcomer.awaited = {victim.id for victim in victims}
        self._defer_one(pool, newcomer)
        decided_ms = self.now
        for victim in victims:
            self.evict(victim, newcomer, cause, decided_ms)
            decided_ms += self.random.randrange(400, 3500)

    def _defer_one(self, pool: Pool, newcomer: Workload) -> None:
        """Now and then somebody who had been promised the place next is put back in the queue."""
        behind = [w for w in pool.queue if w.attempt == 0 and w.priority < newcomer.priority]
        if behind and self.random.random() < 0.15:
            self.record.deferral(behind[0], newcomer, pool.slug, self.now)

    def evict(self, victim: Workload, preemptor: Workload | None, cause: str, decided_ms: int) -> None:
        """Tell a running workload to go; it drains for its grace period."""
        released_ms = decided_ms + self._grace_ms(victim, cause)
        disposition = self._disposition(victim, cause)
        self.pools[victim.pool].tell_to_go(victim)
        self.record.preemption(victim, preemptor, cause, disposition, decided_ms, released_ms)
        self.at(released_ms, self._release, victim, disposition)

    def kill(self, victims: list[Workload], cause: str) -> None:
        """The GPUs under these workloads are gone this instant: no grace."""
        for victim in victims:
            pool = self.pools[victim.pool]
            pool.tell_to_go(victim)
            self.record.preemption(victim, None, cause, "requeued", self.now, self.now)
            self._release(victim, "requeued")

    def _grace_ms(self, victim: Workload, cause: str) -> int:
        if cause == "maintenance":
            return self.random.randrange(3 * MS_PER_MINUTE, 10 * MS_PER_MINUTE)
        shortest_s, longest_s = (60, 180) if victim.is_serving else (18, 95)
        return self.random.randrange(shortest_s * 1000, longest_s * 1000)

    def _disposition(self, victim: Workload, cause: str) -> str:
        if cause == "maintenance" and victim.is_serving:
            return "drained"
        if cause == "overuse" and self.random.random() < 0.5:
            return "stopped"
        if victim.priority_class == "interactive" and self.random.random() < 0.12:
            return "stopped"
        if victim.is_serving and self.random.random() < 0.5:
            return "degraded"
        return "requeued"

    def _release(self, victim: Workload, disposition: str) -> None:
        pool = self.pools[victim.pool]
        self._leave(victim, pool)
        comes_back = disposition in ("requeued", "degraded") and victim.work_ms != 0
        if comes_back:
            victim.queued_ms = self.now
            # Whoever is sent away again and again waits longer before it tries anew.
            backoff_ms = self.random.randrange(20_000, 4 * MS_PER_MINUTE) * min(victim.attempt, 8)
            victim.ready_ms = self.now + backoff_ms
            self._enqueue(victim, pool)
            self.at(victim.ready_ms, self._sweep_soon, pool)
        else:
            self.record.given_up(victim)
            victim.state = State.ENDED
        for newcomer in [w for w in pool.queue if w.state is State.CLAIMING and victim.id in w.awaited]:
            newcomer.awaited.discard(victim.id)
            if not newcomer.awaited:
                self.after(2, 25, self._start_promised, newcomer, pool)

    def _start_promised(self, newcomer: Workload, pool: Pool) -> None:
        if newcomer.state is not State.CLAIMING:
            return
        pool.drop_promise(newcomer)
        newcomer.state = State.QUEUED
        if pool.has_room(newcomer):
            self._start(newcomer, pool)

    # Overuse, looked for in the evening

    def check_overuse(self, pool: Pool) -> None:
        waits_long = any(self.now - w.queued_ms > MS_PER_HOUR for w in pool.queue)
        greedy = preempting.overuser(pool)
        if greedy is not None and waits_long and self.now < self.end_ms - QUIET_END_MS:
            self.evict(greedy, None, "overuse", self.now)

    def _close(self) -> None:
        """The demo ends with its month: everything is released and nothing waits any more."""
        for pool in self.pools.values():
            for workload in list(pool.running.values()):
                pool.give_back(workload)
                self.record.ended(workload, self.now)
            for workload in list(pool.queue):
                self._dequeue(workload, pool)
                self.record.given_up(workload)
