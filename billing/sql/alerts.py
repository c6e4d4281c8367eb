"""Set-based reads behind the alert rules. Static statements with bound parameters."""

# Rejected demand by tenant; the identity resolves as at the instant of the fact. Leans on rejection_when.
REJECTIONS = """
SELECT coalesce(mapped.slug, CASE WHEN identity.kind = 'tenant' THEN holder.slug END) AS tenant,
       sum(rejection.count)::bigint,
       coalesce(sum(rejection.count) FILTER (WHERE rejection.retry_after_us IS NOT NULL), 0)::bigint
FROM ledger_rejection rejection
JOIN ledger_identity identity ON identity.id = rejection.identity_id
LEFT JOIN ledger_identitymapping mapping
    ON mapping.identity_id = identity.id AND mapping.validity @> rejection.occurred_at
LEFT JOIN ledger_holder mapped ON mapped.id = mapping.tenant_id
LEFT JOIN ledger_holder holder ON holder.slug = identity.value AND holder.kind = 1
WHERE rejection.occurred_at >= %(from)s AND rejection.occurred_at < %(to)s
  AND rejection.event_id <> ALL(%(void)s)
GROUP BY 1
ORDER BY 1 NULLS LAST
"""

# Preemptions decided, by pool, as they were reported: reports of one preemption count once. Does not wait for the
# books to be computed. Leans on preemption_report_when.
PREEMPTIONS = """
SELECT pool.slug, count(*)::bigint, sum(one.milli_gpus)::bigint
FROM (
    SELECT cluster, preemption, min(pool_id) AS pool_id, max(milli_gpus) AS milli_gpus
    FROM ledger_preemptionreport
    WHERE decided_at >= %(from)s AND decided_at < %(to)s AND queued_only IS NOT TRUE
      AND event_id <> ALL(%(void)s)
    GROUP BY cluster, preemption
) one
JOIN ledger_pool pool ON pool.id = one.pool_id
GROUP BY pool.slug
ORDER BY pool.slug
"""

# Reservations and what nobody used of them, by tenant and pool. Leans on allocation_when.
RESERVED = """
SELECT holder.slug, pool.slug,
       sum(a.reserved_used_gpu_us + a.lent_gpu_us + a.reserved_idle_gpu_us + a.undelivered_gpu_us
           + a.oversold_gpu_us)::bigint,
       sum(a.reserved_idle_gpu_us)::bigint
FROM billing_allocation a
JOIN ledger_account account ON account.id = a.account_id AND account.tenant_id IS NOT NULL
JOIN ledger_holder holder ON holder.id = account.tenant_id
JOIN ledger_pool pool ON pool.id = a.pool_id
WHERE a.starts_at >= %(from)s AND a.starts_at < %(to)s
GROUP BY 1, 2
HAVING sum(a.reserved_idle_gpu_us) > 0
ORDER BY 1, 2
"""

# Time of holders whose tenant is not known, by pool. Leans on allocation_when.
UNATTRIBUTED = """
SELECT pool.slug,
       sum(a.reserved_used_gpu_us + a.on_demand_gpu_us + a.borrowed_gpu_us + a.excess_gpu_us)::bigint
FROM billing_allocation a
JOIN ledger_holder holder ON holder.id = a.holder_id AND holder.kind = 3
JOIN ledger_pool pool ON pool.id = a.pool_id
WHERE a.starts_at >= %(from)s AND a.starts_at < %(to)s
GROUP BY 1
ORDER BY 1
"""

# Tokens and the GPU time measured for them, where every request stated both, and the calibration in force at the end.
# Leans on usage_hour_when.
CONVERSION = """
SELECT model.name, pool.gpu_model, sum(u.input_tokens)::bigint, sum(u.cached_input_tokens)::bigint,
       sum(u.output_tokens)::bigint, sum(u.gpu_us)::bigint, c.input_gpu_us_per_1k, c.cached_input_gpu_us_per_1k,
       c.output_gpu_us_per_1k, c.tolerance_ppm
FROM ledger_usagehour u
JOIN ledger_pool pool ON pool.id = u.pool_id
JOIN ledger_modelname model ON model.id = u.model_id
JOIN LATERAL (
    SELECT * FROM billing_calibration calibration
    WHERE calibration.model_id = u.model_id AND calibration.gpu_model = pool.gpu_model
      AND calibration.valid_from < %(to)s
      AND (calibration.ended_at IS NULL OR calibration.ended_at > %(to)s)
    ORDER BY calibration.valid_from DESC LIMIT 1
) c ON true
WHERE u.hour >= %(from)s AND u.hour < %(to)s AND u.gpu_us > 0
  AND u.gpu_missing = 0 AND u.input_missing = 0 AND u.output_missing = 0
GROUP BY model.name, pool.gpu_model, c.input_gpu_us_per_1k, c.cached_input_gpu_us_per_1k,
         c.output_gpu_us_per_1k, c.tolerance_ppm
ORDER BY 1, 2
"""

# Capacity that will change: announced facts of the future, each beside what held before it. Leans on level_sweep.
PLANNED = """
SELECT pool.slug, level.starts_at, booking.booked_at, level.milli_gpus, before.milli_gpus
FROM ledger_pool pool
JOIN ledger_level level ON level.pool_id = pool.id AND level.kind = 1
    AND level.starts_at > %(from)s AND level.starts_at <= %(to)s AND level.event_id <> ALL(%(void)s)
JOIN ledger_event event ON event.id = level.event_id
JOIN ledger_booking booking ON booking.id = event.booking_id
LEFT JOIN LATERAL (
    SELECT l.milli_gpus FROM ledger_level l
    WHERE l.pool_id = pool.id AND l.kind = 1 AND l.subject = '' AND l.starts_at < level.starts_at
      AND l.event_id <> ALL(%(void)s)
    ORDER BY l.starts_at DESC, l.id DESC LIMIT 1
) before ON true
WHERE booking.booked_at IS NOT NULL
ORDER BY level.starts_at, pool.slug
"""

# Tenants with a claim on GPUs of a pool at an instant; a service's reservation is its owner's. Leans on
# subject_key and level_of_subject.
RESERVING = """
WITH subject AS (
    SELECT pool_id, subject FROM ledger_subject
    WHERE kind = 2 AND first_at <= %(at)s AND (last_milli_gpus > 0 OR last_at >= %(at)s)
)
SELECT DISTINCT subject.pool_id, coalesce(mapping.tenant_id, service.owner_id, tenant.holder_id)
FROM subject
CROSS JOIN LATERAL (
    SELECT l.* FROM ledger_level l
    WHERE l.pool_id = subject.pool_id AND l.kind = 2 AND l.subject = subject.subject AND l.starts_at <= %(at)s
      AND l.event_id <> ALL(%(void)s)
    ORDER BY l.starts_at DESC, l.id DESC LIMIT 1
) level
JOIN ledger_identity identity ON identity.id = level.identity_id
LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> %(at)s
LEFT JOIN ledger_holder holder ON holder.slug = identity.value AND identity.kind IN ('tenant', 'service')
LEFT JOIN ledger_tenant tenant ON tenant.holder_id = holder.id
LEFT JOIN ledger_service service ON service.holder_id = holder.id
WHERE level.milli_gpus > 0 AND (level.ends_at IS NULL OR level.ends_at > %(at)s)
  AND coalesce(mapping.tenant_id, service.owner_id, tenant.holder_id) IS NOT NULL
"""
