"""Tokens by day: what bills add up. Months that were computed get their days, so that they need not be computed again."""

import django.db.models.deletion
from django.db import migrations, models

# The segments that computing a month makes: UTC days of the month, cut where a price of the pool begins or ends.
FILL = """
WITH cut AS (
    SELECT NULL::bigint AS pool_id, valid_from AS at FROM billing_ratecard
    UNION SELECT NULL, ended_at FROM billing_ratecard
    UNION SELECT pool_id, valid_from FROM billing_poolcost
    UNION SELECT pool_id, ended_at FROM billing_poolcost
), counted AS (
    SELECT hour.*, coalesce(slug_holder.id, mapping.tenant_id) AS tenant_id,
           greatest(period.starts_at, date_trunc('day', hour.hour, 'UTC'), (
               SELECT max(cut.at) FROM cut
               WHERE cut.at <= hour.hour AND coalesce(cut.pool_id, hour.pool_id) = hour.pool_id)) AS starts_at
    FROM ledger_period period
    JOIN ledger_usagehour hour ON hour.hour >= period.starts_at AND hour.hour < period.horizon_at
    JOIN ledger_identity identity ON identity.id = hour.identity_id
    LEFT JOIN ledger_holder slug_holder ON identity.kind = 'tenant' AND slug_holder.slug = identity.value
    LEFT JOIN ledger_identitymapping mapping ON mapping.identity_id = identity.id AND mapping.validity @> hour.hour
)
INSERT INTO billing_tokenday (
    pool_id, starts_at, tenant_id, model_id, served, requests, input_tokens, cached_input_tokens, output_tokens,
    reasoning_tokens)
SELECT pool_id, starts_at, tenant_id, model_id, service_id IS NOT NULL, sum(requests), sum(input_tokens),
       sum(cached_input_tokens), sum(output_tokens), sum(reasoning_tokens)
FROM counted WHERE tenant_id IS NOT NULL
GROUP BY 1, 2, 3, 4, 5
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0017_voided_kept"),
        ("ledger", "0011_engine_totals"),
    ]

    operations = [
        migrations.CreateModel(
            name="TokenDay",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "pool",
                        "starts_at",
                        "tenant",
                        "model",
                        "served",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("starts_at", models.DateTimeField()),
                ("served", models.BooleanField()),
                ("requests", models.BigIntegerField()),
                ("input_tokens", models.BigIntegerField()),
                ("cached_input_tokens", models.BigIntegerField()),
                ("output_tokens", models.BigIntegerField()),
                ("reasoning_tokens", models.BigIntegerField()),
                (
                    "model",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="ledger.modelname",
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
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="ledger.holder",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["starts_at"], name="token_day_when")],
            },
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
