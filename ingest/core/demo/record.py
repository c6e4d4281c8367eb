"""What the simulated schedulers report: levels, preemptions and resumes, as events.md wants them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from ingest.core.demo.cast import PoolPlan
from ingest.core.demo.journal import (
    CAPACITY_MANAGER,
    Journal,
    Json,
    controller_of,
    gpus,
    rfc3339,
    scheduler_of,
    seconds,
)
from ingest.core.demo.workload import Workload
from ledger.core.units import MS_PER_HOUR, MS_PER_MINUTE


@dataclass(frozen=True, slots=True)
class Stay:
    """One attempt of a workload that has ended: it held `milli_gpus` during [start_ms, end_ms)."""

    workload: str
    holder: str
    pool: str
    milli_gpus: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Preempted:
    """One preemption as written; `data` is the event's, so that the traffic can add the requests it cost."""

    victim: Workload
    workload: str
    holder: str
    pool: str
    decided_ms: int
    released_ms: int
    data: Json


@dataclass
class Record:
    """The schedulers' side of the journal. random: for what differs from report to report."""

    journal: Journal
    pools: dict[str, PoolPlan]
    random: Random
    stays: list[Stay] = field(default_factory=list)
    preempted: list[Preempted] = field(default_factory=list)
    _preemptions: int = 0
    _open: dict[str, Json] = field(default_factory=dict)
    _last_pending: dict[tuple[str, str], int] = field(default_factory=dict)

    def capacity(
        self, pool: str, time_ms: int, milli_gpus: int, reason: str, announced_ms: int | None = None
    ) -> None:
        data: Json = {"pool": pool, "gpus": gpus(milli_gpus), "reason": reason}
        self.journal.write(CAPACITY_MANAGER, "capacity", time_ms, data, announced_ms)

    def reservation(self, time_ms: int, data: Json, announced_ms: int | None = None) -> None:
        self.journal.write(CAPACITY_MANAGER, "reservation", time_ms, data, announced_ms)

    def started(self, workload: Workload, time_ms: int) -> None:
        self._occupancy(workload, time_ms, workload.milli_gpus)

    def ended(self, workload: Workload, time_ms: int) -> None:
        self._occupancy(workload, time_ms, 0)
        self.stays.append(
            Stay(
                workload.id,
                workload.holder,
                workload.pool,
                workload.milli_gpus,
                workload.admitted_ms,
                time_ms,
            )
        )

    def waits(self, workload: Workload, pool: str, time_ms: int) -> None:
        self._pending(workload, pool, time_ms, workload.milli_gpus)

    def waits_no_more(self, workload: Workload, pool: str, time_ms: int) -> None:
        self._pending(workload, pool, time_ms, 0)

    def preemption(
        self,
        victim: Workload,
        preemptor: Workload | None,
        cause: str,
        disposition: str,
        decided_ms: int,
        released_ms: int,
    ) -> None:
        data: Json = {
            "preemption": self._preemption_id(victim, decided_ms),
            "victim": {"workload": victim.id, **victim.who, "attempt": victim.attempt},
            **self._preemptor(preemptor, cause),
            "pool": victim.pool,
            "gpus": gpus(victim.milli_gpus),
            "cause": cause,
            "admitted_at": rfc3339(victim.admitted_ms),
            "released_at": rfc3339(released_ms),
            "disposition": disposition,
        }
        if disposition == "degraded":
            data["degrade_trigger"] = self.random.choice(["receiver_limit", "instance_latency"])
        self._write_losses(victim, data, decided_ms)
        self.journal.write(self._scheduler(victim.pool), "preemption", decided_ms, data)
        if preemptor is not None and self.random.random() < 0.2:
            self._report_again(data, decided_ms)
        if disposition in ("requeued", "degraded"):
            victim.preemption = data["preemption"]
            self._open[victim.preemption] = data
        self.preempted.append(
            Preempted(victim, victim.id, victim.holder, victim.pool, decided_ms, released_ms, data)
        )

    def deferral(self, victim: Workload, preemptor: Workload, pool: str, time_ms: int) -> None:
        """Work that had a place but had not started is put back: no GPU time is lost."""
        data: Json = {
            "preemption": self._preemption_id(victim, time_ms),
            "victim": {"workload": victim.id, **victim.who},
            **self._preemptor(preemptor, "priority"),
            "pool": pool,
            "gpus": gpus(victim.milli_gpus),
            "cause": "priority",
            "disposition": "requeued",
            "queued_only": True,
        }
        self.journal.write(self._scheduler(pool), "preemption", time_ms, data)

    def resumed(self, workload: Workload, time_ms: int, reload_ms: int) -> None:
        data: Json = {
            "preemption": workload.preemption,
            "pool": workload.pool,
            "workload": workload.id,
            "attempt": workload.attempt,
        }
        if self.random.random() < 0.75:
            data["recompute_gpu_seconds"] = seconds(workload.milli_gpus * reload_ms)
        self.journal.write(self._scheduler(workload.pool), "resume", time_ms, data)
        del self._open[workload.preemption]
        workload.preemption = ""

    def given_up(self, workload: Workload) -> None:
        """Nobody wants a stopped workload back any more: it was stopped for good and does not wait."""
        if workload.preemption:
            data = self._open.pop(workload.preemption)
            data["disposition"] = "stopped"
            data.pop("degrade_trigger", None)
            workload.preemption = ""

    def _occupancy(self, workload: Workload, time_ms: int, milli_gpus: int, checkpoint_ms: int = 0) -> None:
        data: Json = {
            "workload": workload.id,
            **workload.who,
            "pool": workload.pool,
            "gpus": gpus(milli_gpus),
            "attempt": workload.attempt,
            "kind": workload.kind,
            "service_class": workload.service_class,
            "priority_class": workload.priority_class,
            "name": workload.name,
        }
        if workload.user:
            data["user"] = workload.user
        if workload.purpose:
            data["purpose"] = workload.purpose
        if workload.labels:
            data["labels"] = workload.labels
        if checkpoint_ms:
            data["last_checkpoint_at"] = rfc3339(checkpoint_ms)
        self.journal.write(self._scheduler(workload.pool), "occupancy", time_ms, data)

    def _pending(self, workload: Workload, pool: str, time_ms: int, milli_gpus: int) -> None:
        data: Json = {
            "workload": workload.id,
            **workload.who,
            "pool": pool,
            "gpus": gpus(milli_gpus),
            "priority_class": workload.priority_class,
            "service_class": workload.service_class,
        }
        # Two levels of one subject never share an instant.
        subject = (pool, workload.id)
        time_ms = max(time_ms, self._last_pending.get(subject, 0) + 1)
        self._last_pending[subject] = time_ms
        self.journal.write(self._scheduler(pool), "pending", time_ms, data)

    def _write_losses(self, victim: Workload, data: Json, decided_ms: int) -> None:
        """A trainer that writes checkpoints says when the last one was; some others say what they lost."""
        checkpoint_ms = victim.last_checkpoint_ms(decided_ms)
        if checkpoint_ms is not None:
            self._occupancy(victim, checkpoint_ms, victim.milli_gpus, checkpoint_ms)
            victim.kept_ms += checkpoint_ms - victim.admitted_ms
        elif not victim.is_serving and not victim.checkpoint_ms and self.random.random() < 0.4:
            ran_us = victim.milli_gpus * (decided_ms - victim.admitted_ms)
            data["lost_gpu_seconds"] = seconds(ran_us * self.random.randrange(55, 100) // 100)

    def _preemptor(self, preemptor: Workload | None, cause: str) -> Json:
        if preemptor is None:
            return {"preemptor_source": "none"}
        chances = {"fair_share": (35, 25, 40), "priority": (75, 20, 5)}.get(cause, (70, 25, 5))
        source = self.random.choices(["structured", "parsed", "inferred"], chances)[0]
        named: Json = {"preemptor": {"workload": preemptor.id, **preemptor.who}, "preemptor_source": source}
        if source == "inferred":
            named["confidence"] = f"0.{self.random.randrange(60, 98)}"
        return named

    def _report_again(self, data: Json, decided_ms: int) -> None:
        """The controller saw the eviction too, and knows less: the two reports merge into one preemption."""
        shared = ("preemption", "victim", "pool", "gpus", "cause")
        report = {name: data[name] for name in shared} | {"preemptor_source": "none"}
        source = controller_of(self.pools[data["pool"]].cluster)
        self.journal.write(source, "preemption", decided_ms + self.random.randrange(300, 2500), report)

    def _preemption_id(self, victim: Workload, decided_ms: int) -> str:
        self._preemptions += 1
        return f"{victim.id}/{rfc3339(decided_ms)}/{self._preemptions}"

    def _scheduler(self, pool: str) -> str:
        return scheduler_of(self.pools[pool].cluster)


def reload_ms(workload: Workload, random: Random) -> int:
    """How long a stopped workload takes to be where it was: weights and optimiser state, or an engine's warm-up."""
    if workload.attempt == 0:
        return 0
    return random.randrange(50_000, 4 * MS_PER_MINUTE if workload.is_serving else 9 * MS_PER_MINUTE)


def median_hours(hours: float, random: Random) -> int:
    """A running time in ms, log-normal around its median, between 3 minutes and 5 days."""
    drawn_ms = int(hours * MS_PER_HOUR * random.lognormvariate(0, 0.7))
    return min(max(drawn_ms, 3 * MS_PER_MINUTE), 120 * MS_PER_HOUR)
