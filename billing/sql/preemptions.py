"""Set-based reads behind the preemption records. Static statements with bound parameters."""

# Which preemptions have to be measured again: those decided in [%(from)s, %(to)s) whose pool (or another pool of the
# same GPU model) is dirty anywhere between admission and the end of their waiting, those that still wait, and those
# without a record; with %(everything)s all that were decided in it. Where nobody said when the GPUs were released and
# no drop of the victim's occupancy had told, one that is told now does, however late it is. Dirty time is put together
# per pool first: asked for record by record, its index costs more than everything else. Leans on
# preemption_report_when, preemption_key and level_of_subject.
STALE = """
WITH dirty AS MATERIALIZED (
    SELECT pool.id AS pool_id, pool.cluster, pool.gpu_model, range_agg(span.span) AS spans
    FROM ledger_dirtyspan span JOIN ledger_pool pool ON pool.id = span.pool_id
    GROUP BY pool.id
)
SELECT DISTINCT report.cluster, report.preemption
FROM ledger_preemptionreport report
JOIN ledger_pool pool ON pool.id = report.pool_id
LEFT JOIN billing_preemptionrecord record
    ON record.cluster = report.cluster AND record.preemption = report.preemption
WHERE (report.decided_at < %(to)s OR record.decided_at < %(to)s) AND report.event_id <> ALL(%(void)s) AND (
    record.id IS NULL
    OR (%(everything)s AND report.decided_at >= %(from)s)
    OR (record.waits_until IS NULL AND record.disposition NOT IN ('stopped', 'drained') AND NOT record.queued_only)
    OR (greatest(report.decided_at, record.decided_at, record.waits_until, record.resumed_at) >= %(from)s AND EXISTS (
        SELECT 1 FROM dirty
        WHERE (dirty.cluster = record.cluster OR dirty.gpu_model = pool.gpu_model)
          AND dirty.spans && tstzrange(
              least(report.decided_at, record.admitted_at, record.decided_at),
              greatest(report.decided_at, record.decided_at, record.waits_until, record.resumed_at,
                       record.released_at), '[]')))
    OR (report.released_at IS NULL AND record.released_at = record.decided_at AND EXISTS (
        SELECT 1 FROM dirty
        JOIN ledger_level level
            ON level.pool_id = dirty.pool_id AND level.kind = 3 AND level.subject = report.victim_workload
            AND level.starts_at <@ dirty.spans
        WHERE dirty.pool_id = report.pool_id AND level.starts_at >= record.decided_at))
)
UNION
SELECT record.cluster, record.preemption FROM billing_preemptionrecord record
WHERE record.decided_at < %(to)s AND NOT EXISTS (
    SELECT 1 FROM ledger_preemptionreport report
    WHERE report.cluster = record.cluster AND report.preemption = record.preemption
      AND report.event_id <> ALL(%(void)s))
"""

# Everything that was reported of the asked-for preemptions. Leans on preemption_report_key.
REPORTS = """
WITH wanted AS (SELECT * FROM unnest(%(clusters)s::text[], %(preemptions)s::text[]) AS w(cluster, preemption))
SELECT source.uri, event.event_id, report.cluster, report.preemption, report.decided_at, pool.slug,
       report.milli_gpus, report.cause, report.victim_identity_id, report.victim_workload, report.victim_request,
       report.victim_attempt, report.preemptor_identity_id, report.preemptor_workload, report.preemptor_source,
       report.confidence_ppm, report.admitted_at, report.released_at, report.disposition, report.degrade_trigger,
       report.lost_gpu_us, report.requests_in_flight, report.requests_voided, report.output_tokens_lost,
       report.context_tokens, report.cached_prefix_tokens, report.queued_only
FROM wanted
JOIN ledger_preemptionreport report USING (cluster, preemption)
JOIN ledger_event event ON event.id = report.event_id
JOIN ledger_source source ON source.id = event.source_id
JOIN ledger_pool pool ON pool.id = report.pool_id
WHERE report.event_id <> ALL(%(void)s)
"""

