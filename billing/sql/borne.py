"""Set-based reads of what tenants of a shared service bear for each other. Static statements with bound parameters."""

# Per account, pool and service: what the account was charged of the service's occupied time, and what basis `measured`
# would have charged it: its measured time, scaled down where all of it together exceeds the slot's occupancy. Leans on
# allocation_of_account for the accounts' slots and on the primary key for what all others had of them.
BORNE_FOR_OTHERS = """
WITH mine AS (
    SELECT row.account_id, row.pool_id, row.starts_at, row.holder_id,
           sum(row.reserved_used_gpu_us + row.on_demand_gpu_us + row.borrowed_gpu_us + row.excess_gpu_us) AS charged,
           sum(row.measured_gpu_us) AS measured
    FROM billing_allocation row JOIN ledger_service service ON service.holder_id = row.holder_id
    WHERE row.account_id = ANY(%(accounts)s) AND row.starts_at >= %(from)s AND row.starts_at < %(to)s
      AND NOT row.service_idle
    GROUP BY 1, 2, 3, 4
), slot AS (
    SELECT DISTINCT pool_id, starts_at, holder_id FROM mine
), whole AS (
    SELECT row.pool_id, row.starts_at, row.holder_id,
           sum(row.reserved_used_gpu_us + row.on_demand_gpu_us + row.borrowed_gpu_us + row.excess_gpu_us) AS occupied,
           sum(row.measured_gpu_us) AS all_measured
    FROM slot JOIN billing_allocation row USING (pool_id, starts_at, holder_id)
    GROUP BY 1, 2, 3
)
SELECT mine.account_id, pool.slug, holder.slug, sum(charged)::bigint,
       sum(CASE WHEN all_measured > occupied THEN div(measured * occupied, all_measured) ELSE measured END)::bigint
FROM mine JOIN whole USING (pool_id, starts_at, holder_id)
JOIN ledger_pool pool ON pool.id = mine.pool_id JOIN ledger_holder holder ON holder.id = mine.holder_id
GROUP BY 1, 2, 3 ORDER BY 1, 3, 2
"""
