"""Closing a month, a late event, and computing a month, of 500 tenants and 20 pools.

    python tests/bench/bench_closing.py [--requests FEW MANY] [--changes FEW MANY] [--runs N] [--spread]

- The time to compute a month grows at most in proportion to its level changes.
- A late event, booked and waiting, is computed, rated and posted in 2 % of the time that the whole month took, at the
  larger number of changes.
- A close (checklist, files, sealing, mail, as the worker runs it) takes the same time with 10 000 as with 1 000 000
  requests, at the smaller number of changes. Held equal is which tenants send in which hours, so that both months have
  the same bills, slots and files; only how many requests stand behind an hour differs. They are rolled up as they are
  booked, and no close reads them. 10 000 requests cannot fill more than 10 000 of the 372 000 hours that 500 tenants
  have in a month; what an hour more with requests costs (rows of slots, of proofs and of the tenant's files) is printed
  with --spread, without a limit: there the many requests are spread evenly over the month.

Times are those of processors, here and in the server's process: other work on the machine does not count, and so the
ratios hold on a busy one. Where the server runs elsewhere they are seconds on the wall; those are printed in any case.
Months are computed once at each size, and of late events medians count. Closes take turns, in the other order every
time, each on a fresh copy of its database; the least of each counts, since whatever disturbs one only adds to it, and
medians are printed.
Databases are made beside the configured one and dropped at the end. Exits with 1 when a limit is missed.
"""

# ruff: noqa: E402 (Django is set up before anything that needs it is imported)

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import django

django.setup()

from billing.models import RunState
from billing.services.closing import run_close, start_close
from billing.services.months import compute_month
from billing.services.periods import open_review
from ledger.core.units import MS_PER_DAY, MS_PER_HOUR
from ledger.services.audit import Actor
from tests.bench import month_load as load
from tests.bench.month_load import MONTH, NOW, SPAN, Cost, costed
from tests.bench.shapes import HOLDERS

CLOSE_LIMIT = 1.10
LATE_LIMIT = 0.02
GROWTH_LIMIT = 1.10
EMPTY, FEW, MANY, MORE, SPREAD, RUN = (
    load.beside(f"bench_closing_{name}") for name in ("empty", "few", "many", "more", "spread", "run")
)
BENCH = Actor("bench")


def requests_in_hours(count: int, hours: int) -> Iterator[bytes]:
    """`count` requests, as many in each of `hours` hours of tenants; the tenants take turns through the month."""
    chance = random.Random(SPAN.start_ms)
    for number in range(count):
        place = number * hours // count
        within_ms = 60_000 + number % 50_000 * 60
        hour_ms = SPAN.start_ms + place * (SPAN.end_ms - SPAN.start_ms) // hours // MS_PER_HOUR * MS_PER_HOUR
        yield load.request(number, place * 7 % HOLDERS, hour_ms + within_ms, chance)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, nargs=2, default=[10_000, 1_000_000])
    parser.add_argument("--changes", type=int, nargs=2, default=[100_000, 1_000_000])
    parser.add_argument(
        "--runs",
        type=int,
        default=3,
        help="half the closes of each month, a third of each kind of late event",
    )
    parser.add_argument("--spread", action="store_true", help="also with requests in every hour of the month")
    options = parser.parse_args()
    few = options.requests[0]
    try:
        load.create(EMPTY)
        load.load_masters()
        costs = {}
        for name, changes in ((FEW, options.changes[0]), (MANY, options.changes[1])):
            costs[changes] = computed(name, changes, requests_in_hours(few, few))
        results = [
            judge_growth(costs),
            measure_late_events(costs[options.changes[1]], options.runs),
            measure_closes(options.changes[0], options.requests, options.runs, spread=options.spread),
        ]
    finally:
        load.drop(EMPTY, FEW, MANY, MORE, SPREAD, RUN)
    return 0 if all(results) else 1


# Months


def computed(name: str, changes: int, requests: Iterator[bytes]) -> Cost:
    """A month that is loaded, computed for the first time, from its facts to its drafts, and in review."""
    load.create(name, EMPTY)
    load.load_month(changes)
    load.deliver(requests, "requests")
    load.sign_off()
    with costed() as cost:
        compute_month(MONTH, horizon=NOW)
    open_review(MONTH, BENCH, now=NOW)
    # The next month up to now, as beat leaves it.
    compute_month(MONTH.next(), horizon=NOW)
    load.tidy()
    return cost


