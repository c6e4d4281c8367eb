"""Low-volume events: staged with their typed row as JSON, registered by key, unfolded into their tables."""

STAGES = """
CREATE TEMP TABLE IF NOT EXISTS stage_event (
    n integer NOT NULL, line integer NOT NULL, part smallint NOT NULL, source_id bigint NOT NULL,
    event_id text COLLATE "C" NOT NULL, type smallint NOT NULL, occurred_at timestamptz NOT NULL,
    content_hash bytea NOT NULL, body jsonb NOT NULL, fact jsonb NOT NULL, raw bytea
) ON COMMIT DELETE ROWS;
CREATE TEMP TABLE IF NOT EXISTS stage_verdict (
    n integer NOT NULL, line integer NOT NULL, part smallint NOT NULL, type smallint NOT NULL,
    event_pk bigint NOT NULL, is_new boolean NOT NULL, is_same boolean NOT NULL, fact jsonb
) ON COMMIT DELETE ROWS;
"""

# The first of each key is registered, unless somebody was earlier (event_key). Sorted, so that two bookings with the
# same events queue up and never deadlock. Part 1 holds the replacements that corrections (part 0) bring along: they
# count only with their correction.
REGISTER = """
INSERT INTO ledger_event (source_id, event_id, type, occurred_at, content_hash, booking_id, line, body)
SELECT DISTINCT ON (source_id, event_id)
       source_id, event_id, type, occurred_at, content_hash, %(booking)s, line, body
FROM stage_event stage
WHERE part = %(part)s AND (part = 0 OR EXISTS (
    SELECT 1 FROM stage_verdict verdict
    WHERE verdict.line = stage.line AND verdict.part = 0 AND (verdict.is_new OR verdict.is_same)))
ORDER BY source_id, event_id, n
ON CONFLICT (source_id, event_id) DO NOTHING
"""

# What became of every staged event; a new statement, so that it sees what others committed meanwhile. NOT IN is read
# once and hashed: an EXISTS would scan the verdicts for each event, since the planner takes them for none, while this
# very statement adds them.
JUDGE = """
INSERT INTO stage_verdict (n, line, part, type, event_pk, is_new, is_same, fact)
SELECT n, line, part, type, event_pk, is_new, is_same, CASE WHEN is_new THEN fact END
FROM (
    SELECT stage.*, event.id AS event_pk, event.content_hash = stage.content_hash AS is_same,
           event.booking_id = %(booking)s AND stage.n = stage.first_n AND event.content_hash = stage.content_hash
           AND event.id NOT IN (SELECT earlier.event_pk FROM stage_verdict earlier) AS is_new
    FROM (
        SELECT *, min(n) OVER (PARTITION BY source_id, event_id) AS first_n
        FROM stage_event WHERE part = %(part)s
    ) stage
    CROSS JOIN LATERAL (
        SELECT id, booking_id, content_hash FROM ledger_event e
        WHERE e.source_id = stage.source_id AND e.event_id = stage.event_id
        LIMIT 1
    ) event
) judged
"""

COUNT = """
SELECT count(*) FILTER (WHERE is_new), count(*) FILTER (WHERE NOT is_new AND is_same),
       count(*) FILTER (WHERE NOT is_new AND NOT is_same)
FROM stage_verdict WHERE part = 0
"""

QUARANTINE_CONFLICTS = """
INSERT INTO ingest_quarantinedevent (
    batch_id, line, event_id, source_uri, occurred_at, reason, detail, raw, resolution, resolved_by)
SELECT %(batch)s, stage.line, stage.event_id, source.uri, stage.occurred_at, 'conflict', %(detail)s, stage.raw, '', ''
FROM stage_verdict verdict
JOIN stage_event stage USING (n)
JOIN ledger_source source ON source.id = stage.source_id
WHERE NOT verdict.is_new AND NOT verdict.is_same AND verdict.part = 0
"""


def _unfold(table: str, types: str, columns: list[str]) -> str:
    """The statement that turns the staged JSON of new events into rows of `table`."""
    names = ", ".join(columns)
    values = ", ".join(f"fact.{column}" for column in columns)
    return f"""
INSERT INTO {table} (event_id, {names})
SELECT verdict.event_pk, {values}
FROM stage_verdict verdict, jsonb_populate_record(NULL::{table}, verdict.fact) fact
WHERE verdict.is_new AND verdict.type IN ({types})
ORDER BY verdict.n
"""


