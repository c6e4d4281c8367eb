"""Splitting a month of level changes into hours in memory, against SQL that computes only used, over and gap.

    python tests/bench/bench_allocation.py [--changes N] [--runs N]

The baseline is DuckDB with both cores: window functions over each subject and each holder, hours merged in. It
does less (nobody shares anything in it), so its sums are also a check: used, over and gap must be the same.
Exits with 1 when the core takes longer than the baseline.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from billing.core.allocation import PoolSplit, split_pool
from billing.core.allocation_levels import PLATFORM, Holders
from ledger.core.levels import NEVER, LevelFacts, Levels, effective_levels
from ledger.core.periods import slot_edges, utc_days
from ledger.core.units import MS_PER_HOUR
from tests.bench.shapes import HOLDERS, POOLS, Shape, month_of_changes

LIMIT = 1.0
THREADS = 2

BASELINE = """
WITH steps AS (
    SELECT place, time_ms, kind,
           milli - lag(milli, 1, 0) OVER (PARTITION BY subject ORDER BY time_ms) AS delta
    FROM changes WHERE kind IN (2, 3)
), events AS (
    SELECT place, time_ms,
           sum(CASE WHEN kind = 3 THEN delta ELSE 0 END)::BIGINT AS occupancy,
           sum(CASE WHEN kind = 2 THEN delta ELSE 0 END)::BIGINT AS reservation
    FROM (
        SELECT place, time_ms, kind, delta FROM steps
        UNION ALL
        SELECT place, hours.time_ms, 0, 0 FROM (SELECT DISTINCT place FROM steps), hours
    )
    GROUP BY place, time_ms
), states AS (
    SELECT place, time_ms,
           (sum(occupancy) OVER so_far)::BIGINT AS occupancy,
           (sum(reservation) OVER so_far)::BIGINT AS reservation,
           lead(time_ms) OVER so_far - time_ms AS length_ms
    FROM events
    WINDOW so_far AS (PARTITION BY place ORDER BY time_ms ROWS UNBOUNDED PRECEDING)
)
SELECT place, time_ms // 3600000 AS hour,
       sum(least(occupancy, reservation) * length_ms) AS used,
       sum(greatest(occupancy - reservation, 0) * length_ms) AS over,
       sum(greatest(reservation - occupancy, 0) * length_ms) AS gap
FROM states WHERE length_ms > 0
GROUP BY place, hour
"""


def prepare_baseline(shape: Shape) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": THREADS})
    columns = {  # noqa: F841 (DuckDB finds it by its name)
        "place": shape.pool * HOLDERS + shape.holder,
        "subject": shape.subject,
        "kind": shape.kind,
        "time_ms": shape.time_ms,
        "milli": shape.milli,
    }
    connection.execute("CREATE TABLE changes AS SELECT * FROM columns")
    hours = np.arange(shape.span.start_ms, shape.span.end_ms + 1, MS_PER_HOUR)  # noqa: F841
    connection.execute("CREATE TABLE hours AS SELECT column0 AS time_ms FROM hours")
    return connection


def run_baseline(connection: duckdb.DuckDBPyConnection) -> dict[str, np.ndarray]:
    return connection.execute(BASELINE).fetchnumpy()


def prepare_core(shape: Shape) -> list[LevelFacts]:
    """The facts pool by pool, as they would be read from a table: in order of time, subjects mixed."""
    facts = []
    for pool in range(POOLS):
        rows = np.flatnonzero(shape.pool == pool)
        zero = np.zeros(len(rows), np.int64)
        levels = Levels(
            shape.kind[rows], shape.subject[rows], zero, shape.time_ms[rows], shape.milli[rows],
            shape.holder[rows], shape.lendable[rows], zero,
        )  # fmt: skip
        facts.append(LevelFacts(levels, np.full(len(rows), NEVER), zero))
    return facts


def run_core(facts: list[LevelFacts], shape: Shape) -> list[PoolSplit]:
    holders = Holders(tuple(f"t{i:03d}" for i in range(HOLDERS)), np.full(HOLDERS, PLATFORM))
    edges = slot_edges(shape.span.start_ms, shape.span.end_ms)
    days = [day.start_ms for day in utc_days(shape.span)]

    def split(pool: LevelFacts) -> PoolSplit:
        effective = effective_levels(pool)
        return split_pool(effective.levels, holders, edges, effective.capacity_from_ms, days)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(split, facts))


def timed(run: Callable[[], object]) -> tuple[float, object]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def same_sums(baseline: dict[str, np.ndarray], splits: list[PoolSplit]) -> bool:
    """Used, over and gap of every pool add up to the same integers on both sides."""
    pool = baseline["place"] // HOLDERS
    for index, split in enumerate(splits):
        rows, here = split.rows, pool == index
        core = (
            rows.reserved_used,
            rows.on_demand + rows.borrowed + rows.excess,
            rows.lent + rows.reserved_idle + rows.undelivered + rows.oversold,
        )
        sql = (baseline[name][here] for name in ("used", "over", "gap"))
        if any(int(a.sum()) != int(b.astype(object).sum()) for a, b in zip(core, sql, strict=True)):
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    shape = month_of_changes(options.changes)
    connection, facts = prepare_baseline(shape), prepare_core(shape)
    if not same_sums(run_baseline(connection), run_core(facts, shape)):
        print("allocation: used, over or gap differ from the baseline's")
        return 1
    sql_s, core_s = [], []
    for _ in range(options.runs):
        sql_s.append(timed(lambda: run_baseline(connection))[0])
        core_s.append(timed(lambda: run_core(facts, shape))[0])
    ratio = statistics.median(core_s) / statistics.median(sql_s)
    print(
        f"allocation in memory, {len(shape):,} changes: core {min(core_s):.2f} / {statistics.median(core_s):.2f} s, "
        f"DuckDB {min(sql_s):.2f} / {statistics.median(sql_s):.2f} s (min / median of {options.runs}); "
        f"ratio {ratio:.2f}, at most {LIMIT:.2f}"
    )
    return 0 if ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
