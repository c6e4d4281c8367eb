"""Reads behind the invariants (domain.md section 11). Static statements; each returns only what is wrong."""

from billing.sql.usage_hours import HOURS_OF_REQUESTS, USAGE_SUMS

# 11.1: a pool's slot conserves its capacity, and the holders' rows add up to it. Reads every slot of the months asked
# for; leans on the primary keys of both tables.
SLOTS_THAT_DO_NOT_ADD_UP = """
WITH held AS (
    SELECT pool_id, starts_at, sum(reserved_used_gpu_us) AS reserved_used, sum(on_demand_gpu_us) AS on_demand,
           sum(borrowed_gpu_us) AS borrowed, sum(excess_gpu_us) AS excess, sum(lent_gpu_us) AS lent,
           sum(reserved_idle_gpu_us) AS reserved_idle, sum(undelivered_gpu_us) AS undelivered,
           sum(oversold_gpu_us) AS oversold
    FROM billing_allocation WHERE starts_at >= %(from)s AND starts_at < %(to)s GROUP BY 1, 2
)
SELECT pool.slug, slot.starts_at,
       slot.capacity_gpu_us <> slot.reserved_used_gpu_us + slot.on_demand_gpu_us + slot.borrowed_gpu_us
           + slot.reserved_idle_gpu_us + slot.undelivered_gpu_us + slot.unreserved_idle_gpu_us
           - slot.over_reserved_gpu_us AS capacity,
       coalesce(held.lent, 0) <> coalesce(held.borrowed, 0) AS lending
FROM billing_poolslot slot
JOIN ledger_pool pool ON pool.id = slot.pool_id
LEFT JOIN held ON held.pool_id = slot.pool_id AND held.starts_at = slot.starts_at
WHERE slot.starts_at >= %(from)s AND slot.starts_at < %(to)s AND (
    slot.capacity_gpu_us <> slot.reserved_used_gpu_us + slot.on_demand_gpu_us + slot.borrowed_gpu_us
        + slot.reserved_idle_gpu_us + slot.undelivered_gpu_us + slot.unreserved_idle_gpu_us
        - slot.over_reserved_gpu_us
    OR coalesce(held.lent, 0) <> coalesce(held.borrowed, 0)
    OR (slot.reserved_used_gpu_us, slot.on_demand_gpu_us, slot.borrowed_gpu_us, slot.excess_gpu_us,
        slot.reserved_idle_gpu_us, slot.undelivered_gpu_us, slot.oversold_gpu_us)
       <> (coalesce(held.reserved_used, 0), coalesce(held.on_demand, 0), coalesce(held.borrowed, 0),
           coalesce(held.excess, 0), coalesce(held.reserved_idle, 0), coalesce(held.undelivered, 0),
           coalesce(held.oversold, 0)))
ORDER BY 1, 2
LIMIT 100
"""

# Rows of a slot that does not exist: time that no pool had.
ROWS_WITHOUT_SLOT = """
SELECT pool.slug, a.starts_at FROM billing_allocation a JOIN ledger_pool pool ON pool.id = a.pool_id
WHERE a.starts_at >= %(from)s AND a.starts_at < %(to)s AND NOT EXISTS (
    SELECT 1 FROM billing_poolslot slot WHERE slot.pool_id = a.pool_id AND slot.starts_at = a.starts_at)
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT 100
"""

# 11.8: the slots of a pool follow each other without gap or overlap.
SLOTS_THAT_DO_NOT_MEET = """
SELECT pool, ends_at, next_starts_at FROM (
    SELECT pool.slug AS pool, slot.starts_at, slot.ends_at,
           lead(slot.starts_at) OVER (PARTITION BY slot.pool_id ORDER BY slot.starts_at) AS next_starts_at
    FROM billing_poolslot slot JOIN ledger_pool pool ON pool.id = slot.pool_id
    WHERE slot.starts_at >= %(from)s AND slot.starts_at < %(to)s
) neighbours
WHERE next_starts_at <> ends_at
ORDER BY 1, 2 LIMIT 100
"""