LEVEL = [
    "kind",
    "pool_id",
    "subject",
    "attempt",
    "starts_at",
    "ends_at",
    "milli_gpus",
    "identity_id",
    "lendable",
    "service_class",
    "purpose",
    "workload_kind",
    "last_checkpoint_at",
    "requests",
    "attributes",
]
PREEMPTION = [
    "pool_id",
    "cluster",
    "preemption",
    "decided_at",
    "victim_workload",
    "victim_request",
    "victim_identity_id",
    "victim_attempt",
    "preemptor_workload",
    "preemptor_identity_id",
    "preemptor_source",
    "confidence_ppm",
    "milli_gpus",
    "cause",
    "admitted_at",
    "released_at",
    "disposition",
    "degrade_trigger",
    "lost_gpu_us",
    "requests_in_flight",
    "requests_voided",
    "output_tokens_lost",
    "context_tokens",
    "cached_prefix_tokens",
    "queued_only",
]
RESUME = [
    "pool_id",
    "cluster",
    "preemption",
    "resumed_at",
    "workload",
    "attempt",
    "recompute_gpu_us",
    "recompute_prefill_tokens",
]
REJECTION = [
    "occurred_at",
    "identity_id",
    "layer",
    "reason",
    "status",
    "count",
    "requested_tokens",
    "requested_milli_gpus",
    "pool_id",
    "model_id",
    "request",
    "retry_after_us",
    "service_class",
    "origin",
]
QUOTA = [
    "starts_at",
    "identity_id",
    "layer",
    "resource",
    "limit_milli",
    "used_milli",
    "pool_id",
    "service_id",
]
CORRECTION = [
    "corrected_at",
    "supersedes_source",
    "supersedes_event_id",
    "reason",
    "replacement_source",
    "replacement_event_id",
]

UNFOLD = [
    _unfold("ledger_level", "1, 2, 3, 4", LEVEL),
    _unfold("ledger_preemptionreport", "5", PREEMPTION),
    _unfold("ledger_resumereport", "6", RESUME),
    _unfold("ledger_rejection", "9", REJECTION),
    _unfold("ledger_quotalevel", "10", QUOTA),
    _unfold("ledger_correction", "11", CORRECTION),
]

# Work and preemptions are told apart within their cluster: what attempts, reports and resumes of it leave to be
# computed follows from each other, so that bookings of one cluster's take turns from here to their commit. Sorted
# against deadlocks; a cluster's name is hashed, and two that share a hash wait for nothing worse.
HOLD_CLUSTERS = """
WITH touched AS (
    SELECT pool.cluster FROM stage_event JOIN ledger_pool pool ON pool.id = (fact->>'pool_id')::bigint
    WHERE type IN (3, 5, 6)
    UNION
    SELECT fact->>'cluster' FROM stage_event WHERE type IN (5, 6)
), keys AS MATERIALIZED (SELECT DISTINCT hashtext(cluster) AS key FROM touched WHERE cluster IS NOT NULL ORDER BY 1)
SELECT pg_advisory_xact_lock(%(clusters)s, key) FROM keys
"""

# Subjects of new levels (subject_key). Of levels at one instant the larger counts: a subject is then looked at once
# too often, never once too rarely. Sorted against deadlocks.
MERGE_SUBJECTS = """
INSERT INTO ledger_subject AS kept (pool_id, kind, subject, attempt, first_at, last_at, last_milli_gpus)
SELECT pool_id, kind, subject, attempt, min(starts_at), max(starts_at),
       (array_agg(milli_gpus ORDER BY starts_at DESC, milli_gpus DESC))[1]
FROM stage_verdict verdict JOIN ledger_level level ON level.event_id = verdict.event_pk
WHERE verdict.is_new AND verdict.type IN (1, 2, 3, 4)
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4
ON CONFLICT (pool_id, kind, subject, attempt) DO UPDATE SET
    first_at = least(kept.first_at, excluded.first_at),
    last_at = greatest(kept.last_at, excluded.last_at),
    last_milli_gpus = CASE
        WHEN excluded.last_at > kept.last_at THEN excluded.last_milli_gpus
        WHEN excluded.last_at < kept.last_at THEN kept.last_milli_gpus
        ELSE greatest(kept.last_milli_gpus, excluded.last_milli_gpus) END
"""

