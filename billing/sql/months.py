"""A month's quantities from its slots, summed in the database. Static statements with bound parameters."""

# GPU time of [%(from)s, %(to)s) per pool, holder, account, class, purpose and version of the terms. The stretches of
# the versions come as parallel arrays. Reads every slot row of the month once; leans on the primary key (pool,
# starts_at). Summed before names are looked up, here and below: looking up and sorting by the names of every row costs
# several times as much.
QUANTITIES = """
WITH version AS (
    SELECT * FROM unnest(%(pools)s::bigint[], %(starts)s::timestamptz[], %(ends)s::timestamptz[])
        AS v(pool_id, version_from, version_to)
), summed AS MATERIALIZED (
    SELECT a.pool_id, a.holder_id, a.account_id, a.service_class, a.purpose, a.service_idle, version.version_from,
           sum(reserved_used_gpu_us)::numeric AS reserved_used, sum(on_demand_gpu_us)::numeric AS on_demand,
           sum(borrowed_gpu_us)::numeric AS borrowed, sum(excess_gpu_us)::numeric AS excess,
           sum(lent_gpu_us)::numeric AS lent, sum(reserved_idle_gpu_us)::numeric AS reserved_idle,
           sum(undelivered_gpu_us)::numeric AS undelivered, sum(oversold_gpu_us)::numeric AS oversold,
           sum(lent_waiting_gpu_us)::numeric AS lent_waiting
    FROM billing_allocation a
    JOIN version ON version.pool_id = a.pool_id
        AND a.starts_at >= version.version_from AND a.starts_at < version.version_to
    WHERE a.starts_at >= %(from)s AND a.starts_at < %(to)s
    GROUP BY 1, 2, 3, 4, 5, 6, 7
)
SELECT pool.slug, holder.slug, holder.kind, account_id, service_class, purpose, service_idle, version_from,
       reserved_used, on_demand, borrowed, excess, lent, reserved_idle, undelivered, oversold, lent_waiting
FROM summed
JOIN ledger_pool pool ON pool.id = summed.pool_id
JOIN ledger_holder holder ON holder.id = summed.holder_id
ORDER BY 1, 2, 4, 5, 6, 7, 8
"""

# What nobody held, and the capacity, by version. Leans on pool_slot_capacity.
POOL_QUANTITIES = """
WITH version AS (
    SELECT * FROM unnest(%(pools)s::bigint[], %(starts)s::timestamptz[], %(ends)s::timestamptz[])
        AS v(pool_id, version_from, version_to)
)
SELECT pool.slug, version.version_from, sum(unreserved_idle_gpu_us)::numeric, sum(capacity_gpu_us)::numeric
FROM billing_poolslot s
JOIN version ON version.pool_id = s.pool_id
    AND s.starts_at >= version.version_from AND s.starts_at < version.version_to
JOIN ledger_pool pool ON pool.id = s.pool_id
WHERE s.starts_at >= %(from)s AND s.starts_at < %(to)s
GROUP BY 1, 2
ORDER BY 1, 2
"""

# Who lent to whom, by version of the rate card: rows are cut by the day and at prices. Leans on the
# primary key (pool, starts_at).
LENDING = """
WITH version AS (
    SELECT * FROM unnest(%(starts)s::timestamptz[], %(ends)s::timestamptz[]) AS v(version_from, version_to)
), summed AS MATERIALIZED (
    SELECT l.pool_id, version.version_from, l.lender_id, l.borrower_id, sum(gpu_us)::numeric AS gpu_us
    FROM billing_lendingday l
    JOIN version ON l.starts_at >= version.version_from AND l.starts_at < version.version_to
    WHERE l.pool_id = ANY(%(pools)s) AND l.starts_at >= %(from)s AND l.starts_at < %(to)s
    GROUP BY 1, 2, 3, 4
)
SELECT pool.slug, version_from, lender.slug, borrower.slug, gpu_us
FROM summed
JOIN ledger_pool pool ON pool.id = summed.pool_id
JOIN ledger_holder lender ON lender.id = summed.lender_id
JOIN ledger_holder borrower ON borrower.id = summed.borrower_id
ORDER BY 1, 2, 3, 4
"""