# 4: rows and columns of the lender x borrower pairs equal what was lent and borrowed, per pool and holder.
PAIRS_THAT_DO_NOT_ADD_UP = """
WITH during AS (
    SELECT pool_id, holder_id, sum(lent_gpu_us) AS lent, sum(borrowed_gpu_us) AS borrowed
    FROM billing_allocation WHERE starts_at >= %(from)s AND starts_at < %(to)s GROUP BY 1, 2
), pair AS (
    SELECT pool_id, holder_id, sum(lent) AS lent, sum(borrowed) AS borrowed FROM (
        SELECT pool_id, lender_id AS holder_id, gpu_us AS lent, 0 AS borrowed
        FROM billing_lendingday WHERE starts_at >= %(from)s AND starts_at < %(to)s
        UNION ALL
        SELECT pool_id, borrower_id, 0, gpu_us
        FROM billing_lendingday WHERE starts_at >= %(from)s AND starts_at < %(to)s
    ) side GROUP BY 1, 2
)
SELECT pool.slug, holder.slug, coalesce(during.lent, 0), coalesce(pair.lent, 0),
       coalesce(during.borrowed, 0), coalesce(pair.borrowed, 0)
FROM during FULL JOIN pair USING (pool_id, holder_id)
JOIN ledger_pool pool ON pool.id = pool_id
JOIN ledger_holder holder ON holder.id = holder_id
WHERE (coalesce(during.lent, 0), coalesce(during.borrowed, 0))
   <> (coalesce(pair.lent, 0), coalesce(pair.borrowed, 0))
ORDER BY 1, 2 LIMIT 100
"""

# 4: what is added up by day for pages and forecasts is what the slots hold, per pool, payer and class of a month.
DAYS_THAT_DO_NOT_ADD_UP = """
WITH slot AS (
    SELECT pool_id, account_id, service_class, sum(reserved_used_gpu_us) AS reserved_used,
           sum(on_demand_gpu_us) AS on_demand, sum(borrowed_gpu_us) AS borrowed, sum(excess_gpu_us) AS excess,
           sum(lent_gpu_us) AS lent, sum(reserved_idle_gpu_us) AS reserved_idle,
           sum(undelivered_gpu_us) AS undelivered, sum(oversold_gpu_us) AS oversold
    FROM billing_allocation WHERE starts_at >= %(from)s AND starts_at < %(to)s GROUP BY 1, 2, 3
), day AS (
    SELECT pool_id, account_id, service_class, sum(reserved_used_gpu_us) AS reserved_used,
           sum(on_demand_gpu_us) AS on_demand, sum(borrowed_gpu_us) AS borrowed, sum(excess_gpu_us) AS excess,
           sum(lent_gpu_us) AS lent, sum(reserved_idle_gpu_us) AS reserved_idle,
           sum(undelivered_gpu_us) AS undelivered, sum(oversold_gpu_us) AS oversold
    FROM billing_allocationday WHERE starts_at >= %(from)s AND starts_at < %(to)s GROUP BY 1, 2, 3
)
SELECT pool.slug, coalesce(holder.slug, '')
FROM slot FULL JOIN day USING (pool_id, account_id, service_class)
JOIN ledger_pool pool ON pool.id = pool_id
JOIN ledger_account account ON account.id = account_id
LEFT JOIN ledger_holder holder ON holder.id = account.tenant_id
WHERE (slot.reserved_used, slot.on_demand, slot.borrowed, slot.excess, slot.lent, slot.reserved_idle,
       slot.undelivered, slot.oversold)
   IS DISTINCT FROM (day.reserved_used, day.on_demand, day.borrowed, day.excess, day.lent, day.reserved_idle,
       day.undelivered, day.oversold)
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT 100
"""