# What new levels change, once their subjects are merged: bookings of one subject wait for one another there, and those
# of other attempts at their cluster (HOLD_CLUSTERS), so each sees what the other committed.
# From each new level to its subject's next one that counts (level_of_subject, read
# backwards), else to the horizon; the first level of an attempt also ends lower ones, which reaches as far as they
# would have. A level of 0 changes nothing where nothing was held before the booking either: `before` is the last level
# told by then, looked for behind the new one in front and else what that one found, so that a batch with a subject's
# whole history costs one probe per level. There a reservation with an end of its own reaches to that end. Preempted
# work is left out: its record is measured by every level, of 0 too; so is an identity that changes hands meanwhile,
# which cuts slots.
DIRTY_LEVELS = """
WITH fresh AS MATERIALIZED (
    SELECT level.*, lag(level.starts_at) OVER (
        PARTITION BY level.pool_id, level.kind, level.subject, level.attempt ORDER BY level.starts_at, level.event_id
    ) AS previous_at
    FROM stage_verdict verdict
    JOIN ledger_level level ON level.event_id = verdict.event_pk
    WHERE verdict.is_new AND verdict.type IN (1, 2, 3, 4)
), known AS (
    SELECT fresh.*, max(before.told) OVER (
        PARTITION BY fresh.pool_id, fresh.kind, fresh.subject, fresh.attempt ORDER BY fresh.starts_at, fresh.event_id
    ) AS before
    FROM fresh
    LEFT JOIN LATERAL (
        SELECT ARRAY[extract(epoch FROM earlier.starts_at), earlier.milli_gpus] AS told FROM ledger_level earlier
        JOIN ledger_event event ON event.id = earlier.event_id
        WHERE earlier.pool_id = fresh.pool_id AND earlier.kind = fresh.kind AND earlier.subject = fresh.subject
          AND earlier.attempt = fresh.attempt AND earlier.starts_at <= fresh.starts_at
          AND earlier.starts_at >= coalesce(fresh.previous_at, '-infinity')
          AND event.booking_id <> %(booking)s AND earlier.event_id <> ALL(%(void)s::bigint[])
        ORDER BY earlier.starts_at DESC, earlier.milli_gpus DESC LIMIT 1
    ) before ON true
), told AS (
    SELECT known.pool_id, known.kind, known.starts_at, known.ends_at, known.milli_gpus, next.starts_at AS next_at,
           ends_lower.attempts AS ends_lower,
           known.event_id <> ALL(%(void)s::bigint[])
           AND CASE WHEN known.before IS NULL THEN known.kind <> 1
                    ELSE known.before[2] = 0 AND known.before[1] < extract(epoch FROM known.starts_at) END
           AND NOT EXISTS (
               SELECT 1 FROM ledger_preemptionreport report
               WHERE known.kind = 3 AND report.victim_workload = known.subject)
           AND NOT EXISTS (
               SELECT 1 FROM ledger_identitymapping mapping
               CROSS JOIN LATERAL (VALUES (lower(mapping.validity)), (upper(mapping.validity))) AS edge(at)
               WHERE mapping.identity_id = known.identity_id AND edge.at > known.starts_at
                 AND edge.at < coalesce(next.starts_at, 'infinity')) AS was_nothing
    FROM known
    LEFT JOIN LATERAL (
        SELECT later.starts_at FROM ledger_level later
        WHERE later.pool_id = known.pool_id AND later.kind = known.kind AND later.subject = known.subject
          AND later.attempt = known.attempt AND later.starts_at > known.starts_at
          AND later.event_id <> ALL(%(void)s::bigint[])
        ORDER BY later.starts_at LIMIT 1
    ) next ON true
    CROSS JOIN LATERAL (
        SELECT known.kind = 3 AND known.attempt > 1 AND EXISTS (
            SELECT 1 FROM ledger_subject s
            WHERE s.pool_id = known.pool_id AND s.kind = 3 AND s.subject = known.subject AND s.attempt < known.attempt
              AND (s.last_at > known.starts_at OR s.last_milli_gpus > 0)
        ) AS attempts
    ) ends_lower
)
INSERT INTO ledger_dirtyspan (pool_id, span)
SELECT pool_id, unnest(range_agg(tstzrange(starts_at, CASE
           WHEN ends_lower THEN NULL
           WHEN was_nothing AND kind = 2 THEN least(next_at, ends_at)
           ELSE next_at END)))
FROM told
WHERE NOT was_nothing OR milli_gpus > 0 OR ends_lower
GROUP BY pool_id
"""

# Work may run again in another cluster: there a resume has the name of a preemption of its own cluster, unless another
# preemption has that name where the resume was. So what comes or goes in one cluster (`named`) may give a record of
# another one its resume, or take it away. Leans on preemption_report_key, once per cluster and name.
_NAMESAKES = """
    SELECT known.pool_id, tstzrange(known.decided_at, known.decided_at, '[]')
    FROM named CROSS JOIN (SELECT DISTINCT cluster FROM ledger_pool) elsewhere
    JOIN ledger_preemptionreport known
        ON known.cluster = elsewhere.cluster AND known.preemption = named.preemption
    WHERE elsewhere.cluster <> named.cluster
"""

