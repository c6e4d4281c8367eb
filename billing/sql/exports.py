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

# What a holder's part of a slot rests on: of the pool's capacity and of each subject of the holder, the level in force
# at the slot's start and those within its hour. Leans on level_of_subject and subject_key.
LEVELS_IN_A_SLOT = """
WITH named AS (
    SELECT identity.id FROM ledger_identity identity
    WHERE identity.kind IN ('tenant', 'service') AND identity.value = %(holder)s
    UNION
    SELECT mapping.identity_id FROM ledger_identitymapping mapping JOIN ledger_holder holder ON holder.id = tenant_id
    WHERE holder.slug = %(holder)s AND mapping.validity @> %(at)s::timestamptz
), held AS (
    SELECT subject.pool_id, subject.kind, subject.subject, subject.attempt FROM ledger_subject subject
    JOIN ledger_pool pool ON pool.id = subject.pool_id AND pool.slug = %(pool)s
    WHERE subject.kind IN (1, 2, 3) AND first_at < %(at)s::timestamptz + interval '1 hour'
      AND (last_at >= %(at)s::timestamptz OR last_milli_gpus > 0)
), found AS (
    SELECT level.* FROM held CROSS JOIN LATERAL (
        (SELECT * FROM ledger_level level
         WHERE (level.pool_id, level.kind, level.subject, level.attempt)
             = (held.pool_id, held.kind, held.subject, held.attempt) AND level.starts_at <= %(at)s::timestamptz
         ORDER BY level.starts_at DESC, level.id LIMIT 1)
        UNION ALL
        (SELECT * FROM ledger_level level
         WHERE (level.pool_id, level.kind, level.subject, level.attempt)
             = (held.pool_id, held.kind, held.subject, held.attempt)
           AND level.starts_at > %(at)s::timestamptz AND level.starts_at < %(at)s::timestamptz + interval '1 hour')
    ) level
    WHERE level.identity_id IS NULL OR level.identity_id IN (SELECT id FROM named)
)
SELECT source.uri, event.event_id, booking.batch, event.line,
       CASE found.kind WHEN 1 THEN 'capacity' WHEN 2 THEN 'reservation' ELSE 'occupancy' END, found.subject,
       found.starts_at, found.milli_gpus, event.body
FROM found JOIN ledger_event event ON event.id = found.event_id
JOIN ledger_source source ON source.id = event.source_id JOIN ledger_booking booking ON booking.id = event.booking_id
ORDER BY found.kind, found.subject COLLATE "C", found.starts_at, event.id
"""
