"""Answers over the API against the SQL they rest on, and a file of a million rows in constant memory.

    python tests/bench/bench_api.py [--rows N] [--runs N]

A month of 500 tenants in 20 pools, hour by hour, in a throwaway database. Exits with 1 when `GET allocations/` by
tenant and category takes more than twice its bare query, or when streaming the month's FOCUS file takes more memory
for all of its rows than for the first tenth of them.
"""

# ruff: noqa: E402 (Django is set up before anything that needs it is imported)

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")

import django

django.setup()

from django.conf import settings
from django.db import connection
from rest_framework.test import APIClient

from billing.exports.files import month_file
from billing.models import GpuPrice, RateCard
from billing.selectors.allocations import AllocationQuestion
from billing.selectors.allocations import allocations as asked
from billing.selectors.prices import price_segments
from billing.sql.reports import ALLOCATIONS
from ledger.access import Access
from ledger.core.periods import Month, to_datetime
from ledger.models import Holder, HolderKind, Period, Pool, Role, Tenant
from ledger.services.masters import ensure_books, ensure_pool_books, ensure_tenant_books
from ledger.services.tokens import create_api_token

POOLS, TENANTS = 20, 500
MONTH = Month(2026, 10)
LIMIT = 2.0
# What the allocator and the driver may keep between the first tenth of the rows and the last of them.
MEMORY_LIMIT_MIB = 16
CATEGORIES = ("reserved_used", "on_demand", "reserved_idle")
AUDITOR = Access(name="bench", roles=frozenset({Role.AUDITOR}))


def fill() -> Period:
    """Every tenant reserves in one pool, and holds inside and beyond its reservation in every hour."""
    ensure_books()
    pools = [Pool.objects.create(slug=f"p{i:02d}", cluster="c", gpu_model="H100") for i in range(POOLS)]
    for pool in pools:
        ensure_pool_books(pool)
    for i in range(TENANTS):
        holder = Holder.objects.create(kind=HolderKind.TENANT, slug=f"t{i:03d}")
        ensure_tenant_books(Tenant.objects.create(holder=holder, name=holder.slug))
    span = MONTH.span("UTC")
    period = Period.objects.create(
        month=str(MONTH), starts_at=to_datetime(span.start_ms), ends_at=to_datetime(span.end_ms)
    )
    card = RateCard.objects.create(name="bench", valid_from=period.starts_at)
    for category in CATEGORIES:
        GpuPrice.objects.create(rate_card=card, gpu_model="H100", category=category, price_micro=2_345_678)
    with connection.cursor() as cursor:
        for statement in _FILL:
            cursor.execute(statement, {"from": period.starts_at, "to": period.ends_at, "month": str(MONTH)})
        cursor.execute("VACUUM ANALYZE")
    return period


_FILL = (
    """INSERT INTO billing_allocation (pool_id, starts_at, holder_id, account_id, service_class, purpose,
           service_idle, reserved_used_gpu_us, on_demand_gpu_us, reserved_idle_gpu_us, borrowed_gpu_us,
           excess_gpu_us, lent_gpu_us, lent_waiting_gpu_us, undelivered_gpu_us, oversold_gpu_us, measured_gpu_us,
           undelivered_pending_gpu_us)
       SELECT pool.id, slot, tenant.holder_id, account.id, 1, 0, false,
              1000000000 + tenant.holder_id * 1000 + extract(hour FROM slot)::bigint * 100000000,
              500000000 + tenant.holder_id, 3600000000, 0, 0, 0, 0, 0, 0, 0, 0
       FROM ledger_tenant tenant
       JOIN ledger_account account ON account.tenant_id = tenant.holder_id
       JOIN (SELECT id, row_number() OVER (ORDER BY slug) - 1 AS number FROM ledger_pool) pool
         ON pool.number = tenant.holder_id %% 20
       CROSS JOIN generate_series(%(from)s, %(to)s - interval '1 hour', interval '1 hour') slot""",
    """INSERT INTO billing_poolslot (pool_id, starts_at, ends_at, capacity_gpu_us, reserved_used_gpu_us,
           on_demand_gpu_us, borrowed_gpu_us, reserved_idle_gpu_us, undelivered_gpu_us, unreserved_idle_gpu_us,
           over_reserved_gpu_us, excess_gpu_us, oversold_gpu_us)
       SELECT pool_id, starts_at, starts_at + interval '1 hour',
              sum(reserved_used_gpu_us + on_demand_gpu_us + reserved_idle_gpu_us), sum(reserved_used_gpu_us),
              sum(on_demand_gpu_us), 0, sum(reserved_idle_gpu_us), 0, 0, 0, 0, 0
       FROM billing_allocation GROUP BY pool_id, starts_at""",
    """INSERT INTO billing_statement (id, tenant_id, period_id, number, state, currency, total_micro, total_minor,
           totals, content, sha256, previous_of_tenant, previous_of_ledger, computed_at)
       SELECT gen_random_uuid(), tenant.holder_id, %(month)s, %(month)s || '-' || holder.slug, 'draft', 'USD', 0, 0,
              '{}', jsonb_build_object('name', tenant.name), '', '', '', %(to)s
       FROM ledger_tenant tenant JOIN ledger_holder holder ON holder.id = tenant.holder_id""",
    """INSERT INTO billing_statementline (statement_id, position, key, kind, pool, cluster, gpu_model, service, model,
           service_class, purpose, category, service_idle, version_from, description, quantity, unit,
           unit_price_micro, amount_micro, amount_minor, rounding_micro, concerns_month, preemptions)
       SELECT statement.id, row_number() OVER (PARTITION BY statement.id ORDER BY part.category), part.category,
              'usage', part.pool, 'c', 'H100', '', '', 'guaranteed', '', part.category, false, %(from)s,
              'GPU time', part.gpu_us, 'gpu_us', 2345678, part.gpu_us * 2345678 / 3600000000,
              part.gpu_us * 2345678 / 36000000000000, 0, '', '[]'
       FROM (SELECT a.holder_id, pool.slug AS pool, c.category, sum(c.gpu_us) AS gpu_us
             FROM billing_allocation a JOIN ledger_pool pool ON pool.id = a.pool_id
             CROSS JOIN LATERAL (VALUES ('reserved_used', a.reserved_used_gpu_us),
                 ('on_demand', a.on_demand_gpu_us), ('reserved_idle', a.reserved_idle_gpu_us)) AS c(category, gpu_us)
             GROUP BY 1, 2, 3) part
       JOIN billing_statement statement ON statement.tenant_id = part.holder_id""",
)