# A report or resume matters to its preemption's record, which is measured again if its time is dirty: that is where
# other reports put it, wherever the new one does.
DIRTY_PREEMPTIONS = f"""
WITH named AS (
    SELECT resume.cluster, resume.preemption
    FROM stage_verdict verdict JOIN ledger_resumereport resume ON resume.event_id = verdict.event_pk
    WHERE verdict.is_new AND verdict.type = 6
    UNION
    SELECT report.cluster, report.preemption
    FROM stage_verdict verdict JOIN ledger_preemptionreport report ON report.event_id = verdict.event_pk
    JOIN ledger_resumereport resume ON resume.preemption = report.preemption
    WHERE verdict.is_new AND verdict.type = 5
)
INSERT INTO ledger_dirtyspan (pool_id, span)
SELECT pool_id, unnest(range_agg(span)) FROM (
    SELECT report.pool_id, tstzrange(least(report.admitted_at, report.decided_at),
                                     greatest(report.released_at, report.decided_at), '[]') AS span
    FROM stage_verdict verdict JOIN ledger_preemptionreport report ON report.event_id = verdict.event_pk
    WHERE verdict.is_new AND verdict.type = 5
    UNION ALL
    SELECT known.pool_id, tstzrange(known.decided_at, known.decided_at, '[]')
    FROM stage_verdict verdict JOIN ledger_preemptionreport report ON report.event_id = verdict.event_pk
    JOIN ledger_preemptionreport known
        ON known.cluster = report.cluster AND known.preemption = report.preemption AND known.event_id <> report.event_id
    WHERE verdict.is_new AND verdict.type = 5
    UNION ALL
    SELECT report.pool_id, tstzrange(least(report.decided_at, resume.resumed_at),
                                     greatest(report.decided_at, resume.resumed_at), '[]')
    FROM stage_verdict verdict
    JOIN ledger_resumereport resume ON resume.event_id = verdict.event_pk
    JOIN ledger_preemptionreport report
        ON report.cluster = resume.cluster AND report.preemption = resume.preemption
    WHERE verdict.is_new AND verdict.type = 6
    UNION ALL
    {_NAMESAKES}
) touched GROUP BY pool_id
"""

# --- corrections --------------------------------------------------------------------------------------------

SHARE_CORRECTIONS = "SELECT pg_advisory_xact_lock_shared(%(namespace)s, %(lock)s)"
HOLD_CORRECTIONS = "SELECT pg_advisory_xact_lock(%(namespace)s, %(lock)s)"

ANY_CORRECTION = "SELECT 1 FROM ledger_correction LIMIT 1"

# Whether a replacement's key is taken by something else (event_key).
OTHER_CONTENT = """
SELECT EXISTS (
    SELECT 1 FROM ledger_event event JOIN ledger_source source ON source.id = event.source_id
    WHERE source.uri = %(uri)s AND event.event_id = %(id)s AND event.content_hash <> %(hash)s
)
"""

# Lines of this booking's corrections that hold, whose replacements count.
HOLDING_CORRECTIONS = "SELECT line FROM stage_verdict WHERE type = 11 AND part = 0 AND (is_new OR is_same)"

# Corrections are few: they are read whole, and what they void is worked out by ledger.core.corrections.
CORRECTIONS = """
SELECT source.uri, event.event_id, (extract(epoch FROM c.corrected_at) * 1000)::bigint, c.supersedes_source,
       c.supersedes_event_id, c.replacement_source, c.replacement_event_id, event.booking_id = %(booking)s
FROM ledger_correction c
JOIN ledger_event event ON event.id = c.event_id
JOIN ledger_source source ON source.id = event.source_id
"""
# was_void: without this booking's corrections. Keys whose source nobody has named yet hold nothing.
VOID_STAGE = """
CREATE TEMP TABLE IF NOT EXISTS stage_void (
    source_id bigint NOT NULL, event_id text COLLATE "C" NOT NULL, was_void boolean NOT NULL, is_void boolean NOT NULL
) ON COMMIT DELETE ROWS;
DELETE FROM stage_void;
"""
FILL_VOID = """
INSERT INTO stage_void (source_id, event_id, was_void, is_void)
SELECT source.id, given.id, given.was_void, given.is_void
FROM unnest(%(uris)s::text[], %(ids)s::text[], %(was)s::boolean[], %(is)s::boolean[])
    AS given(uri, id, was_void, is_void)
JOIN ledger_source source ON source.uri = given.uri
"""

