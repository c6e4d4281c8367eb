"""Contradictions of facts that were told after the close of their month. Static, with bound parameters."""

# Of closed months, asked for the month %(month)s that follows the last of them: conflicts of levels and of reports in
# which one of the sides came after the last cut, so that no close has seen them. Those that a computation noted in the
# month itself, because their level is still in force, stand there. Findings of conflicts are few and read whole; each
# leans on the keys of levels, preemption_report_key and resume_report_key.
TOLD_AFTER_CLOSE = """
WITH last AS (
    SELECT ends_at, cut_sequence FROM ledger_period WHERE state = 3 ORDER BY month DESC LIMIT 1
), asked AS (
    SELECT last.cut_sequence FROM last JOIN ledger_period period ON period.starts_at = last.ends_at
    WHERE period.month = %(month)s
), found AS (
    SELECT finding.month, finding.code, finding.pool_id
    FROM asked CROSS JOIN billing_billingfinding finding
    JOIN ledger_period period ON period.month = finding.month AND period.state = 3
    JOIN ledger_level lost ON lost.pool_id = finding.pool_id
        AND lost.event_id = CASE WHEN finding.code = 'level_conflict' THEN substr(finding.subject, 7)::bigint END
    WHERE finding.code = 'level_conflict' AND finding.blocks_close
      AND EXISTS (
        SELECT 1 FROM ledger_level side JOIN ledger_event event ON event.id = side.event_id
        JOIN ledger_booking booking ON booking.id = event.booking_id
        WHERE side.pool_id = lost.pool_id AND side.kind = lost.kind AND side.subject = lost.subject
          AND side.attempt = lost.attempt AND side.starts_at = lost.starts_at
          AND coalesce(booking.sequence > asked.cut_sequence, true))
      AND NOT EXISTS (
        SELECT 1 FROM billing_billingfinding own
        WHERE own.month = %(month)s AND own.code = finding.code AND own.subject = finding.subject)
    UNION ALL
    SELECT period.month, finding.code, finding.pool_id
    FROM asked CROSS JOIN ledger_factfinding finding
    JOIN ledger_period period
        ON finding.occurred_at >= period.starts_at AND finding.occurred_at < period.ends_at AND period.state = 3
    WHERE finding.code = 'merge_conflict' AND finding.blocks_close
      AND EXISTS (
        SELECT 1 FROM (
            SELECT event_id FROM ledger_preemptionreport
            WHERE cluster = split_part(finding.subject, '/', 1)
              AND preemption = substr(finding.subject, strpos(finding.subject, '/') + 1)
            UNION ALL
            SELECT event_id FROM ledger_resumereport
            WHERE preemption = substr(finding.subject, strpos(finding.subject, '/') + 1)
        ) side
        JOIN ledger_event event ON event.id = side.event_id
        JOIN ledger_booking booking ON booking.id = event.booking_id
        WHERE coalesce(booking.sequence > asked.cut_sequence, true))
)
SELECT found.month, found.code, coalesce(pool.slug, ''), count(*)
FROM found LEFT JOIN ledger_pool pool ON pool.id = found.pool_id
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
