"""What happens to the pools and between the tenants: failures, maintenance, contracts, the launch, a hackathon."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ingest.core.demo.calendar import Calendar
from ingest.core.demo.cast import GPUS_PER_NODE, LAUNCH_POOL, PRIORITIES, Company, ReservationPlan
from ingest.core.demo.demand import namespace
from ingest.core.demo.journal import Json, gpus, rfc3339
from ingest.core.demo.pool import Pool
from ingest.core.demo.preempting import victims_of_lost_capacity
from ingest.core.demo.scheduler import Scheduler
from ingest.core.demo.workload import State, Workload
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE

NODE = GPUS_PER_NODE * 1000
FAILURES_PER_NODE_AND_DAY = 0.0045
MAINTAINED_POOL = "bj-h200"
EXPANDED_POOL = "sh-h100"
HACKATHON_POOL = "sh-h100"
HACKATHON = "genai-hackathon"  # nobody told the ledger whose namespace this is
LAUNCH_WEEKDAY = 2  # a Wednesday


@dataclass
class Incidents:
    scheduler: Scheduler
    calendar: Calendar
    company: Company
    random: Random
    month: str

    def begin(self) -> None:
        for pool in self.scheduler.pools.values():
            self.scheduler.record.capacity(
                pool.slug, self.calendar.span.start_ms, pool.capacity, "node_ready"
            )
            self._fail_nodes(pool)
            for day in range(1, self.calendar.days + 1):
                self.scheduler.at(self.calendar.at(day, 21), self.scheduler.check_overuse, pool)
        for plan in self.company.reservations:
            self._reserve(plan)
        self._maintain(self.scheduler.pools[MAINTAINED_POOL])
        self._expand(self.scheduler.pools[EXPANDED_POOL])
        self._announce_delivery(self.scheduler.pools[MAINTAINED_POOL])
        self._hackathon()
        self._rehearse()
        self._launch()

    # Reservations

    def _reserve(self, plan: ReservationPlan) -> None:
        if plan.gpus:
            # In force before anything starts at the month's first instant.
            self._set_reservation(plan, plan.gpus)
            self._write_reservation(plan, plan.gpus, self.calendar.span.start_ms, announced_ms=None)
        for day, amount in plan.changes:
            starts_ms = self.calendar.at(day, 10)
            self.scheduler.at(starts_ms, self._set_reservation, plan, amount)
            self._write_reservation(plan, amount, starts_ms, announced_ms=starts_ms - 2 * MS_PER_DAY)

    def _set_reservation(self, plan: ReservationPlan, amount: int) -> None:
        pool = self.scheduler.pools[plan.pool]
        kind = pool.lendable if plan.lendable else pool.fixed
        kind[plan.holder] = amount * 1000

    def _write_reservation(
        self, plan: ReservationPlan, amount: int, time_ms: int, announced_ms: int | None
    ) -> None:
        is_service = all(tenant.slug != plan.holder for tenant in self.company.tenants)
        data: Json = {
            "reservation": f"{self.month}/{plan.holder}/{plan.pool}",
            ("service" if is_service else "tenant"): plan.holder,
            "pool": plan.pool,
            "gpus": gpus(amount * 1000),
            "lendable": plan.lendable,
        }
        if amount:
            data["ends_at"] = rfc3339(self.calendar.span.end_ms)
        self.scheduler.record.reservation(time_ms, data, announced_ms)

    # Capacity

    def _fail_nodes(self, pool: Pool) -> None:
        mean_ms = MS_PER_DAY / (FAILURES_PER_NODE_AND_DAY * pool.plan.nodes)
        fails_ms = self.calendar.span.start_ms + 6 * MS_PER_HOUR
        while (fails_ms := fails_ms + int(self.random.expovariate(1) * mean_ms)) < (
            self.calendar.span.end_ms - MS_PER_HOUR
        ):
            self.scheduler.at(fails_ms, self._fail_node, pool)

    def _fail_node(self, pool: Pool) -> None:
        """A node drops out with what runs on it and comes back hours later."""
        if pool.capacity - NODE < pool.plan.gpus * 1000 * 3 // 4:
            return  # the operators would stop everything before a pool shrinks that far
        self.scheduler.kill(self._on_one_node(pool), "capacity_lost")
        self._lose(pool, NODE, "node_down", "capacity_lost")
        self.scheduler.after(2 * 3600, 26 * 3600, self._gain, pool, NODE, "node_ready")

    def _on_one_node(self, pool: Pool) -> list[Workload]:
        """Who ran on the node: one gang that used it, or a few small ones that shared it."""
        running = [w for w in pool.can_be_told_to_go() if w.admitted_ms < self.scheduler.now]
        if not running or self.random.random() * pool.capacity < pool.idle():
            return []
        first = self.random.choices(running, [w.milli_gpus for w in running])[0]
        sharing, left = [first], NODE - first.milli_gpus
        for other in running:
            if other is not first and other.milli_gpus <= left and self.random.random() < 0.5:
                sharing.append(other)
                left -= other.milli_gpus
        return sharing

    def _lose(self, pool: Pool, milli_gpus: int, reason: str, cause: str) -> None:
        pool.capacity -= milli_gpus
        self.scheduler.kill(victims_of_lost_capacity(pool), cause)
        self.scheduler.record.capacity(pool.slug, self.scheduler.now, pool.capacity, reason)

    def _gain(self, pool: Pool, milli_gpus: int, reason: str) -> None:
        pool.capacity += milli_gpus
        self.scheduler.record.capacity(pool.slug, self.scheduler.now, pool.capacity, reason)

    def _maintain(self, pool: Pool) -> None:
        """A sixth of the pool is taken out for a firmware update in a Sunday's small hours."""
        day = self.calendar.weekday_on_or_after(8, 6)
        milli_gpus = max(1, pool.plan.nodes // 6) * NODE
        begins_ms = self.calendar.at(day, 2)
        self.scheduler.at(begins_ms - 15 * MS_PER_MINUTE, self._drain, pool, milli_gpus)
        self.scheduler.at(begins_ms, self._take_out, pool, milli_gpus)
        self.scheduler.at(self.calendar.at(day, 8), self._gain, pool, milli_gpus, "maintenance_done")

    def _drain(self, pool: Pool, milli_gpus: int) -> None:
        """What the nodes hold is told to go, and nobody new gets in."""
        pool.cordoned = milli_gpus
        on_nodes = self.random.sample(pool.can_be_told_to_go(), k=len(pool.can_be_told_to_go()) // 3)
        for victim in on_nodes + [v for v in victims_of_lost_capacity(pool) if v not in on_nodes]:
            if milli_gpus > 0:
                self.scheduler.evict(victim, None, "maintenance", self.scheduler.now)
                milli_gpus -= victim.milli_gpus

    def _take_out(self, pool: Pool, milli_gpus: int) -> None:
        pool.cordoned = 0
        self._lose(pool, milli_gpus, "maintenance", "maintenance")

    def _expand(self, pool: Pool) -> None:
        nodes = max(1, pool.plan.nodes * 3 // 20)
        self.scheduler.at(self.calendar.at(22, 10, 30), self._gain, pool, nodes * NODE, "expansion")

    def _announce_delivery(self, pool: Pool) -> None:
        """New nodes are ordered: what the pool will have once the month after the next begins is known on the 20th."""
        after_next = Calendar(self.calendar.month.next().next(), self.calendar.zone)
        milli_gpus = (pool.plan.nodes + max(1, pool.plan.nodes // 8)) * NODE
        announced_ms = self.calendar.at(20, 15, 40)
        self.scheduler.record.capacity(
            pool.slug, after_next.at(1, 10), milli_gpus, "delivery", announced_ms=announced_ms
        )

    # Stories

    def _hackathon(self) -> None:
        """A namespace that no configuration maps holds a few GPUs for some days: suspense, until a person asks."""
        for number, hours in enumerate((74, 51, 20), start=1):
            job = Workload(
                id=f"{HACKATHON}-{self.month.replace('-', '')}-{number:04d}",
                holder="unattributed",
                who=namespace(HACKATHON),
                pools=(HACKATHON_POOL,),
                milli_gpus=2000 * number,
                name="hackathon",
                kind="batch",
                service_class="preemptible",
                priority_class="batch",
                priority=PRIORITIES["batch"],
                work_ms=hours * MS_PER_HOUR,
            )
            self.scheduler.at(self.calendar.at(7 + number, 11, 7 * number), self.scheduler.submit, job)

    @property
    def launch_day(self) -> int:
        return self.calendar.weekday_on_or_after(14, LAUNCH_WEEKDAY)

    def _rehearse(self) -> None:
        """The night before the launch its engines are tried under load; the platform pays for that."""
        test = Workload(
            id=f"assistant-load-test-{self.month.replace('-', '')}-0001",
            holder="assistant",
            who=namespace("assistant", "serving"),
            pools=("bj-h200",),
            milli_gpus=GPUS_PER_NODE * 1000,
            name="assistant-load-test",
            kind="serving",
            service_class="guaranteed",
            priority_class="serving",
            priority=PRIORITIES["serving"],
            work_ms=3 * MS_PER_HOUR,
            purpose="load_test",
        )
        self.scheduler.at(self.calendar.at(self.launch_day - 1, 1, 30), self.scheduler.submit, test)

    def _launch(self) -> None:
        """assistant's flash crowd: three surges take GPUs in Beijing while Shanghai has the same model idle.

        The first two run until the afternoon. The third is called off seconds later, when its victims have
        already been told to go: it never runs.
        """
        pool = next(pool for pool in self.company.pools if pool.slug == LAUNCH_POOL)
        surges = []
        for number, (minute, percent) in enumerate(((4, 28), (17, 18), (33, 12)), start=1):
            surge = Workload(
                id=f"assistant-launch-surge-{self.month.replace('-', '')}-{number:04d}",
                holder="assistant",
                who=namespace("assistant", "serving"),
                pools=(LAUNCH_POOL,),
                milli_gpus=max(4, pool.gpus * percent // 400 * 4) * 1000,
                name="assistant-launch",
                kind="serving",
                service_class="guaranteed",
                priority_class="launch-critical",
                priority=PRIORITIES["launch-critical"],
                work_ms=None,
                labels={"app": "assistant-launch", "event": "launch-day"},
            )
            surges.append(surge)
            self.scheduler.at(self.calendar.at(self.launch_day, 10, minute), self.scheduler.submit, surge)
        called_off_ms = self.calendar.at(self.launch_day, 10, 33) + 16_500
        self.scheduler.at(called_off_ms, self._call_off, surges[2])
        for surge, hour in zip(surges, (16, 14), strict=False):
            self.scheduler.at(self.calendar.at(self.launch_day, hour), self.scheduler.stop, surge)

    def _call_off(self, surge: Workload) -> None:
        if surge.state is not State.RUNNING:
            self.scheduler.stop(surge)