# Corrections of this booking whose event is nowhere: of a pruned day, or not here yet. Asked once days were pruned.
_IS_BOOKED = """
EXISTS (SELECT 1 FROM ledger_source source JOIN ledger_event event ON event.source_id = source.id
        WHERE source.uri = {uri} AND event.event_id = {id})
OR EXISTS (SELECT 1 FROM ledger_source source JOIN ledger_request request ON request.source_id = source.id
           WHERE source.uri = {uri} AND request.event_id = {id} AND request.day = ANY(%(days)s))
"""
NOTE_CORRECTIONS_OF_NOTHING = f"""
INSERT INTO ledger_factfinding (code, pool_id, occurred_at, subject, detail, blocks_close)
SELECT %(code)s, NULL, correction.corrected_at,
       correction.supersedes_source || ' ' || correction.supersedes_event_id,
       jsonb_build_object('source', correction.supersedes_source, 'event', correction.supersedes_event_id,
                          'reason', correction.reason), false
FROM ledger_correction correction JOIN ledger_event own ON own.id = correction.event_id
WHERE own.booking_id = %(booking)s
  AND NOT ({_IS_BOOKED.format(uri="correction.supersedes_source", id="correction.supersedes_event_id")})
ON CONFLICT DO NOTHING
"""
FORGET_CORRECTIONS_OF_NOTHING = f"""
DELETE FROM ledger_factfinding finding
WHERE finding.code = %(code)s AND ({_IS_BOOKED.format(uri="finding.detail->>'source'", id="finding.detail->>'event'")})
"""

# What voids a level, or brings it back, dirties what the level held, and its subject has to be looked at from now on.
DIRTY_VOID = f"""
WITH void AS (
    SELECT event.id FROM stage_void JOIN ledger_event event USING (source_id, event_id)
    WHERE stage_void.was_void <> stage_void.is_void
), named AS (
    SELECT resume.cluster, resume.preemption FROM void JOIN ledger_resumereport resume ON resume.event_id = void.id
    UNION
    SELECT report.cluster, report.preemption
    FROM void JOIN ledger_preemptionreport report ON report.event_id = void.id
    JOIN ledger_resumereport resume ON resume.preemption = report.preemption
)
INSERT INTO ledger_dirtyspan (pool_id, span)
SELECT pool_id, unnest(range_agg(span)) FROM (
    SELECT level.pool_id, tstzrange(level.starts_at, NULL) AS span
    FROM void JOIN ledger_level level ON level.event_id = void.id
    UNION ALL
    SELECT pool_id, tstzrange(least(admitted_at, decided_at), NULL)
    FROM void JOIN ledger_preemptionreport report ON report.event_id = void.id
    UNION ALL
    SELECT known.pool_id, tstzrange(known.decided_at, known.decided_at, '[]')
    FROM void JOIN ledger_preemptionreport report ON report.event_id = void.id
    JOIN ledger_preemptionreport known
        ON known.cluster = report.cluster AND known.preemption = report.preemption AND known.event_id <> report.event_id
    UNION ALL
    SELECT report.pool_id, tstzrange(least(report.decided_at, resume.resumed_at), NULL)
    FROM void JOIN ledger_resumereport resume ON resume.event_id = void.id
    JOIN ledger_preemptionreport report
        ON report.cluster = resume.cluster AND report.preemption = resume.preemption
    UNION ALL
    SELECT report.pool_id, tstzrange(report.decided_at, report.decided_at, '[]')
    FROM void JOIN ledger_quotalevel quota ON quota.event_id = void.id AND quota.layer = 'serving'
    JOIN ledger_preemptionreport report ON report.decided_at > quota.starts_at
    JOIN ledger_identity victim ON victim.id = report.victim_identity_id AND victim.kind = 'service'
    UNION ALL
    {_NAMESAKES}
) touched GROUP BY pool_id
"""
WATCH_VOID_SUBJECTS = """
UPDATE ledger_subject subject SET last_milli_gpus = greatest(subject.last_milli_gpus, 1)
WHERE subject.id IN (
    SELECT s.id FROM stage_void
    JOIN ledger_event event USING (source_id, event_id)
    JOIN ledger_level level ON level.event_id = event.id
    JOIN ledger_subject s ON s.pool_id = level.pool_id AND s.kind = level.kind AND s.subject = level.subject
        AND s.attempt = level.attempt
    WHERE stage_void.was_void <> stage_void.is_void OR event.booking_id = %(booking)s
    ORDER BY s.id FOR UPDATE OF s
)
"""