def api_against_its_query(period: Period, runs: int) -> bool:
    """One request for the whole answer, rendered, against the same statement with the same parameters."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_api_token('bench', Role.AUDITOR)[1]}")
    path = f"/api/v1/allocations/?window={MONTH}&by=tenant,category&page_size=10000"
    api_s, bare_s = [], []
    parameters = _parameters_of_the_query()
    rows = 0
    for _ in range(runs + 1):  # the first round warms both up
        started = time.perf_counter()
        with connection.cursor() as cursor:
            cursor.execute(ALLOCATIONS, parameters)
            rows = len(cursor.fetchall())
        bare_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        answer = client.get(path)
        api_s.append(time.perf_counter() - started)
        if answer.status_code != 200 or len(answer.json()["results"]) != rows:
            raise SystemExit(f"the API answers {answer.status_code} with other rows than the query")
    ratio = statistics.median(api_s[1:]) / statistics.median(bare_s[1:])
    print(
        f"GET allocations/ by tenant and category, {TENANTS} tenants, {rows:,} rows: "
        f"{statistics.median(api_s[1:]):.2f} s, bare query {statistics.median(bare_s[1:]):.2f} s "
        f"(median of {runs}); ratio {ratio:.2f}, at most {LIMIT:.2f}"
    )
    return ratio <= LIMIT


def _parameters_of_the_query() -> dict[str, object]:
    """What the selector binds, taken as it asks."""
    caught: dict[str, object] = {}

    def catch(execute, sql, parameters, many, context):  # type: ignore[no-untyped-def]
        if sql == ALLOCATIONS:
            caught.update(parameters)
        return execute(sql, parameters, many, context)

    span = MONTH.span("UTC")
    with connection.execute_wrapper(catch):
        question = AllocationQuestion(window=span, zone="UTC", by=("tenant", "category"))
        asked(question, price_segments(span), offset=0, limit=10_001)
    return caught


def a_file_in_constant_memory(period: Period, at_most: int) -> bool:
    tenth, peak_of_tenth = at_most // 10, 0
    rows = size = 0
    started = time.perf_counter()
    for piece in month_file(period, "focus-1.4", AUDITOR):
        rows += piece.count(b"\r\n")
        size += len(piece)
        if not peak_of_tenth and rows >= tenth:
            peak_of_tenth = _peak_mib()
        if rows > at_most:
            break
    seconds = time.perf_counter() - started
    grown = _peak_mib() - peak_of_tenth
    print(
        f"focus-1.4.csv, {rows:,} rows, {size / 2**20:.0f} MiB: {seconds:.0f} s, {rows / seconds:,.0f} rows/s; peak "
        f"memory {_peak_mib()} MiB, {grown} MiB more than for the first tenth, at most {MEMORY_LIMIT_MIB}"
    )
    return rows > at_most and grown <= MEMORY_LIMIT_MIB


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    settings.ALLOWED_HOSTS = ["testserver"]
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        period = fill()
        good = [
            api_against_its_query(period, options.runs),
            a_file_in_constant_memory(period, options.rows),
        ]
        return 0 if all(good) else 1
    finally:
        connection.creation.destroy_test_db(name, verbosity=0)


if __name__ == "__main__":
    sys.exit(main())
