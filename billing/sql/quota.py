"""Set-based reads and the one write of quotas. Static statements with bound parameters."""

_TENANTS = """
    JOIN ledger_event event ON event.id = quota.event_id
    JOIN ledger_source source ON source.id = event.source_id
    JOIN ledger_identity identity ON identity.id = quota.identity_id
    LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
    LEFT JOIN ledger_identitymapping mapping
        ON mapping.identity_id = identity.id AND mapping.validity @> quota.starts_at
"""

# The newest quota fact of each tenant, layer, resource and scope at an instant; of one instant the greatest
# (source, id). Quota facts are few; those of one tenant lean on quota_latest.
_NEWEST = f"""
SELECT DISTINCT ON (tenant_id, layer, resource, pool_id, service_id)
       coalesce(slug_holder.id, mapping.tenant_id) AS tenant_id, quota.layer, quota.resource, quota.pool_id,
       quota.service_id, quota.limit_milli, quota.used_milli, quota.starts_at, event.source_id, event.event_id
FROM ledger_quotalevel quota {_TENANTS}
WHERE quota.starts_at <= %(at)s AND quota.event_id <> ALL(%(void)s)
  AND coalesce(slug_holder.id, mapping.tenant_id) IS NOT NULL
ORDER BY tenant_id, layer, resource, pool_id, service_id, quota.starts_at DESC, source.uri DESC, event.event_id DESC
"""

QUOTAS_AT = f"""
WITH newest AS ({_NEWEST})
SELECT tenant.slug, newest.layer, newest.resource, coalesce(pool.slug, ''), coalesce(service.slug, ''),
       newest.limit_milli, newest.used_milli, newest.starts_at, newest.source_id, newest.event_id
FROM newest
JOIN ledger_holder tenant ON tenant.id = newest.tenant_id
LEFT JOIN ledger_pool pool ON pool.id = newest.pool_id
LEFT JOIN ledger_holder service ON service.id = newest.service_id
WHERE (%(tenant_ids)s::bigint[] IS NULL OR newest.tenant_id = ANY(%(tenant_ids)s))
  AND (%(tenant)s::text[] IS NULL OR tenant.slug = ANY(%(tenant)s))
ORDER BY 1, 2, 3, 4, 5
"""

# All quota facts of [from, to) in the order in which they hold, behind what stood at `from`.
QUOTA_STEPS = f"""
WITH opening AS ({_NEWEST}), step AS (
    SELECT tenant_id, layer, resource, pool_id, service_id, limit_milli, used_milli, starts_at, '' AS uri, '' AS id
    FROM opening
    UNION ALL
    SELECT coalesce(slug_holder.id, mapping.tenant_id), quota.layer, quota.resource, quota.pool_id, quota.service_id,
           quota.limit_milli, quota.used_milli, quota.starts_at, source.uri, event.event_id
    FROM ledger_quotalevel quota {_TENANTS}
    WHERE quota.starts_at > %(at)s AND quota.starts_at < %(to)s AND quota.event_id <> ALL(%(void)s)
      AND coalesce(slug_holder.id, mapping.tenant_id) IS NOT NULL
)
SELECT tenant.slug, step.layer, step.resource, coalesce(pool.slug, ''), coalesce(service.slug, ''),
       step.limit_milli, step.used_milli, step.starts_at
FROM step
JOIN ledger_holder tenant ON tenant.id = step.tenant_id
LEFT JOIN ledger_pool pool ON pool.id = step.pool_id
LEFT JOIN ledger_holder service ON service.id = step.service_id
WHERE (%(tenant_ids)s::bigint[] IS NULL OR step.tenant_id = ANY(%(tenant_ids)s))
  AND (%(tenant)s::text[] IS NULL OR tenant.slug = ANY(%(tenant)s))
ORDER BY step.starts_at, step.uri, step.id
"""

