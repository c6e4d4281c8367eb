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
          AND l.starts_at <= %(now)s AND l.event_id <> ALL(%(void)s)
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

# Requests that look like one delivered before under another id: same holder, model, service, request id, attempt and
# tokens, begun within %(within)s of the one before. The first of a group is none. Candidates are found by the request
# id alone, so that only the few that share one are sorted. Reads the partitions of the window's days.
SUSPECTED_DUPLICATES = """
WITH shared AS (
    SELECT request FROM ledger_request
    WHERE day >= %(first)s AND day <= %(last)s AND type = 7
    GROUP BY request HAVING count(*) > 1
), looked_at AS (
    SELECT r.pool_id, r.ends_at, r.starts_at, r.request, source.uri, r.event_id,
           lag(source.uri) OVER same AS before_source, lag(r.event_id) OVER same AS before_id,
           lag(r.starts_at) OVER same AS before_at
    FROM ledger_request r JOIN shared USING (request) JOIN ledger_source source ON source.id = r.source_id
    WHERE r.day >= %(first)s AND r.day <= %(last)s AND r.type = 7
      AND NOT EXISTS (
          SELECT 1 FROM unnest(%(void_sources)s::bigint[], %(void_ids)s::text[]) AS void(source_id, event_id)
          WHERE void.source_id = r.source_id AND void.event_id = r.event_id)
    WINDOW same AS (
        PARTITION BY r.request, r.attempt, r.identity_id, r.service_id, r.model_id, r.input_tokens, r.output_tokens
        ORDER BY r.starts_at, r.ends_at, source.uri, r.event_id)
)
SELECT pool_id, ends_at, request, uri, event_id, before_source, before_id FROM looked_at
WHERE before_id IS NOT NULL AND starts_at - before_at <= %(within)s AND ends_at >= %(from)s AND ends_at < %(to)s
ORDER BY ends_at, uri, event_id
"""
