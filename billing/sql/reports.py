"""Set-based reads behind the API and the pages. One function's worth of SQL each, static, with bound parameters."""

# What every statement about allocations begins with: the prices as rows, and the pools that are asked for.
PRICES_AND_POOLS = """
WITH price AS (
    SELECT * FROM unnest(
        %(price_pool)s::bigint[], %(price_category)s::text[], %(price_class)s::smallint[],
        %(price_from)s::timestamptz[], %(price_to)s::timestamptz[], %(price_micro)s::bigint[]
    ) AS p(pool_id, category, service_class, valid_from, valid_to, price_micro)
), scope AS (
    SELECT * FROM ledger_pool pool
    WHERE (%(pool)s::text[] IS NULL OR pool.slug = ANY(%(pool)s))
      AND (%(cluster)s::text[] IS NULL OR pool.cluster = ANY(%(cluster)s))
      AND (%(gpu_model)s::text[] IS NULL OR pool.gpu_model = ANY(%(gpu_model)s))"""

# And their capacity by the same buckets and dimensions of pools.
CAPACITY = """
), capacity AS (
    SELECT CASE %(step)s WHEN 'all' THEN %(from)s
                         WHEN 'hour' THEN s.starts_at
                         ELSE greatest(date_trunc(%(step)s, s.starts_at, %(zone)s), %(from)s) END AS bucket,
           CASE WHEN 'pool' = ANY(%(by)s) THEN pool.slug END AS by_pool,
           CASE WHEN 'cluster' = ANY(%(by)s) THEN pool.cluster END AS by_cluster,
           CASE WHEN 'gpu_model' = ANY(%(by)s) THEN pool.gpu_model END AS by_gpu_model,
           sum(s.capacity_gpu_us)::numeric AS capacity_gpu_us
    FROM billing_poolslot s JOIN scope pool ON pool.id = s.pool_id
    WHERE s.starts_at >= %(from)s AND s.starts_at < %(to)s
    GROUP BY 1, 2, 3, 4
)
"""

# Allocations of [%(from)s, %(to)s), by any of the dimensions in %(by)s and in steps. Leans on allocation_when, or on
# the primary key where pools are named; touches one row per slot, holder and payer of the window.
#
# A dimension that is not asked for is NULL in every row, so one statement serves every combination. `amount` is
# sum(gpu_us x price) in micro units x gpu_us per hour, divided and rounded once, outside. %(price_*)s are parallel
# arrays: which price held for (pool, category, class) from when to when.
ALLOCATIONS = (
    PRICES_AND_POOLS
    + """
), part AS (
    SELECT pool.id AS pool_id, pool.slug AS pool, pool.cluster, pool.gpu_model, a.starts_at,
           coalesce(tenant_holder.slug, CASE account.kind WHEN 5 THEN 'unattributed' ELSE 'platform' END) AS tenant,
           CASE WHEN holder.kind = 2 THEN holder.slug ELSE '' END AS service,
           a.service_class, a.purpose, c.category, c.gpu_us, account.tenant_id
    FROM billing_allocation a
    JOIN scope pool ON pool.id = a.pool_id
    JOIN ledger_holder holder ON holder.id = a.holder_id
    JOIN ledger_account account ON account.id = a.account_id
    LEFT JOIN ledger_holder tenant_holder ON tenant_holder.id = account.tenant_id
    CROSS JOIN LATERAL (VALUES
        ('reserved_used', a.reserved_used_gpu_us), ('on_demand', a.on_demand_gpu_us),
        ('borrowed', a.borrowed_gpu_us), ('lent', a.lent_gpu_us), ('reserved_idle', a.reserved_idle_gpu_us),
        ('undelivered', a.undelivered_gpu_us), ('oversold', a.oversold_gpu_us), ('excess', a.excess_gpu_us)
    ) AS c(category, gpu_us)
    WHERE a.starts_at >= %(from)s AND a.starts_at < %(to)s AND c.gpu_us <> 0
      AND (%(tenant_ids)s::bigint[] IS NULL OR account.tenant_id = ANY(%(tenant_ids)s))
    UNION ALL
    SELECT pool.id, pool.slug, pool.cluster, pool.gpu_model, s.starts_at,
           'platform', '', 0, 0, 'unreserved_idle', s.unreserved_idle_gpu_us, NULL
    FROM billing_poolslot s JOIN scope pool ON pool.id = s.pool_id
    WHERE %(include_idle)s AND s.starts_at >= %(from)s AND s.starts_at < %(to)s AND s.unreserved_idle_gpu_us <> 0
), bucketed AS (
    SELECT part.*,
           CASE %(step)s WHEN 'all' THEN %(from)s
                         WHEN 'hour' THEN part.starts_at
                         ELSE greatest(date_trunc(%(step)s, part.starts_at, %(zone)s), %(from)s) END AS bucket,
           CASE WHEN 'pool' = ANY(%(by)s) THEN part.pool END AS by_pool,
           CASE WHEN 'cluster' = ANY(%(by)s) THEN part.cluster END AS by_cluster,
           CASE WHEN 'gpu_model' = ANY(%(by)s) THEN part.gpu_model END AS by_gpu_model,
           CASE WHEN 'tenant' = ANY(%(by)s) THEN part.tenant END AS by_tenant,
           CASE WHEN 'service' = ANY(%(by)s) THEN part.service END AS by_service,
           CASE WHEN 'category' = ANY(%(by)s) THEN part.category END AS by_category,
           CASE WHEN 'service_class' = ANY(%(by)s) THEN part.service_class END AS by_service_class,
           price.price_micro
    FROM part
    LEFT JOIN price ON price.pool_id = part.pool_id AND price.category = part.category
        AND price.service_class = part.service_class
        AND part.starts_at >= price.valid_from AND part.starts_at < price.valid_to
    WHERE (%(tenant)s::text[] IS NULL OR part.tenant = ANY(%(tenant)s))
      AND (%(service)s::text[] IS NULL OR part.service = ANY(%(service)s))
      AND (%(category)s::text[] IS NULL OR part.category = ANY(%(category)s))
      AND (%(service_class)s::smallint[] IS NULL OR part.service_class = ANY(%(service_class)s))
"""
    + CAPACITY
    + """
SELECT b.bucket, b.by_pool, b.by_cluster, b.by_gpu_model, b.by_tenant, b.by_service, b.by_category,
       b.by_service_class, sum(b.gpu_us)::numeric AS gpu_us, max(c.capacity_gpu_us) AS capacity_gpu_us,
       sum(b.gpu_us::numeric * b.price_micro) AS amount_product,
       bool_or(b.price_micro IS NULL AND b.category NOT IN ('undelivered', 'oversold')) AS unpriced
FROM bucketed b
LEFT JOIN capacity c ON c.bucket = b.bucket
    AND c.by_pool IS NOT DISTINCT FROM b.by_pool AND c.by_cluster IS NOT DISTINCT FROM b.by_cluster
    AND c.by_gpu_model IS NOT DISTINCT FROM b.by_gpu_model
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
ORDER BY 1, 2 NULLS FIRST, 3 NULLS FIRST, 4 NULLS FIRST, 5 NULLS FIRST, 6 NULLS FIRST, 7 NULLS FIRST, 8 NULLS FIRST
LIMIT %(limit)s OFFSET %(offset)s
"""
)

