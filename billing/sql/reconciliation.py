"""Set-based statements behind reconciliation: what was booked, summed the way others count it (domain.md section 9)."""

# Engines' own totals are usage that names no identity; requests, and usage that names one, explain them. By UTC day,
# pool and model, from the hourly roll-ups: days with such totals are found by usage_hour_engine, and only their hours
# are added up (key usage_hour_key).
RESIDUALS = """
WITH counted AS (
    SELECT DISTINCT pool_id, model_id, date_trunc('day', hour, 'UTC') AS day
    FROM ledger_usagehour
    WHERE hour >= %(from)s AND hour < %(to)s AND identity_id IS NULL
)
SELECT counted.day, pool.slug, model.name,
       coalesce(sum(input_tokens) FILTER (WHERE identity_id IS NULL), 0)::numeric,
       coalesce(sum(input_tokens) FILTER (WHERE identity_id IS NOT NULL), 0)::numeric,
       coalesce(sum(input_missing) FILTER (WHERE identity_id IS NULL), 0)::numeric,
       coalesce(sum(input_missing) FILTER (WHERE identity_id IS NOT NULL), 0)::numeric,
       coalesce(sum(cached_input_tokens) FILTER (WHERE identity_id IS NULL), 0)::numeric,
       coalesce(sum(cached_input_tokens) FILTER (WHERE identity_id IS NOT NULL), 0)::numeric,
       coalesce(sum(cached_missing) FILTER (WHERE identity_id IS NULL), 0)::numeric,
       coalesce(sum(cached_missing) FILTER (WHERE identity_id IS NOT NULL), 0)::numeric,
       coalesce(sum(output_tokens) FILTER (WHERE identity_id IS NULL), 0)::numeric,
       coalesce(sum(output_tokens) FILTER (WHERE identity_id IS NOT NULL), 0)::numeric,
       coalesce(sum(output_missing) FILTER (WHERE identity_id IS NULL), 0)::numeric,
       coalesce(sum(output_missing) FILTER (WHERE identity_id IS NOT NULL), 0)::numeric,
       coalesce(sum(gpu_us) FILTER (WHERE identity_id IS NULL), 0)::numeric,
       coalesce(sum(gpu_us) FILTER (WHERE identity_id IS NOT NULL), 0)::numeric,
       coalesce(sum(gpu_missing) FILTER (WHERE identity_id IS NULL), 0)::numeric,
       coalesce(sum(gpu_missing) FILTER (WHERE identity_id IS NOT NULL), 0)::numeric
FROM counted
JOIN ledger_usagehour hour ON hour.pool_id = counted.pool_id AND hour.model_id = counted.model_id
    AND hour.hour >= counted.day AND hour.hour < counted.day + interval '24 hours'
JOIN ledger_pool pool ON pool.id = hour.pool_id
JOIN ledger_modelname model ON model.id = hour.model_id
WHERE hour.hour >= %(from)s AND hour.hour < %(to)s
  AND (%(pool)s::text[] IS NULL OR pool.slug = ANY(%(pool)s))
  AND (%(model)s::text[] IS NULL OR model.name = ANY(%(model)s))
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3
"""

# GPU time that level facts say was held in [from, to), of some pools (index level_sweep). A level ends with the next of
# its subject and attempt (the greatest source and id of one instant stays), and with the first of a higher attempt.
HELD = """
WITH level AS (
    SELECT level.milli_gpus, level.identity_id, level.starts_at,
           lead(level.starts_at) OVER (
               PARTITION BY level.pool_id, level.subject, level.attempt
               ORDER BY level.starts_at, source.uri, event.event_id) AS next_at,
           min(level.starts_at) OVER (
               PARTITION BY level.pool_id, level.subject ORDER BY level.attempt
               RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS higher_at
    FROM ledger_level level
    JOIN ledger_pool pool ON pool.id = level.pool_id
    JOIN ledger_event event ON event.id = level.event_id
    JOIN ledger_source source ON source.id = event.source_id
    WHERE pool.slug = ANY(%(pools)s) AND level.kind = %(kind)s AND level.starts_at < %(to)s
      AND level.event_id <> ALL(%(void)s)
)
SELECT coalesce(sum(milli_gpus * (1000 * extract(epoch FROM
           least(next_at, higher_at, %(to)s) - greatest(starts_at, %(from)s)))::bigint), 0)::numeric
FROM level
LEFT JOIN ledger_identity identity ON identity.id = level.identity_id
WHERE milli_gpus > 0 AND least(next_at, higher_at, %(to)s) > greatest(starts_at, %(from)s)
  AND (%(account)s::text IS NULL OR (identity.kind = 'slurm_account' AND identity.value = %(account)s))
"""

# Preemptions that reports tell of one workload, up to an instant (index preemption_report_victim).
PREEMPTIONS_OF = """
SELECT report.victim_workload, count(DISTINCT report.preemption)
FROM ledger_preemptionreport report
WHERE report.victim_workload = ANY(%(workloads)s) AND report.decided_at < %(to)s AND report.event_id <> ALL(%(void)s)
GROUP BY 1
"""

