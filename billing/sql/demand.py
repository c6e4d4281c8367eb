"""Set-based reads of what was asked for and what became of it. Static statements with bound parameters."""

_TENANT = """
    LEFT JOIN ledger_identity identity ON identity.id = {row}.identity_id
    LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
    LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> {row}.{at}
    LEFT JOIN ledger_holder mapped_holder ON mapped_holder.id = mapping.tenant_id
"""
_IS_SHOWN = """
      (%(tenant_ids)s::bigint[] IS NULL OR coalesce(slug_holder.id, mapped_holder.id) = ANY(%(tenant_ids)s))
      AND (%(tenant)s::text[] IS NULL
           OR coalesce(slug_holder.slug, mapped_holder.slug, 'unattributed') = ANY(%(tenant)s))
"""

# Attempts and what the completed ones used, per tenant, model, pool, stretch of the rate card and outcome, from hourly
# roll-ups. Leans on usage_hour_when; never touches single requests.
ATTEMPTS = f"""
WITH version AS (
    SELECT * FROM unnest(%(starts)s::timestamptz[], %(ends)s::timestamptz[]) AS v(version_from, version_to)
)
SELECT coalesce(slug_holder.slug, mapped_holder.slug, 'unattributed'), model.name, pool.slug, version.version_from,
       hour.outcome, sum(hour.requests)::numeric, sum(hour.input_tokens)::numeric,
       sum(hour.cached_input_tokens)::numeric, sum(hour.output_tokens)::numeric, sum(hour.reasoning_tokens)::numeric,
       sum(hour.gpu_us)::numeric
FROM ledger_usagehour hour
JOIN version ON hour.hour >= version.version_from AND hour.hour < version.version_to
JOIN ledger_pool pool ON pool.id = hour.pool_id
JOIN ledger_modelname model ON model.id = hour.model_id
{_TENANT.format(row="hour", at="hour")}
WHERE hour.hour >= %(from)s AND hour.hour < %(to)s AND {_IS_SHOWN}
  AND (%(model)s::text[] IS NULL OR model.name = ANY(%(model)s))
GROUP BY 1, 2, 3, 4, 5
HAVING sum(hour.requests) <> 0
ORDER BY 1, 2, 3, 4, 5
"""

# Attempts of the window that a later attempt of the same request followed, at most two days after. Both sides are few
# and have partial indexes: request_retried and request_unfinished.
SUPERSEDED = f"""
WITH later AS MATERIALIZED (
    SELECT request, service_id, attempt FROM ledger_request
    WHERE attempt > 1 AND day >= (%(from)s AT TIME ZONE 'UTC')::date
      AND day <= (%(to)s AT TIME ZONE 'UTC')::date + 2
)
SELECT coalesce(slug_holder.slug, mapped_holder.slug, 'unattributed'), model.name, earlier.outcome, count(*)
FROM ledger_request earlier
JOIN ledger_modelname model ON model.id = earlier.model_id
{_TENANT.format(row="earlier", at="ends_at")}
WHERE earlier.day >= (%(from)s AT TIME ZONE 'UTC')::date AND earlier.day <= (%(to)s AT TIME ZONE 'UTC')::date
  AND earlier.outcome IN (2, 3, 4, 5) AND earlier.type = 7
  AND earlier.ends_at >= %(from)s AND earlier.ends_at < %(to)s
  AND EXISTS (SELECT 1 FROM later WHERE later.request = earlier.request AND later.attempt > earlier.attempt
                AND later.service_id IS NOT DISTINCT FROM earlier.service_id)
  AND {_IS_SHOWN} AND (%(model)s::text[] IS NULL OR model.name = ANY(%(model)s))
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3
"""