# Work may run again in another cluster. Preemption ids are scoped by cluster, so a resume belongs to the preemption of
# its own cluster if there is one by that id, else to the only one that has it. Leans on resume_report_key.
RESUMES = """
WITH wanted AS (SELECT * FROM unnest(%(clusters)s::text[], %(preemptions)s::text[]) AS w(cluster, preemption))
SELECT source.uri, event.event_id, wanted.cluster, wanted.preemption, resume.resumed_at, pool.slug,
       resume.workload, resume.attempt, resume.recompute_gpu_us, resume.recompute_prefill_tokens
FROM wanted
JOIN ledger_resumereport resume ON resume.preemption = wanted.preemption
JOIN ledger_event event ON event.id = resume.event_id
JOIN ledger_source source ON source.id = event.source_id
JOIN ledger_pool pool ON pool.id = resume.pool_id
WHERE resume.event_id <> ALL(%(void)s) AND (resume.cluster = wanted.cluster OR NOT EXISTS (
    SELECT 1 FROM ledger_preemptionreport other
    WHERE other.preemption = wanted.preemption AND other.cluster <> wanted.cluster
      AND other.event_id <> ALL(%(void)s)))
"""

# All occupancy of the workloads, in every pool of their cluster; leans on level_of_workload.
OCCUPANCY = """
WITH wanted AS (SELECT DISTINCT * FROM unnest(%(clusters)s::text[], %(workloads)s::text[]) AS w(cluster, workload))
SELECT wanted.cluster, wanted.workload, pool.slug, level.attempt, level.starts_at, level.milli_gpus,
       level.workload_kind, level.last_checkpoint_at, level.service_class, level.purpose, source.uri, event.event_id
FROM wanted
JOIN ledger_level level ON level.subject = wanted.workload COLLATE "C" AND level.kind = 3
JOIN ledger_pool pool ON pool.id = level.pool_id AND pool.cluster = wanted.cluster
JOIN ledger_event event ON event.id = level.event_id
JOIN ledger_source source ON source.id = event.source_id
WHERE level.event_id <> ALL(%(void)s)
"""

# Requests of a victim that ended `preempted` while it was taken down, per identity; leans on the partial index
# request_voided, so that it reads those rows only.
VOIDED = """
WITH victim AS (
    SELECT * FROM unnest(%(numbers)s::int[], %(clusters)s::text[], %(workloads)s::text[],
                         %(starts)s::timestamptz[], %(ends)s::timestamptz[])
        AS v(number, cluster, workload, starts_at, ends_at)
)
SELECT victim.number, request.identity_id, sum(request.requests)::bigint, sum(request.gpu_us)::numeric,
       sum(request.requests) FILTER (WHERE request.gpu_us IS NULL) IS NOT NULL AS lacks, max(model.name)
FROM victim
JOIN ledger_request request ON request.workload = victim.workload AND request.outcome = 5
    AND request.ends_at >= victim.starts_at AND request.ends_at <= victim.ends_at
    AND request.day >= (victim.starts_at AT TIME ZONE 'UTC')::date
    AND request.day <= (victim.ends_at AT TIME ZONE 'UTC')::date
JOIN ledger_pool pool ON pool.id = request.pool_id AND pool.cluster = victim.cluster
JOIN ledger_modelname model ON model.id = request.model_id
WHERE NOT EXISTS (
    SELECT 1 FROM unnest(%(void_sources)s::bigint[], %(void_ids)s::text[]) AS void(source_id, event_id)
    WHERE void.source_id = request.source_id AND void.event_id = request.event_id)
GROUP BY 1, 2
"""

KEPT_VOIDED = """
SELECT id, voided FROM public.billing_preemptionrecord WHERE id = ANY(%(ids)s) AND voided IS NOT NULL
"""

