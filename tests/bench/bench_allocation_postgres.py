"""Computing a month's allocation from Postgres to Postgres, against bare COPY of the same bytes.

    python tests/bench/bench_allocation_postgres.py [--changes N] [--runs N]

The baseline is binary COPY out of those changes and binary COPY in of the result rows, into the same tables with the
same keys and constraints, by the same driver. Works in a throwaway database of its own. Exits with 1 when
compute_allocation takes more than twice the baseline's time, or a gibibyte of memory.
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

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")

import django

django.setup()

from django.db import connection, transaction

from billing.services.allocation import compute_allocation
from billing.sql.binary_copy import write_rows
from ledger.core.periods import to_datetime
from ledger.models import Booking, Holder, HolderKind, Identity, Pool, Source, Tenant
from ledger.services.masters import ensure_books, ensure_pool_books, ensure_tenant_books
from tests.bench.shapes import HOLDERS, MONTH, POOLS, Shape, month_of_changes

LIMIT = 2.0
MEMORY_LIMIT_BYTES = 2**30
RESULTS = (
    "billing_poolslot",
    "billing_allocation",
    "billing_allocationday",
    "billing_tenantmonth",
    "billing_lendingday",
    "billing_workloadday",
)


def fill(shape: Shape) -> None:
    """Masters, events, levels and subjects, as booking leaves them."""
    ensure_books()
    pools = [Pool.objects.create(slug=f"p{i:02d}", cluster="c", gpu_model="H100") for i in range(POOLS)]
    for pool in pools:
        ensure_pool_books(pool)
    identities = []
    for i in range(HOLDERS):
        holder = Holder.objects.create(kind=HolderKind.TENANT, slug=f"t{i:03d}")
        ensure_tenant_books(Tenant.objects.create(holder=holder, name=holder.slug))
        identities.append(Identity.objects.get(kind="tenant", value=holder.slug).pk)
    source = Source.objects.create(uri="/bench").pk
    booking = Booking.objects.create(batch=1, sequence=1).pk
    count = np.arange(1, len(shape) + 1)
    pool_ids = np.array([pool.pk for pool in pools])[shape.pool]
    identity = np.append(np.array(identities), 0)[shape.holder]
    with transaction.atomic(), connection.cursor() as cursor:
        # Referential triggers are left out while filling: it is not what is measured.
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(_CHANGES)
        write_rows("change", {
            "id": ("bigint", count), "pool": ("bigint", pool_ids), "kind": ("smallint", shape.kind),
            "subject": ("bigint", shape.subject), "starts_at": ("timestamptz", shape.time_ms),
            "milli": ("bigint", shape.milli), "identity": ("bigint", identity),
            "lendable": ("boolean", shape.lendable),
        })  # fmt: skip
        for statement in _FILL:
            cursor.execute(statement, {"source": source, "booking": booking})
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


_CHANGES = """
CREATE TEMP TABLE change (
    id bigint, pool bigint, kind smallint, subject bigint, starts_at timestamptz, milli bigint, identity bigint,
    lendable boolean
) ON COMMIT DROP
"""
_FILL = (
    """INSERT INTO ledger_event (id, source_id, event_id, type, occurred_at, content_hash, booking_id, line, body)
       SELECT id, %(source)s, 'e' || id, kind, starts_at, '', %(booking)s, id, '{}' FROM change""",
    """INSERT INTO ledger_level (kind, pool_id, subject, attempt, starts_at, milli_gpus, identity_id, lendable,
                                 service_class, purpose, workload_kind, event_id)
       SELECT kind, pool, CASE kind WHEN 1 THEN '' ELSE 'workload-' || subject END, (kind = 3)::int, starts_at, milli,
              nullif(identity, 0), lendable, 0, 0, 0, id FROM change""",
    """INSERT INTO ledger_subject (pool_id, kind, subject, attempt, first_at, last_at, last_milli_gpus)
       SELECT pool_id, kind, subject, attempt, min(starts_at), max(starts_at),
              (array_agg(milli_gpus ORDER BY starts_at DESC))[1]
       FROM ledger_level GROUP BY pool_id, kind, subject, attempt""",
)


def compute(shape: Shape) -> float:
    clear()
    started = time.perf_counter()
    compute_allocation(MONTH, horizon=to_datetime(shape.span.end_ms), everything=True)
    return time.perf_counter() - started


def clear() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(RESULTS)}, billing_billingfinding")


def take_out(table: str) -> bytes:
    with (
        connection.cursor() as wrapped,
        wrapped.cursor.copy(f"COPY {table} TO STDOUT (FORMAT binary)") as copy,
    ):
        return b"".join(copy)


def bare_copy(results: dict[str, bytes]) -> float:
    clear()
    started = time.perf_counter()
    with transaction.atomic():
        take_out("ledger_level")
        with connection.cursor() as wrapped:
            for table, data in results.items():
                with wrapped.cursor.copy(f"COPY {table} FROM STDIN (FORMAT binary)") as copy:
                    copy.write(data)
    return time.perf_counter() - started


def measure(changes: int, runs: int) -> int:
    shape = month_of_changes(changes)
    fill(shape)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    compute(shape)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    results = {table: take_out(table) for table in RESULTS}
    computed_s, bare_s = [], []
    for _ in range(runs):
        computed_s.append(compute(shape))
        bare_s.append(bare_copy(results))
    ratio = statistics.median(computed_s) / statistics.median(bare_s)
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + " + ".join(f"(SELECT count(*) FROM {table})" for table in RESULTS))
        rows = cursor.fetchone()[0]
    print(
        f"allocation in Postgres, {len(shape):,} changes to {rows:,} rows: compute {min(computed_s):.2f} / "
        f"{statistics.median(computed_s):.2f} s, bare COPY {min(bare_s):.2f} / {statistics.median(bare_s):.2f} s "
        f"(min / median of {runs}); ratio {ratio:.2f}, at most {LIMIT:.2f}; "
        f"peak memory {memory / 2**20:.0f} MiB ({before / 2**10:.0f} before), at most 1024"
    )
    return 0 if ratio <= LIMIT and memory <= MEMORY_LIMIT_BYTES else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        return measure(options.changes, options.runs)
    finally:
        connection.creation.destroy_test_db(name, verbosity=0)


if __name__ == "__main__":
    sys.exit(main())
