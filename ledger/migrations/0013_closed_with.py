from django.db import migrations, models

# What earlier months were closed with is not known any more; what holds now is, and stays.
KEEP = """
UPDATE ledger_period SET closed_with = jsonb_build_object(
    'mode', ledger.mode, 'currency', ledger.currency,
    'showback', coalesce((ledger.options->>'showback')::boolean, false),
    'owners', (
        SELECT coalesce(jsonb_object_agg(holder.slug, coalesce(owner.slug, '')), '{}')
        FROM ledger_service service
        JOIN ledger_holder holder ON holder.id = service.holder_id
        LEFT JOIN ledger_holder owner ON owner.id = service.owner_id))
FROM ledger_ledger ledger WHERE ledger_period.state = 3
"""


class Migration(migrations.Migration):
    dependencies = [
        ("ledger", "0012_request_defaults"),
    ]

    operations = [
        migrations.AddField(
            model_name="period",
            name="closed_with",
            field=models.JSONField(
                help_text="mode, currency, showback and owners of services at the close: what has no date of its own",
                null=True,
            ),
        ),
        migrations.RunSQL(KEEP, migrations.RunSQL.noop),
    ]
