"""A closed ledger of any size for benchmarks of reads: well-formed rows, made by PostgreSQL out of a few masters.

Every tenant holds the same in each slot, its own figures, so that sums are known without adding up: the books conserve
capacity, statements are the sum of their lines, and what is lent is what is borrowed. Each tenant lends to the next one
of its pool and is preempted by it, so pages of pairs have as many pairs as tenants.
"""

from __future__ import annotations

from django.db import connection

from billing.models import GpuPrice, Policy, RateCard
from billing.services.tenant_months import write_tenant_months
from ledger.core.periods import Month, to_datetime, to_ms
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import Account, AccountKind, Holder, HolderKind, Period, PeriodState, Pool, Tenant
from ledger.services.masters import ensure_books, ensure_pool_books, ensure_tenant_books

LAST = Month(2026, 10)
POOLS = 5
HOURS_A_DAY = 11  # in which a tenant has a slot: 500 tenants in 12 months make 2 million rows
PREEMPTIONS_A_MONTH = 4  # of each tenant
PRICE_MICRO = 2_345_678
PARTS = ("reserved_used", "on_demand", "borrowed", "reserved_idle")

_PER_TENANT = """
CREATE TEMP TABLE bench_tenant (
    place int, tenant_id bigint, slug text, name text, account_id bigint, pool_id bigint, pool text,
    pool_account bigint, identity_id bigint, other_id bigint, reserved_used bigint, on_demand bigint, borrowed bigint,
    reserved_idle bigint)
"""

