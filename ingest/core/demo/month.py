"""Puts a demo month together: configuration and events, the same for the same arguments."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ingest.core.demo.calendar import Calendar
from ingest.core.demo.cast import Company, company
from ingest.core.demo.configuration import document, toml
from ingest.core.demo.delivery import Delivered, delivered
from ingest.core.demo.demand import Demand
from ingest.core.demo.incidents import Incidents
from ingest.core.demo.journal import Journal
from ingest.core.demo.mistakes import write_mistakes
from ingest.core.demo.pool import Pool
from ingest.core.demo.quotas import write_quotas
from ingest.core.demo.record import Record
from ingest.core.demo.scheduler import Scheduler
from ingest.core.demo.traffic import Traffic
from ledger.core.periods import Month


@dataclass(frozen=True)
class DemoSize:
    """How big the simulated company is. requests: calls that are reported one by one."""

    tenants: int = 12
    gpus: int = 912
    requests: int = 40_000

    def signature(self, seed: int) -> str:
        """Tells one version of a demo month from another; stored with the ledger."""
        return f"seed {seed}, {self.tenants} tenants, {self.gpus} GPUs, {self.requests} requests"


@dataclass(frozen=True)
class DemoMonth:
    """configuration: TOML for apply_config. events: in the order of their delivery, some twice. sources: all
    emitters' URIs."""

    month: Month
    zone: str
    company: Company
    configuration: str
    events: list[Delivered]
    sources: tuple[str, ...]
    launch_day: int


def generate(
    month: Month, zone: str = "Asia/Shanghai", size: DemoSize = DemoSize(), seed: int = 1
) -> DemoMonth:
    """Simulate one month of a GPU cluster.

    Everything begins and ends with the month, apart from the pools themselves: months may be loaded one after
    another, in any order.

    Raises:
        ValueError: a size too small for the stories, or negative.
    """
    if size.requests < 0:
        raise ValueError(f"the number of requests is {size.requests}; it cannot be negative")
    calendar = Calendar(month, zone)
    cast = company(size.tenants, size.gpus)
    seed_text = f"{seed}/{month}"
    journal = Journal(str(month), zone)
    record = Record(journal, {pool.slug: pool for pool in cast.pools}, Random(f"{seed_text}/record"))
    pools = {plan.slug: Pool(plan, plan.gpus * 1000) for plan in cast.pools}
    span = calendar.span
    scheduler = Scheduler(pools, record, Random(f"{seed_text}/scheduler"), span.start_ms, span.end_ms)
    incidents = Incidents(scheduler, calendar, cast, Random(f"{seed_text}/incidents"), str(month))
    incidents.begin()
    Demand(scheduler, calendar, cast, seed_text, str(month)).begin()
    scheduler.run()
    Traffic(calendar, cast, journal, record, incidents.launch_day, seed_text, size.requests).write()
    write_quotas(journal, record, cast, calendar, Random(f"{seed_text}/quotas"))
    write_mistakes(journal, cast, calendar)
    masters = document(cast, calendar, size.signature(seed))
    return DemoMonth(
        month,
        zone,
        cast,
        toml(masters),
        delivered(journal, Random(f"{seed_text}/delivery")),
        tuple(source["uri"] for source in masters["source"]),
        incidents.launch_day,
    )