# Refusals, each request once: of several of one request the last, and none of a request that ran after all as a
# further attempt. Refusals without a request id count as they say. Leans on rejection_when and request_retried.
_REFUSED = f"""
WITH refused AS (
    SELECT rejection.*, coalesce(slug_holder.slug, mapped_holder.slug, 'unattributed') AS tenant,
           coalesce(model.name, '') AS model_name, coalesce(pool.slug, '') AS pool_slug,
           row_number() OVER (PARTITION BY rejection.identity_id, rejection.model_id, rejection.request
                              ORDER BY rejection.occurred_at DESC, rejection.event_id DESC) AS place
    FROM ledger_rejection rejection
    LEFT JOIN ledger_modelname model ON model.id = rejection.model_id
    LEFT JOIN ledger_pool pool ON pool.id = rejection.pool_id
    {_TENANT.format(row="rejection", at="occurred_at")}
    WHERE rejection.occurred_at >= %(from)s AND rejection.occurred_at < %(to)s
      AND rejection.event_id <> ALL(%(void)s) AND {_IS_SHOWN}
      AND (%(model)s::text[] IS NULL OR model.name = ANY(%(model)s))
), counted AS (
    SELECT * FROM refused
    WHERE request IS NULL OR (place = 1 AND NOT EXISTS (
        SELECT 1 FROM ledger_request later
        WHERE later.attempt > 1 AND later.request = refused.request
          AND later.day >= (%(from)s AT TIME ZONE 'UTC')::date
          AND later.day <= (%(to)s AT TIME ZONE 'UTC')::date + 2))
)
"""
REFUSED = (
    _REFUSED
    + """
SELECT tenant, model_name, sum(count)::numeric,
       coalesce(sum(count) FILTER (WHERE status BETWEEN 400 AND 499 AND retry_after_us IS NOT NULL), 0)::numeric,
       coalesce(sum(requested_tokens), 0)::numeric,
       coalesce(sum(count) FILTER (WHERE requested_tokens IS NULL), 0)::numeric
FROM counted
GROUP BY 1, 2
ORDER BY 1, 2
"""
)

# Refusals by any of the dimensions in %(by)s, as reported: every one counts. Leans on rejection_when.
REJECTIONS = f"""
WITH refused AS (
    SELECT rejection.*, coalesce(slug_holder.slug, mapped_holder.slug, 'unattributed') AS tenant,
           coalesce(model.name, '') AS model_name, coalesce(pool.slug, '') AS pool_slug
    FROM ledger_rejection rejection
    LEFT JOIN ledger_modelname model ON model.id = rejection.model_id
    LEFT JOIN ledger_pool pool ON pool.id = rejection.pool_id
    {_TENANT.format(row="rejection", at="occurred_at")}
    WHERE rejection.occurred_at >= %(from)s AND rejection.occurred_at < %(to)s
      AND rejection.event_id <> ALL(%(void)s) AND {_IS_SHOWN}
)
SELECT CASE %(step)s WHEN 'all' THEN %(from)s
                     WHEN 'hour' THEN date_trunc('hour', occurred_at)
                     ELSE greatest(date_trunc(%(step)s, occurred_at, %(zone)s), %(from)s) END AS bucket,
       CASE WHEN 'tenant' = ANY(%(by)s) THEN tenant END,
       CASE WHEN 'pool' = ANY(%(by)s) THEN pool_slug END,
       CASE WHEN 'model' = ANY(%(by)s) THEN model_name END,
       CASE WHEN 'layer' = ANY(%(by)s) THEN layer END,
       CASE WHEN 'reason' = ANY(%(by)s) THEN reason END,
       CASE WHEN 'status' = ANY(%(by)s) THEN status::text END,
       CASE WHEN 'origin' = ANY(%(by)s) THEN coalesce(origin, '') END,
       CASE WHEN 'service_class' = ANY(%(by)s) THEN service_class::text END,
       sum(count)::numeric,
       coalesce(sum(count) FILTER (WHERE status BETWEEN 400 AND 499 AND retry_after_us IS NOT NULL), 0)::numeric,
       coalesce(sum(requested_tokens), 0)::numeric, coalesce(sum(requested_milli_gpus), 0)::numeric,
       min(retry_after_us), max(retry_after_us), min(occurred_at), max(occurred_at)
FROM refused
WHERE (%(pool)s::text[] IS NULL OR pool_slug = ANY(%(pool)s))
  AND (%(model)s::text[] IS NULL OR model_name = ANY(%(model)s))
  AND (%(layer)s::text[] IS NULL OR layer = ANY(%(layer)s))
  AND (%(reason)s::text[] IS NULL OR reason = ANY(%(reason)s))
  AND (%(status)s::text[] IS NULL OR status::text = ANY(%(status)s))
  AND (%(origin)s::text[] IS NULL OR coalesce(origin, '') = ANY(%(origin)s))
  AND (%(service_class)s::text[] IS NULL OR service_class::text = ANY(%(service_class)s))
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
ORDER BY 1, 2 NULLS FIRST, 3 NULLS FIRST, 4 NULLS FIRST, 5 NULLS FIRST, 6 NULLS FIRST, 7 NULLS FIRST, 8 NULLS FIRST,
         9 NULLS FIRST
LIMIT %(limit)s OFFSET %(offset)s
"""