# What follows from the tenants, in this order; rows lie in order of time, as computing writes them. `bench_line`: one
# per month, tenant and category, with its amount.
_ROWS = (
    """
CREATE TEMP TABLE bench_slot AS
SELECT month, starts_at AS month_starts_at, at, date_trunc('day', at, 'UTC') AS day FROM ledger_period,
    generate_series(starts_at, ends_at - interval '1 hour', interval '1 hour') AS at
WHERE extract(hour FROM at AT TIME ZONE 'UTC') < %(hours_a_day)s
""",
    """
CREATE TEMP TABLE bench_line AS
SELECT month, starts_at, ends_at, tenant.*, place_of_part AS position, category, quantity,
       div(quantity::numeric * %(price)s, %(hour)s)::bigint AS amount
FROM (SELECT period.*, count(*) AS slots FROM ledger_period period JOIN bench_slot USING (month) GROUP BY month) period
CROSS JOIN bench_tenant tenant
CROSS JOIN LATERAL (VALUES
    (1, 'reserved_used', reserved_used * slots), (2, 'on_demand', on_demand * slots),
    (3, 'borrowed', borrowed * slots), (4, 'reserved_idle', reserved_idle * slots)
) AS part(place_of_part, category, quantity)
""",
    """
INSERT INTO billing_allocation (
    pool_id, starts_at, holder_id, account_id, service_class, purpose, service_idle, reserved_used_gpu_us,
    on_demand_gpu_us, borrowed_gpu_us, lent_gpu_us, reserved_idle_gpu_us, excess_gpu_us, lent_waiting_gpu_us,
    undelivered_gpu_us, undelivered_pending_gpu_us, oversold_gpu_us, measured_gpu_us)
SELECT pool_id, at, tenant_id, account_id, 1, 0, false, reserved_used, on_demand, borrowed, borrowed, reserved_idle,
       0, 0, 0, 0, 0, 0
FROM bench_slot, bench_tenant ORDER BY at, place
""",
    """
INSERT INTO billing_allocationday (
    pool_id, starts_at, account_id, service_class, reserved_used_gpu_us, on_demand_gpu_us, borrowed_gpu_us,
    lent_gpu_us, reserved_idle_gpu_us, excess_gpu_us, undelivered_gpu_us, oversold_gpu_us)
SELECT pool_id, day, account_id, 1, reserved_used * slots, on_demand * slots, borrowed * slots, borrowed * slots,
       reserved_idle * slots, 0, 0, 0
FROM (SELECT day, count(*) AS slots FROM bench_slot GROUP BY day) AS days, bench_tenant ORDER BY day, place
""",
    """
INSERT INTO billing_poolslot (
    pool_id, starts_at, ends_at, capacity_gpu_us, reserved_used_gpu_us, on_demand_gpu_us, borrowed_gpu_us,
    reserved_idle_gpu_us, undelivered_gpu_us, unreserved_idle_gpu_us, over_reserved_gpu_us, excess_gpu_us,
    oversold_gpu_us)
SELECT pool_id, at, at + interval '1 hour', used + beyond + borrowed + idle, used, beyond, borrowed, idle, 0, 0, 0, 0, 0
FROM bench_slot, (
    SELECT pool_id, sum(reserved_used)::bigint AS used, sum(on_demand)::bigint AS beyond,
           sum(borrowed)::bigint AS borrowed, sum(reserved_idle)::bigint AS idle
    FROM bench_tenant GROUP BY pool_id) AS pool
""",
    """
INSERT INTO billing_lendingday (pool_id, starts_at, lender_id, borrower_id, gpu_us)
SELECT pool_id, day, tenant_id, other_id, borrowed * slots
FROM (SELECT day, count(*) AS slots FROM bench_slot GROUP BY day) AS days, bench_tenant ORDER BY day, place
""",
    """
INSERT INTO billing_statement (
    id, tenant_id, period_id, number, state, currency, total_micro, total_minor, totals, content, sha256,
    previous_of_tenant, previous_of_ledger, computed_at)
SELECT md5(month || slug)::uuid, tenant_id, month, month || '-' || slug, 'draft', 'USD', sum(amount),
       div(sum(amount), 10000), jsonb_object_agg(category || '_gpu_us', quantity::text),
       jsonb_build_object('name', name, 'informational', false), repeat('0', 64), '', '', ends_at
FROM bench_line GROUP BY month, ends_at, slug, name, tenant_id
""",
    """
INSERT INTO billing_statementline (
    statement_id, position, key, kind, pool, cluster, gpu_model, service, model, service_class, purpose, category,
    service_idle, version_from, description, quantity, unit, unit_price_micro, amount_micro, full_amount_micro,
    amount_minor, rounding_micro, concerns_month, preemptions)
SELECT md5(month || slug)::uuid, position, category, 'usage', pool, 'c', 'H100', '', '', 'guaranteed', '', category,
       false, starts_at, 'GPU time', quantity, 'gpu_us', %(price)s, amount, amount, amount / 10000, 0, '', '[]'
FROM bench_line
""",
    """
INSERT INTO billing_monthline (
    period_id, account_id, key, kind, pool, cluster, gpu_model, service, model, service_class, purpose, category,
    service_idle, version_from, description, quantity, unit, unit_price_micro, amount_micro, full_amount_micro,
    preemptions)
SELECT month, account_id, category, 'usage', pool, 'c', 'H100', '', '', 'guaranteed', '', category, false, starts_at,
       'GPU time', quantity, 'gpu_us', %(price)s, amount, amount, '[]'
FROM bench_line
""",
    # GPU time goes from the pool to the tenant, money from the tenant to the pool.
    """
INSERT INTO ledger_transfer (
    id, unit, quantity, reason, target_key, recorded_at, concerns_id, posted_in_id, debit_id, credit_id)
SELECT md5(month || slug || category || unit)::uuid, unit, CASE unit WHEN 1 THEN quantity ELSE amount END, category,
       month || '|tenant:' || slug || '|usage|' || category, ends_at, month, month,
       CASE unit WHEN 1 THEN pool_account ELSE account_id END, CASE unit WHEN 1 THEN account_id ELSE pool_account END
FROM bench_line, (VALUES (1), (2)) AS units(unit)
""",
    """
CREATE TEMP TABLE bench_hit AS
SELECT md5(month || slug || number)::uuid AS record_id, month || slug || number AS preemption, tenant.*,
       starts_at + number * interval '6 days 2 hours' AS decided_at
FROM ledger_period, bench_tenant tenant, generate_series(1, %(preemptions)s) AS number
""",
    """
INSERT INTO billing_preemptionrecord (
    id, cluster, preemption, queued_only, decided_at, released_at, resumed_at, waits_until, victim_workload,
    victim_attempt, preemptor_workload, preemptor_source, milli_gpus, cause, disposition, model, service_class, purpose,
    held_milli_gpus, entitled_milli_gpus, waiting_gpu_us, lost_gpu_us, lost_evidence, recompute_gpu_us,
    recompute_evidence, resumed_state, idle_elsewhere, charged_to, on_demand_milli_gpus, borrowed_milli_gpus,
    excess_milli_gpus, events, pool_id, preemptor_id, resumed_pool_id, victim_id, victim_identity_id)
SELECT record_id, 'c', preemption, false, decided_at, decided_at, decided_at + interval '30 minutes',
       decided_at + interval '30 minutes', 'work-of-' || slug, 1, 'serving-of-' || other_id, 'structured', 1000,
       'reclamation', 'requeued', '', 1, 0, 1000, 0, %(hour)s / 2, %(hour)s / 4, 'reported', %(hour)s / 10, 'reported',
       'full', '{}', '', 1000, 0, 0, '[]', pool_id, other_id, pool_id, tenant_id, identity_id
FROM bench_hit
""",
    """
INSERT INTO billing_preemptionshare (
    record_id, account_id, milli_gpus, entitled_milli_gpus, waiting_gpu_us, lost_gpu_us, recompute_gpu_us)
SELECT record_id, account_id, 1000, 0, %(hour)s / 2, %(hour)s / 4, %(hour)s / 10 FROM bench_hit
""",
    """
INSERT INTO billing_preemptionwait (record_id, pool_id, holder_id, milli_gpus, starts_at, ends_at)
SELECT record_id, pool_id, tenant_id, 1000, decided_at, decided_at + interval '30 minutes' FROM bench_hit
""",
    """
INSERT INTO billing_billingfinding (code, month, pool_id, starts_at, subject, quantity, unit, detail, blocks_close)
SELECT 'unused_reservation', month, pool_id, starts_at, slug, 1, 'gpu_us', '{}', false
FROM ledger_period, bench_tenant
""",
    "UPDATE billing_statement SET state = 'issued', issued_at = computed_at",
)


