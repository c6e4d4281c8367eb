"""Set-based reads of the files that follow a statement's lines into their slots."""

# GPU time of an account by slot, holder, class, purpose and category, in a total order. Leans on
# allocation_of_account and the primary key of billing_poolslot.
SLOTS_OF_ACCOUNT = """
SELECT a.starts_at, s.ends_at, pool.slug, CASE WHEN holder.kind = 2 THEN holder.slug ELSE '' END,
       a.service_class, a.purpose, a.service_idle, c.category, c.gpu_us
FROM billing_allocation a
JOIN billing_poolslot s ON s.pool_id = a.pool_id AND s.starts_at = a.starts_at
JOIN ledger_pool pool ON pool.id = a.pool_id
JOIN ledger_holder holder ON holder.id = a.holder_id
CROSS JOIN LATERAL (VALUES
    (1, 'reserved_used', a.reserved_used_gpu_us), (2, 'on_demand', a.on_demand_gpu_us),
    (3, 'borrowed', a.borrowed_gpu_us), (4, 'excess', a.excess_gpu_us), (5, 'lent', a.lent_gpu_us),
    (6, 'reserved_idle', a.reserved_idle_gpu_us), (7, 'undelivered', a.undelivered_gpu_us),
    (8, 'oversold', a.oversold_gpu_us)
) AS c(place, category, gpu_us)
WHERE a.account_id = %(account)s AND a.starts_at >= %(from)s AND a.starts_at < %(to)s AND c.gpu_us <> 0
ORDER BY a.starts_at, pool.slug, holder.slug, a.service_class, a.purpose, a.service_idle, c.place
"""

# Who lent to whom of the given borrowers, per pool and segment of the month. Leans on lending_when.
LENDERS_OF = """
SELECT pool.slug, borrower.slug, l.starts_at, lender.slug
FROM billing_lendingday l
JOIN ledger_pool pool ON pool.id = l.pool_id
JOIN ledger_holder lender ON lender.id = l.lender_id
JOIN ledger_holder borrower ON borrower.id = l.borrower_id
WHERE l.starts_at >= %(from)s AND l.starts_at < %(to)s AND borrower.slug = ANY(%(borrowers)s) AND l.gpu_us > 0
ORDER BY pool.slug, borrower.slug, l.starts_at, lender.slug
"""
