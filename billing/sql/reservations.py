"""Set-based reads of reservations, their use, and lending. Static statements with bound parameters."""

# Reservation levels in force at %(at)s, or planned after it: of facts for one subject and instant the greatest
# (source, id) holds, and a level lasts until the next of its subject or its own end. Reservations are few; leans on
# level_sweep by pool.
RESERVATIONS = """
WITH fact AS (
    SELECT DISTINCT ON (level.pool_id, level.subject, level.starts_at)
           level.pool_id, level.subject, level.starts_at, level.ends_at, level.milli_gpus, level.lendable,
           level.identity_id
    FROM ledger_level level
    JOIN ledger_event event ON event.id = level.event_id
    JOIN ledger_source source ON source.id = event.source_id
    WHERE level.kind = 2 AND level.event_id <> ALL(%(void)s)
      AND level.pool_id IN (SELECT id FROM ledger_pool WHERE %(pool)s::text[] IS NULL OR slug = ANY(%(pool)s))
    ORDER BY level.pool_id, level.subject, level.starts_at, source.uri DESC, event.event_id DESC
), stretch AS (
    SELECT fact.*, least(fact.ends_at, lead(fact.starts_at) OVER (
               PARTITION BY fact.pool_id, fact.subject ORDER BY fact.starts_at)) AS until
    FROM fact
)
SELECT pool.slug, stretch.subject, coalesce(slug_holder.id, mapping.tenant_id) AS holder_id,
       coalesce(service.owner_id, tenant.holder_id) AS tenant_id, stretch.milli_gpus, stretch.lendable,
       stretch.starts_at, stretch.until
FROM stretch
JOIN ledger_pool pool ON pool.id = stretch.pool_id
JOIN ledger_identity identity ON identity.id = stretch.identity_id
LEFT JOIN ledger_holder slug_holder
    ON identity.kind IN ('tenant', 'service') AND slug_holder.slug = identity.value
LEFT JOIN ledger_identitymapping mapping
    ON mapping.identity_id = identity.id AND mapping.validity @> greatest(stretch.starts_at, %(at)s)
LEFT JOIN ledger_service service ON service.holder_id = slug_holder.id
LEFT JOIN ledger_tenant tenant ON tenant.holder_id = coalesce(slug_holder.id, mapping.tenant_id)
WHERE stretch.milli_gpus > 0 AND (stretch.until IS NULL OR stretch.until > %(at)s)
  AND (%(from)s::timestamptz IS NULL OR stretch.starts_at < %(from)s)
  AND (%(tenant_ids)s::bigint[] IS NULL OR coalesce(service.owner_id, tenant.holder_id) = ANY(%(tenant_ids)s))
ORDER BY pool.slug, stretch.subject, stretch.starts_at
"""

# What became of reserved GPU time, per pool and holder in steps. A service's reservation is its holder's row, and its
# owner's business. Leans on allocation_when; touches each slot row of the window once.
UTILIZATION = """
SELECT CASE %(step)s WHEN 'all' THEN %(from)s
                     WHEN 'hour' THEN a.starts_at
                     ELSE greatest(date_trunc(%(step)s, a.starts_at, %(zone)s), %(from)s) END AS bucket,
       pool.slug, holder.slug, holder.kind, coalesce(service.owner_id, tenant.holder_id),
       sum(a.reserved_used_gpu_us)::numeric, sum(a.lent_gpu_us)::numeric, sum(a.reserved_idle_gpu_us)::numeric,
       sum(a.undelivered_gpu_us)::numeric, sum(a.oversold_gpu_us)::numeric,
       sum(a.undelivered_pending_gpu_us)::numeric
FROM billing_allocation a
JOIN ledger_pool pool ON pool.id = a.pool_id
JOIN ledger_holder holder ON holder.id = a.holder_id
LEFT JOIN ledger_service service ON service.holder_id = holder.id
LEFT JOIN ledger_tenant tenant ON tenant.holder_id = holder.id
WHERE a.starts_at >= %(from)s AND a.starts_at < %(to)s
  AND (%(pool)s::text[] IS NULL OR pool.slug = ANY(%(pool)s))
  AND (%(tenant_ids)s::bigint[] IS NULL OR coalesce(service.owner_id, tenant.holder_id) = ANY(%(tenant_ids)s))
GROUP BY 1, 2, 3, 4, 5
HAVING sum(a.reserved_used_gpu_us + a.lent_gpu_us + a.reserved_idle_gpu_us + a.undelivered_gpu_us
           + a.oversold_gpu_us) > 0
ORDER BY 1, 2, 3
"""

# Who lent to whom, per pool and pair, one row for each stretch of prices (its first segment names it). Leans on
# lending_when. Prices come as parallel arrays: what the borrowed time costs, and what it would have at the reserved
# rate.
LENT = """
WITH price AS (
    SELECT * FROM unnest(%(price_pool)s::bigint[], %(price_from)s::timestamptz[], %(price_to)s::timestamptz[],
                         %(borrowed)s::bigint[], %(credit)s::bigint[])
        AS p(pool_id, valid_from, valid_to, borrowed_micro, credit_micro)
), lent AS MATERIALIZED (
    -- Days first, prices and names after: of hundreds of tenants there are thirty times fewer pairs than days of pairs.
    -- No day goes over the instant at which a price changes.
    SELECT pool_id, lender_id, borrower_id, min(starts_at) AS starts_at, sum(gpu_us) AS gpu_us
    FROM billing_lendingday
    WHERE starts_at >= %(from)s AND starts_at < %(to)s
    GROUP BY 1, 2, 3, width_bucket(starts_at, %(price_changes)s::timestamptz[])
)
SELECT pool.slug, lent.lender_id, lent.borrower_id, sum(lent.gpu_us)::bigint,
       sum(lent.gpu_us * price.borrowed_micro), sum(lent.gpu_us * price.credit_micro),
       bool_or(price.borrowed_micro IS NULL)
FROM lent
LEFT JOIN price ON price.pool_id = lent.pool_id AND lent.starts_at >= price.valid_from
    AND lent.starts_at < price.valid_to
JOIN ledger_pool pool ON pool.id = lent.pool_id
JOIN ledger_holder lender ON lender.id = lent.lender_id
JOIN ledger_holder borrower ON borrower.id = lent.borrower_id
LEFT JOIN ledger_service lending ON lending.holder_id = lender.id
LEFT JOIN ledger_service borrowing ON borrowing.holder_id = borrower.id
WHERE (%(pool)s::text[] IS NULL OR pool.slug = ANY(%(pool)s))
  AND (%(tenant_ids)s::bigint[] IS NULL
       OR coalesce(lending.owner_id, lent.lender_id) = ANY(%(tenant_ids)s)
       OR coalesce(borrowing.owner_id, lent.borrower_id) = ANY(%(tenant_ids)s))
GROUP BY pool.slug, lent.lender_id, lent.borrower_id, lender.slug, borrower.slug
ORDER BY pool.slug, lender.slug, borrower.slug
"""