# Tokens of a month by tenant: as they are billed (the roll-ups), and by who counted them (sums by day, since a close
# may not cost more with more requests). An identity belongs to whom the mapping says when the request finished.
BILLED_TOKENS = """
SELECT coalesce(slug_holder.slug, mapped_holder.slug, 'unattributed') AS tenant,
       sum(input_tokens)::numeric, sum(output_tokens)::numeric
FROM ledger_usagehour hour
JOIN ledger_identity identity ON identity.id = hour.identity_id
LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> hour.hour
LEFT JOIN ledger_holder mapped_holder ON mapped_holder.id = mapping.tenant_id
WHERE hour.hour >= %(from)s AND hour.hour < %(to)s
GROUP BY 1 ORDER BY 1
"""
COUNTED_TOKENS = """
SELECT source_id, tenant, sum(input_tokens)::numeric, sum(output_tokens)::numeric
FROM billing_countedtokens
WHERE starts_at >= %(from)s AND starts_at < %(to)s AND source_id = ANY(%(sources)s)
GROUP BY 1, 2 ORDER BY 1, 2
"""

# Days of pools whose tokens nobody has added up since they were computed last (primary key); they are from now on.
UNCOUNTED_DAYS = """
INSERT INTO billing_countedday (pool_id, starts_at)
SELECT pool.id, day.starts_at FROM ledger_pool pool CROSS JOIN unnest(%(starts)s::timestamptz[]) AS day(starts_at)
ON CONFLICT DO NOTHING
RETURNING pool_id, starts_at
"""

# Of those days what each source counted by tenant, from the rows of their partitions: a usage event counts at its start
# and may end, and be kept, on the day after.
COUNT_TOKENS = """
INSERT INTO billing_countedtokens (pool_id, starts_at, source_id, tenant, input_tokens, output_tokens)
WITH counted AS (
    SELECT request.pool_id, wanted.starts_at, source_id, identity_id, date_trunc('hour', at, 'UTC') AS hour,
           sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens
    FROM ledger_request request
    CROSS JOIN LATERAL (SELECT CASE type WHEN 8 THEN request.starts_at ELSE ends_at END AS at) time
    JOIN unnest(%(pools)s::bigint[], %(starts)s::timestamptz[]) AS wanted(pool_id, starts_at)
        ON wanted.pool_id = request.pool_id AND wanted.starts_at = greatest(date_trunc('day', at, 'UTC'), %(from)s)
    WHERE day = ANY(%(days)s) AND at >= %(from)s AND at < %(to)s AND identity_id IS NOT NULL
      AND NOT EXISTS (
          SELECT 1 FROM unnest(%(void_sources)s::bigint[], %(void_ids)s::text[]) AS void(source_id, event_id)
          WHERE void.source_id = request.source_id AND void.event_id = request.event_id)
    GROUP BY 1, 2, 3, 4, 5
)
SELECT counted.pool_id, counted.starts_at, counted.source_id,
       coalesce(slug_holder.slug, mapped_holder.slug, 'unattributed') AS tenant,
       coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0)
FROM counted
JOIN ledger_identity identity ON identity.id = counted.identity_id
LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> counted.hour
LEFT JOIN ledger_holder mapped_holder ON mapped_holder.id = mapping.tenant_id
GROUP BY 1, 2, 3, 4
"""

# Capacity, reservations and cluster quotas of each pool, integrated over [from, to): the first two from the slots, in
# which what is lent is what is borrowed (index pool_slot_when).
SOLD = """
WITH capacity AS (
    SELECT pool_id, sum(capacity_gpu_us)::numeric AS gpu_us,
           sum(reserved_used_gpu_us + borrowed_gpu_us + reserved_idle_gpu_us + undelivered_gpu_us
               + oversold_gpu_us)::numeric AS reserved_gpu_us
    FROM billing_poolslot
    WHERE starts_at >= %(from)s AND starts_at < %(to)s GROUP BY 1
), level AS (
    SELECT quota.pool_id, quota.limit_milli, quota.starts_at,
           lead(quota.starts_at) OVER (PARTITION BY quota.pool_id, quota.identity_id
               ORDER BY quota.starts_at, source.uri, event.event_id) AS next_at
    FROM ledger_quotalevel quota
    JOIN ledger_event event ON event.id = quota.event_id
    JOIN ledger_source source ON source.id = event.source_id
    WHERE quota.layer = 'cluster' AND quota.resource = 'gpus' AND quota.pool_id IS NOT NULL
      AND quota.starts_at < %(to)s AND quota.event_id <> ALL(%(void)s)
), quota AS (
    SELECT pool_id, sum(limit_milli::numeric * (1000 * extract(epoch FROM
               least(next_at, %(to)s) - greatest(starts_at, %(from)s)))::bigint) AS gpu_us
    FROM level WHERE least(next_at, %(to)s) > greatest(starts_at, %(from)s) GROUP BY 1
)
SELECT pool.slug, coalesce(capacity.gpu_us, 0), coalesce(capacity.reserved_gpu_us, 0),
       coalesce(quota.gpu_us, 0)
FROM ledger_pool pool
LEFT JOIN capacity ON capacity.pool_id = pool.id
LEFT JOIN quota ON quota.pool_id = pool.id
WHERE capacity.gpu_us > 0 OR capacity.reserved_gpu_us > 0 OR quota.gpu_us > 0
ORDER BY pool.slug
"""
