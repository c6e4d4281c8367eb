"""Requests: daily partitions, known keys, and the hourly roll-up."""

from datetime import date, timedelta

from psycopg import sql

PARTITIONS = """
SELECT child.relname FROM pg_inherits
JOIN pg_class child ON child.oid = inhrelid
WHERE inhparent = 'ledger_request'::regclass AND child.relname = ANY(%(names)s)
"""


def partition_name(day: date) -> str:
    return f"ledger_request_{day:%Y%m%d}"


def create_partition(day: date) -> list[sql.Composed]:
    """Make a day's partition apart and attach it: creating it in place would lock out every reader until the commit."""
    name = sql.Identifier(partition_name(day))
    bounds = [sql.Literal(edge.isoformat()) for edge in (day, day + timedelta(days=1))]
    return [
        sql.SQL("CREATE TABLE {} (LIKE ledger_request INCLUDING ALL)").format(name),
        sql.SQL("ALTER TABLE ledger_request ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
            name, *bounds
        ),
        # The guard of its rows came with the table it belongs to; that against TRUNCATE is each table's own.
        sql.SQL(
            "CREATE TRIGGER never_emptied BEFORE TRUNCATE ON {} "
            "FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_emptying()"
        ).format(name),
    ]


STAGES = """
CREATE TEMP TABLE IF NOT EXISTS stage_request_key (
    n integer NOT NULL, day date NOT NULL, source_id bigint NOT NULL, content_hash bytea NOT NULL,
    event_id text COLLATE "C" NOT NULL
) ON COMMIT DELETE ROWS;
CREATE TEMP TABLE IF NOT EXISTS stage_hour (
    pool_id bigint, hour timestamptz, identity_id bigint, service_id bigint, model_id bigint,
    service_class smallint, outcome smallint, requests bigint, input_tokens bigint, input_missing bigint,
    cached_input_tokens bigint, cached_missing bigint, cache_write_tokens bigint, output_tokens bigint,
    output_missing bigint, reasoning_tokens bigint, gpu_us bigint, gpu_missing bigint, concurrency_us bigint,
    preemptions bigint, recomputed_tokens bigint, recompute_gpu_us bigint
) ON COMMIT DELETE ROWS;
"""

# What is booked between the first and the last key of some rows of one day and source: hashes and ids in order of the
# ids, behind one another, as `Requests.contents` puts together what comes. Cheap where keys are consecutive, which is
# why it stops behind as many rows as came.
BOOKED_CONTENTS = """
SELECT coalesce((
    SELECT string_agg(
        content_hash || int4send(octet_length(event_id)) || convert_to(event_id, 'UTF8'), ''::bytea)
    FROM (
        SELECT r.event_id, r.content_hash FROM ledger_request r
        WHERE r.day = part.day AND r.source_id = part.source_id
            AND r.event_id >= part.first_id AND r.event_id <= part.last_id
        ORDER BY r.event_id LIMIT part.rows + 1
    ) booked
), ''::bytea)
FROM unnest(%(days)s::date[], %(sources)s::bigint[], %(firsts)s::text[], %(lasts)s::text[], %(rows)s::integer[])
    WITH ORDINALITY AS part (day, source_id, first_id, last_id, rows, n)
ORDER BY n
"""

# Staged rows whose key is not booked, or with other content and its hash: for repeats, nothing. One probe of a
# partition's primary key each: LATERAL with LIMIT keeps the planner from reading whole partitions for want of
# statistics on the stage.
NEW_OR_DIFFERENT = """
SELECT stage.n, booked.content_hash
FROM stage_request_key stage
LEFT JOIN LATERAL (
    SELECT content_hash FROM ledger_request r
    WHERE r.day = stage.day AND r.source_id = stage.source_id AND r.event_id = stage.event_id
    LIMIT 1
) booked ON true
WHERE booked.content_hash IS DISTINCT FROM stage.content_hash
"""

ALL_DAYS = """
SELECT to_date(right(child.relname, 8), 'YYYYMMDD') FROM pg_inherits
JOIN pg_class child ON child.oid = inhrelid WHERE inhparent = 'ledger_request'::regclass
"""

