"""Closing a month, a late event, and computing a month, of 500 tenants and 20 pools.

    python tests/bench/bench_closing.py [--requests FEW MANY] [--changes FEW MANY] [--runs N] [--spread]

- A close (checklist, files, sealing, mail, as the worker runs it) takes the same time with 10 000 as with 1 000 000
  requests. The same tenants send in the same hours of the month, and only how many requests stand behind an hour
  differs: they are rolled up as they are booked, and no close reads them. What an hour more with requests costs (a row
  of slots, of proofs and of the tenant's file) is printed with --spread, without a limit: there the many requests are
  spread evenly over the month.
- A late event, booked and waiting, is computed, rated and posted in 2 % of the time that the whole month takes.
- The time to compute a month grows at most in proportion to its level changes.

The two sizes take turns, each run on a fresh copy of its database; medians count. Databases are made beside the
configured one and dropped at the end. Exits with 1 when a limit is missed.
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
FRESH = "ledger_bench_closing"
RUN = f"{FRESH}_run"
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
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--spread", action="store_true", help="also with requests in every hour of the month")
    options = parser.parse_args()
    few, many = (f"{FRESH}_{name}" for name in ("few", "many"))
    try:
        load.create(few)
        load.load_month(options.changes[0])
        load.create(many)
        load.load_month(options.changes[1])
        results = [
            measure_growth(few, many, options.changes, options.runs),
            measure_closes(few, options.requests, options.runs, spread=options.spread),
            measure_late_events(many, options.requests[1], options.runs),
        ]
    finally:
        load.drop(few, many, RUN, *(f"{FRESH}_{name}" for name in ("a", "b", "c")))
    return 0 if all(results) else 1


# Growth


def measure_growth(few: str, many: str, changes: list[int], runs: int) -> bool:
    """Computing a month that was never computed, from its facts to its drafts."""
    costs: dict[str, list[Cost]] = {few: [], many: []}
    for _ in range(runs):
        for name in costs:
            load.create(RUN, few if name == few else many)
            with costed() as cost:
                compute_month(MONTH, horizon=NOW)
            costs[name].append(cost)
    per_change = [
        statistics.median(cost.wall_s for cost in costs[name]) / count
        for name, count in zip((few, many), changes, strict=True)
    ]
    ratio = per_change[1] / per_change[0]
    print(
        f"computing a month: {changes[0]:,} changes {told(costs[few])}, {changes[1]:,} changes {told(costs[many])}; "
        f"time per change {ratio:.2f} of the smaller month's, at most {GROWTH_LIMIT:.2f}"
    )
    return ratio <= GROWTH_LIMIT


# Closes


def measure_closes(base: str, requests: list[int], runs: int, *, spread: bool) -> bool:
    few, many = requests
    months = {f"{FRESH}_a": requests_in_hours(few, few), f"{FRESH}_b": requests_in_hours(many, few)}
    if spread:
        months[f"{FRESH}_c"] = requests_in_hours(many, many)
    for name, sent in months.items():
        load.create(name, base)
        load.deliver(sent, "requests")
        in_review()
    costs: dict[str, list[Cost]] = {name: [] for name in months}
    for _ in range(runs):
        for name in months:
            costs[name].append(closed(name))
    seconds = [statistics.median(cost.wall_s for cost in of) for of in costs.values()]
    ratio = seconds[1] / seconds[0]
    a, b, *rest = (told(of) for of in costs.values())
    print(
        f"closing a month: {few:,} requests {a}, {many:,} requests {b}; {ratio:.2f} of the time, "
        f"at most {CLOSE_LIMIT:.2f}"
    )
    for text in rest:
        print(
            f"closing a month: {many:,} requests, in all hours {text}; {seconds[2] / seconds[0]:.2f} of the time"
        )
    return ratio <= CLOSE_LIMIT


def in_review() -> None:
    """The month in review with its drafts, and the next one computed up to now, as beat leaves them."""
    load.sign_off()
    open_review(MONTH, BENCH, now=NOW)
    compute_month(MONTH.next(), horizon=NOW)


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


def measure_late_events(base: str, requests: int, runs: int) -> bool:
    load.create(f"{FRESH}_c", base)
    load.deliver(requests_in_hours(requests, requests), "requests")
    in_review()
    whole, late = [], {"request": [], "level": []}
    for run in range(runs):
        with costed() as cost:
            compute_month(MONTH, horizon=NOW, everything=True)
        whole.append(cost)
        for number in range(3 * run, 3 * run + 3):
            for kind, facts in (("request", late_request(number)), ("level", late_level(number))):
                load.deliver(facts, f"late-{kind}-{number}")
                with costed() as cost:
                    done = compute_month(MONTH, horizon=NOW)
                if not done.allocation.rows:
                    raise SystemExit(f"a late {kind} left nothing to compute")
                late[kind].append(cost)
    whole_s = statistics.median(cost.wall_s for cost in whole)
    ratios = []
    for kind, costs in late.items():
        ratio = statistics.median(cost.wall_s for cost in costs) / whole_s
        ratios.append(ratio)
        print(
            f"late {kind}: {told(costs)}, the whole month {told(whole)}; {ratio:.2%} of it, at most {LATE_LIMIT:.0%}"
        )
    return max(ratios) <= LATE_LIMIT


def told(costs: list[Cost]) -> str:
    """Median of the seconds, and of those of processor time."""
    wall_s = statistics.median(cost.wall_s for cost in costs)
    cpu_s = statistics.median(cost.cpu_s for cost in costs)
    return f"{wall_s:.2f} s ({cpu_s:.2f} s of processor time)"


if __name__ == "__main__":
    sys.exit(main())
