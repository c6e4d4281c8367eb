"""What the tenants send to the simulated schedulers: replicas that follow the day, and streams of jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from ingest.core.demo.calendar import Calendar
from ingest.core.demo.cast import PRIORITIES, SERVICES, Company, DeploymentPlan, JobPlan, TenantPlan
from ingest.core.demo.journal import Json
from ingest.core.demo.record import median_hours
from ingest.core.demo.scheduler import Scheduler
from ingest.core.demo.workload import State, Workload
from ledger.core.units import MS_PER_HOUR, MS_PER_MINUTE

SCALES_EVERY_S = (1500, 2100)
USERS = ("chen", "wei", "li", "zhao", "kumar", "sato", "garcia", "novak", "diaz", "okafor")


def namespace(tenant: str, kind: str = "") -> Json:
    """How events of a tenant's own workloads name it: by the Kubernetes namespace they run in."""
    return {"identity": {"kind": "k8s_namespace", "value": f"{tenant}-{kind}" if kind else tenant}}


@dataclass
class Demand:
    """Feeds a scheduler for one month. Every stream has its own random numbers, so that they do not disturb
    one another."""

    scheduler: Scheduler
    calendar: Calendar
    company: Company
    seed: str
    month: str
    _serial: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        tenants = {tenant.slug: tenant for tenant in self.company.tenants}
        for plan in self.company.deployments:
            starts_ms, ends_ms = self._stay(tenants.get(plan.holder))
            deployment = Deployment(self, plan, Random(f"{self.seed}/deployment/{plan.name}"), ends_ms)
            self.scheduler.at(starts_ms, deployment.scale)
        for job in self.company.jobs:
            stream = JobStream(self, job, Random(f"{self.seed}/jobs/{job.tenant}/{job.name}"))
            stream.begin(*self._stay(tenants[job.tenant]))

    def _stay(self, tenant: TenantPlan | None) -> tuple[int, int]:
        span = self.calendar.span
        if tenant is None:
            return span.start_ms, span.end_ms
        starts_ms = self.calendar.at(tenant.joins_on, 10) if tenant.joins_on > 1 else span.start_ms
        return starts_ms, self.calendar.at(tenant.leaves_on, 18) if tenant.leaves_on else span.end_ms

    def workload_id(self, name: str) -> str:
        """Unique over all demo months."""
        self._serial[name] = self._serial.get(name, 0) + 1
        return f"{name}-{self.month.replace('-', '')}-{self._serial[name]:04d}"


@dataclass
class Deployment:
    """Keeps as many replicas as the hour asks for; each replica is a workload of its own."""

    demand: Demand
    plan: DeploymentPlan
    random: Random
    ends_ms: int
    replicas: list[Workload] = field(default_factory=list)

    def scale(self) -> None:
        scheduler = self.demand.scheduler
        self.replicas = [replica for replica in self.replicas if replica.state is not State.ENDED]
        wanted = self._wanted(scheduler.now)
        while len(self.replicas) > wanted:
            replica = max(self.replicas, key=_expendable)
            self.replicas.remove(replica)
            scheduler.stop(replica)
        while len(self.replicas) < wanted:
            self._add_replica()
        if wanted or scheduler.now < self.ends_ms:
            scheduler.after(*SCALES_EVERY_S, self.scale)

    def _wanted(self, now_ms: int) -> int:
        if now_ms >= self.ends_ms:
            return 0
        plan = self.plan
        busy = self.demand.calendar.busyness(plan.rhythm, now_ms) + self.random.uniform(-0.06, 0.06)
        return plan.low + round(min(max(busy, 0.0), 1.0) * (plan.high - plan.low))

    def _add_replica(self) -> None:
        plan = self.plan
        who: Json = {"service": plan.holder} if plan.holder in SERVICES else namespace(plan.holder, "serving")
        replica = Workload(
            id=self.demand.workload_id(plan.name),
            holder=plan.holder,
            who=who,
            pools=(plan.pool,),
            milli_gpus=plan.milli_gpus,
            name=plan.name,
            kind="serving",
            service_class=plan.service_class,
            priority_class="serving",
            priority=PRIORITIES["serving"],
            work_ms=None,
            labels={"app": plan.name},
        )
        self.replicas.append(replica)
        self.demand.scheduler.submit(replica)


def _expendable(replica: Workload) -> tuple[int, int]:
    """Scaling down drops what never ran, then the youngest running replica; what was preempted comes back."""
    if replica.state is State.RUNNING:
        return 1, replica.admitted_ms
    return (0 if replica.attempt else 2), replica.queued_ms


@dataclass
class JobStream:
    """Poisson arrivals that follow a rhythm, drawn from the busiest rate by thinning."""

    demand: Demand
    plan: JobPlan
    random: Random
    ends_ms: int = 0

    def begin(self, starts_ms: int, ends_ms: int) -> None:
        self.ends_ms = ends_ms
        if starts_ms == self.demand.calendar.span.start_ms:
            self._carry_over()
        self.demand.scheduler.at(starts_ms + self._gap_ms(), self._arrive)

    def _carry_over(self) -> None:
        """What runs when the month begins was there before: jobs that last, in their expected number."""
        expected = self.plan.per_day * self.plan.hours / 24
        count = int(expected + self.random.random())
        for _ in range(count):
            self.demand.scheduler.at(self.demand.calendar.span.start_ms, self._submit)

    def _gap_ms(self) -> int:
        # The busiest hour sees about twice the day's mean.
        return int(self.random.expovariate(2 * self.plan.per_day) * 24 * MS_PER_HOUR) + 1

    def _arrive(self) -> None:
        now_ms = self.demand.scheduler.now
        if now_ms >= self.ends_ms:
            return
        if self.random.random() < self.demand.calendar.busyness(self.plan.rhythm, now_ms):
            self._submit()
        self.demand.scheduler.at(now_ms + self._gap_ms(), self._arrive)

    def _submit(self) -> None:
        plan = self.plan
        user = f"{self.random.choice(USERS)}@{plan.tenant}"
        workload = Workload(
            id=self.demand.workload_id(f"{plan.tenant}-{plan.name}"),
            holder=plan.tenant,
            who=namespace(plan.tenant),
            pools=plan.pools,
            milli_gpus=self.random.choice(plan.milli_gpus),
            name=plan.name,
            kind="batch",
            service_class=plan.service_class,
            priority_class=plan.priority_class,
            priority=PRIORITIES[plan.priority_class],
            work_ms=median_hours(plan.hours, self.random),
            checkpoint_ms=plan.checkpoint_min * MS_PER_MINUTE,
            user=user,
            labels={"team": self.random.choice(("core", "apps", "infra"))},
        )
        self.demand.scheduler.submit(workload)
