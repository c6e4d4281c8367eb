"""Set-based reads behind the pages only. One static statement each, with bound parameters."""

# Capacity of every month that has slots. Leans on pool_slot_capacity; touches each slot once. Added up month by month:
# a join would compare the names of months row by row.
CAPACITY_BY_MONTH = """
SELECT period.month, slots.capacity_gpu_us
FROM ledger_period period
CROSS JOIN LATERAL (
    SELECT sum(slot.capacity_gpu_us)::numeric AS capacity_gpu_us FROM billing_poolslot slot
    WHERE slot.starts_at >= period.starts_at AND slot.starts_at < period.ends_at
) slots
WHERE slots.capacity_gpu_us IS NOT NULL
"""

# A tenant's slots summed by day of the billing zone, categories in the order of HOLDER_CATEGORIES. A slot belongs to
# the day that it starts in. Leans on allocation_of_account (account, starts_at).
TENANT_DAYS = """
SELECT (a.starts_at AT TIME ZONE %(zone)s)::date AS day,
       sum(a.reserved_used_gpu_us)::numeric, sum(a.on_demand_gpu_us)::numeric, sum(a.borrowed_gpu_us)::numeric,
       sum(a.lent_gpu_us)::numeric, sum(a.reserved_idle_gpu_us)::numeric, sum(a.undelivered_gpu_us)::numeric,
       sum(a.oversold_gpu_us)::numeric, sum(a.excess_gpu_us)::numeric
FROM billing_allocation a
JOIN ledger_account account ON account.id = a.account_id AND account.tenant_id = %(tenant)s
WHERE a.starts_at >= %(from)s AND a.starts_at < %(to)s
GROUP BY 1
ORDER BY 1
"""

# The slots of a statement line on one day, and, with an empty day, its days: what the line is the sum of. The column
# is one of the categories, checked before it is put in. Leans on allocation_of_account.
LINE_SLOTS = """
SELECT a.starts_at, sum(a.{category}_gpu_us)::numeric, max(slot.ends_at), max(slot.capacity_gpu_us)
FROM billing_allocation a
JOIN ledger_account account ON account.id = a.account_id AND account.tenant_id = %(tenant)s
JOIN ledger_pool pool ON pool.id = a.pool_id AND pool.slug = %(pool)s
JOIN ledger_holder holder ON holder.id = a.holder_id
LEFT JOIN billing_poolslot slot ON slot.pool_id = a.pool_id AND slot.starts_at = a.starts_at
WHERE a.starts_at >= %(from)s AND a.starts_at < %(to)s
  AND CASE WHEN holder.kind = 2 THEN holder.slug ELSE '' END = %(service)s
  AND a.service_class = %(service_class)s AND a.purpose = %(purpose)s AND a.service_idle = %(service_idle)s
  AND a.{category}_gpu_us <> 0
GROUP BY a.starts_at
ORDER BY a.starts_at
"""

# What is held at an instant, per pool, kind and holder: the last level of every subject's newest attempt, which has
# ended lower ones (domain.md section 3). Subjects that can hold nothing any more are left out by their roll-up
# (subject_key, subject_last); each attempt of any other costs one look at level_of_subject. A withdrawn or replaced
# fact does not count.
LEVELS_NOW = """
WITH candidate AS (
    SELECT DISTINCT pool_id, kind, subject FROM ledger_subject
    WHERE first_at <= %(now)s AND (last_milli_gpus > 0 OR last_at >= %(now)s OR kind = 1)
), level AS (
    SELECT DISTINCT ON (s.pool_id, s.kind, s.subject) last.*
    FROM candidate
    JOIN ledger_subject s ON s.pool_id = candidate.pool_id AND s.kind = candidate.kind
        AND s.subject = candidate.subject AND s.first_at <= %(now)s
    CROSS JOIN LATERAL (
        SELECT l.* FROM ledger_level l
        WHERE l.pool_id = s.pool_id AND l.kind = s.kind AND l.subject = s.subject
          AND l.attempt = s.attempt AND l.starts_at <= %(now)s AND l.event_id <> ALL(%(void)s)
        ORDER BY l.starts_at DESC, l.id DESC LIMIT 1
    ) last
    ORDER BY s.pool_id, s.kind, s.subject, s.attempt DESC
)
SELECT level.pool_id, level.kind,
       coalesce(mapped.slug, CASE WHEN identity.kind IN ('tenant', 'service') THEN identity.value END,
                CASE WHEN identity.id IS NULL THEN '' ELSE 'unattributed' END) AS name,
       sum(level.milli_gpus)::bigint, max(level.starts_at)
FROM level
LEFT JOIN ledger_identity identity ON identity.id = level.identity_id
LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> %(now)s
LEFT JOIN ledger_holder mapped ON mapped.id = mapping.tenant_id
WHERE level.ends_at IS NULL OR level.ends_at > %(now)s
GROUP BY 1, 2, 3
HAVING sum(level.milli_gpus) > 0 OR level.kind = 1
ORDER BY 1, 2, 3
"""
