"""Set-based reads of the record. One static statement each, with bound parameters."""

# Workloads that hold GPUs now by the word of one of `sources`: the last level of the newest attempt. Only subjects that
# can still hold something are looked at (subject_last), each with one look per attempt at level_of_subject. A
# withdrawn or replaced fact does not count, and a higher attempt has ended lower ones (domain.md section 3).
OPEN_HOLDERS = """
WITH candidate AS (
    SELECT DISTINCT pool_id, subject FROM ledger_subject
    WHERE kind = 3 AND first_at <= %(now)s AND (last_milli_gpus > 0 OR last_at >= %(now)s)
), newest AS (
    SELECT DISTINCT ON (s.pool_id, s.subject) level.*
    FROM candidate
    JOIN ledger_subject s ON s.pool_id = candidate.pool_id AND s.kind = 3 AND s.subject = candidate.subject
        AND s.first_at <= %(now)s
    CROSS JOIN LATERAL (
        SELECT l.id, l.pool_id, l.subject, l.attempt, l.starts_at, l.milli_gpus, l.identity_id, event.source_id
        FROM ledger_level l
        JOIN ledger_event event ON event.id = l.event_id
        JOIN ledger_source source ON source.id = event.source_id
        WHERE l.pool_id = s.pool_id AND l.kind = 3 AND l.subject = s.subject AND l.attempt = s.attempt
          AND l.starts_at <= %(now)s
          AND NOT EXISTS (SELECT 1 FROM ledger_correction correction
                          WHERE correction.supersedes_event_id = event.event_id
                            AND correction.supersedes_source = source.uri)
        ORDER BY l.starts_at DESC, source.uri DESC, event.event_id DESC LIMIT 1
    ) level
    ORDER BY s.pool_id, s.subject, s.attempt DESC
)
SELECT newest.source_id, pool.slug, newest.subject, newest.attempt, newest.starts_at, newest.milli_gpus,
       identity.kind, identity.value
FROM newest
JOIN ledger_pool pool ON pool.id = newest.pool_id
JOIN ledger_identity identity ON identity.id = newest.identity_id
WHERE newest.milli_gpus > 0 AND newest.source_id = ANY(%(sources)s)
ORDER BY newest.source_id, pool.slug, newest.subject
"""
