"""Set-based statements of computing the books. Each is static with bound parameters; the comment names its index."""

# Dirty time of a month, one row per span (index dirty_span_when). Locked, so that taking it away is exact.
DIRTY_SPANS = """
SELECT id, pool_id, greatest(coalesce(lower(span), %(from)s), %(from)s), least(coalesce(upper(span), %(to)s), %(to)s)
FROM ledger_dirtyspan
WHERE span && tstzrange(%(from)s, %(to)s, '[)') AND (%(pool)s::bigint IS NULL OR pool_id = %(pool)s)
FOR UPDATE
"""

# What a span says about other months stays; spans of one pool are merged on the way (primary key).
REMOVE_DIRTY_SPANS = """
WITH taken AS (
    DELETE FROM ledger_dirtyspan WHERE id = ANY(%(ids)s) RETURNING pool_id, span
), rest AS (
    SELECT pool_id, range_agg(span) - tstzmultirange(tstzrange(%(from)s, %(to)s, '[)')) AS spans
    FROM taken GROUP BY pool_id
)
INSERT INTO ledger_dirtyspan (pool_id, span) SELECT pool_id, unnest(spans) FROM rest
"""

# Level facts of a pool that matter in [from, to): the opening level of whatever may be held at `from` (subjects by
# subject_last and subject_open, their latest level by level_of_subject), and every change after it (level_sweep). A
# capacity of 0 is known, unlike none at all. An attempt that a higher one has ended by `from` matters no more, if a
# level of that one counts: asked for each of the few that are left (subject_key), as a value, so that no plan joins all
# subjects for it. LIVE and FACTS are two tables, of one snapshot, that name subjects by their texts: joining the
# changes to their subjects takes the server longer than handing them over.
LEVELS = """
WITH near AS MATERIALIZED (
    SELECT id, kind, subject, attempt, first_at FROM ledger_subject
    WHERE pool_id = %(pool)s AND kind IN (1, 2, 3)
      AND first_at < %(to)s AND (last_at >= %(from)s OR last_milli_gpus > 0 OR kind = 1)
), live AS MATERIALIZED (
    SELECT id, kind, subject, attempt, first_at FROM near s
    WHERE kind <> 3 OR (
        SELECT true FROM ledger_subject higher
        WHERE higher.pool_id = %(pool)s AND higher.kind = 3 AND higher.subject = s.subject
          AND higher.attempt > s.attempt AND higher.first_at <= %(from)s
          AND EXISTS (
              SELECT 1 FROM ledger_level l
              WHERE l.pool_id = %(pool)s AND l.kind = 3 AND l.subject = s.subject AND l.attempt = higher.attempt
                AND l.starts_at <= %(from)s AND l.event_id <> ALL(%(void)s))
        LIMIT 1) IS NULL
), fact AS (
    SELECT level.*
    FROM live
    CROSS JOIN LATERAL (
        SELECT l.* FROM ledger_level l
        WHERE l.pool_id = %(pool)s AND l.kind = live.kind AND l.subject = live.subject
          AND l.attempt = live.attempt AND l.starts_at <= %(from)s AND l.event_id <> ALL(%(void)s)
        ORDER BY l.starts_at DESC FETCH FIRST 1 ROW WITH TIES
    ) level
    WHERE live.first_at <= %(from)s
    UNION ALL
    SELECT * FROM ledger_level
    WHERE pool_id = %(pool)s AND starts_at > %(from)s AND starts_at < %(to)s AND kind IN (1, 2, 3)
      AND event_id <> ALL(%(void)s)
)
"""

# `number` counts subjects in byte order of their ids.
LIVE = (
    "SELECT kind, subject, attempt, dense_rank() OVER (ORDER BY kind, subject), id FROM live",
    {"kind": "smallint", "subject": "text", "attempt": "integer", "number": "bigint", "id": "bigint"},
)

# What is small is packed into one number, since every column costs as much as any other: from the lowest bits kind (3),
# lendable (1), whether there are attributes (1); from bit 8 service class * 8 + purpose (8); from bit 32 the attempt.
FACTS = (
    """
    SELECT (attempt::bigint << 32) | (service_class::bigint << 11) | (purpose << 8)
               | ((attributes IS NOT NULL)::int << 4) | (lendable::int << 3) | kind,
           subject, starts_at, milli_gpus, coalesce(identity_id, -1), coalesce(ends_at, 'infinity'), event_id
    FROM fact
    """,
    {
        "packed": "bigint",
        "subject": "text",
        "time_ms": "timestamptz",
        "milli": "bigint",
        "who": "bigint",
        "ends_ms": "timestamptz",
        "event": "bigint",
    },
)