def _periods(months: int) -> None:
    month = LAST.plus(1 - months)
    while month <= LAST:
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
        month = month.next()


def _terms(months: int) -> None:
    begin = to_datetime(LAST.plus(1 - months).span("UTC").start_ms)
    card = RateCard.objects.create(name="bench", valid_from=begin)
    for category in (*PARTS, "lent"):
        GpuPrice.objects.create(rate_card=card, gpu_model="H100", category=category, price_micro=PRICE_MICRO)
    Policy.objects.create(valid_from=begin)


def _tenants(count: int) -> None:
    pools = [Pool.objects.create(slug=f"p{i:02d}", cluster="c", gpu_model="H100") for i in range(POOLS)]
    for pool in pools:
        ensure_pool_books(pool)
    tenants = []
    for i in range(count):
        holder = Holder.objects.create(kind=HolderKind.TENANT, slug=f"t{i:03d}")
        tenants.append(Tenant.objects.create(holder=holder, name=f"Tenant {i}"))
        ensure_tenant_books(tenants[-1])
    accounts = dict(Account.objects.filter(kind=AccountKind.TENANT).values_list("tenant_id", "pk"))
    of_pools = dict(Account.objects.filter(kind=AccountKind.POOL).values_list("pool_id", "pk"))
    with connection.cursor() as cursor:
        cursor.execute(_PER_TENANT)
        cursor.execute(
            "INSERT INTO ledger_identity (kind, value, first_seen_at) "
            "SELECT 'tenant', slug, now() FROM ledger_holder WHERE kind = %s ON CONFLICT DO NOTHING",
            [int(HolderKind.TENANT)],
        )
        cursor.execute("SELECT value, id FROM ledger_identity WHERE kind = 'tenant'")
        identities = dict(cursor.fetchall())
        with cursor.copy("COPY bench_tenant FROM STDIN") as copy:
            for place, tenant in enumerate(tenants):
                pool = pools[place % POOLS]
                other = tenants[(place + POOLS) % count]
                names = (place, tenant.pk, tenant.slug, tenant.name, accounts[tenant.pk])
                where = (pool.pk, pool.slug, of_pools[pool.pk], identities[tenant.slug], other.pk)
                copy.write_row((*names, *where, *_parts(place)))


def _parts(place: int) -> tuple[int, int, int, int]:
    """GPU time of one slot by PARTS. What one lends, the next one of its pool borrows: so that is everybody's alike."""
    hour = GPU_US_PER_GPU_HOUR
    return hour + place * 1_000, hour // 2 + place, hour // 8, hour - place


def fill(tenants: int, months: int) -> int:
    """Into a database that is migrated and empty. tenants: a multiple of POOLS, above it. Number of allocation rows."""
    ensure_books()
    _periods(months)
    _terms(months)
    _tenants(tenants)
    values = {
        "hours_a_day": HOURS_A_DAY,
        "preemptions": PREEMPTIONS_A_MONTH,
        "price": PRICE_MICRO,
        "hour": GPU_US_PER_GPU_HOUR,
    }
    with connection.cursor() as cursor:
        for statement in _ROWS:
            cursor.execute(statement, values)
        for period in Period.objects.order_by("starts_at"):
            write_tenant_months(period, "UTC", to_ms(period.ends_at), None)
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("SELECT count(*) FROM billing_allocation")
        return int(cursor.fetchone()[0])
