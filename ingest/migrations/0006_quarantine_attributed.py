from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [
        ("ingest", "0005_quarantine_adapter"),
    ]

    operations = [
        migrations.AddField(
            model_name="quarantinedevent",
            name="attributed_at",
            field=models.DateTimeField(null=True),
        ),
        # Lines of before count where they came in; what they speak of was not looked for then.
        migrations.RunSQL(
            """
            UPDATE ingest_quarantinedevent line SET attributed_at = coalesce(line.occurred_at, batch.received_at)
            FROM ingest_batch batch WHERE batch.id = line.batch_id
            """,
            migrations.RunSQL.noop,
        ),
        migrations.AlterField(
            model_name="quarantinedevent",
            name="attributed_at",
            field=models.DateTimeField(
                db_default=Now(),
                help_text="where no time could be read: the newest instant it speaks of, else when it first came",
            ),
        ),
    ]