# (source, id) of the few events that share subject and instant with another (primary key).
EVENT_KEYS = """
SELECT event.id, source.uri, event.event_id FROM ledger_event event
JOIN ledger_source source ON source.id = event.source_id WHERE event.id = ANY(%(events)s)
"""

# GPUs of preempted work that waits for the pool (index preemption_wait_when).
WAITS = """
SELECT id, holder_id, milli_gpus, starts_at, coalesce(ends_at, 'infinity') FROM billing_preemptionwait
WHERE pool_id = %(pool)s AND starts_at < %(to)s AND coalesce(ends_at, 'infinity') > %(from)s
  AND starts_at < coalesce(ends_at, 'infinity') AND milli_gpus > 0
"""
WAIT_COLUMNS = {
    "subject": "bigint",
    "holder": "bigint",
    "milli": "bigint",
    "starts_ms": "timestamptz",
    "ends_ms": "timestamptz",
}

# Requests served for services, by hour (key usage_hour_key, whose first columns are pool and hour).
USAGE_HOURS = """
SELECT hour, service_id, coalesce(identity_id, -1), model_id,
       sum(gpu_us)::bigint, sum(concurrency_us)::bigint, sum(input_tokens)::bigint,
       sum(cached_input_tokens)::bigint, sum(output_tokens)::bigint,
       sum(gpu_missing)::bigint, sum(input_missing + output_missing)::bigint
FROM ledger_usagehour
WHERE pool_id = %(pool)s AND hour >= %(from)s AND hour < %(to)s AND service_id IS NOT NULL
GROUP BY 1, 2, 3, 4
"""
USAGE_COLUMNS = {
    "time_ms": "timestamptz",
    "service": "bigint",
    "who": "bigint",
    "model": "bigint",
    "gpu_us": "bigint",
    "concurrency_us": "bigint",
    "input_tokens": "bigint",
    "cached_input_tokens": "bigint",
    "output_tokens": "bigint",
    "gpu_missing": "bigint",
    "tokens_missing": "bigint",
}

# The same for one slot [from, to) inside an hour, straight from the requests of its days (partitions by day): a
# request counts by its finish, a usage event by its start, time in flight by its overlap with the slot. What a
# correction took out of force does not count.
USAGE_OF_SLOT = """
WITH touching AS (
    SELECT *, CASE type WHEN 8 THEN starts_at ELSE ends_at END AS counts_at,
           greatest(least(ends_at, %(to)s) - greatest(starts_at, %(from)s), interval '0') AS overlap
    FROM ledger_request
    WHERE day >= (%(from)s AT TIME ZONE 'UTC')::date AND day <= (%(to)s AT TIME ZONE 'UTC')::date + 1
      AND pool_id = %(pool)s AND service_id IS NOT NULL AND starts_at < %(to)s AND ends_at >= %(from)s
      AND NOT EXISTS (
          SELECT 1 FROM unnest(%(void_sources)s::bigint[], %(void_ids)s::text[]) AS void(source_id, event_id)
          WHERE void.source_id = ledger_request.source_id AND void.event_id = ledger_request.event_id)
)
SELECT %(from)s::timestamptz, service_id, coalesce(identity_id, -1), model_id,
       coalesce(sum(gpu_us) FILTER (WHERE counts), 0)::bigint,
       sum(CASE WHEN type = 8 THEN CASE WHEN counts THEN coalesce(concurrency_us, 0) ELSE 0 END
                ELSE (extract(epoch FROM overlap) * 1000000)::bigint END)::bigint,
       coalesce(sum(input_tokens) FILTER (WHERE counts), 0)::bigint,
       coalesce(sum(cached_input_tokens) FILTER (WHERE counts), 0)::bigint,
       coalesce(sum(output_tokens) FILTER (WHERE counts), 0)::bigint,
       coalesce(sum(requests) FILTER (WHERE counts AND gpu_us IS NULL), 0)::bigint,
       coalesce(sum(requests) FILTER (WHERE counts AND (input_tokens IS NULL OR output_tokens IS NULL)), 0)::bigint
FROM (SELECT *, counts_at >= %(from)s AND counts_at < %(to)s AS counts FROM touching) request
GROUP BY service_id, identity_id, model_id
"""

# UTC days that the statement above reads for all slots inside an hour. Reads every slot once.
DAYS_OF_CUT_SLOTS = """
SELECT DISTINCT day::date
FROM billing_poolslot s, generate_series(
    (s.starts_at AT TIME ZONE 'UTC')::date, (s.ends_at AT TIME ZONE 'UTC')::date + 1, interval '1 day') day
WHERE s.starts_at <> date_trunc('hour', s.starts_at, 'UTC') OR s.ends_at - s.starts_at <> interval '1 hour'
"""