# Takes requests that no longer count out of the roll-up again: those that this booking brought although they are void,
# and earlier ones that it voids. Earlier ones that count again come back. The arithmetic is that of core.request_rows;
# a test holds the two together.
WITHDRAW = """
WITH moved AS (
    SELECT r.*, CASE WHEN stage_void.is_void THEN -1 ELSE 1 END AS sign FROM stage_void
    JOIN ledger_request r ON r.day = ANY(%(days)s) AND r.source_id = stage_void.source_id
        AND r.event_id = stage_void.event_id
    WHERE CASE WHEN r.booking_id = %(booking)s THEN stage_void.is_void
               ELSE %(earlier)s AND stage_void.was_void <> stage_void.is_void END
)
INSERT INTO stage_hour
SELECT pool_id, date_trunc('hour', CASE WHEN type = 8 THEN starts_at ELSE ends_at END, 'UTC'), identity_id, service_id,
       model_id, service_class, outcome, sign * requests, sign * coalesce(input_tokens, 0),
       CASE WHEN input_tokens IS NULL THEN sign * greatest(requests, 1) ELSE 0 END,
       sign * coalesce(cached_input_tokens, 0),
       CASE WHEN cached_input_tokens IS NULL THEN sign * greatest(requests, 1) ELSE 0 END,
       sign * coalesce(cache_write_tokens, 0), sign * coalesce(output_tokens, 0),
       CASE WHEN output_tokens IS NULL THEN sign * greatest(requests, 1) ELSE 0 END,
       sign * coalesce(reasoning_tokens, 0), sign * coalesce(gpu_us, 0),
       CASE WHEN gpu_us IS NULL THEN sign * greatest(requests, 1) ELSE 0 END,
       CASE WHEN type = 8 THEN sign * coalesce(concurrency_us, 0) ELSE 0 END,
       sign * coalesce(preemptions, 0), sign * coalesce(recomputed_tokens, 0), sign * coalesce(recompute_gpu_us, 0)
FROM moved
UNION ALL
SELECT pool_id, hour, identity_id, service_id, model_id, service_class, outcome, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
       sign * (1000000 * extract(epoch FROM
           least(ends_at, hour + interval '1 hour') - greatest(starts_at, hour)))::bigint,
       0, 0, 0
FROM moved, generate_series(date_trunc('hour', starts_at, 'UTC'), ends_at, interval '1 hour') AS hour
WHERE type = 7
"""

# The roll-up moves with its rows. In order of the key usage_hour_key, so that bookings queue up and never deadlock.
MERGE_HOURS = """
INSERT INTO ledger_usagehour AS kept (
    pool_id, hour, identity_id, service_id, model_id, service_class, outcome, requests, input_tokens, input_missing,
    cached_input_tokens, cached_missing, cache_write_tokens, output_tokens, output_missing, reasoning_tokens,
    gpu_us, gpu_missing, concurrency_us, preemptions, recomputed_tokens, recompute_gpu_us)
SELECT pool_id, hour, identity_id, service_id, model_id, service_class, outcome,
       sum(requests), sum(input_tokens), sum(input_missing), sum(cached_input_tokens), sum(cached_missing),
       sum(cache_write_tokens), sum(output_tokens), sum(output_missing), sum(reasoning_tokens),
       sum(gpu_us), sum(gpu_missing), sum(concurrency_us), sum(preemptions), sum(recomputed_tokens),
       sum(recompute_gpu_us)
FROM stage_hour
GROUP BY 1, 2, 3, 4, 5, 6, 7
ORDER BY 1, 2, 3, 4, 5, 6, 7
ON CONFLICT (pool_id, hour, identity_id, service_id, model_id, service_class, outcome) DO UPDATE SET
    requests = kept.requests + excluded.requests,
    input_tokens = kept.input_tokens + excluded.input_tokens,
    input_missing = kept.input_missing + excluded.input_missing,
    cached_input_tokens = kept.cached_input_tokens + excluded.cached_input_tokens,
    cached_missing = kept.cached_missing + excluded.cached_missing,
    cache_write_tokens = kept.cache_write_tokens + excluded.cache_write_tokens,
    output_tokens = kept.output_tokens + excluded.output_tokens,
    output_missing = kept.output_missing + excluded.output_missing,
    reasoning_tokens = kept.reasoning_tokens + excluded.reasoning_tokens,
    gpu_us = kept.gpu_us + excluded.gpu_us,
    gpu_missing = kept.gpu_missing + excluded.gpu_missing,
    concurrency_us = kept.concurrency_us + excluded.concurrency_us,
    preemptions = kept.preemptions + excluded.preemptions,
    recomputed_tokens = kept.recomputed_tokens + excluded.recomputed_tokens,
    recompute_gpu_us = kept.recompute_gpu_us + excluded.recompute_gpu_us
"""

DIRTY_HOURS = """
INSERT INTO ledger_dirtyspan (pool_id, span)
SELECT pool_id, unnest(range_agg(DISTINCT tstzrange(hour, hour + interval '1 hour')))
FROM stage_hour GROUP BY pool_id
"""