# Tokens that shared services gave each tenant, by model and version of the rate card, from the days as they were
# computed (index token_day_when).
SERVICE_TOKENS = """
WITH version AS (
    SELECT * FROM unnest(%(starts)s::timestamptz[], %(ends)s::timestamptz[]) AS v(version_from, version_to)
), summed AS MATERIALIZED (
    SELECT day.tenant_id, day.model_id, version.version_from,
           sum(input_tokens)::numeric AS input, sum(cached_input_tokens)::numeric AS cached_input,
           sum(output_tokens)::numeric AS output, sum(reasoning_tokens)::numeric AS reasoning
    FROM billing_tokenday day
    JOIN version ON day.starts_at >= version.version_from AND day.starts_at < version.version_to
    WHERE day.served AND day.starts_at >= %(from)s AND day.starts_at < %(to)s
    GROUP BY 1, 2, 3
)
SELECT holder.slug, model.name, version_from, input, cached_input, output, reasoning
FROM summed
JOIN ledger_holder holder ON holder.id = summed.tenant_id
JOIN ledger_modelname model ON model.id = summed.model_id
ORDER BY 1, 2, 3
"""

# The same of whole months, whoever served them: what statements print.
TENANT_TOKENS = """
WITH summed AS MATERIALIZED (
    SELECT tenant_id, sum(requests)::numeric AS requests, sum(input_tokens)::numeric AS input,
           sum(cached_input_tokens)::numeric AS cached_input, sum(output_tokens)::numeric AS output,
           sum(reasoning_tokens)::numeric AS reasoning
    FROM billing_tokenday WHERE starts_at >= %(from)s AND starts_at < %(to)s
    GROUP BY 1
)
SELECT holder.slug, requests, input, cached_input, output, reasoning
FROM summed JOIN ledger_holder holder ON holder.id = summed.tenant_id
"""

# What stands posted that concerns a month, per key (of all or some), unit and direction. Leans on the index of
# concerns_id.
POSTED = """
SELECT target_key, unit, debit_id, credit_id, sum(quantity)::numeric, count(*)
FROM ledger_transfer
WHERE concerns_id = %(month)s AND (%(keys)s::text[] IS NULL OR target_key = ANY(%(keys)s))
GROUP BY 1, 2, 3, 4
"""

# Capacity and what weighs in cost recovery (capacity plus what was held beyond it), per pool. Leans on
# pool_slot_capacity.
WEIGHED = """
SELECT pool.slug, sum(capacity_gpu_us + over_reserved_gpu_us)::numeric
FROM billing_poolslot s JOIN ledger_pool pool ON pool.id = s.pool_id
WHERE s.starts_at >= %(from)s AND s.starts_at < %(to)s
GROUP BY 1
"""

# What is posted in a month and concerns others, per key, unit and direction. Leans on the index of posted_in_id.
POSTED_FOR_OTHERS = """
SELECT concerns_id, target_key, unit, debit_id, credit_id, sum(quantity)::numeric
FROM ledger_transfer
WHERE posted_in_id = %(month)s AND concerns_id <> %(month)s
GROUP BY 1, 2, 3, 4, 5
ORDER BY 1, 2, 3, 4, 5
"""

# What was posted after its close for a month and one account, per key, unit, debited account and month it stands in.
# Leans on the index of concerns_id.
POSTED_LATER = """
SELECT target_key, unit, debit_id, posted_in_id, sum(quantity)::numeric
FROM ledger_transfer
WHERE concerns_id = %(month)s AND posted_in_id <> %(month)s AND %(account)s IN (debit_id, credit_id)
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4
"""

# A month's statements, and of their content what is neither a line nor a sum: each content is unpacked once, and stays
# in the database. Leans on statement_of_period.
DRAFTS = """
SELECT tenant_id, state, sha256, totals, content - ARRAY['lines', 'totals']
FROM billing_statement WHERE period_id = %(month)s
"""

# Lines of a month that are no more (primary key: month, account, key).
DELETE_LINES = """
DELETE FROM billing_monthline line
USING unnest(%(accounts)s::bigint[], %(keys)s::text[]) AS gone(account_id, key)
WHERE line.period_id = %(month)s AND line.account_id = gone.account_id AND line.key = gone.key
"""
