"""Reads for attributing engines' busy time to the requests they served."""

# What engines of one source counted as busy without naming anybody, in windows that ended in (%(since)s, %(until)s].
ENGINE_WINDOWS = """
SELECT total.event_id, total.starts_at, total.ends_at, total.pool_id, pool.slug, total.model_id, model.name,
       total.service_id, total.gpu_us
FROM ledger_request total
JOIN ledger_pool pool ON pool.id = total.pool_id
JOIN ledger_modelname model ON model.id = total.model_id
WHERE total.day >= (%(since)s AT TIME ZONE 'UTC')::date AND total.day <= (%(until)s AT TIME ZONE 'UTC')::date
  AND total.source_id = %(source)s AND total.type = 8 AND total.identity_id IS NULL AND total.gpu_us > 0
  AND total.ends_at > %(since)s AND total.ends_at <= %(until)s
  AND NOT EXISTS (
      SELECT 1 FROM unnest(%(void_sources)s::bigint[], %(void_ids)s::text[]) AS void(source_id, event_id)
      WHERE void.source_id = total.source_id AND void.event_id = total.event_id)
ORDER BY total.ends_at, total.event_id
"""

# Requests of one pool and model that ran in a window. One that runs on for more than a day after it is not seen.
SERVED = """
SELECT source.uri, request.event_id, request.starts_at, request.ends_at, request.input_tokens,
       request.cached_input_tokens, request.output_tokens, request.gpu_us, identity.kind, identity.value,
       coalesce(holder.slug, '')
FROM ledger_request request
JOIN ledger_source source ON source.id = request.source_id
JOIN ledger_identity identity ON identity.id = request.identity_id
LEFT JOIN ledger_holder holder ON holder.id = request.service_id
WHERE request.day >= (%(from)s AT TIME ZONE 'UTC')::date AND request.day <= (%(to)s AT TIME ZONE 'UTC')::date + 1
  AND request.type = 7 AND request.pool_id = %(pool)s AND request.model_id = %(model)s
  AND (%(service)s::bigint IS NULL OR request.service_id = %(service)s)
  AND request.starts_at < %(to)s AND request.ends_at >= %(from)s
  AND NOT EXISTS (
      SELECT 1 FROM unnest(%(void_sources)s::bigint[], %(void_ids)s::text[]) AS void(source_id, event_id)
      WHERE void.source_id = request.source_id AND void.event_id = request.event_id)
"""