# 7: tokens kept by day, which bills add up, are those of the hours of requests, per pool, tenant and model of a month.
# A pool may be computed further than the month. Reads the roll-ups of the month.
TOKEN_DAYS_THAT_DIFFER = """
WITH ahead AS (
    SELECT pool_id, max(ends_at) AS ends_at FROM billing_poolslot
    WHERE starts_at >= %(from)s AND starts_at < %(to)s GROUP BY 1
), hour AS (
    SELECT hour.pool_id, coalesce(slug_holder.id, mapping.tenant_id) AS tenant_id, model_id,
           service_id IS NOT NULL AS served, sum(requests) AS requests, sum(input_tokens) AS input,
           sum(cached_input_tokens) AS cached, sum(output_tokens) AS output, sum(reasoning_tokens) AS reasoning
    FROM ledger_usagehour hour
    LEFT JOIN ahead ON ahead.pool_id = hour.pool_id
    JOIN ledger_identity identity ON identity.id = hour.identity_id
    LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
    LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> hour.hour
    WHERE hour.hour >= %(from)s AND hour.hour < greatest(%(horizon)s, ahead.ends_at)
    GROUP BY 1, 2, 3, 4
), day AS (
    SELECT pool_id, tenant_id, model_id, served, sum(requests) AS requests, sum(input_tokens) AS input,
           sum(cached_input_tokens) AS cached, sum(output_tokens) AS output, sum(reasoning_tokens) AS reasoning
    FROM billing_tokenday WHERE starts_at >= %(from)s AND starts_at < %(to)s GROUP BY 1, 2, 3, 4
)
SELECT pool.slug, holder.slug
FROM hour FULL JOIN day USING (pool_id, tenant_id, model_id, served)
JOIN ledger_pool pool ON pool.id = pool_id
JOIN ledger_holder holder ON holder.id = tenant_id
WHERE (hour.requests, hour.input, hour.cached, hour.output, hour.reasoning)
   IS DISTINCT FROM (day.requests, day.input, day.cached, day.output, day.reasoning)
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT 100
"""

# 9: what sources counted adds up to the hours of requests, on the days that were counted, per pool and tenant.
COUNTED_TOKENS_THAT_DIFFER = """
WITH counted AS (
    SELECT day.pool_id, day.starts_at, tokens.tenant, sum(input_tokens) AS input, sum(output_tokens) AS output
    FROM billing_countedday day JOIN billing_countedtokens tokens USING (pool_id, starts_at)
    WHERE day.starts_at >= %(from)s AND day.starts_at < %(to)s GROUP BY 1, 2, 3
), hour AS (
    SELECT day.pool_id, day.starts_at, coalesce(slug_holder.slug, mapped_holder.slug, 'unattributed') AS tenant,
           sum(input_tokens) AS input, sum(output_tokens) AS output
    FROM billing_countedday day
    JOIN ledger_usagehour hour ON hour.pool_id = day.pool_id AND hour.hour >= day.starts_at
        AND hour.hour < least(date_trunc('day', day.starts_at, 'UTC') + interval '1 day', %(to)s)
    JOIN ledger_identity identity ON identity.id = hour.identity_id
    LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
    LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> hour.hour
    LEFT JOIN ledger_holder mapped_holder ON mapped_holder.id = mapping.tenant_id
    WHERE day.starts_at >= %(from)s AND day.starts_at < %(to)s GROUP BY 1, 2, 3
)
SELECT pool.slug, tenant
FROM counted FULL JOIN hour USING (pool_id, starts_at, tenant) JOIN ledger_pool pool ON pool.id = pool_id
WHERE (coalesce(counted.input, 0), coalesce(counted.output, 0))
   <> (coalesce(hour.input, 0), coalesce(hour.output, 0))
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT 100
"""

# 7: the hours of requests are the sum of the requests, per pool. Reads a month of requests; of days whose requests were
# pruned, and of their neighbours, nothing can be said (partitions by day; usage_hour_key).
HOURS_THAT_DIFFER = (
    """
WITH counted AS (
    SELECT * FROM ledger_request request
    WHERE day BETWEEN (%(from)s - interval '2 days')::date AND (%(to)s + interval '2 days')::date
      AND NOT EXISTS (
        SELECT 1 FROM unnest(%(void_sources)s::bigint[], %(void_ids)s::text[]) AS void(source_id, event_id)
        WHERE void.source_id = request.source_id AND void.event_id = request.event_id)
), part AS (
    """
    + HOURS_OF_REQUESTS
    + f"""
    UNION ALL
    SELECT pool_id, hour, identity_id, service_id, model_id, service_class, outcome,
           {", ".join(f"-{name}" for name in USAGE_SUMS)}
    FROM ledger_usagehour
), differing AS (
    SELECT pool_id, hour FROM part
    WHERE hour >= %(from)s AND hour < %(to)s AND NOT EXISTS (
        SELECT 1 FROM ledger_prunedday pruned
        WHERE (part.hour AT TIME ZONE 'UTC')::date BETWEEN pruned.day - 2 AND pruned.day + 2)
    GROUP BY pool_id, hour, identity_id, service_id, model_id, service_class, outcome
    HAVING {" OR ".join(f"sum({name}) <> 0" for name in USAGE_SUMS)}
)
SELECT pool.slug, min(hour) FROM differing JOIN ledger_pool pool ON pool.id = pool_id GROUP BY 1 ORDER BY 1
"""
)