def judge_growth(costs: dict[int, Cost]) -> bool:
    (few, smaller), (many, larger) = sorted(costs.items())
    ratio = (larger.seconds / many) / (smaller.seconds / few)
    print(
        f"computing a month: {few:,} changes {told([smaller])}, {many:,} changes {told([larger])}; "
        f"time per change {ratio:.2f} of the smaller month's, at most {GROWTH_LIMIT:.2f}"
    )
    return ratio <= GROWTH_LIMIT


# Closes


def measure_closes(changes: int, requests: list[int], runs: int, *, spread: bool) -> bool:
    """The month with few requests is the one that was computed first."""
    few, many = requests
    computed(MORE, changes, requests_in_hours(many, few))
    if spread:
        computed(SPREAD, changes, requests_in_hours(many, many))
    costs: dict[str, list[Cost]] = {name: [] for name in (FEW, MORE, *([SPREAD] if spread else []))}
    for number in range(2 * runs):
        for name in sorted(costs, reverse=number % 2 > 0):
            costs[name].append(closed(name))
    seconds = [min(cost.seconds for cost in of) for of in costs.values()]
    ratio = seconds[1] / seconds[0]
    a, b, *rest = (told(of) for of in costs.values())
    print(
        f"closing a month: {few:,} requests {a}, {many:,} requests {b}; the least of each {seconds[0]:.2f} and "
        f"{seconds[1]:.2f} s, {ratio:.2f} of the time, at most {CLOSE_LIMIT:.2f}"
    )
    for text in rest:
        print(
            f"closing a month: {many:,} requests, in all hours {text}; {seconds[2] / seconds[0]:.2f} of the time"
        )
    return ratio <= CLOSE_LIMIT


def closed(name: str) -> Cost:
    load.create(RUN, name)
    run = start_close(MONTH, BENCH)
    with costed() as cost:
        done = run_close(run.pk, now=NOW)
    if done.state != RunState.DONE:
        raise SystemExit(f"{name}: the close ended {done.state}: {done.message}")
    return cost


# Late events


def late_request(number: int) -> Iterator[bytes]:
    holder = number * 31 % HOLDERS
    yield load.request(10_000_000 + number, holder, noon(number), random.Random(number))


def late_level(number: int) -> Iterator[bytes]:
    """A shared service had been resized for some hours of a day."""
    pool = number * 7 % load.POOLS
    yield load.event(
        "occupancy", f"late-{number}", noon(number), pool=load.pool(pool), workload=f"replica-{pool}",
        service=f"chat-{pool}", gpus=13,
    )  # fmt: skip


def noon(number: int) -> int:
    return SPAN.start_ms + (3 + number * 5 % 20) * MS_PER_DAY + 15 * MS_PER_HOUR


def measure_late_events(whole: Cost, runs: int) -> bool:
    """In the larger month; whole: what computing it took."""
    load.use(MANY)
    late: dict[str, list[Cost]] = {"request": [], "level": []}
    for number in range(3 * runs):
        for kind, facts in (("request", late_request(number)), ("level", late_level(number))):
            load.deliver(facts, f"late-{kind}-{number}")
            with costed() as cost:
                done = compute_month(MONTH, horizon=NOW)
            if not done.allocation.rows:
                raise SystemExit(f"a late {kind} left nothing to compute")
            late[kind].append(cost)
    ratios = []
    for kind, costs in late.items():
        ratio = median_of(costs) / whole.seconds
        ratios.append(ratio)
        print(
            f"late {kind}: {told(costs)}, the whole month {told([whole])}; {ratio:.2%} of it, at most {LATE_LIMIT:.0%}"
        )
    return max(ratios) <= LATE_LIMIT


def median_of(costs: list[Cost]) -> float:
    return statistics.median(cost.seconds for cost in costs)


def told(costs: list[Cost]) -> str:
    """Medians of the seconds on the wall and of those of processors."""
    wall_s = statistics.median(cost.wall_s for cost in costs)
    cpu_s = statistics.median(cost.cpu_s for cost in costs)
    return f"{cpu_s:.2f} s ({wall_s:.2f} s on the wall)" if cpu_s else f"{wall_s:.2f} s on the wall"


if __name__ == "__main__":
    sys.exit(main())