# Demand that waits to start at some time of a span, from when each began to; leans on level_of_subject. What had
# stopped waiting before is left out by its roll-up (subject_last and subject_open). Of two facts for one subject and
# instant the greatest (source, id) comes last and holds.
PENDING = """
SELECT level.subject, level.starts_at, level.milli_gpus, level.identity_id FROM ledger_level level
JOIN ledger_event event ON event.id = level.event_id
JOIN ledger_source source ON source.id = event.source_id
WHERE level.pool_id = %(pool)s AND level.kind = 4 AND level.starts_at < %(to)s AND level.event_id <> ALL(%(void)s)
  AND level.subject IN (
    SELECT waiting.subject FROM ledger_subject waiting
    WHERE waiting.pool_id = %(pool)s AND waiting.kind = 4 AND waiting.first_at < %(to)s
      AND (waiting.last_milli_gpus > 0 OR waiting.last_at >= %(from)s))
ORDER BY level.starts_at, source.uri, event.event_id
"""

# Preemptions that a month's lines tell of, whose record has gone or is about another instant. Leans on the key of the
# month's lines (its period comes first) and the primary key of the records.
LINES_WITHOUT_RECORD = """
SELECT DISTINCT (line.preemptions->>0)::uuid FROM billing_monthline line
WHERE line.period_id = %(month)s AND line.kind = 'transfer' AND NOT EXISTS (
    SELECT 1 FROM billing_preemptionrecord record
    WHERE record.id = (line.preemptions->>0)::uuid AND line.version_from IN (record.decided_at, record.resumed_at))
"""

# Pools with anything that ever waited to start before an instant. Leans on level_of_subject, once per pool.
POOLS_WITH_PENDING = """
SELECT pool.id FROM ledger_pool pool WHERE EXISTS (
    SELECT 1 FROM ledger_level level
    WHERE level.pool_id = pool.id AND level.kind = 4 AND level.starts_at < %(to)s)
"""

# Capacity of pools that was announced before it changed, in a span of each: planned. Leans on level_sweep.
ANNOUNCED = """
SELECT asked.pool_id, level.starts_at, booking.booked_at
FROM unnest(%(pools)s::bigint[], %(starts)s::timestamptz[], %(ends)s::timestamptz[])
    AS asked(pool_id, starts_at, ends_at)
CROSS JOIN LATERAL (
    SELECT * FROM ledger_level level
    WHERE level.pool_id = asked.pool_id AND level.kind = 1
      AND level.starts_at >= asked.starts_at AND level.starts_at < asked.ends_at
      AND level.event_id <> ALL(%(void)s)
) level
JOIN ledger_event event ON event.id = level.event_id
JOIN ledger_booking booking ON booking.id = event.booking_id
WHERE booking.booked_at < level.starts_at
ORDER BY 1, 2
"""

# The GPU time each account had of a service in the slot just before an instant, as everything about a preemption is
# looked at just before its decision: how one without voided requests is shared out. Leans on the primary key of the
# slots.
SLOT_SHARES = """
WITH asked AS (
    SELECT * FROM unnest(%(pools)s::bigint[], %(holders)s::bigint[], %(instants)s::timestamptz[])
        AS a(pool_id, holder_id, instant)
)
SELECT asked.pool_id, asked.holder_id, asked.instant, a.account_id,
       sum(a.reserved_used_gpu_us + a.on_demand_gpu_us + a.borrowed_gpu_us + a.excess_gpu_us)::numeric
FROM asked
JOIN LATERAL (
    SELECT starts_at FROM billing_poolslot slot
    WHERE slot.pool_id = asked.pool_id AND slot.starts_at < asked.instant ORDER BY starts_at DESC LIMIT 1
) slot ON true
JOIN billing_allocation a
    ON a.pool_id = asked.pool_id AND a.starts_at = slot.starts_at AND a.holder_id = asked.holder_id
GROUP BY 1, 2, 3, 4
"""