# 11.4: a statement's total, the sum of its lines, and what the tenant's account was charged in the month.
STATEMENTS_THAT_DO_NOT_ADD_UP = """
WITH line AS (
    SELECT statement_id, sum(amount_micro) AS micro, sum(amount_minor) AS minor
    FROM billing_statementline GROUP BY 1
), posted AS (
    SELECT account_id, sum(micro) AS micro FROM (
        SELECT debit_id AS account_id, quantity AS micro FROM ledger_transfer
        WHERE unit = 2 AND posted_in_id = %(month)s
        UNION ALL
        SELECT credit_id, -quantity FROM ledger_transfer WHERE unit = 2 AND posted_in_id = %(month)s
    ) side GROUP BY 1
)
SELECT statement.number, statement.total_micro, coalesce(line.micro, 0), coalesce(posted.micro, 0),
       statement.total_minor, coalesce(line.minor, 0)
FROM billing_statement statement
JOIN ledger_account account ON account.tenant_id = statement.tenant_id
LEFT JOIN line ON line.statement_id = statement.id
LEFT JOIN posted ON posted.account_id = account.id
WHERE statement.period_id = %(month)s AND (
    statement.total_micro <> coalesce(line.micro, 0) OR statement.total_micro <> coalesce(posted.micro, 0)
    OR statement.total_minor <> coalesce(line.minor, 0))
ORDER BY 1
"""

# One hash per table of a month's derived rows, to compare the books with the books computed again.
FINGERPRINTS = {
    "table_pool_slots": """SELECT md5(coalesce(string_agg(md5(row::text), '' ORDER BY row.pool_id, row.starts_at), ''))
        FROM billing_poolslot row WHERE starts_at >= %(from)s AND starts_at < %(to)s""",
    "table_allocations": """SELECT md5(coalesce(string_agg(md5(row::text), '' ORDER BY row::text), ''))
        FROM billing_allocation row WHERE starts_at >= %(from)s AND starts_at < %(to)s""",
    "table_allocation_days": """SELECT md5(coalesce(string_agg(md5(row::text), '' ORDER BY row::text), ''))
        FROM billing_allocationday row WHERE starts_at >= %(from)s AND starts_at < %(to)s""",
    "table_tenant_months": """SELECT md5(coalesce(string_agg(md5(row::text), '' ORDER BY row.tenant_id), ''))
        FROM billing_tenantmonth row WHERE period_id = %(month)s""",
    "table_lending": """SELECT md5(coalesce(string_agg(md5(row::text), '' ORDER BY row::text), ''))
        FROM billing_lendingday row WHERE starts_at >= %(from)s AND starts_at < %(to)s""",
    "table_tokens": """SELECT md5(coalesce(string_agg(md5(row::text), '' ORDER BY row::text), ''))
        FROM billing_tokenday row WHERE starts_at >= %(from)s AND starts_at < %(to)s""",
    "table_preemptions": """SELECT md5(coalesce(string_agg(md5(row::text), '' ORDER BY row.id), ''))
        FROM billing_preemptionrecord row WHERE decided_at >= %(from)s AND decided_at < %(to)s""",
    "table_preemption_shares": """SELECT md5(coalesce(string_agg(md5(row::text), '' ORDER BY row::text), '')) FROM (
            SELECT share.record_id, share.account_id, share.milli_gpus, share.entitled_milli_gpus,
                   share.waiting_gpu_us, share.lost_gpu_us, share.recompute_gpu_us
            FROM billing_preemptionshare share JOIN billing_preemptionrecord record ON record.id = share.record_id
            WHERE record.decided_at >= %(from)s AND record.decided_at < %(to)s) row""",
}
"""Months are compared table by table; `row` is the whole row, so any column that differs shows."""
