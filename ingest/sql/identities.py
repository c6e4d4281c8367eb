"""Identities that no mapping covers where they have facts (domain.md section 3)."""

# Facts of an identity by pool, outside of its mappings; kinds `tenant` and `service` resolve to themselves. Levels are
# read by level's index on identity, requests from their roll-up. A fact counts where it begins.
_FACTS = """
    SELECT identity_id, pool_id, starts_at AS at, 1 AS levels, 0::bigint AS requests, 0 AS preemptions
    FROM ledger_level WHERE identity_id IS NOT NULL
    UNION ALL
    SELECT identity_id, pool_id, hour, 0, requests, 0 FROM ledger_usagehour WHERE identity_id IS NOT NULL
    UNION ALL
    SELECT victim_identity_id, pool_id, decided_at, 0, 0, 1 FROM ledger_preemptionreport
    UNION ALL
    SELECT preemptor_identity_id, pool_id, decided_at, 0, 0, 1 FROM ledger_preemptionreport
    WHERE preemptor_identity_id IS NOT NULL
"""
UNMAPPED = f"""
SELECT identity.kind, identity.value, identity.first_seen_at, array_agg(DISTINCT pool.slug ORDER BY pool.slug),
       sum(fact.levels)::bigint, sum(fact.requests)::bigint, sum(fact.preemptions)::bigint,
       min(fact.at), max(fact.at)
FROM ({_FACTS}) fact
JOIN ledger_identity identity ON identity.id = fact.identity_id
JOIN ledger_pool pool ON pool.id = fact.pool_id
WHERE identity.kind NOT IN ('tenant', 'service')
  AND NOT EXISTS (SELECT 1 FROM ledger_identitymapping mapping
                  WHERE mapping.identity_id = identity.id AND mapping.validity @> fact.at)
GROUP BY identity.id
ORDER BY max(fact.at) DESC, identity.kind, identity.value
LIMIT %(limit)s OFFSET %(offset)s
"""
COUNT_UNMAPPED = f"""
SELECT count(DISTINCT fact.identity_id) FROM ({_FACTS}) fact
JOIN ledger_identity identity ON identity.id = fact.identity_id
WHERE identity.kind NOT IN ('tenant', 'service')
  AND NOT EXISTS (SELECT 1 FROM ledger_identitymapping mapping
                  WHERE mapping.identity_id = identity.id AND mapping.validity @> fact.at)
"""

# What a mapping during [lower, upper) gives to its tenant, by pool.
FACTS_OF_IDENTITY = f"""
SELECT pool.slug, sum(fact.levels)::bigint, sum(fact.requests)::bigint, sum(fact.preemptions)::bigint,
       min(fact.at), max(fact.at)
FROM ({_FACTS}) fact JOIN ledger_pool pool ON pool.id = fact.pool_id
WHERE fact.identity_id = %(identity)s AND tstzrange(%(lower)s, %(upper)s, '[)') @> fact.at
GROUP BY pool.slug ORDER BY pool.slug
"""
