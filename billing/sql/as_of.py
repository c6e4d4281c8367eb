"""The tables as they were known at an instant, under their own names, for as long as a transaction lasts.

Unqualified names find the session's temporary tables first, so a computation that runs below these reads the facts
of that instant and writes nothing that stays. Statements are built from fixed names only, never from input.
"""

from __future__ import annotations

from billing.sql.usage_hours import HOURS_OF_REQUESTS

# Facts that came with an event; those of late events are left out.
_BY_EVENT = ("level", "preemptionreport", "resumereport", "correction", "quotalevel", "rejection")
# Versions of terms and grants count from the instant they were recorded on.
_BY_RECORDED = {
    "billing_ratecard": "recorded_at",
    "billing_poolcost": "recorded_at",
    "billing_policy": "recorded_at",
    "billing_servicepolicy": "recorded_at",
    "billing_contract": "recorded_at",
    "billing_calibration": "recorded_at",
    "billing_credit": "granted_at",
}
# What computing a month writes: empty, with the same columns, defaults and keys.
_WRITTEN = (
    "billing_poolslot", "billing_allocation", "billing_allocationday", "billing_lendingday", "billing_workloadday",
    "billing_tokenday", "billing_countedtokens", "billing_countedday", "billing_tenantmonth", "billing_billingfinding",
    "billing_monthline", "billing_statement", "billing_statementline", "billing_preemptionrecord",
    "billing_preemptionshare", "billing_preemptionwait", "ledger_transfer", "ledger_period", "ledger_dirtyspan",
    "ledger_factfinding",
)  # fmt: skip

# %(at)s: the instant; %(cut)s: the last booking known then. Late events are few, so each view leaves them out by key.
LATE = """
CREATE TEMP TABLE late_booking ON COMMIT DROP AS
    SELECT id FROM public.ledger_booking WHERE sequence IS NULL OR sequence > %(cut)s;
CREATE TEMP TABLE late_event ON COMMIT DROP AS
    SELECT id FROM public.ledger_event WHERE booking_id IN (SELECT id FROM pg_temp.late_booking);
CREATE UNIQUE INDEX ON pg_temp.late_event (id);
ANALYZE pg_temp.late_event;
"""

FACTS = [
    """CREATE TEMP VIEW ledger_event AS SELECT * FROM public.ledger_event event
       WHERE NOT EXISTS (SELECT 1 FROM pg_temp.late_event late WHERE late.id = event.id)""",
    """CREATE TEMP VIEW ledger_request AS SELECT * FROM public.ledger_request request
       WHERE NOT EXISTS (SELECT 1 FROM pg_temp.late_booking late WHERE late.id = request.booking_id)""",
    *(
        f"""CREATE TEMP VIEW ledger_{name} AS SELECT * FROM public.ledger_{name} fact
            WHERE NOT EXISTS (SELECT 1 FROM pg_temp.late_event late WHERE late.id = fact.event_id)"""
        for name in _BY_EVENT
    ),
]

# Which subjects may hold something. Where late levels came it is said again, rather of too many than of too few: the
# last level may be one that a correction takes out of force.
SUBJECTS = """
CREATE TEMP TABLE ledger_subject (LIKE public.ledger_subject INCLUDING ALL) ON COMMIT DROP;
INSERT INTO pg_temp.ledger_subject
    SELECT * FROM public.ledger_subject subject WHERE NOT EXISTS (
        SELECT 1 FROM public.ledger_level level JOIN pg_temp.late_event late ON late.id = level.event_id
        WHERE (level.pool_id, level.kind, level.subject, level.attempt)
            = (subject.pool_id, subject.kind, subject.subject, subject.attempt));
INSERT INTO pg_temp.ledger_subject (id, pool_id, kind, subject, attempt, first_at, last_at, last_milli_gpus)
    SELECT subject.id, pool_id, kind, subject, attempt, min(starts_at), max(starts_at), max(milli_gpus)
    FROM pg_temp.ledger_level level JOIN public.ledger_subject subject USING (pool_id, kind, subject, attempt)
    WHERE EXISTS (
        SELECT 1 FROM public.ledger_level other JOIN pg_temp.late_event late ON late.id = other.event_id
        WHERE (other.pool_id, other.kind, other.subject, other.attempt)
            = (level.pool_id, level.kind, level.subject, level.attempt))
    GROUP BY subject.id, pool_id, kind, subject, attempt;
ANALYZE pg_temp.ledger_subject;
"""

# A later mapping may have ended an earlier one where it begins; before it was known, that one was open.
MAPPINGS = """
CREATE TEMP TABLE ledger_identitymapping (LIKE public.ledger_identitymapping INCLUDING DEFAULTS) ON COMMIT DROP;
INSERT INTO pg_temp.ledger_identitymapping (id, identity_id, tenant_id, validity, recorded_at, recorded_by)
    SELECT id, identity_id, tenant_id,
           CASE WHEN EXISTS (SELECT 1 FROM public.ledger_identitymapping later
                             WHERE later.identity_id = mapping.identity_id AND later.recorded_at > %(at)s
                               AND lower(later.validity) = upper(mapping.validity))
                THEN tstzrange(lower(validity), NULL) ELSE validity END,
           recorded_at, recorded_by
    FROM public.ledger_identitymapping mapping WHERE recorded_at <= %(at)s;
"""

