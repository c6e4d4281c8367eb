"""Quotas as they stand, moved with what a booking brings; and what they matter to."""

# How much of a shared service's preemption was entitled follows from its tenants' serving quotas just before
# (domain.md section 6): a quota that comes late has those measured again that were decided while it held. Leans on
# quota_latest for its end and on preemption_report_when.
DIRTY_QUOTAS = """
INSERT INTO ledger_dirtyspan (pool_id, span)
SELECT pool_id, unnest(range_agg(span)) FROM (
    SELECT report.pool_id, tstzrange(report.decided_at, report.decided_at, '[]') AS span
    FROM stage_verdict verdict
    JOIN ledger_quotalevel quota ON quota.event_id = verdict.event_pk AND quota.layer = 'serving'
    LEFT JOIN LATERAL (
        SELECT later.starts_at FROM ledger_quotalevel later
        WHERE later.identity_id = quota.identity_id AND later.layer = quota.layer AND later.resource = quota.resource
          AND later.pool_id IS NOT DISTINCT FROM quota.pool_id
          AND later.service_id IS NOT DISTINCT FROM quota.service_id AND later.starts_at > quota.starts_at
        ORDER BY later.starts_at LIMIT 1
    ) next ON true
    JOIN ledger_preemptionreport report ON report.decided_at > quota.starts_at
        AND report.decided_at <= coalesce(next.starts_at, 'infinity')
        AND (quota.pool_id IS NULL OR quota.pool_id = report.pool_id)
    JOIN ledger_identity victim ON victim.id = report.victim_identity_id AND victim.kind = 'service'
    WHERE verdict.is_new AND verdict.type = 10
) touched GROUP BY pool_id
"""

# Bookings of quotas come here one after another: of two at once neither would see that the other's is the rival.
HOLD_QUOTAS = "SELECT pg_advisory_xact_lock(%(namespace)s, %(lock)s)"

# The newest quota fact of each tenant, layer, resource and scope; of two of one instant the greatest (source, id), in
# whatever order they come (quota_latest). In order of the key quota_standing_key, so that bookings queue up and never
# deadlock. Nobody's quotas are left out; a mapping made later is put right by computing.
MOVE_QUOTAS = """
INSERT INTO ledger_quotastanding AS kept
    (tenant_id, layer, resource, pool_id, service_id, limit_milli, used_milli, as_of)
SELECT DISTINCT ON (1, 2, 3, 4, 5)
       coalesce(slug_holder.id, mapping.tenant_id), quota.layer, quota.resource, quota.pool_id, quota.service_id,
       quota.limit_milli, quota.used_milli, quota.starts_at
FROM stage_verdict verdict
JOIN ledger_quotalevel quota ON quota.event_id = verdict.event_pk
JOIN ledger_event event ON event.id = quota.event_id
JOIN ledger_source source ON source.id = event.source_id
JOIN ledger_identity identity ON identity.id = quota.identity_id
LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
LEFT JOIN ledger_identitymapping mapping
    ON mapping.identity_id = identity.id AND mapping.validity @> quota.starts_at
WHERE verdict.is_new AND verdict.type = 10 AND coalesce(slug_holder.id, mapping.tenant_id) IS NOT NULL
  AND NOT EXISTS (
      SELECT 1 FROM ledger_quotalevel rival
      JOIN ledger_event rival_event ON rival_event.id = rival.event_id
      JOIN ledger_source rival_source ON rival_source.id = rival_event.source_id
      WHERE rival.identity_id = quota.identity_id AND rival.layer = quota.layer AND rival.resource = quota.resource
        AND rival.starts_at = quota.starts_at AND rival.pool_id IS NOT DISTINCT FROM quota.pool_id
        AND rival.service_id IS NOT DISTINCT FROM quota.service_id
        AND (rival_source.uri, rival_event.event_id) > (source.uri, event.event_id))
ORDER BY 1, 2, 3, 4, 5, quota.starts_at DESC, source.uri DESC, event.event_id DESC
ON CONFLICT (tenant_id, layer, resource, pool_id, service_id) DO UPDATE SET
    limit_milli = excluded.limit_milli, used_milli = excluded.used_milli, as_of = excluded.as_of
WHERE kept.as_of <= excluded.as_of
"""

# Tokens that shared services gave, added to what the contracts of their month have used. Rows are locked in order.
MOVE_TOKENS = """
WITH used AS MATERIALIZED (
    SELECT coalesce(slug_holder.id, mapping.tenant_id) AS tenant_id, stage.hour,
           sum(stage.input_tokens + stage.output_tokens) AS tokens
    FROM stage_hour stage
    JOIN ledger_identity identity ON identity.id = stage.identity_id
    LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
    LEFT JOIN ledger_identitymapping mapping
        ON mapping.identity_id = identity.id AND mapping.validity @> stage.hour
    WHERE stage.service_id IS NOT NULL
    GROUP BY 1, 2
), locked AS MATERIALIZED (
    SELECT id, tenant_id, starts_at, ends_at FROM ledger_quotastanding
    WHERE layer = 'contract' AND tenant_id IN (SELECT tenant_id FROM used WHERE tokens <> 0)
    ORDER BY id FOR UPDATE
), part AS (
    SELECT locked.id, sum(used.tokens) AS tokens, max(used.hour) AS last_hour
    FROM locked JOIN used ON used.tenant_id = locked.tenant_id
        AND used.hour >= locked.starts_at AND used.hour < locked.ends_at
    GROUP BY locked.id
)
UPDATE ledger_quotastanding kept
SET used_milli = kept.used_milli + part.tokens * 1000, as_of = greatest(kept.as_of, part.last_hour)
FROM part WHERE part.id = kept.id
"""
