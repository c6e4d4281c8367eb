"""Requests as the hours that booking adds them up by; ends with a common table `counted` of rows of ledger_request.

A request counts in the hour of its finish, a usage event (type 8) in that of its start; time in flight is divided over
the hours that it covers. The same rules as booking's, which moves the hours with the rows.
"""

HOURS_OF_REQUESTS = """
    SELECT pool_id, date_trunc('hour', CASE WHEN type = 8 THEN starts_at ELSE ends_at END, 'UTC') AS hour,
           identity_id, service_id, model_id, service_class, outcome, requests,
           coalesce(input_tokens, 0) AS input_tokens,
           CASE WHEN input_tokens IS NULL THEN greatest(requests, 1) ELSE 0 END AS input_missing,
           coalesce(cached_input_tokens, 0) AS cached_input_tokens,
           CASE WHEN cached_input_tokens IS NULL THEN greatest(requests, 1) ELSE 0 END AS cached_missing,
           coalesce(cache_write_tokens, 0) AS cache_write_tokens, coalesce(output_tokens, 0) AS output_tokens,
           CASE WHEN output_tokens IS NULL THEN greatest(requests, 1) ELSE 0 END AS output_missing,
           coalesce(reasoning_tokens, 0) AS reasoning_tokens, coalesce(gpu_us, 0) AS gpu_us,
           CASE WHEN gpu_us IS NULL THEN greatest(requests, 1) ELSE 0 END AS gpu_missing,
           CASE WHEN type = 8 THEN coalesce(concurrency_us, 0) ELSE 0 END AS concurrency_us,
           coalesce(preemptions, 0) AS preemptions, coalesce(recomputed_tokens, 0) AS recomputed_tokens,
           coalesce(recompute_gpu_us, 0) AS recompute_gpu_us
    FROM counted
    UNION ALL
    SELECT pool_id, hour, identity_id, service_id, model_id, service_class, outcome, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
           (1000000 * extract(epoch FROM
               least(ends_at, hour + interval '1 hour') - greatest(starts_at, hour)))::bigint, 0, 0, 0
    FROM counted, generate_series(date_trunc('hour', starts_at, 'UTC'), ends_at, interval '1 hour') AS hour
    WHERE type = 7
"""

# What is added up, in order of its columns.
USAGE_SUMS = (
    "requests",
    "input_tokens",
    "input_missing",
    "cached_input_tokens",
    "cached_missing",
    "cache_write_tokens",
    "output_tokens",
    "output_missing",
    "reasoning_tokens",
    "gpu_us",
    "gpu_missing",
    "concurrency_us",
    "preemptions",
    "recomputed_tokens",
    "recompute_gpu_us",
)
