"""Every large page of a large ledger against the same page of a small one.

    python tests/bench/bench_pages.py [--tenants N] [--months N] [--runs N] [--pages WORD]

500 tenants, 12 closed months and 2 million allocation rows beside 10 tenants and one month, each in a throwaway
database of its own, filled by COPY of well-formed rows. Prints both times of each page and exits with 1 when one takes
more than twice as long in the large ledger.
"""

# ruff: noqa: E402 (Django is set up before anything that needs it is imported)

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")

import django

django.setup()

from django.conf import settings
from django.db import connection
from django.test import Client
from psycopg.types.json import Jsonb

from billing.models import GpuPrice, Policy, RateCard
from ledger.core.periods import Month, to_datetime
from ledger.core.units import GPU_US_PER_GPU_HOUR, MS_PER_HOUR
from ledger.models import (
    Account,
    AccountKind,
    Holder,
    HolderKind,
    Membership,
    Period,
    PeriodState,
    Pool,
    Role,
    Tenant,
    User,
)
from ledger.services.masters import ensure_books, ensure_pool_books, ensure_tenant_books

LIMIT = 2.0
POOLS = 10
LAST = Month(2026, 10)
HOURS_A_DAY = 11  # in which a tenant has a slot: 500 tenants in 12 months make 2 million rows
PRICE_MICRO = 2_345_678
PARTS = ("reserved_used", "on_demand", "reserved_idle")
# Beyond this many milliseconds a page is slow by itself; below it, twice as much is still nothing to wait for.
NOISE_MS = 20.0

Row = tuple[object, ...]


