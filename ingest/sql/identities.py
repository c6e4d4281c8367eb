"""Identities that no mapping covers where they have facts (domain.md section 3)."""

# Facts by identity and pool. A fact counts where it begins; requests are read from their roll-up.
_FACTS = """
    SELECT identity_id, pool_id, starts_at AS at, 1 AS levels, 0::bigint AS requests, 0 AS preemptions
    FROM ledger_level WHERE identity_id IN (SELECT id FROM asked)
    UNION ALL
    SELECT identity_id, pool_id, hour, 0, requests, 0
    FROM ledger_usagehour WHERE identity_id IN (SELECT id FROM asked)
    UNION ALL
    SELECT victim_identity_id, pool_id, decided_at, 0, 0, 1
    FROM ledger_preemptionreport WHERE victim_identity_id IN (SELECT id FROM asked)
    UNION ALL
    SELECT preemptor_identity_id, pool_id, decided_at, 0, 0, 1
    FROM ledger_preemptionreport WHERE preemptor_identity_id IN (SELECT id FROM asked)
"""

# Most identities are mapped for ever and cost nothing here; kinds `tenant` and `service` resolve to themselves. Of the
# few others, levels and reports are read by their indexes on the identity. What is held on past a mapping's end belongs
# to nobody from then on, too (level_of_subject finds the level that ended it).
_UNCOVERED = f"""
WITH asked AS MATERIALIZED (
    SELECT id, kind, value, first_seen_at FROM ledger_identity identity
    WHERE kind NOT IN ('tenant', 'service')
      AND NOT EXISTS (SELECT 1 FROM ledger_identitymapping mapping WHERE mapping.identity_id = identity.id
                      AND lower_inf(mapping.validity) AND upper_inf(mapping.validity))
), outlasting AS (
    SELECT level.identity_id, level.pool_id, upper(ended.validity) AS at
    FROM asked
    JOIN ledger_identitymapping ended ON ended.identity_id = asked.id AND upper(ended.validity) <= now()
    JOIN ledger_level level ON level.identity_id = asked.id AND level.milli_gpus > 0
        AND level.starts_at < upper(ended.validity)
        AND (level.ends_at IS NULL OR level.ends_at > upper(ended.validity))
    WHERE NOT EXISTS (SELECT 1 FROM ledger_level later
                      WHERE later.pool_id = level.pool_id AND later.kind = level.kind
                        AND later.subject = level.subject AND later.attempt >= level.attempt
                        AND later.starts_at > level.starts_at AND later.starts_at <= upper(ended.validity))
), fact AS (
    SELECT * FROM (
        {_FACTS}
        UNION ALL SELECT identity_id, pool_id, at, 1, 0, 0 FROM outlasting
    ) all_facts
    WHERE NOT EXISTS (SELECT 1 FROM ledger_identitymapping mapping
                      WHERE mapping.identity_id = all_facts.identity_id AND mapping.validity @> all_facts.at)
)
"""
UNMAPPED = f"""{_UNCOVERED}
SELECT asked.kind, asked.value, asked.first_seen_at, array_agg(DISTINCT pool.slug ORDER BY pool.slug),
       sum(fact.levels)::bigint, sum(fact.requests)::bigint, sum(fact.preemptions)::bigint,
       min(fact.at), max(fact.at)
FROM fact JOIN asked ON asked.id = fact.identity_id JOIN ledger_pool pool ON pool.id = fact.pool_id
GROUP BY asked.id, asked.kind, asked.value, asked.first_seen_at
ORDER BY max(fact.at) DESC, asked.kind, asked.value
LIMIT %(limit)s OFFSET %(offset)s
"""
COUNT_UNMAPPED = f"{_UNCOVERED} SELECT count(DISTINCT identity_id) FROM fact"

# What a mapping during [lower, upper) gives to its tenant, by pool.
FACTS_OF_IDENTITY = f"""
WITH asked AS (SELECT %(identity)s::bigint AS id)
SELECT pool.slug, sum(fact.levels)::bigint, sum(fact.requests)::bigint, sum(fact.preemptions)::bigint,
       min(fact.at), max(fact.at)
FROM ({_FACTS}) fact JOIN ledger_pool pool ON pool.id = fact.pool_id
WHERE tstzrange(%(lower)s, %(upper)s, '[)') @> fact.at
GROUP BY pool.slug ORDER BY pool.slug
"""