# Whose identities are, in all time: reserved kinds stand for themselves, the rest is mapped (primary keys).
IDENTITIES = """
SELECT identity.id, holder.id, NULL, NULL
FROM ledger_identity identity JOIN ledger_holder holder ON holder.slug = identity.value
WHERE identity.id = ANY(%(identities)s) AND identity.kind IN ('tenant', 'service')
UNION ALL
SELECT identity_id, tenant_id, lower(validity), upper(validity)
FROM ledger_identitymapping WHERE identity_id = ANY(%(identities)s)
"""

# Emptied for every pool and run. event_id: of the level whose attributes describe the workload, or 0.
CREATE_WORKLOAD_STAGE = """
CREATE TEMP TABLE IF NOT EXISTS workload_day (
    pool_id bigint, starts_at timestamptz, holder_id bigint, subject_id bigint, event_id bigint, kind_of smallint,
    reserved_used bigint, on_demand bigint, borrowed bigint, excess bigint
) ON COMMIT DROP
"""
EMPTY_WORKLOAD_STAGE = "TRUNCATE workload_day"

# What a workload is called, and by whom and why it runs, is looked up row by row (primary key of the subject;
# level_once_per_event): a plan for the whole tables would read all of them for one pool and run.
WRITE_WORKLOAD_DAYS = """
INSERT INTO billing_workloadday (
    pool_id, starts_at, holder_id, workload, attempt, name, "user", labels, service_class, purpose,
    reserved_used_gpu_us, on_demand_gpu_us, borrowed_gpu_us, excess_gpu_us)
SELECT day.pool_id, day.starts_at, day.holder_id, subject.subject, subject.attempt,
       coalesce(latest.attributes->>'name', ''), coalesce(latest.attributes->>'user', ''), latest.attributes->'labels',
       day.kind_of / 8, mod(day.kind_of, 8), day.reserved_used, day.on_demand, day.borrowed, day.excess
FROM workload_day day
CROSS JOIN LATERAL (SELECT subject, attempt FROM ledger_subject WHERE id = day.subject_id LIMIT 1) subject
LEFT JOIN LATERAL (
    SELECT attributes FROM ledger_level
    WHERE day.event_id > 0 AND pool_id = day.pool_id AND event_id = day.event_id LIMIT 1
) latest ON true
"""

# Requests and tokens of every tenant by segments of a run of days (key usage_hour_key, whose first columns are pool and
# hour). An identity belongs to whom the mapping says in that hour.
WRITE_TOKEN_DAYS = """
INSERT INTO billing_tokenday (
    pool_id, starts_at, tenant_id, model_id, served, requests, input_tokens, cached_input_tokens, output_tokens,
    reasoning_tokens)
SELECT hour.pool_id, segment.starts_at, coalesce(slug_holder.id, mapping.tenant_id), hour.model_id,
       hour.service_id IS NOT NULL, sum(hour.requests)::bigint, sum(hour.input_tokens)::bigint,
       sum(hour.cached_input_tokens)::bigint, sum(hour.output_tokens)::bigint, sum(hour.reasoning_tokens)::bigint
FROM unnest(%(starts)s::timestamptz[], %(ends)s::timestamptz[]) AS segment(starts_at, ends_at)
JOIN ledger_usagehour hour
    ON hour.pool_id = %(pool)s AND hour.hour >= segment.starts_at AND hour.hour < segment.ends_at
JOIN ledger_identity identity ON identity.id = hour.identity_id
LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> hour.hour
WHERE coalesce(slug_holder.id, mapping.tenant_id) IS NOT NULL
GROUP BY 1, 2, 3, 4, 5
"""

# Rows of [from, to) go before new ones come, in the same transaction (primary keys: pool, starts_at).
DELETE_SLOTS = [
    f"DELETE FROM {table} WHERE pool_id = %(pool)s AND starts_at >= %(from)s AND starts_at < %(to)s"
    for table in (
        "billing_poolslot",
        "billing_allocation",
        "billing_lendingday",
        "billing_workloadday",
        "billing_tokenday",
        "billing_countedtokens",
        "billing_countedday",
    )
]

# The same of what is added up by day; says whose rows they were (primary key).
DELETE_DAYS = """
WITH gone AS (
    DELETE FROM billing_allocationday WHERE pool_id = %(pool)s AND starts_at >= %(from)s AND starts_at < %(to)s
    RETURNING account_id
)
SELECT DISTINCT account_id FROM gone
"""

# Tenants among accounts (primary key).
TENANTS_OF_ACCOUNTS = """
SELECT tenant_id FROM ledger_account WHERE id = ANY(%(accounts)s) AND tenant_id IS NOT NULL
"""

# A month's days of all tenants, or of some (primary key).
DELETE_TENANT_MONTHS = """
DELETE FROM billing_tenantmonth
WHERE period_id = %(month)s AND (%(tenants)s::bigint[] IS NULL OR tenant_id = ANY(%(tenants)s))
"""