# The hourly sums of the month: kept where no late request and no late correction of one touches them, else summed again
# from the requests. Reads a month of requests only in the latter case. A correction of a fact of another type (one of
# a correction apart, type 11) touches no request.
USAGE_TOUCHED = """
SELECT EXISTS (SELECT 1 FROM public.ledger_request request JOIN pg_temp.late_booking late ON late.id = booking_id
               WHERE request.day BETWEEN (%(from)s::timestamptz - interval '1 day')::date
                                     AND (%(to)s::timestamptz + interval '1 day')::date)
    OR EXISTS (SELECT 1 FROM public.ledger_correction correction JOIN pg_temp.late_event late
               ON late.id = correction.event_id
               WHERE NOT EXISTS (
                   SELECT 1 FROM public.ledger_event event
                   JOIN public.ledger_source source ON source.id = event.source_id
                   WHERE source.uri = correction.supersedes_source AND event.event_id = correction.supersedes_event_id
                     AND event.type <> 11))
"""
# The first day of the month whose sums cannot be made as they were known: its requests were pruned, and later ones were
# among them, or sums have to be made again (%(touched)s).
USAGE_GONE = """
SELECT min(pruned.day) FROM public.ledger_prunedday pruned
WHERE pruned.day BETWEEN (%(from)s::timestamptz - interval '1 day')::date
                     AND (%(to)s::timestamptz + interval '1 day')::date
  AND (%(touched)s OR EXISTS (
      SELECT 1 FROM public.ledger_prunedrows gone JOIN pg_temp.late_booking late ON late.id = gone.booking_id
      WHERE gone.day_id = pruned.day))
"""
USAGE_KEPT = """
CREATE TEMP VIEW ledger_usagehour AS SELECT * FROM public.ledger_usagehour
"""
USAGE_SUMMED = (
    """
CREATE TEMP TABLE ledger_usagehour (LIKE public.ledger_usagehour INCLUDING ALL) ON COMMIT DROP;
INSERT INTO pg_temp.ledger_usagehour
    SELECT * FROM public.ledger_usagehour WHERE hour < %(from)s::timestamptz - interval '1 day' OR hour > %(to)s;
WITH counted AS (
    SELECT request.* FROM pg_temp.ledger_request request
    WHERE day BETWEEN (%(from)s::timestamptz - interval '2 days')::date
                  AND (%(to)s::timestamptz + interval '2 days')::date
      AND NOT EXISTS (
        SELECT 1 FROM unnest(%(void_sources)s::bigint[], %(void_ids)s::text[]) AS void(source_id, event_id)
        WHERE void.source_id = request.source_id AND void.event_id = request.event_id)
), part AS (
    """
    + HOURS_OF_REQUESTS
    + """
)
INSERT INTO pg_temp.ledger_usagehour (
    pool_id, hour, identity_id, service_id, model_id, service_class, outcome, requests, input_tokens, input_missing,
    cached_input_tokens, cached_missing, cache_write_tokens, output_tokens, output_missing, reasoning_tokens,
    gpu_us, gpu_missing, concurrency_us, preemptions, recomputed_tokens, recompute_gpu_us)
SELECT pool_id, hour, identity_id, service_id, model_id, service_class, outcome, sum(requests), sum(input_tokens),
       sum(input_missing), sum(cached_input_tokens), sum(cached_missing), sum(cache_write_tokens), sum(output_tokens),
       sum(output_missing), sum(reasoning_tokens), sum(gpu_us), sum(gpu_missing), sum(concurrency_us),
       sum(preemptions), sum(recomputed_tokens), sum(recompute_gpu_us)
FROM part WHERE hour >= %(from)s::timestamptz - interval '1 day' AND hour <= %(to)s
GROUP BY 1, 2, 3, 4, 5, 6, 7;
"""
)

TERMS = [
    f"CREATE TEMP TABLE {name} ON COMMIT DROP AS SELECT * FROM public.{name} WHERE {column} <= %(at)s"
    for name, column in _BY_RECORDED.items()
] + [
    f"UPDATE pg_temp.{name} SET ended_at = NULL WHERE ended_recorded_at > %(at)s"
    for name, column in _BY_RECORDED.items()
    if column == "recorded_at"
]

WRITTEN = [f"CREATE TEMP TABLE {name} (LIKE public.{name} INCLUDING ALL) ON COMMIT DROP" for name in _WRITTEN]

# The month as it was before anything was computed, and what other months' changes had posted in it by then.
MONTH = """
INSERT INTO pg_temp.ledger_period SELECT * FROM public.ledger_period;
UPDATE pg_temp.ledger_period SET state = 1, horizon_at = NULL, computed_at = NULL WHERE month = %(month)s;
UPDATE pg_temp.ledger_period SET horizon_at = NULL WHERE month > %(month)s;
INSERT INTO pg_temp.ledger_transfer
    SELECT * FROM public.ledger_transfer
    WHERE posted_in_id = %(month)s AND concerns_id <> %(month)s AND recorded_at <= %(at)s;
"""
