from django.db import migrations, models

# A finished sentence of until now stays as it is, as a JSON string.
TAKE_OVER = """
ALTER TABLE billing_effectrun ALTER COLUMN detail TYPE jsonb USING to_jsonb(detail)
"""
GIVE_BACK = """
ALTER TABLE billing_effectrun ALTER COLUMN detail TYPE text
    USING CASE jsonb_typeof(detail) WHEN 'string' THEN detail #>> '{}' ELSE '' END
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0025_close_outcome")]

    operations = [
        migrations.RunSQL(
            TAKE_OVER,
            GIVE_BACK,
            state_operations=[
                migrations.AlterField("effectrun", "detail", models.JSONField(default=str)),
            ],
        )
    ]