# Re-queued GPU time per tenant (or payer account) of preemptions decided in a window: lost belongs to the month of
# the decision, recompute to the month of the resume, waiting to the time waited (domain.md section 6).
# Of all tenants, the waits of the window are added up at once; of few, those of each record are looked for: leans on
# preemption_when and the waits of a record.
_WAITED = """
        SELECT wait.record_id, sum(wait.milli_gpus * 1000 * extract(epoch FROM
            least(coalesce(wait.ends_at, %(horizon)s), %(to)s) - greatest(wait.starts_at, %(from)s)))::numeric AS gpu_us
        FROM billing_preemptionwait wait
        WHERE wait.starts_at < %(to)s AND coalesce(wait.ends_at, %(horizon)s) > greatest(wait.starts_at, %(from)s)
"""


def _requeued(waited: str) -> str:
    return f"""
WITH hit AS (
    SELECT share.account_id, record.pool_id, record.queued_only, share.lost_gpu_us, share.recompute_gpu_us,
           record.decided_at >= %(from)s AND record.decided_at < %(to)s AS decided_here,
           record.resumed_at >= %(from)s AND record.resumed_at < %(to)s AS resumed_here,
           record.disposition,
           CASE WHEN waited.gpu_us IS NULL THEN 0
                WHEN share.weight_through - share.weight_before = share.weight_total THEN waited.gpu_us
                ELSE div(waited.gpu_us * share.weight_through, share.weight_total)
                     - div(waited.gpu_us * share.weight_before, share.weight_total) END AS waiting_gpu_us
    FROM billing_preemptionshare share
    JOIN billing_preemptionrecord record ON record.id = share.record_id
    LEFT JOIN {waited}
    WHERE record.decided_at < %(to)s
      AND (record.waits_until IS NULL OR record.waits_until >= %(from)s OR record.decided_at >= %(from)s
           OR record.resumed_at >= %(from)s)
      AND (%(tenant_ids)s::bigint[] IS NULL OR share.account_id IN (
          SELECT id FROM ledger_account WHERE tenant_id = ANY(%(tenant_ids)s)))
)
SELECT coalesce(holder.slug, CASE account.kind WHEN 5 THEN 'unattributed' ELSE 'platform' END) AS tenant,
       count(*) FILTER (WHERE decided_here AND NOT queued_only) AS preemptions,
       count(*) FILTER (WHERE decided_here AND queued_only) AS deferrals,
       count(*) FILTER (WHERE decided_here AND disposition = 'stopped' AND NOT queued_only) AS stopped,
       coalesce(sum(lost_gpu_us) FILTER (WHERE decided_here AND NOT queued_only), 0)::numeric AS lost_gpu_us,
       coalesce(sum(recompute_gpu_us) FILTER (WHERE resumed_here AND NOT queued_only), 0)::numeric AS recompute_gpu_us,
       coalesce(sum(waiting_gpu_us) FILTER (WHERE NOT queued_only), 0)::numeric AS waiting_gpu_us,
       bool_or(decided_here AND NOT queued_only AND lost_gpu_us IS NULL)
           OR bool_or(resumed_here AND NOT queued_only AND recompute_gpu_us IS NULL) AS partial
FROM hit
JOIN ledger_account account ON account.id = hit.account_id
LEFT JOIN ledger_holder holder ON holder.id = account.tenant_id
GROUP BY 1
ORDER BY 1
LIMIT %(limit)s OFFSET %(offset)s
"""


