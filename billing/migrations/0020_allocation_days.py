"""Allocation by day: what pages and forecasts add up. Months that were computed get their days."""

import django.db.models.deletion
from django.db import migrations, models

# The segments that computing a month makes: UTC days of the month, cut where a price of the pool begins or ends and where
# a day of the billing zone begins.
FILL = """
WITH cut AS (
    SELECT NULL::bigint AS pool_id, valid_from AS at FROM billing_ratecard
    UNION SELECT NULL, ended_at FROM billing_ratecard
    UNION SELECT pool_id, valid_from FROM billing_poolcost
    UNION SELECT pool_id, ended_at FROM billing_poolcost
), segment AS (
    SELECT slot.pool_id, slot.starts_at, greatest(
        period.starts_at, date_trunc('day', slot.starts_at, 'UTC'),
        (SELECT date_trunc('day', slot.starts_at, billing_time_zone) FROM ledger_ledger),
        (SELECT max(cut.at) FROM cut
         WHERE cut.at <= slot.starts_at AND coalesce(cut.pool_id, slot.pool_id) = slot.pool_id)
    ) AS begins_at
    FROM ledger_period period
    JOIN billing_poolslot slot ON slot.starts_at >= period.starts_at AND slot.starts_at < period.ends_at
)
INSERT INTO billing_allocationday (
    pool_id, starts_at, account_id, service_class, reserved_used_gpu_us, on_demand_gpu_us, borrowed_gpu_us,
    excess_gpu_us, lent_gpu_us, reserved_idle_gpu_us, undelivered_gpu_us, oversold_gpu_us)
SELECT a.pool_id, segment.begins_at, a.account_id, a.service_class, sum(a.reserved_used_gpu_us),
       sum(a.on_demand_gpu_us), sum(a.borrowed_gpu_us), sum(a.excess_gpu_us), sum(a.lent_gpu_us),
       sum(a.reserved_idle_gpu_us), sum(a.undelivered_gpu_us), sum(a.oversold_gpu_us)
FROM billing_allocation a JOIN segment USING (pool_id, starts_at)
GROUP BY 1, 2, 3, 4
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0019_ends_recorded"),
        ("ledger", "0011_engine_totals"),
    ]

    operations = [
        migrations.CreateModel(
            name="AllocationDay",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "pool",
                        "starts_at",
                        "account",
                        "service_class",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "account",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="ledger.account",
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="ledger.pool",
                    ),
                ),
                ("starts_at", models.DateTimeField()),
                (
                    "service_class",
                    models.SmallIntegerField(
                        choices=[(0, ""), (1, "guaranteed"), (2, "preemptible")], default=0
                    ),
                ),
                ("reserved_used_gpu_us", models.BigIntegerField(default=0)),
                ("on_demand_gpu_us", models.BigIntegerField(default=0)),
                ("borrowed_gpu_us", models.BigIntegerField(default=0)),
                ("excess_gpu_us", models.BigIntegerField(default=0)),
                ("lent_gpu_us", models.BigIntegerField(default=0)),
                ("reserved_idle_gpu_us", models.BigIntegerField(default=0)),
                ("undelivered_gpu_us", models.BigIntegerField(default=0)),
                ("oversold_gpu_us", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.RemoveIndex(
            model_name="poolslot",
            name="pool_slot_when",
        ),
        migrations.AddIndex(
            model_name="poolslot",
            index=models.Index(fields=["starts_at"], include=("capacity_gpu_us",), name="pool_slot_capacity"),
        ),
        migrations.AddIndex(
            model_name="allocationday",
            index=models.Index(fields=["account", "starts_at"], name="allocation_day_of_account"),
        ),
        migrations.AddIndex(
            model_name="allocationday",
            index=models.Index(fields=["starts_at"], name="allocation_day_when"),
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
