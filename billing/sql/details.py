"""Allocations below the slot's holder: by workload, user and label, and shared services by model and key."""

from billing.sql.reports import CAPACITY, PRICES_AND_POOLS

# As ALLOCATIONS of sql_reports, with finer rows. Own occupied time comes from the rows by workload (per UTC day) where
# a dimension of workloads is asked for; whatever no workload holds (idle, lent, services' time) keeps its slot's row
# with empty names. A tenant's time of a shared service is divided over the models and keys of its requests of that
# hour, by measured GPU time, else tokens, else their number: cumulative floors, so that parts add up to the slot's row.
# Leans on workload_day_of_holder or the primary key, allocation_when, and usage_hour_key.
DETAILS = (
    PRICES_AND_POOLS
    + """
), usage AS (
    SELECT hour.pool_id, hour.service_id, hour.hour, model.name AS model,
           CASE identity.kind WHEN 'api_key_hash' THEN identity.value ELSE '' END AS api_key,
           coalesce(named.id, mapping.tenant_id) AS tenant_id,
           hour.gpu_us, hour.gpu_missing, hour.input_tokens + hour.output_tokens AS tokens, hour.requests
    FROM ledger_usagehour hour
    JOIN scope pool ON pool.id = hour.pool_id
    JOIN ledger_modelname model ON model.id = hour.model_id
    LEFT JOIN ledger_identity identity ON identity.id = hour.identity_id
    LEFT JOIN ledger_holder named ON identity.kind = 'tenant' AND named.slug = identity.value
    LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> hour.hour
    WHERE %(by_request)s AND hour.service_id IS NOT NULL
      AND hour.hour >= date_trunc('hour', %(from)s::timestamptz) AND hour.hour < %(to)s
), weight AS (
    SELECT pool_id, service_id, hour, tenant_id, model, api_key,
           CASE WHEN bool_and(sum(gpu_missing) = 0) OVER one AND sum(sum(gpu_us)) OVER one > 0 THEN sum(gpu_us)
                WHEN sum(sum(tokens)) OVER one > 0 THEN sum(tokens) ELSE sum(requests) END::numeric AS weight
    FROM usage WHERE tenant_id IS NOT NULL
    GROUP BY pool_id, service_id, hour, tenant_id, model, api_key
    WINDOW one AS (PARTITION BY pool_id, service_id, hour, tenant_id)
), running AS (
    SELECT weight.*, sum(weight) OVER (PARTITION BY pool_id, service_id, hour, tenant_id) AS whole,
           sum(weight) OVER (PARTITION BY pool_id, service_id, hour, tenant_id
                             ORDER BY model COLLATE "C", api_key COLLATE "C") AS reached
    FROM weight
), part AS (
    SELECT pool.id AS pool_id, pool.slug AS pool, pool.cluster, pool.gpu_model, w.starts_at,
           date_trunc('day', w.starts_at, 'UTC') + interval '1 day' AS ends_at,
           CASE WHEN payer.kind IS NULL THEN holder.slug WHEN payer.kind = 1 THEN paying.slug
                WHEN payer.kind = 5 THEN 'unattributed' ELSE 'platform' END AS tenant,
           '' AS service, w.service_class, c.category, c.gpu_us::numeric,
           CASE WHEN payer.kind IS NULL THEN holder.id ELSE payer.tenant_id END AS tenant_id,
           '' AS model, w.workload, w."user", '' AS api_key, coalesce(w.labels->>%(label)s, '') AS label
    FROM billing_workloadday w
    JOIN scope pool ON pool.id = w.pool_id
    JOIN ledger_holder holder ON holder.id = w.holder_id AND holder.kind <> 2
    LEFT JOIN LATERAL (
        SELECT account.kind, account.tenant_id FROM billing_allocation a
        JOIN ledger_account account ON account.id = a.account_id
        WHERE (w.purpose <> 0 OR holder.kind <> 1) AND a.pool_id = w.pool_id AND a.starts_at >= w.starts_at
          AND a.starts_at < w.starts_at + interval '1 day' AND a.holder_id = w.holder_id
          AND a.service_class = w.service_class AND a.purpose = w.purpose
        ORDER BY a.starts_at LIMIT 1
    ) payer ON true
    LEFT JOIN ledger_holder paying ON paying.id = payer.tenant_id
    CROSS JOIN LATERAL (VALUES
        ('reserved_used', w.reserved_used_gpu_us), ('on_demand', w.on_demand_gpu_us),
        ('borrowed', w.borrowed_gpu_us), ('excess', w.excess_gpu_us)
    ) AS c(category, gpu_us)
    WHERE %(by_workload)s AND w.starts_at >= %(from)s AND w.starts_at < %(to)s AND c.gpu_us <> 0
    UNION ALL
    SELECT pool.id, pool.slug, pool.cluster, pool.gpu_model, a.starts_at, a.starts_at,
           coalesce(tenant_holder.slug, CASE account.kind WHEN 5 THEN 'unattributed' ELSE 'platform' END),
           CASE WHEN holder.kind = 2 THEN holder.slug ELSE '' END,
           a.service_class, c.category,
           CASE WHEN running.whole IS NULL THEN c.gpu_us::numeric
                ELSE floor(c.gpu_us * running.reached / running.whole)
                   - floor(c.gpu_us * (running.reached - running.weight) / running.whole) END,
           account.tenant_id, coalesce(running.model, ''), '', '', coalesce(running.api_key, ''), ''
    FROM billing_allocation a
    JOIN scope pool ON pool.id = a.pool_id
    JOIN ledger_holder holder ON holder.id = a.holder_id
    JOIN ledger_account account ON account.id = a.account_id
    LEFT JOIN ledger_holder tenant_holder ON tenant_holder.id = account.tenant_id
    CROSS JOIN LATERAL (VALUES
        ('reserved_used', a.reserved_used_gpu_us, true), ('on_demand', a.on_demand_gpu_us, true),
        ('borrowed', a.borrowed_gpu_us, true), ('lent', a.lent_gpu_us, false),
        ('reserved_idle', a.reserved_idle_gpu_us, false), ('undelivered', a.undelivered_gpu_us, false),
        ('oversold', a.oversold_gpu_us, false), ('excess', a.excess_gpu_us, true)
    ) AS c(category, gpu_us, is_occupied)
    LEFT JOIN running ON holder.kind = 2 AND c.is_occupied AND NOT a.service_idle
        AND running.pool_id = a.pool_id AND running.service_id = a.holder_id
        AND running.hour = date_trunc('hour', a.starts_at) AND running.tenant_id = account.tenant_id
        AND running.whole > 0
    WHERE a.starts_at >= %(from)s AND a.starts_at < %(to)s AND c.gpu_us <> 0
      AND (holder.kind = 2 OR NOT c.is_occupied OR NOT %(by_workload)s)
    UNION ALL
    SELECT pool.id, pool.slug, pool.cluster, pool.gpu_model, s.starts_at, s.starts_at,
           'platform', '', 0, 'unreserved_idle', s.unreserved_idle_gpu_us, NULL, '', '', '', '', ''
    FROM billing_poolslot s JOIN scope pool ON pool.id = s.pool_id
    WHERE %(include_idle)s AND s.starts_at >= %(from)s AND s.starts_at < %(to)s AND s.unreserved_idle_gpu_us <> 0
), wanted AS (
    SELECT part.*, price.price_micro,
           price.price_micro IS NULL AND part.category NOT IN ('undelivered', 'oversold')
           OR EXISTS (SELECT 1 FROM price later WHERE later.pool_id = part.pool_id AND later.category = part.category
                      AND later.service_class = part.service_class AND later.valid_from > part.starts_at
                      AND later.valid_from < part.ends_at) AS is_unpriced,
           CASE %(step)s WHEN 'all' THEN %(from)s
                         WHEN 'hour' THEN part.starts_at
                         ELSE greatest(date_trunc(%(step)s, part.starts_at, %(zone)s), %(from)s) END AS bucket
    FROM part
    LEFT JOIN price ON price.pool_id = part.pool_id AND price.category = part.category
        AND price.service_class = part.service_class
        AND part.starts_at >= price.valid_from AND part.starts_at < price.valid_to
    WHERE part.gpu_us <> 0
      AND (%(tenant_ids)s::bigint[] IS NULL OR part.tenant_id = ANY(%(tenant_ids)s))
      AND (%(tenant)s::text[] IS NULL OR part.tenant = ANY(%(tenant)s))
      AND (%(service)s::text[] IS NULL OR part.service = ANY(%(service)s))
      AND (%(category)s::text[] IS NULL OR part.category = ANY(%(category)s))
      AND (%(service_class)s::smallint[] IS NULL OR part.service_class = ANY(%(service_class)s))
      AND (%(model)s::text[] IS NULL OR part.model = ANY(%(model)s))
      AND (%(workload)s::text[] IS NULL OR part.workload = ANY(%(workload)s))
      AND (%(user)s::text[] IS NULL OR part."user" = ANY(%(user)s))
      AND (%(api_key)s::text[] IS NULL OR part.api_key = ANY(%(api_key)s))
      AND (%(label_values)s::text[] IS NULL OR part.label = ANY(%(label_values)s))
), named AS (
    SELECT bucket,
           CASE WHEN 'pool' = ANY(%(by)s) THEN pool END AS by_pool,
           CASE WHEN 'cluster' = ANY(%(by)s) THEN cluster END AS by_cluster,
           CASE WHEN 'gpu_model' = ANY(%(by)s) THEN gpu_model END AS by_gpu_model,
           CASE WHEN 'tenant' = ANY(%(by)s) THEN tenant END AS by_tenant,
           CASE WHEN 'service' = ANY(%(by)s) THEN service END AS by_service,
           CASE WHEN 'category' = ANY(%(by)s) THEN category END AS by_category,
           CASE WHEN 'service_class' = ANY(%(by)s) THEN service_class END AS by_service_class,
           CASE WHEN 'model' = ANY(%(by)s) THEN model END AS by_model,
           CASE WHEN 'workload' = ANY(%(by)s) THEN workload END AS by_workload,
           CASE WHEN 'user' = ANY(%(by)s) THEN "user" END AS by_user,
           CASE WHEN 'api_key' = ANY(%(by)s) THEN api_key END AS by_api_key,
           CASE WHEN 'label' = ANY(%(by)s) THEN label END AS by_label,
           gpu_us, price_micro, is_unpriced
    FROM wanted
"""
    + CAPACITY
    + """
SELECT n.bucket, n.by_pool, n.by_cluster, n.by_gpu_model, n.by_tenant, n.by_service, n.by_category, n.by_service_class,
       n.by_model, n.by_workload, n.by_user, n.by_api_key, n.by_label,
       sum(n.gpu_us)::numeric, max(c.capacity_gpu_us), sum(n.gpu_us * n.price_micro), bool_or(n.is_unpriced)
FROM named n
LEFT JOIN capacity c ON c.bucket = n.bucket
    AND c.by_pool IS NOT DISTINCT FROM n.by_pool AND c.by_cluster IS NOT DISTINCT FROM n.by_cluster
    AND c.by_gpu_model IS NOT DISTINCT FROM n.by_gpu_model
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13
ORDER BY 1, 2 NULLS FIRST, 3 NULLS FIRST, 4 NULLS FIRST, 5 NULLS FIRST, 6 NULLS FIRST, 7 NULLS FIRST, 8 NULLS FIRST,
         9 NULLS FIRST, 10 NULLS FIRST, 11 NULLS FIRST, 12 NULLS FIRST, 13 NULLS FIRST
LIMIT %(limit)s OFFSET %(offset)s
"""
)
