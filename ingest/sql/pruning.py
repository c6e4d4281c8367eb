"""Archiving and dropping a day's partition of requests."""

from datetime import date

from psycopg import sql

from ingest.sql.requests import partition_name

# Days that have a partition, oldest first.
DAYS = """
SELECT to_date(right(child.relname, 8), 'YYYYMMDD') FROM pg_inherits
JOIN pg_class child ON child.oid = inhrelid WHERE inhparent = 'ledger_request'::regclass ORDER BY 1
"""

# A row with its names instead of ids, so that the file can be read without this database; in the key's order.
ARCHIVE = """
COPY (
    SELECT r.day, source.uri AS source, r.event_id, encode(r.content_hash, 'hex') AS content_hash, r.booking_id, r.line,
           r.type, r.starts_at AT TIME ZONE 'UTC' AS starts_at, r.ends_at AT TIME ZONE 'UTC' AS ends_at,
           r.queued_at AT TIME ZONE 'UTC' AS queued_at, pool.slug AS pool, identity.kind AS identity_kind,
           identity.value AS identity_value, holder.slug AS service, model.name AS model, r.workload, r.request,
           r.attempt, r.outcome, r.service_class, r.requests, r.input_tokens, r.cached_input_tokens,
           r.cache_write_tokens, r.output_tokens, r.reasoning_tokens, r.gpu_us, r.prefill_gpu_us, r.concurrency_us,
           r.preemptions, r.recomputed_tokens, r.recompute_gpu_us, r.attributes
    FROM ledger_request r
    JOIN ledger_source source ON source.id = r.source_id
    JOIN ledger_pool pool ON pool.id = r.pool_id
    JOIN ledger_modelname model ON model.id = r.model_id
    LEFT JOIN ledger_identity identity ON identity.id = r.identity_id
    LEFT JOIN ledger_holder holder ON holder.id = r.service_id
    WHERE r.day = %(day)s
    ORDER BY source.uri, r.event_id
) TO STDOUT (FORMAT csv, HEADER)
"""

BY_BOOKING = "SELECT booking_id, count(*) FROM ledger_request WHERE day = %(day)s GROUP BY 1 ORDER BY 1"


def lock_partition(day: date) -> sql.Composed:
    """Nobody books into the day any more, until the transaction ends."""
    return sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(partition_name(day)))


def drop_partition(day: date) -> list[sql.Composed]:
    name = sql.Identifier(partition_name(day))
    return [
        sql.SQL("ALTER TABLE ledger_request DETACH PARTITION {}").format(name),
        sql.SQL("DROP TABLE {}").format(name),
    ]