def parts_of(tenant: int) -> tuple[int, int, int]:
    """GPU time of one slot by PARTS; every tenant's is its own, and in every slot the same."""
    return (GPU_US_PER_GPU_HOUR + tenant * 1_000, GPU_US_PER_GPU_HOUR // 2 + tenant, GPU_US_PER_GPU_HOUR)


def slots_of(month: Month) -> list[int]:
    span = month.span("UTC")
    return [
        start
        for start in range(span.start_ms, span.end_ms, MS_PER_HOUR)
        if start // MS_PER_HOUR % 24 < HOURS_A_DAY
    ]


class Books:
    """The masters, and the rows that belong to them."""

    def __init__(self, tenants: int, months: int) -> None:
        ensure_books()
        self.pools = [
            Pool.objects.create(slug=f"p{i:02d}", cluster="c", gpu_model="H100") for i in range(POOLS)
        ]
        for pool in self.pools:
            ensure_pool_books(pool)
        self.tenants = []
        for i in range(tenants):
            holder = Holder.objects.create(kind=HolderKind.TENANT, slug=f"t{i:03d}")
            self.tenants.append(Tenant.objects.create(holder=holder, name=f"Tenant {i}"))
            ensure_tenant_books(self.tenants[-1])
        self.accounts = dict(Account.objects.filter(kind=AccountKind.TENANT).values_list("tenant_id", "pk"))
        self.pool_accounts = dict(Account.objects.filter(kind=AccountKind.POOL).values_list("pool_id", "pk"))
        self.months = [LAST]
        while len(self.months) < months:
            self.months.insert(0, self.months[0].previous())
        for month in self.months:
            span = month.span("UTC")
            ends_at = to_datetime(span.end_ms)
            Period.objects.create(
                month=str(month),
                starts_at=to_datetime(span.start_ms),
                ends_at=ends_at,
                horizon_at=ends_at,
                computed_at=ends_at,
                closed_at=ends_at,
                cut_sequence=0,
                state=PeriodState.CLOSED,
            )
        begin = to_datetime(self.months[0].span("UTC").start_ms)
        card = RateCard.objects.create(name="bench", valid_from=begin)
        for category in PARTS:
            GpuPrice.objects.create(
                rate_card=card, gpu_model="H100", category=category, price_micro=PRICE_MICRO
            )
        Policy.objects.create(valid_from=begin)

    def pool_of(self, place: int) -> Pool:
        return self.pools[place % POOLS]

    def allocations(self) -> Iterator[Row]:
        for month in self.months:
            for start in slots_of(month):
                at = to_datetime(start)
                for place, tenant in enumerate(self.tenants):
                    used, beyond, idle = parts_of(place)
                    account = self.accounts[tenant.pk]
                    yield (
                        self.pool_of(place).pk,
                        at,
                        tenant.pk,
                        account,
                        1,
                        0,
                        False,
                        used,
                        beyond,
                        idle,
                    ) + (0,) * 8

    def pool_slots(self) -> Iterator[Row]:
        for month in self.months:
            for start in slots_of(month):
                for number, pool in enumerate(self.pools):
                    mine = [parts_of(place) for place in range(number, len(self.tenants), POOLS)]
                    used, beyond, idle = (
                        (sum(part) for part in zip(*mine, strict=True)) if mine else (0, 0, 0)
                    )
                    whole = used + beyond + idle
                    times = (to_datetime(start), to_datetime(start + MS_PER_HOUR))
                    yield (pool.pk, *times, whole, used, beyond, idle) + (0,) * 6

    def lines(self) -> Iterator[tuple[Month, int, Tenant, str, int, int]]:
        """(month, place, tenant, category, quantity, amount_micro)"""
        for month in self.months:
            hours = len(slots_of(month))
            for place, tenant in enumerate(self.tenants):
                for category, gpu_us in zip(PARTS, parts_of(place), strict=True):
                    quantity = gpu_us * hours
                    yield (
                        month,
                        place,
                        tenant,
                        category,
                        quantity,
                        quantity * PRICE_MICRO // GPU_US_PER_GPU_HOUR,
                    )

    def total_micro(self, month: Month, place: int) -> int:
        hours = len(slots_of(month))
        return sum(gpu_us * hours * PRICE_MICRO // GPU_US_PER_GPU_HOUR for gpu_us in parts_of(place))

    def statements(self) -> Iterator[Row]:
        for month in self.months:
            at = to_datetime(month.span("UTC").end_ms)
            for place, tenant in enumerate(self.tenants):
                total, number = self.total_micro(month, place), f"{month}-{tenant.slug}"
                held = zip(PARTS, parts_of(place), strict=True)
                totals = {f"{name}_gpu_us": str(gpu_us * len(slots_of(month))) for name, gpu_us in held}
                yield (
                    uuid5(NAMESPACE_URL, number),
                    tenant.pk,
                    str(month),
                    number,
                    "draft",
                    "USD",
                    total,
                    total // 10_000,
                    Jsonb(totals),
                    Jsonb({"name": tenant.name, "informational": False}),
                    "0" * 64,
                    "",
                    "",
                    at,
                )

    def statement_lines(self) -> Iterator[Row]:
        for month, place, tenant, category, quantity, amount in self.lines():
            pool = self.pool_of(place)
            begin = to_datetime(month.span("UTC").start_ms)
            position = PARTS.index(category) + 1
            yield (
                uuid5(NAMESPACE_URL, f"{month}-{tenant.slug}"),
                position,
                category,
                "usage",
                pool.slug,
                "c",
                "H100",
                "",
                "",
                "guaranteed",
                "",
                category,
                False,
                begin,
                "GPU time",
                quantity,
                "gpu_us",
                PRICE_MICRO,
                amount,
                amount,
                amount // 10_000,
                0,
                "",
                Jsonb([]),
            )

    def month_lines(self) -> Iterator[Row]:
        for month, place, tenant, category, quantity, amount in self.lines():
            begin = to_datetime(month.span("UTC").start_ms)
            yield (
                str(month),
                self.accounts[tenant.pk],
                category,
                "usage",
                self.pool_of(place).slug,
                "c",
                "H100",
                "",
                "",
                "guaranteed",
                "",
                category,
                False,
                begin,
                "GPU time",
                quantity,
                "gpu_us",
                PRICE_MICRO,
                amount,
                amount,
                Jsonb([]),
            )

    def transfers(self) -> Iterator[Row]:
        for month, place, tenant, category, quantity, amount in self.lines():
            at = to_datetime(month.span("UTC").end_ms)
            for unit, much in ((1, quantity), (2, amount)):
                key = f"{month}|tenant:{tenant.slug}|usage|{category}"
                # GPU time goes from the pool to the tenant, money from the tenant to the pool.
                accounts = (self.accounts[tenant.pk], self.pool_accounts[self.pool_of(place).pk])
                debit, credit = accounts if unit == 2 else accounts[::-1]
                yield (
                    uuid5(NAMESPACE_URL, f"{key}|{unit}"),
                    unit,
                    much,
                    category,
                    key,
                    at,
                    str(month),
                    str(month),
                    debit,
                    credit,
                )


COPIED = {
    "allocations": (
        "billing_allocation (pool_id, starts_at, holder_id, account_id, service_class, purpose, service_idle, "
        "reserved_used_gpu_us, on_demand_gpu_us, reserved_idle_gpu_us, borrowed_gpu_us, excess_gpu_us, lent_gpu_us, "
        "lent_waiting_gpu_us, undelivered_gpu_us, oversold_gpu_us, measured_gpu_us, undelivered_pending_gpu_us)"
    ),
    "pool_slots": (
        "billing_poolslot (pool_id, starts_at, ends_at, capacity_gpu_us, reserved_used_gpu_us, on_demand_gpu_us, "
        "reserved_idle_gpu_us, borrowed_gpu_us, undelivered_gpu_us, unreserved_idle_gpu_us, over_reserved_gpu_us, "
        "excess_gpu_us, oversold_gpu_us)"
    ),
    "statements": (
        "billing_statement (id, tenant_id, period_id, number, state, currency, total_micro, total_minor, totals, "
        "content, sha256, previous_of_tenant, previous_of_ledger, computed_at)"
    ),
    "statement_lines": (
        "billing_statementline (statement_id, position, key, kind, pool, cluster, gpu_model, service, model, "
        "service_class, purpose, category, service_idle, version_from, description, quantity, unit, unit_price_micro, "
        "amount_micro, full_amount_micro, amount_minor, rounding_micro, concerns_month, preemptions)"
    ),
    "month_lines": (
        "billing_monthline (period_id, account_id, key, kind, pool, cluster, gpu_model, service, model, service_class, "
        "purpose, category, service_idle, version_from, description, quantity, unit, unit_price_micro, amount_micro, "
        "full_amount_micro, preemptions)"
    ),
    "transfers": (
        "ledger_transfer (id, unit, quantity, reason, target_key, recorded_at, concerns_id, posted_in_id, debit_id, "
        "credit_id)"
    ),
}


def fill(tenants: int, months: int) -> None:
    books = Books(tenants, months)
    with connection.cursor() as cursor:
        for name, target in COPIED.items():
            with cursor.copy(f"COPY {target} FROM STDIN") as copy:
                for row in getattr(books, name)():
                    copy.write_row(row)
        cursor.execute("UPDATE billing_statement SET state = 'issued', issued_at = computed_at")
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("SELECT count(*) FROM billing_allocation")
        print(f"{tenants} tenants, {months} months: {cursor.fetchone()[0]:,} allocation rows", flush=True)


def paths() -> list[str]:
    month, window = f"/months/{LAST}/", f"?window={LAST}"
    at = to_datetime(LAST.span("UTC").start_ms + 9 * 24 * MS_PER_HOUR).strftime("%Y-%m-%dT00:00:00Z")
    return [
        "/months/",
        month,
        f"{month}closing/",
        f"{month}platform/",
        f"{month}lending/",
        f"{month}preemptions/",
        f"{month}statements/t003/",
        f"{month}statements/t003/lines/1/",
        "/cluster/",
        f"/pools/p03/?zoom=month&at={at}",
        f"/pools/p03/?zoom=day&at={at}",
        f"/quota/{window}",
        f"/demand/{window}",
        f"/budgets/?month={LAST}",
        "/plan/",
        f"/calibration/{window}",
        "/alerts/",
        "/audit/",
        "/settings/",
        "/search/?q=t00",
        "/ingest/",
        "/ingest/identities/",
    ]


class Ledger:
    """One throwaway database with books of one size, and somebody of finance who looks at them."""

    def __init__(self, suffix: str) -> None:
        self.before = connection.settings_dict["NAME"]
        connection.settings_dict["TEST"]["NAME"] = f"bench_{self.before}_{suffix}"
        self.name = connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)

    def fill(self, tenants: int, months: int) -> None:
        fill(tenants, months)
        user = User.objects.create_user("bench")
        Membership.objects.create(user=user, role=Role.FINANCE)
        self.client = Client()
        self.client.force_login(user)

    def enter(self) -> None:
        connection.close()
        connection.settings_dict["NAME"] = self.name

    def leave(self) -> None:
        connection.close()
        connection.settings_dict["NAME"] = self.before

    def milliseconds(self, path: str, runs: int) -> float:
        self.enter()
        self.client.get(path)  # what is remembered between requests is remembered now
        return statistics.median(_milliseconds(self.client, path) for _ in range(runs))

    def drop(self) -> None:
        self.enter()
        connection.creation.destroy_test_db(self.before, verbosity=0)


def _milliseconds(client: Client, path: str) -> float:
    started = time.perf_counter()
    answer = client.get(path)
    if answer.status_code != 200:
        raise SystemExit(f"{path} answers {answer.status_code}")
    return (time.perf_counter() - started) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tenants", type=int, default=500)
    parser.add_argument("--months", type=int, default=12)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pages", default="", help="only pages with this in their address")
    options = parser.parse_args()
    settings.ALLOWED_HOSTS = ["testserver"]
    ledgers: list[Ledger] = []
    try:
        for suffix, tenants, months in (("small", 10, 1), ("large", options.tenants, options.months)):
            ledgers.append(Ledger(suffix))
            ledgers[-1].fill(tenants, months)
            ledgers[-1].leave()
        return compared(*ledgers, options.runs, options.pages)
    finally:
        for ledger in ledgers:
            ledger.drop()


def compared(small: Ledger, large: Ledger, runs: int, word: str) -> int:
    """Page by page, the one right after the other, so that a busy machine is as busy for both."""
    missed = 0
    print(f"{'small':>9} {'large':>9} {'ratio':>6}  at most {LIMIT:.1f}, or {NOISE_MS:.0f} ms more")
    for path in paths():
        if word not in path:
            continue
        before, after = (one.milliseconds(path, runs) for one in (small, large))
        is_slow = after > max(LIMIT * before, before + NOISE_MS)
        missed += is_slow
        slow = "  TOO SLOW" if is_slow else ""
        print(f"{before:>6.0f} ms {after:>6.0f} ms {after / before:>6.2f}  {path}{slow}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
