from django.db import migrations, models

# All of what was waited where its end is known; it had been cut at the horizon of the month that was computed last.
WAITED = """
UPDATE billing_preemptionrecord record SET waiting_gpu_us = waited.gpu_us
FROM (
    SELECT record_id, sum(milli_gpus * 1000 * extract(epoch FROM ends_at - starts_at))::bigint AS gpu_us
    FROM billing_preemptionwait GROUP BY record_id HAVING bool_and(ends_at IS NOT NULL)
) waited
WHERE waited.record_id = record.id
"""
# By what a service's preemption was shared out: as its waiting was, in the order of the accounts' names.
WEIGHTS = """
UPDATE billing_preemptionshare share
SET weight_before = part.through - part.weight, weight_through = part.through, weight_total = part.total
FROM (
    SELECT id, weight, sum(weight) OVER (PARTITION BY record_id ORDER BY name) AS through,
           sum(weight) OVER (PARTITION BY record_id) AS total
    FROM (
        SELECT one.id, one.record_id,
               CASE WHEN sum(one.waiting_gpu_us) OVER (PARTITION BY one.record_id) > 0 THEN one.waiting_gpu_us
                    ELSE one.milli_gpus END AS weight,
               coalesce('tenant:' || holder.slug, CASE account.kind WHEN 5 THEN 'suspense' ELSE 'platform' END)
                   COLLATE "C" AS name
        FROM billing_preemptionshare one
        JOIN ledger_account account ON account.id = one.account_id
        LEFT JOIN ledger_holder holder ON holder.id = account.tenant_id
    ) weighed
) part
WHERE part.id = share.id AND part.total > 0 AND (part.total <> part.weight)
"""
PARTS = """
UPDATE billing_preemptionshare share
SET waiting_gpu_us = div(record.waiting_gpu_us::numeric * share.weight_through, share.weight_total)
                   - div(record.waiting_gpu_us::numeric * share.weight_before, share.weight_total)
FROM billing_preemptionrecord record WHERE record.id = share.record_id
"""
# Those of services in months that are not closed are measured again, so that their parts have the weights themselves.
MEASURE_AGAIN = """
INSERT INTO ledger_dirtyspan (pool_id, span)
SELECT DISTINCT record.pool_id, tstzrange(record.decided_at, record.decided_at, '[]')
FROM billing_preemptionrecord record
JOIN billing_preemptionshare share ON share.record_id = record.id AND share.weight_total > 1
JOIN ledger_period period
    ON record.decided_at >= period.starts_at AND record.decided_at < period.ends_at AND period.state <> 3
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0023_sentences")]

    operations = [
        migrations.AddField(
            model_name="preemptionshare",
            name="weight_before",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="preemptionshare",
            name="weight_through",
            field=models.BigIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name="preemptionshare",
            name="weight_total",
            field=models.BigIntegerField(db_default=1, default=1),
        ),
        migrations.AlterField(
            model_name="preemptionrecord",
            name="waiting_gpu_us",
            field=models.BigIntegerField(
                default=0,
                help_text="until it ended; while it still waits, up to the latest hour that any month is computed to",
            ),
        ),
        *(migrations.RunSQL(sql, migrations.RunSQL.noop) for sql in (WAITED, WEIGHTS, PARTS, MEASURE_AGAIN)),
    ]
