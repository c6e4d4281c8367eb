"""The days of tenants' months: what forecasts go by. Months that were computed get theirs."""

import django.db.models.deletion
from django.db import migrations, models

# Prices as `billing.core.rating_prices` finds them: the pool's before its GPU model's, the class's before the general
# one, then what stands in. A day's amount is rounded half to even.
FILL = """
WITH named(category, price_of, rank) AS (VALUES
    ('reserved_used', 'reserved_used', 0), ('on_demand', 'on_demand', 0), ('borrowed', 'borrowed', 0),
    ('borrowed', 'on_demand', 1), ('excess', 'excess', 0), ('excess', 'on_demand', 1), ('lent', 'lent', 0),
    ('lent', 'reserved_used', 1), ('reserved_idle', 'reserved_idle', 0), ('reserved_idle', 'reserved_used', 1)
), card AS (
    SELECT id, valid_from, least(ended_at, lead(valid_from) OVER (ORDER BY valid_from)) AS valid_to
    FROM billing_ratecard
), price AS MATERIALIZED (
    SELECT DISTINCT ON (card.id, pool.id, klass, named.category)
           card.valid_from, coalesce(card.valid_to, 'infinity') AS valid_to, pool.id AS pool_id,
           klass AS service_class, named.category, gpu.price_micro
    FROM card
    CROSS JOIN ledger_pool pool
    CROSS JOIN generate_series(0, 2) AS klass
    CROSS JOIN named
    JOIN billing_gpuprice gpu ON gpu.rate_card_id = card.id AND gpu.category = named.price_of
        AND gpu.service_class IN (klass, 0)
        AND (gpu.pool_id = pool.id OR (gpu.pool_id IS NULL AND gpu.gpu_model = pool.gpu_model))
    ORDER BY card.id, pool.id, klass, named.category, named.rank, gpu.pool_id NULLS LAST, gpu.service_class DESC
), segment AS (
    SELECT period.month, account.tenant_id, (day.starts_at AT TIME ZONE ledger.billing_time_zone)::date AS day,
           day.pool_id, day.service_class, day.starts_at,
           day.reserved_used_gpu_us + day.on_demand_gpu_us + day.borrowed_gpu_us + day.excess_gpu_us AS held_gpu_us,
           ARRAY['reserved_used', 'on_demand', 'borrowed', 'excess', 'lent', 'reserved_idle', ''] AS categories,
           ARRAY[day.reserved_used_gpu_us, day.on_demand_gpu_us, day.borrowed_gpu_us, day.excess_gpu_us,
                 day.lent_gpu_us, day.reserved_idle_gpu_us, day.undelivered_gpu_us + day.oversold_gpu_us] AS parts
    FROM billing_allocationday day
    JOIN ledger_account account ON account.id = day.account_id AND account.tenant_id IS NOT NULL
    JOIN ledger_period period ON day.starts_at >= period.starts_at AND day.starts_at < period.ends_at
    CROSS JOIN ledger_ledger ledger
    WHERE period.horizon_at IS NULL OR day.starts_at < period.horizon_at
), part AS (
    SELECT month, tenant_id, day, segment.category, gpu_us, gpu_us * price_micro::numeric AS product
    FROM (SELECT *, unnest(categories) AS category, unnest(parts) AS gpu_us FROM segment) segment
    LEFT JOIN price ON price.pool_id = segment.pool_id AND price.service_class = segment.service_class
        AND price.category = segment.category AND segment.starts_at >= price.valid_from
        AND segment.starts_at < price.valid_to
    WHERE gpu_us <> 0
), amount AS (
    SELECT month, tenant_id, day, CASE WHEN bool_or(product IS NULL AND category <> '') THEN 0
                                       ELSE coalesce(sum(product), 0) END AS product
    FROM part GROUP BY 1, 2, 3
), rounded AS (
    SELECT month, tenant_id, day,
           div(product, 3600000000) + CASE
               WHEN 2 * mod(product, 3600000000) > 3600000000 THEN 1
               WHEN 2 * mod(product, 3600000000) = 3600000000 THEN mod(div(product, 3600000000), 2)
               ELSE 0 END AS amount
    FROM amount
), held AS (
    SELECT month, tenant_id, day, sum(held_gpu_us) AS gpu_us FROM segment GROUP BY 1, 2, 3 HAVING sum(held_gpu_us) <> 0
), amounts AS (
    SELECT month, tenant_id, min(one.day) AS begins, string_agg(int8send(coalesce(amount, 0)::bigint), '' ORDER BY one.day) AS figures
    FROM (SELECT month, tenant_id, generate_series(min(day), max(day), interval '1 day')::date AS day
          FROM rounded GROUP BY 1, 2) one
    LEFT JOIN rounded USING (month, tenant_id, day)
    GROUP BY 1, 2
), occupied AS (
    SELECT month, tenant_id, min(one.day) AS begins, string_agg(int8send(coalesce(gpu_us, 0)::bigint), '' ORDER BY one.day) AS figures
    FROM (SELECT month, tenant_id, generate_series(min(day), max(day), interval '1 day')::date AS day
          FROM held GROUP BY 1, 2) one
    LEFT JOIN held USING (month, tenant_id, day)
    GROUP BY 1, 2
)
INSERT INTO billing_tenantmonth (period_id, tenant_id, amounts_from, amounts, held_from, held)
SELECT amounts.month, amounts.tenant_id, amounts.begins, amounts.figures, occupied.begins,
       coalesce(occupied.figures, '')
FROM amounts LEFT JOIN occupied USING (month, tenant_id)
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0026_effect_detail"),
        ("ledger", "0012_request_defaults"),
    ]

    operations = [
        migrations.CreateModel(
            name="TenantMonth",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "period", "tenant", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("amounts_from", models.DateField()),
                ("amounts", models.BinaryField()),
                ("held_from", models.DateField(null=True)),
                ("held", models.BinaryField()),
                (
                    "period",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="ledger.period",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="ledger.tenant",
                    ),
                ),
            ],
        ),
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