REQUEUED = _requeued(f"({_WAITED} GROUP BY 1) waited ON waited.record_id = record.id")
REQUEUED_OF_TENANTS = _requeued(
    f"LATERAL ({_WAITED} AND wait.record_id = record.id GROUP BY 1) waited ON true"
)

# Tokens and measured GPU time of a window from the hourly roll-ups, per tenant, model and service. An identity belongs
# to whom the mapping says at that hour. Leans on usage_hour_when; never touches single requests.
TOKENS = """
WITH usage AS (
    SELECT coalesce(slug_holder.slug, mapped_holder.slug, 'unattributed') AS tenant,
           coalesce(slug_holder.id, mapped_holder.id) AS tenant_id,
           pool.slug AS pool, coalesce(service_holder.slug, '') AS service, model.name AS model, hour.*
    FROM ledger_usagehour hour
    JOIN ledger_pool pool ON pool.id = hour.pool_id
    JOIN ledger_modelname model ON model.id = hour.model_id
    LEFT JOIN ledger_identity identity ON identity.id = hour.identity_id
    LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
    LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> hour.hour
    LEFT JOIN ledger_holder mapped_holder ON mapped_holder.id = mapping.tenant_id
    LEFT JOIN ledger_holder service_holder ON service_holder.id = hour.service_id
    WHERE hour.hour >= %(from)s AND hour.hour < %(to)s
)
SELECT CASE %(step)s WHEN 'all' THEN %(from)s
                     WHEN 'hour' THEN usage.hour
                     ELSE greatest(date_trunc(%(step)s, usage.hour, %(zone)s), %(from)s) END AS bucket,
       CASE WHEN 'tenant' = ANY(%(by)s) THEN tenant END AS by_tenant,
       CASE WHEN 'pool' = ANY(%(by)s) THEN pool END AS by_pool,
       CASE WHEN 'service' = ANY(%(by)s) THEN service END AS by_service,
       CASE WHEN 'model' = ANY(%(by)s) THEN model END AS by_model,
       sum(requests)::numeric, sum(input_tokens)::numeric, sum(cached_input_tokens)::numeric,
       sum(output_tokens)::numeric, sum(reasoning_tokens)::numeric, sum(gpu_us)::numeric,
       sum(input_missing + output_missing)::numeric
FROM usage
WHERE (%(tenant_ids)s::bigint[] IS NULL OR tenant_id = ANY(%(tenant_ids)s))
  AND (%(tenant)s::text[] IS NULL OR tenant = ANY(%(tenant)s))
  AND (%(pool)s::text[] IS NULL OR pool = ANY(%(pool)s))
  AND (%(service)s::text[] IS NULL OR service = ANY(%(service)s))
  AND (%(model)s::text[] IS NULL OR model = ANY(%(model)s))
GROUP BY 1, 2, 3, 4, 5
ORDER BY 1, 2 NULLS FIRST, 3 NULLS FIRST, 4 NULLS FIRST, 5 NULLS FIRST
LIMIT %(limit)s OFFSET %(offset)s
"""

# A tenant's slots of a month, one row per category. Leans on allocation_of_account (account, starts_at).
TENANT_SLOTS = """
SELECT starts_at, pool_id, holder_id, borrowed_gpu_us, excess_gpu_us, lent_gpu_us, on_demand_gpu_us, oversold_gpu_us,
       reserved_idle_gpu_us, reserved_used_gpu_us, undelivered_gpu_us, service_class, purpose, service_idle
FROM billing_allocation
WHERE account_id = %(account)s AND starts_at >= %(from)s AND starts_at < %(to)s
"""
TENANT_SLOT_COLUMNS = {
    "time_ms": "timestamptz",
    "pool": "bigint",
    "holder": "bigint",
    "borrowed": "bigint",
    "excess": "bigint",
    "lent": "bigint",
    "on_demand": "bigint",
    "oversold": "bigint",
    "reserved_idle": "bigint",
    "reserved_used": "bigint",
    "undelivered": "bigint",
    "service_class": "smallint",
    "purpose": "smallint",
    "service_idle": "boolean",
}