# One tenant's standings by name: the tenant by its unique slug, its rows by quota_standing_key. A tenant without any
# is one row of nulls; an unknown one, or another's, none.
REMAINING = """
SELECT tenant.holder_id, standing.layer, standing.resource, coalesce(pool.slug, ''), coalesce(service.slug, ''),
       standing.limit_milli, standing.used_milli, standing.as_of, standing.ends_at, coalesce(named.name, '')
FROM ledger_holder holder
JOIN ledger_tenant tenant ON tenant.holder_id = holder.id
LEFT JOIN ledger_quotastanding standing ON standing.tenant_id = tenant.holder_id
LEFT JOIN ledger_pool pool ON pool.id = standing.pool_id
LEFT JOIN ledger_holder service ON service.id = standing.service_id
LEFT JOIN ledger_service named ON named.holder_id = standing.service_id
WHERE (holder.slug = %(tenant)s OR (%(tenant)s::text IS NULL AND holder.id = %(own)s))
  AND (%(tenant_ids)s::bigint[] IS NULL OR holder.id = ANY(%(tenant_ids)s))
ORDER BY 2, 3, 4, 5
"""

# Locks come first: a booking that has moved a row and is not committed yet is waited for, so that what is read next
# holds its usage, and one that comes after it adds to what is written here.
LOCK_STANDINGS = "SELECT id FROM ledger_quotastanding ORDER BY id FOR UPDATE"

FORGET_STANDINGS = f"""
WITH newest AS ({_NEWEST})
DELETE FROM ledger_quotastanding kept
WHERE layer <> 'contract' AND NOT EXISTS (
    SELECT 1 FROM newest WHERE newest.tenant_id = kept.tenant_id AND newest.layer = kept.layer
      AND newest.resource = kept.resource AND newest.pool_id IS NOT DISTINCT FROM kept.pool_id
      AND newest.service_id IS NOT DISTINCT FROM kept.service_id)
"""

REFRESH_STANDINGS = f"""
WITH newest AS ({_NEWEST})
INSERT INTO ledger_quotastanding AS kept
    (tenant_id, layer, resource, pool_id, service_id, limit_milli, used_milli, as_of)
SELECT tenant_id, layer, resource, pool_id, service_id, limit_milli, used_milli, starts_at FROM newest
ORDER BY tenant_id, layer, resource, pool_id, service_id
ON CONFLICT (tenant_id, layer, resource, pool_id, service_id) DO UPDATE SET
    limit_milli = excluded.limit_milli, used_milli = excluded.used_milli, as_of = excluded.as_of
"""

# A contract's month: its quota, and the tokens of shared services counted so far. Leans on usage_hour_when.
REFRESH_CONTRACTS = """
WITH contract AS (
    SELECT * FROM unnest(%(tenants)s::bigint[], %(quotas)s::bigint[]) AS c(tenant_id, quota)
), used AS (
    SELECT coalesce(slug_holder.id, mapping.tenant_id) AS tenant_id,
           sum(hour.input_tokens + hour.output_tokens) AS tokens, max(hour.hour) AS last_hour
    FROM ledger_usagehour hour
    JOIN ledger_identity identity ON identity.id = hour.identity_id
    LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
    LEFT JOIN ledger_identitymapping mapping
        ON mapping.identity_id = identity.id AND mapping.validity @> hour.hour
    WHERE hour.hour >= %(from)s AND hour.hour < %(to)s AND hour.service_id IS NOT NULL
    GROUP BY 1
)
INSERT INTO ledger_quotastanding AS kept
    (tenant_id, layer, resource, pool_id, service_id, limit_milli, used_milli, as_of, starts_at, ends_at)
SELECT contract.tenant_id, 'contract', 'tokens_per_month', NULL, NULL, contract.quota * 1000,
       coalesce(used.tokens, 0) * 1000, coalesce(used.last_hour, %(from)s), %(from)s, %(to)s
FROM contract LEFT JOIN used USING (tenant_id)
ORDER BY contract.tenant_id
ON CONFLICT (tenant_id, layer, resource, pool_id, service_id) DO UPDATE SET
    limit_milli = excluded.limit_milli, used_milli = excluded.used_milli, as_of = excluded.as_of,
    starts_at = excluded.starts_at, ends_at = excluded.ends_at
"""

FORGET_CONTRACTS = """
DELETE FROM ledger_quotastanding WHERE layer = 'contract' AND tenant_id <> ALL(%(tenants)s)
"""
